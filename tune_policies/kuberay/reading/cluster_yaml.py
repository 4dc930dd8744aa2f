"""Reads Ray's cluster YAML, which is the input of ``ray up``, and adds Ray's defaults.

As in ``prepare_config`` of ``ray.autoscaler._private.util``, missing fields at the top level get the defaults of the
provider. Lower levels are not merged.

The field names are documented at https://docs.ray.io/en/latest/cluster/vms/references/ray-cluster-configuration.html.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX
from tune_policies.kuberay.design.catalog_file import NodeCatalog, NodeType
from tune_policies.kuberay.reading.kuberay_models import FieldProblem, Part, read_part

NodeCount = Annotated[int, Field(ge=0)]


class YamlNodeType(Part):
    """A node type in a cluster YAML.

    Attributes:
        resources: The amounts that Ray counts. On AWS, Ray looks up missing amounts by the instance type.
        max_workers: The maximum number of nodes; ``None`` for the limit of the cluster.
    """

    resources: dict[str, NodeCount] | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    min_workers: NodeCount = 0
    max_workers: NodeCount | None = None
    idle_timeout_s: Annotated[float, Field(ge=0)] | None = None
    node_config: dict[str, Any] = Field(default_factory=dict)


class ClusterYaml(Part):
    """A cluster for ``ray up``. ``max_workers`` is ``None`` if neither the file nor the provider sets it."""

    cluster_name: str | None = None
    max_workers: NodeCount | None = None
    idle_timeout_minutes: Annotated[float, Field(ge=0)] | None = None
    head_node_type: str | None = None
    provider: dict[str, Any] = Field(default_factory=dict)
    available_node_types: dict[str, YamlNodeType] = Field(min_length=1)


NODE_TYPES: Final = "available_node_types"

LOCAL: Final = "local"
"""The provider for existing machines. The file lists their addresses."""

LOCAL_TYPE: Final = "local.cluster.node"
"""The node type that Ray uses for all machines of a local cluster."""


class ProviderDefaults(NamedTuple):
    """Ray's defaults for a provider. If ``max_workers`` is ``None``, Ray has no default and requires the field."""

    max_workers: int | None = None
    head_node_type: str = "ray.head.default"
    node_types: Mapping[str, Mapping[str, Any]] | None = None


# The numbers and node types are those of ``ray/autoscaler/<provider>/defaults.yaml``, which Ray installs.
def _cloud_node_types(head: str, worker: str, resources: dict[str, int], machine: dict[str, Any]) -> dict[str, Any]:
    of_both = {"resources": resources, "node_config": machine}
    return {head: of_both, worker: {"min_workers": 0, **of_both}}


