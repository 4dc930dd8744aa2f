"""Writes a designed cluster as a file for KubeRay or Ray's cluster launcher."""

from tune_policies.kuberay.writing.write_cluster import about_unselected, write_cluster
from tune_policies.kuberay.writing.write_options import WriteOptions

__all__ = ["WriteOptions", "about_unselected", "write_cluster"]
