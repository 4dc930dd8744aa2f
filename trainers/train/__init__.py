"""Applies a plan to Ray Train."""
