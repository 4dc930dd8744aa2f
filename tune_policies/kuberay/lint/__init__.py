"""Finds mistakes in cluster files that no schema detects and that cost GPU users days."""
