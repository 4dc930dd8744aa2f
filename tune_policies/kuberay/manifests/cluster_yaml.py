"""Reads Ray's own cluster YAML, the file of ``ray up``, with what Ray fills in where it says nothing.

After ``prepare_config`` of ``ray.autoscaler._private.util``: at the top, what the file leaves out is as in the defaults
of its provider; nothing is merged below the top.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from tune_policies.kuberay.manifests.field_problems import read_part
from tune_policies.kuberay.manifests.kuberay_models import FieldProblem, Part

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


NODE_TYPES: Final = "available_node_types"

OLD_FIELDS: Final = ("head_node", "worker_nodes")
"""Fields of Rays before 2.0: Ray drops them where they are empty, and else refuses the file."""

LOCAL: Final = "local"
"""The provider of machines that are there already, which are listed by their addresses."""

LOCAL_TYPE: Final = "local.cluster.node"
"""The one node type that Ray makes for all machines of a local cluster."""


class ProviderDefaults(NamedTuple):
    """What Ray fills in for a provider.

    Attributes:
        max_workers: Of the cluster; ``None``: there is no default, and Ray fails without one.
        head_node_type: The name of the head's type.
        node_types: Where the file has none; ``None``: there is no default.
    """

    max_workers: int | None = None
    head_node_type: str = "ray.head.default"
    node_types: Mapping[str, Mapping[str, Any]] | None = None


def _clouds_types(head: str, worker: str, resources: dict[str, int], machine: dict[str, Any]) -> dict[str, Any]:
    of_both = {"resources": resources, "node_config": machine}
    return {head: of_both, worker: {"min_workers": 0, **of_both}}


PROVIDERS: Final = {
    "aws": ProviderDefaults(
        2, node_types=_clouds_types("ray.head.default", "ray.worker.default", {}, {"InstanceType": "m5.large"})
    ),
    "gcp": ProviderDefaults(
        2,
        "ray_head_default",
        _clouds_types("ray_head_default", "ray_worker_small", {"CPU": 2}, {"machineType": "n1-standard-2"}),
    ),
    "azure": ProviderDefaults(
        2,
        node_types=_clouds_types(
            "ray.head.default",
            "ray.worker.default",
            {"CPU": 2},
            {"azure_arm_parameters": {"vmSize": "Standard_D2s_v3"}},
        ),
    ),
    "vsphere": ProviderDefaults(5),
    "spark": ProviderDefaults(8),
    "readonly": ProviderDefaults(0),
    **dict.fromkeys(
        ("external", "aliyun", "kuberay", "fake_multinode", "fake_multinode_docker", LOCAL), ProviderDefaults()
    ),
}
"""All providers of Ray. Of those of which most files are, the node types are known too."""

FILLS_RESOURCES: Final = "aws"
"""The provider whose nodes Ray looks up by their instance type: what ``resources`` leaves out, it has from there."""


def is_cluster_yaml(data: object) -> bool:
    """Return whether a document is a cluster YAML and not a manifest of Kubernetes."""
    if not isinstance(data, dict) or "kind" in data or "apiVersion" in data:
        return False
    provider = data.get("provider")
    return NODE_TYPES in data or ("cluster_name" in data and isinstance(provider, dict) and "type" in provider)


def provider_of(data: Mapping[str, Any]) -> str:
    """Return the type of the provider; empty: the file has none."""
    provider = data.get("provider")
    return str(provider.get("type", "")) if isinstance(provider, dict) else ""


def with_defaults(data: dict[str, Any]) -> dict[str, Any]:
    """Return the file's data with what Ray fills in; where there is no default, nothing."""
    provider = provider_of(data)
    if provider == LOCAL:
        return {**data, **_of_machines(data)}
    defaults = PROVIDERS.get(provider, ProviderDefaults())
    filled: dict[str, Any] = {"head_node_type": defaults.head_node_type}
    if defaults.max_workers is not None:
        filled["max_workers"] = defaults.max_workers
    if defaults.node_types is not None:
        filled[NODE_TYPES] = {name: dict(each) for name, each in defaults.node_types.items()}
    return {**filled, **data}


def _of_machines(data: dict[str, Any]) -> dict[str, Any]:
    """Return what Ray makes of a list of machines: one node type, of which all are to be there unless it says less."""
    if data.get(NODE_TYPES):
        return {}
    provider, least, most = data["provider"], data.get("min_workers"), data.get("max_workers")
    ips = provider.get("worker_ips")
    if isinstance(ips, list) and "coordinator_address" not in provider:
        least = min(least, len(ips)) if isinstance(least, int) else len(ips)
        most = min(most, len(ips)) if isinstance(most, int) else len(ips)
    of_type: dict[str, Any] = {"resources": {}, "node_config": {}, "min_workers": least or 0, "max_workers": most}
    return {"max_workers": most, "head_node_type": LOCAL_TYPE, NODE_TYPES: {LOCAL_TYPE: of_type}}


def read_cluster_yaml(data: object) -> tuple[ClusterYaml | None, list[FieldProblem]]:
    """Return the cluster, and the fields that are not as they must be."""
    return read_part(ClusterYaml, with_defaults(data) if isinstance(data, dict) else data)


def old_field_problems(data: Mapping[str, Any]) -> list[FieldProblem]:
    """Return the fields of Rays before 2.0 for which Ray refuses the file."""
    # Without node types, it fails where one of them is missing, even if the other is empty.
    given = [key for key in OLD_FIELDS if key in data]
    is_half = NODE_TYPES not in data and provider_of(data) != LOCAL and len(given) == 1
    message = f"is of Rays before 2.0: move it to a node type under {NODE_TYPES}, as its node_config"
    return [FieldProblem(path=(key,), message=f"{key} {message}") for key in given if data[key] or is_half]


def assumptions(data: Mapping[str, Any]) -> list[str]:
    """Return what the file leaves open and Ray fills in, a sentence each."""
    provider = provider_of(data)
    defaults = PROVIDERS.get(provider, ProviderDefaults())
    found = []
    if NODE_TYPES not in data and defaults.node_types is not None:
        found.append(f"the file has no node types: those that Ray has for {provider} are counted")
    if "max_workers" not in data and defaults.max_workers is not None:
        found.append(f"the file has no max_workers: {defaults.max_workers} is counted, Ray's default for {provider}")
    return found
