"""Measures, and compares what it measured with the alternative in the same run. Nothing imports this package."""
