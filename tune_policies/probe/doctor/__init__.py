"""What is wrong with a machine or a cluster for GPU work: facts of each node → a pure diagnosis → findings.

``node_reader`` runs on the nodes, ``cluster_reader`` sends it there; ``node_checks`` is pure.
"""
