"""Finds problems of a machine or a cluster for GPU work.

``cluster_reader`` reads the facts of each node, and ``node_checks``, which is pure, derives findings from the facts.
"""
