"""Which kind of file a document is: rules for whole documents are picked by it."""

from collections.abc import Mapping

from tune_policies.manifests.chart_values import is_chart_values
from tune_policies.manifests.cluster_yaml import is_cluster_yaml
from tune_policies.manifests.documents import Document

RAY_CLUSTER = "RayCluster"
RAY_JOB = "RayJob"
RAY_SERVICE = "RayService"
VALUES = "values"
"""Values of KubeRay's chart ``ray-cluster``."""
CLUSTER_YAML = "cluster-yaml"
"""The file of ``ray up``."""


def kind_of(document: Document) -> str | None:
    """Return the kind of a document; ``None``: no rule is for it."""
    data = document.data
    if isinstance(data, Mapping) and data.get("kind") in (RAY_CLUSTER, RAY_JOB, RAY_SERVICE):
        return str(data["kind"])
    if is_cluster_yaml(data):
        return CLUSTER_YAML
    return VALUES if is_chart_values(data) else None
