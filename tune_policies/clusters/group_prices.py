"""What the nodes of a cluster cost: the prices of a node catalogue, found for groups that others have named."""

from tune_policies.accelerators import DEVICE_RESOURCES
from tune_policies.clusters.catalog import NodeCatalog, NodeType
from tune_policies.clusters.cluster_spec import ClusterSpec, WorkerGroup
from tune_policies.resources import Resources


def with_prices(spec: ClusterSpec, catalog: NodeCatalog) -> ClusterSpec:
    """Return the cluster with the price of a node in each group of which the catalogue has one.

    A group costs what the node type of its name costs, else what the smallest does that has the same devices, of the
    same type where both tell, and no fewer CPUs.
    """
    groups = tuple(group.model_copy(update={"price_per_hour": _price(group, catalog)}) for group in spec.groups)
    return spec.model_copy(update={"groups": groups})


def _price(group: WorkerGroup, catalog: NodeCatalog) -> float | None:
    named = {each.name: each for each in catalog.node_types}.get(group.name)
    if named is not None:
        return named.price_per_hour
    alike = [each for each in catalog.node_types if _holds(each, group)]
    nearest = min(alike, key=lambda each: (each.cpus, each.price_per_hour or 0, each.name), default=None)
    return None if nearest is None else nearest.price_per_hour


def _holds(node_type: NodeType, group: WorkerGroup) -> bool:
    types = {node_type.accelerator_type, group.accelerator_type} - {None}
    same_devices = _devices(node_type.resources) == _devices(group.resources)
    return same_devices and len(types) <= 1 and node_type.cpus >= group.resources.cpus


def _devices(resources: Resources) -> dict[str, int]:
    return {name: ticks for name, ticks in resources.ticks.items() if name in DEVICE_RESOURCES}
