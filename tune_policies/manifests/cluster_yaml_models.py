"""The fields of Ray's cluster YAML that decide what Ray sees of a cluster; all others are let through.

Written after https://docs.ray.io/en/latest/cluster/vms/references/ray-cluster-configuration.html. Names are those of
the file.
"""

from typing import Annotated, Any

from pydantic import Field

from tune_policies.manifests.kuberay_models import Part

NodeCount = Annotated[int, Field(ge=0)]


class YamlNodeType(Part):
    """One kind of node.

    Attributes:
        resources: What Ray counts on it; what they leave out, Ray looks up by the instance type, for AWS alone.
        max_workers: ``None``: as many as the cluster may have.
    """

    resources: dict[str, NodeCount] | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    min_workers: NodeCount = 0
    max_workers: NodeCount | None = None
    idle_timeout_s: Annotated[float, Field(ge=0)] | None = None
    node_config: dict[str, Any] = Field(default_factory=dict)


class ClusterYaml(Part):
    """A cluster as ``ray up`` starts it.

    Attributes:
        max_workers: ``None``: the file does not say, and its provider has no default.
        provider: Where the nodes come from.
    """

    cluster_name: str | None = None
    max_workers: NodeCount | None = None
    idle_timeout_minutes: Annotated[float, Field(ge=0)] | None = None
    head_node_type: str | None = None
    provider: dict[str, Any] = Field(default_factory=dict)
    available_node_types: dict[str, YamlNodeType] = Field(min_length=1)
