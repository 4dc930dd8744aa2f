"""Compares two arms, with confidence intervals."""
