"""Finds problems of a machine or a cluster that affect work on GPUs.

``cluster_reader`` reads the facts of each node, and ``node_checks`` derives findings from the facts without I/O.
"""
