"""A real autoscaler for tests: the one that the benchmark measures."""

from benchmarks.plans.autoscaling_cluster import AutoscalingCluster, autoscaling_cluster, node_type

__all__ = ["AutoscalingCluster", "autoscaling_cluster", "node_type"]
