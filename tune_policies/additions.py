"""Nodes that the autoscaler could add: a capacity with them, and how few of them a plan needs."""

from collections.abc import Iterable, Iterator, Mapping

from tune_policies.capacity import ClusterCapacity, NodeCapacity, NodeGroup, NodeTypeCapacity
from tune_policies.labels import matcher
from tune_policies.packing import Request, count_drivers, count_workers
from tune_policies.plan import TrialPlan
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
    """Return what one node of this type will be. Its devices cannot be read before it is there."""
    return NodeCapacity(
        node_id=node_type.name,
        resources=node_type.resources,
        accelerator_type=node_type.accelerator_type,
        labels=node_type.labels,
        is_expected=True,
    )


def fewest_nodes(plan: TrialPlan, capacity: ClusterCapacity, most: Mapping[str, int]) -> dict[str, int]:
    """Return the fewest nodes to add, by type, with which all the trials of ``plan`` run; empty: the alive ones do.

    Where configs decide, they are those that need the most, of which the fewest run at once.

    Args:
        plan: What is to run.
        capacity: The alive nodes, and the types of those that can be added.
        most: How many may be added of each type, with which the plan is known to run.
    """
    if len(plan.slots) > 1:
        return dict(most)  # kinds of slots share nodes, and how they do is the policy's own affair
    return _fewest_for(plan.slots[0], capacity, most)


def _fewest_for(slot: TrialSlot, capacity: ClusterCapacity, most: Mapping[str, int]) -> dict[str, int]:
    request = request_of(slot)
    is_selected = matcher(slot.label_selector)
    alive = capacity.where(lambda node: is_selected(node.ray_labels)) if slot.label_selector else capacity
    needed = slot.max_concurrent_trials
    missing = needed * request.processes - _workers(alive.groups, request, needed)
    homeless = needed - _drivers(alive.groups, request, needed)
    taken: dict[str, int] = {}
    for node_type in by_use(slot, capacity, needed):
        if missing <= 0 and homeless <= 0:
            break
        node = (NodeGroup(as_node(node_type), 1),)
        holds, houses = _workers(node, request, needed), _drivers(node, request, needed)
        number = max(-(-missing // holds), -(-homeless // houses) if houses else 0)
        number = min(number, most.get(node_type.name, 0))
        missing, homeless = missing - number * holds, homeless - number * houses
        taken |= {node_type.name: number} if number else {}
    return taken


def by_use(slot: TrialSlot, capacity: ClusterCapacity, num_trials: int) -> list[NodeTypeCapacity]:
    """Return the node types that hold a worker of ``slot``, those that hold the most first.

    Types with GPUs come last for a worker without: Ray starts such a node only where no other will do.
    """
    request = request_of(slot)

    def preference(holds: int, node_type: NodeTypeCapacity) -> tuple[object, ...]:
        return (node_type.resources.gpus > 0 and not slot.worker.gpus, -holds, node_type.name)

    is_selected = matcher(slot.label_selector)
    types = (
        (_workers((NodeGroup(as_node(each), 1),), request, num_trials), each)
        for each in capacity.node_types or ()
        if is_selected(as_node(each).ray_labels)
    )
    return [each for _, each in sorted((pair for pair in types if pair[0]), key=lambda pair: preference(*pair))]


def _workers(groups: Iterable[NodeGroup], request: Request, num_trials: int) -> int:
    return count_workers(groups, request, num_drivers=num_trials if request.num_workers else 0)


def _drivers(groups: Iterable[NodeGroup], request: Request, num_trials: int) -> int:
    """Return how many drivers of the trials find room; where workers hold memory, they are counted with those."""
    if request.num_workers == 0 or request.worker.memory_bytes is not None:
        return num_trials
    return count_drivers(groups, num_trials)


def request_of(slot: TrialSlot) -> Request:
    """Return what a trial in ``slot`` needs."""
    return Request(worker=slot.worker, num_workers=slot.num_workers, accelerator_type=slot.accelerator_type)


def _free_ids(name: str, number: int, taken: set[str]) -> Iterator[str]:
    prefix = name
    while any(node_id.startswith(f"{prefix}+") for node_id in taken):
        prefix += "+"
    return (f"{prefix}+{i}" for i in range(1, number + 1))
