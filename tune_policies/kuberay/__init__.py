"""Clusters that are to be: their nodes, their files, and what is wrong with these."""
