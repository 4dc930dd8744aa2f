"""The placement engine: what fits a cluster, where, what remains, and which nodes could be added. Pure, in ticks."""
