"""Clusters before they exist: the nodes that there could be, those that trials need, and what they cost."""
