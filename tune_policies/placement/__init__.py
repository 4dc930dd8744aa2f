"""Computes where slots fit, which capacity remains, and which nodes to add.

Host memory is in bytes, and all other amounts are in ticks.
"""
