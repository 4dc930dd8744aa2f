"""Computes where slots fit, which capacity remains, and which nodes to add. Amounts are in ticks."""
