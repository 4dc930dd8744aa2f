"""Which kind of file a document is: rules for whole documents are picked by it."""

from collections.abc import Mapping

from tune_policies.manifests.documents import Document

RAY_CLUSTER = "RayCluster"
RAY_JOB = "RayJob"
RAY_SERVICE = "RayService"
VALUES = "values"
"""Values of KubeRay's chart ``ray-cluster``."""
CLUSTER_YAML = "cluster-yaml"
"""The file of ``ray up``."""


def kind_of(document: Document) -> str | None:
    """Return the kind of a document; ``None``: it is not about Ray."""
    data = document.data
    if not isinstance(data, Mapping):
        return None
    if isinstance(kind := data.get("kind"), str):
        return kind if kind in (RAY_CLUSTER, RAY_JOB, RAY_SERVICE) else None
    if "available_node_types" in data:
        return CLUSTER_YAML
    if isinstance(data.get("head"), Mapping) and "apiVersion" not in data:
        return VALUES
    return None
