"""What is wrong with a machine or a cluster for GPU work.

``cluster_reader`` collects the facts of each node; ``node_checks`` is pure and turns facts into findings.
"""
