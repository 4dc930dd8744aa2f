"""Reads Ray's own cluster YAML, the file of ``ray up``."""

from tune_policies.manifests.cluster_yaml_models import ClusterYaml
from tune_policies.manifests.field_problems import read_part
from tune_policies.manifests.kuberay_models import FieldProblem

NODE_TYPES = "available_node_types"


def is_cluster_yaml(data: object) -> bool:
    """Return whether a document is a cluster YAML and not a manifest of Kubernetes."""
    return isinstance(data, dict) and "kind" not in data and NODE_TYPES in data


def read_cluster_yaml(data: object) -> tuple[ClusterYaml | None, list[FieldProblem]]:
    """Return the cluster, and the fields that are not as they must be."""
    return read_part(ClusterYaml, data)