PROVIDERS: Final = {
    "aws": ProviderDefaults(
        2, node_types=_cloud_node_types("ray.head.default", "ray.worker.default", {}, {"InstanceType": "m5.large"})
    ),
    "gcp": ProviderDefaults(
        2,
        "ray_head_default",
        _cloud_node_types("ray_head_default", "ray_worker_small", {"CPU": 2}, {"machineType": "n1-standard-2"}),
    ),
    "azure": ProviderDefaults(
        2,
        node_types=_cloud_node_types(
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
"""All providers of Ray, with the default node types of the most common providers."""

FILLS_RESOURCES: Final = "aws"
"""The provider for which Ray looks up missing ``resources`` by the instance type."""


def is_cluster_yaml(data: object) -> bool:
    """Return whether a document is a cluster YAML and not a Kubernetes manifest."""
    # Every Kubernetes object has both fields, and a cluster YAML has neither.
    if not isinstance(data, dict) or "kind" in data or "apiVersion" in data:
        return False
    provider = data.get("provider")
    # Node types may be missing, because Ray has defaults for them. Then only the provider distinguishes the file from
    # other YAML.
    return NODE_TYPES in data or ("cluster_name" in data and isinstance(provider, dict) and "type" in provider)


def provider_of(data: Mapping[str, Any]) -> str:
    """Return the type of the provider, or an empty string if the file has none."""
    provider = data.get("provider")
    if isinstance(provider, dict):
        return str(provider.get("type", ""))
    return ""


def with_defaults(data: dict[str, Any]) -> dict[str, Any]:
    """Return the file's data with Ray's defaults."""
    provider = provider_of(data)
    if provider == LOCAL:
        return {**data, **_local_cluster_fields(data)}
    defaults = PROVIDERS.get(provider, ProviderDefaults())
    filled: dict[str, Any] = {"head_node_type": defaults.head_node_type}
    if defaults.max_workers is not None:
        filled["max_workers"] = defaults.max_workers
    if defaults.node_types is not None:
        filled[NODE_TYPES] = {name: dict(node_type) for name, node_type in defaults.node_types.items()}
    return {**filled, **data}


def _local_cluster_fields(data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that Ray adds for a list of machines: one node type with all machines up to the limit."""
    # ``prepare_local`` in Ray accepts node types only in a file that it has prepared before, and keeps them.
    if data.get(NODE_TYPES):
        return {}
    provider, least, most = data["provider"], data.get("min_workers"), data.get("max_workers")
    ips = provider.get("worker_ips")
    # As in ``ray.autoscaler._private.local.config``. With a coordinator, the file does not list the machines.
    if isinstance(ips, list) and "coordinator_address" not in provider:
        least = _at_most(len(ips), least)
        most = _at_most(len(ips), most)
    of_type: dict[str, Any] = {"resources": {}, "node_config": {}, "min_workers": least or 0, "max_workers": most}
    return {"max_workers": most, "head_node_type": LOCAL_TYPE, NODE_TYPES: {LOCAL_TYPE: of_type}}


def _at_most(limit: int, number: object) -> int:
    """Return a number of workers up to the limit. If it is missing or invalid, Ray uses the limit."""
    if isinstance(number, int):
        return min(limit, number)
    return limit


def read_cluster_yaml(data: object) -> tuple[ClusterYaml | None, list[FieldProblem]]:
    """Return the cluster (``None`` if a field is wrong), and the problems of its fields."""
    if isinstance(data, dict):
        data = with_defaults(data)
    return read_part(ClusterYaml, data)


def assumptions(data: Mapping[str, Any]) -> list[str]:
    """Return a sentence about each default that matters to a plan."""
    provider = provider_of(data)
    defaults = PROVIDERS.get(provider, ProviderDefaults())
    found = []
    if NODE_TYPES not in data and defaults.node_types is not None:
        found.append(f"the file has no node types, so Ray's default types for {provider} are assumed")
    if "max_workers" not in data and defaults.max_workers is not None:
        found.append(f"the file has no max_workers, so Ray's default for {provider} is assumed: {defaults.max_workers}")
    return found


_INSTANCE_TYPE: Final = "InstanceType"

_OBJECT_STORE_FRACTION: Final = 0.3
"""The fraction of a worker node's memory for Ray's object store (``DEFAULT_OBJECT_STORE_MEMORY_PROPORTION``)."""

_WITH_DEVICES: Final = re.compile(r"(g|gr|p|dl|trn|inf|vt)\d")
"""The prefixes of AWS instance types with accelerators."""


class InstanceTypes(NamedTuple):
    """Looks up the resources of a cluster's nodes by their instance types.

    For AWS, Ray looks up the instance type when the cluster starts, and adds missing ``resources``
    (``fillout_available_node_types_resources`` of ``ray.autoscaler._private.aws.node_provider``). In this
    class, the catalog replaces the look-up. For other providers, Ray does not look up resources.
    """

    provider: str
    catalog: NodeCatalog | None = None

    def amounts(self, node_type: YamlNodeType, *, is_head: bool = False) -> dict[str, int]:
        """Return the known resource amounts of a node, by Ray's resource name.

        Ray does not look up the memory of the head node.
        """
        given, machine = node_type.resources or {}, self._machine(node_type)
        if machine is None:
            return dict(given)
        amounts = {"CPU": machine.cpus, **{name: int(amount) for name, amount in machine.devices.items()}}
        if machine.accelerator_type is not None:
            amounts[ACCELERATOR_TYPE_PREFIX + machine.accelerator_type] = 1
        if machine.memory is not None and not is_head:
            amounts["memory"] = int(int(machine.memory) * (1 - _OBJECT_STORE_FRACTION))
        return amounts | given

    def why_unknown(self, name: str, node_type: YamlNodeType) -> str | None:
        """Return why the resources of a node type are unknown and how to fix it, or ``None`` if they are known."""
        amounts = self.amounts(node_type)
        # Outside AWS, Ray takes the stated amounts as they are. On AWS, it adds the CPUs of the instance type to them.
        if "CPU" in amounts or (amounts and self.provider != FILLS_RESOURCES):
            return None
        instance = node_type.node_config.get(_INSTANCE_TYPE)
        if self.provider == LOCAL:
            why = (
                "resources, because Ray detects them when each machine starts. Run `probe --json` on the running "
                "cluster and plan for its output, or write a catalog"
            )
        elif self.provider != FILLS_RESOURCES:
            why = "resources, and Ray looks them up only on AWS: add the resources of a node"
        elif not isinstance(instance, str):
            why = f"resources, and Ray cannot look them up without {_INSTANCE_TYPE} in node_config: add resources"
        else:
            unknown = "" if self.catalog is None else ", which is missing from the catalog"
            why = (
                f"resources in the file. Ray looks them up for the instance type {instance}{unknown}. Pass a "
                "catalog with this type as --nodes, or add resources"
            )
        if amounts:
            why = f"CPU in its {why}"
        return f"the node type {name!r} has no {why}"

    def assumptions(self, node_types: Mapping[str, YamlNodeType]) -> Iterator[str]:
        """Yield a sentence about each node type whose devices Ray adds on AWS but a plan does not count."""
        if self.provider != FILLS_RESOURCES:
            return
        for name, node_type in node_types.items():
            instance = node_type.node_config.get(_INSTANCE_TYPE)
            has_devices = isinstance(instance, str) and _WITH_DEVICES.match(instance)
            is_stated = "GPU" in (node_type.resources or {})
            if has_devices and not is_stated and self._machine(node_type) is None:
                yield (
                    f"Ray adds the devices of the instance type {instance} to the resources of {name!r}, but the plan "
                    "does not count them. Pass a catalog with this type as --nodes, or add them to resources"
                )

    def _machine(self, node_type: YamlNodeType) -> NodeType | None:
        """Return the entry of the catalog whose ``node_config`` or name matches the instance type, or ``None``."""
        instance = node_type.node_config.get(_INSTANCE_TYPE)
        # For other providers, the catalog must not add amounts that Ray itself does not know.
        if self.provider != FILLS_RESOURCES or self.catalog is None or not isinstance(instance, str):
            return None
        # Users choose the names of node types freely, so an instance type in ``node_config`` is more reliable than a
        # name.
        for row in self.catalog.nodes:
            if row.node_config.get(_INSTANCE_TYPE) == instance:
                return row
        by_name = {row.name: row for row in self.catalog.nodes}
        return by_name.get(instance.replace(".", "-"))  # the row for g6.xlarge is named g6-xlarge
