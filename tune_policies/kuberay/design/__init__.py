"""Designs clusters that do not exist yet: the available nodes, the nodes that trials need, and their price."""
