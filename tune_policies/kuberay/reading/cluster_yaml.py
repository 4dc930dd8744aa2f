"""Reads Ray's own cluster YAML, the file of ``ray up``, with what Ray fills in where the file says nothing.

After ``prepare_config`` of ``ray.autoscaler._private.util``: at the top, what the file leaves out is as in the defaults
of its provider; nothing is merged below the top.

Field names are those of https://docs.ray.io/en/latest/cluster/vms/references/ray-cluster-configuration.html.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import Field

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX
from tune_policies.kuberay.design.catalog import NodeCatalog, NodeType
from tune_policies.kuberay.reading.kuberay_models import FieldProblem, Part, read_part

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
    return [FieldProblem((key,), f"{key} {message}") for key in given if data[key] or is_half]


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


_INSTANCE_TYPE: Final = "InstanceType"

_FOR_OBJECTS: Final = 0.3
"""The part of a worker's memory that Ray keeps for its object store (``DEFAULT_OBJECT_STORE_MEMORY_PROPORTION``)."""

_WITH_DEVICES: Final = re.compile(r"(g|gr|p|dl|trn|inf|vt)\d")
"""How the names of AWS' instance types with accelerators begin."""


class InstanceTypes(NamedTuple):
    """What the nodes of one cluster have, where the file leaves that to Ray.

    For AWS, Ray looks up the instance type as the cluster starts, and adds what ``resources`` leaves out
    (``fillout_available_node_types_resources`` of ``ray.autoscaler._private.aws.node_provider``). Here the catalogue
    stands for AWS. For other providers Ray looks nothing up.

    Attributes:
        provider: Where the machines come from; empty: the file does not say.
        catalog: Has the instance types; ``None``: none is known.
    """

    provider: str
    catalog: NodeCatalog | None = None

    def amounts(self, node_type: YamlNodeType, *, is_head: bool = False) -> dict[str, int]:
        """Return the amounts by Ray's resource that Ray counts on a node, as far as they are known.

        Args:
            node_type: What the file says of it.
            is_head: Of the head's memory Ray looks nothing up.
        """
        machine = self._machine(node_type)
        looked_up = {} if machine is None else _looked_up(machine, is_head=is_head)
        return {**looked_up, **(node_type.resources or {})}

    def why_unknown(self, name: str, node_type: YamlNodeType) -> str | None:
        """Return why a node type's amounts are not known, and what to write; ``None``: they are."""
        amounts = self.amounts(node_type)
        if "CPU" in amounts or (amounts and self.provider != FILLS_RESOURCES):
            return None
        return f"the node type {name!r} has no {'CPU in its ' if amounts else ''}{self._why(node_type)}"

    def assumptions(self, node_types: Mapping[str, YamlNodeType]) -> Iterator[str]:
        """Yield what is looked up beside what the file says and is not known here, a sentence for each node type."""
        for name, each in node_types.items():
            instance = each.node_config.get(_INSTANCE_TYPE)
            is_open = self.provider == FILLS_RESOURCES and "GPU" not in (each.resources or {})
            if is_open and isinstance(instance, str) and _WITH_DEVICES.match(instance) and self._machine(each) is None:
                yield (
                    f"AWS adds the devices of {instance} to the resources of {name!r}, which are counted without: give "
                    "--nodes a list of nodes that has it, or write them under resources"
                )

    def _machine(self, node_type: YamlNodeType) -> NodeType | None:
        """Return the catalogue's row of the instance type, by its ``node_config`` or by its name."""
        instance = node_type.node_config.get(_INSTANCE_TYPE)
        if self.provider != FILLS_RESOURCES or self.catalog is None or not isinstance(instance, str):
            return None
        rows = {each.name: each for each in self.catalog.nodes}
        configured = (each for each in self.catalog.nodes if each.node_config.get(_INSTANCE_TYPE) == instance)
        return next(configured, rows.get(instance.replace(".", "-")))

    def _why(self, node_type: YamlNodeType) -> str:
        if self.provider == LOCAL:
            return (
                "resources, which Ray reads from each machine when it starts: run `probe --json` there and "
                "plan for its output, or write a list of nodes"
            )
        if self.provider != FILLS_RESOURCES:
            return "resources: write what a node will have, which Ray finds out for AWS alone before a node starts"
        instance = node_type.node_config.get(_INSTANCE_TYPE)
        if not isinstance(instance, str):
            return (
                f"resources, and its node_config no {_INSTANCE_TYPE} by which AWS could fill them in: write resources"
            )
        unknown = "" if self.catalog is None else ", which the list of nodes does not have"
        return (
            f"resources in the file: AWS fills them in by the instance type {instance}{unknown}; give --nodes a "
            "list of nodes that has it, or write resources"
        )


def _looked_up(machine: NodeType, *, is_head: bool) -> dict[str, int]:
    amounts = {"CPU": machine.cpus, **{name: int(amount) for name, amount in machine.devices.items()}}
    if machine.accelerator_type is not None:
        amounts[ACCELERATOR_TYPE_PREFIX + machine.accelerator_type] = 1
    if is_head or machine.memory is None:
        return amounts
    return {**amounts, "memory": int(int(machine.memory) * (1 - _FOR_OBJECTS))}
