"""Decides from measurements which device is faster or cheaper at each size."""
