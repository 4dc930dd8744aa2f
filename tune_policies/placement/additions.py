"""Nodes that the autoscaler could add: a capacity with them."""

from collections.abc import Iterator, Mapping

from tune_policies.capacity import ClusterCapacity, NodeCapacity, NodeTypeCapacity
from tune_policies.placement.packing import Request
from tune_policies.slot import TrialSlot


def with_nodes_added(capacity: ClusterCapacity, nodes_to_add: Mapping[str, int]) -> ClusterCapacity:
    """Return ``capacity`` with so many nodes of each type, by its name, as if they were alive; no more can be added."""
    taken = {node.node_id for node in capacity.nodes}
    added = (
        node.model_copy(update={"node_id": node_id})
        for node_type in capacity.node_types or ()
        if (number := nodes_to_add.get(node_type.name, 0))
        for node in (as_node(node_type),)
        for node_id in _free_ids(node_type.name, number, taken)
    )
    return capacity.grown(added)


def as_node(node_type: NodeTypeCapacity) -> NodeCapacity:
    """Return what one node of this type will be. Its whole GPUs cannot be read before it is there."""
    return NodeCapacity(
        node_id=node_type.name,
        resources=node_type.resources,
        accelerator_type=node_type.accelerator_type,
        labels=node_type.labels,
        devices=node_type.devices,
        is_expected=True,
    )


def request_of(slot: TrialSlot) -> Request:
    """Return what a trial in ``slot`` needs."""
    return Request(worker=slot.worker, num_workers=slot.num_workers, accelerator_type=slot.accelerator_type)


def _free_ids(name: str, number: int, taken: set[str]) -> Iterator[str]:
    prefix = name
    while any(node_id.startswith(f"{prefix}+") for node_id in taken):
        prefix += "+"
    return (f"{prefix}+{i}" for i in range(1, number + 1))
