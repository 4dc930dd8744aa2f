"""Nodes that the autoscaler could add: which of them hold the trials of a plan, and how few it needs."""

from collections.abc import Iterable, Mapping
from functools import partial

from tune_policies.cluster.capacity import ClusterCapacity, NodeGroup, NodeTypeCapacity
from tune_policies.cluster.labels import matcher
from tune_policies.placement.layout import with_places
from tune_policies.placement.packing import Request, count_drivers, count_workers, largest, request_of
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot


def nodes_within_limits(limits: Mapping[str, int], order: Iterable[str], most: int | None) -> dict[str, int]:
    """Return how many nodes to add of each type: as many as possible, the types that come first in order first.

    Args:
        limits: The most nodes of each type.
        order: The types, the best first.
        most: The most nodes of all types together; ``None``: only ``limits`` count.
    """
    chosen: dict[str, int] = {}
    for name in order:
        number = limits[name] if most is None else min(limits[name], most - sum(chosen.values()))
        chosen |= {name: number} if number > 0 else {}
    return chosen


def fewest_nodes(plan: TrialPlan, capacity: ClusterCapacity, most: Mapping[str, int]) -> dict[str, int]:
    """Return the fewest nodes to add, by type, with which all the trials of ``plan`` run; empty: the alive ones do.

    Where a trial's config decides what it gets, the configs that need the most count.

    Args:
        plan: What is to run.
        capacity: The alive nodes, and the types of those that can be added.
        most: How many may be added of each type, with which the plan is known to run.
    """
    if len(plan.slots) > 1:
        return _fewest_for_slots(plan.slots, capacity, most)
    return _fewest_for(plan.slots[0], capacity, most)


def _fewest_for_slots(
    slots: tuple[TrialSlot, ...], capacity: ClusterCapacity, most: Mapping[str, int]
) -> dict[str, int]:
    """Return as few nodes as hold the slots of all types. Each node type is made as small as can be in turn."""
    fewest = dict(most)

    def is_short_with(name: str, number: int) -> bool:
        return with_places(slots, capacity.with_nodes_added({**fewest, name: number})) != slots

    if with_places(slots, capacity.with_nodes_added(most)) != slots:
        return fewest  # the policy leaves something free, so it alone knows how the slots share the nodes
    for name in sorted(most):
        if is_short_with(name, 0):
            fewest[name] = 1 + largest(0, most[name], partial(is_short_with, name))
        else:
            del fewest[name]
    return fewest


def _fewest_for(slot: TrialSlot, capacity: ClusterCapacity, most: Mapping[str, int]) -> dict[str, int]:
    request = request_of(slot)
    is_selected = matcher(slot.label_selector)
    alive = capacity.where(lambda node: is_selected(node.ray_labels)) if slot.label_selector else capacity
    needed = slot.max_concurrent_trials
    missing = needed * request.processes - _workers(alive.groups, request, needed)
    drivers_left = needed - _drivers(alive.groups, request, needed)
    taken: dict[str, int] = {}
    for node_type in types_that_hold(slot, capacity, needed):
        if missing <= 0 and drivers_left <= 0:
            break
        node = (NodeGroup(node_type.as_node(), 1),)
        holds, for_drivers = _workers(node, request, needed), _drivers(node, request, needed)
        number = max(-(-missing // holds), -(-drivers_left // for_drivers) if for_drivers else 0)
        number = min(number, most.get(node_type.name, 0))
        missing, drivers_left = missing - number * holds, drivers_left - number * for_drivers
        taken |= {node_type.name: number} if number else {}
    return taken


def types_that_hold(slot: TrialSlot, capacity: ClusterCapacity, num_trials: int) -> list[NodeTypeCapacity]:
    """Return the node types that hold a worker of ``slot``, those that hold the most first.

    Types with GPUs come last for a worker without: Ray starts such a node only where no other will do.
    """
    request = request_of(slot)

    def preference(holds: int, node_type: NodeTypeCapacity) -> tuple[object, ...]:
        return (node_type.resources.gpus > 0 and not slot.worker.gpus, -holds, node_type.name)

    is_selected = matcher(slot.label_selector)
    types = (
        (_workers((NodeGroup(each.as_node(), 1),), request, num_trials), each)
        for each in capacity.node_types or ()
        if is_selected(each.as_node().ray_labels)
    )
    return [each for _, each in sorted((pair for pair in types if pair[0]), key=lambda pair: preference(*pair))]


def _workers(groups: Iterable[NodeGroup], request: Request, num_trials: int) -> int:
    return count_workers(groups, request, num_drivers=num_trials if request.num_workers else 0)


def _drivers(groups: Iterable[NodeGroup], request: Request, num_trials: int) -> int:
    """Return how many drivers find room; all of them, where the count of workers includes them."""
    if request.num_workers == 0 or request.worker.memory_bytes is not None:
        return num_trials
    return count_drivers(groups, num_trials)
