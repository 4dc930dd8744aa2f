"""Compares plans with exact optima and with real Ray clusters."""
