"""The placement engine: where slots fit, the remaining capacity, and the nodes to add. Amounts are in ticks."""
