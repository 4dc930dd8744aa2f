"""Clusters that are to be: the nodes that one can have, those that a plan needs, and what they cost."""
