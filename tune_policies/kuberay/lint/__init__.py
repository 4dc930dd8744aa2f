"""Finds mistakes in cluster files that no schema detects."""
