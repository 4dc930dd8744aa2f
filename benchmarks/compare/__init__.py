"""Compares two configurations, with confidence intervals."""
