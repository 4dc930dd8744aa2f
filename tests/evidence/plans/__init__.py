"""Compares plans with exact optima and with a real Ray."""
