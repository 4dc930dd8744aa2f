"""Nodes that could be added: which hold the trials of a plan, how few it needs, and the smallest node that would do."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from tune_policies.cluster.accelerators import ACCELERATOR_TYPES, DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity, GpuDevice, NodeCapacity, NodeGroup, NodeTypeCapacity
from tune_policies.cluster.labels import matcher
from tune_policies.placement.layout import with_places
from tune_policies.placement.packing import Request, count_drivers, count_workers, largest, request_of
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import Resources
from tune_policies.values.units import GIB


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
    return _fewest(plan.slots, capacity, most)


def _fewest(slots: tuple[TrialSlot, ...], capacity: ClusterCapacity, most: Mapping[str, int]) -> dict[str, int]:
    if len(slots) > 1:
        return _fewest_for_slots(slots, capacity, most)
    return _fewest_for(slots[0], capacity, most)


def _fewest_for_slots(
    slots: tuple[TrialSlot, ...], capacity: ClusterCapacity, most: Mapping[str, int]
) -> dict[str, int]:
    """Return as few nodes as hold the slots of all types. Each node type is made as small as can be in turn.

    Nodes with devices are spared first, as they cost the most, and then small ones, of which it takes more.
    """
    fewest = dict(most)
    types = {each.name: each.resources for each in capacity.node_types or ()}

    def preference(name: str) -> tuple[object, ...]:
        has = types[name]
        return (not has.ticks.keys() & DEVICE_RESOURCES, has.gpus, has.cpus, name)

    def is_short_with(name: str, number: int) -> bool:
        return with_places(slots, capacity.with_nodes_added({**fewest, name: number})) != slots

    if with_places(slots, capacity.with_nodes_added(most)) != slots:
        return fewest  # the policy leaves something free, so it alone knows how the slots share the nodes
    for name in sorted(most, key=preference):
        if is_short_with(name, 0):
            fewest[name] = 1 + largest(0, most[name], partial(is_short_with, name))
        else:
            del fewest[name]
    return fewest


def uses_devices(slot: TrialSlot) -> bool:
    """Return whether a worker of the slot has devices, or a share of one."""
    return not DEVICE_RESOURCES.isdisjoint(slot.worker.ticks)


def most_for_devices(
    slots: tuple[TrialSlot, ...], capacity: ClusterCapacity, most: Mapping[str, int]
) -> dict[str, int]:
    """Return how many nodes may be added of each type, those with devices only as far as slots with devices need them.

    That is ``most`` where there are no such slots, or no others, or where nodes without devices do not hold the others.

    Args:
        slots: The slots of the plan with the most nodes.
        capacity: The alive nodes, and the types of those that can be added.
        most: How many may be added of each type.
    """
    with_devices = tuple(filter(uses_devices, slots))
    others = [slot for slot in slots if not uses_devices(slot)]
    plain = {each.name for each in capacity.node_types or () if DEVICE_RESOURCES.isdisjoint(each.resources.ticks)}
    can_be_had = {name for name in plain if most.get(name)}
    held_by = [{each.name for each in types_that_hold(slot, capacity, slot.max_concurrent_trials)} for slot in others]
    if not with_devices or not others or any(can_be_had.isdisjoint(names) for names in held_by):
        return dict(most)
    needed = _fewest(with_devices, capacity, most)
    return {name: number if name in plain else needed.get(name, 0) for name, number in most.items()}


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


_MOST: Final = 2**16
"""No node has more of anything."""

GPU_MEMORY: Final = "GPU memory"
"""How errors call it; in an imagined node it is counted in GiB for each GPU."""


_PlanOn = Callable[[ClusterCapacity], TrialPlan]


def plan_on_smallest_node(plan_on: _PlanOn) -> TrialPlan | None:
    """Return the plan for the smallest node on which a trial runs; ``None``: none is found.

    A policy says what a trial needs only by its plan. Where no node fits, and the autoscaler's node types are not
    known, this plan says what to ask the autoscaler for. It is found by planning on larger and larger nodes. A policy
    that wants GPU memory gets a GPU that it fills, so for each worker a whole one.

    Args:
        plan_on: A policy's ``plan``.
    """
    amounts: dict[str, int] = {}
    while (error := _why_not(plan_on, amounts)) is not None:
        grown = amounts | {name: max(1, 2 * amounts.get(name, 0)) for name in _short_of(error)}
        if grown == amounts or max(grown.values()) > _MOST:
            return None
        amounts = grown
    for name in sorted(amounts, reverse=True):  # GPUs before CPUs
        amounts = amounts | {name: _least(plan_on, amounts, name)}
    return plan_on(_capacity(amounts))


def _least(plan_on: _PlanOn, amounts: dict[str, int], name: str) -> int:
    def too_few(amount: int) -> bool:
        return _why_not(plan_on, amounts | {name: amount}) is not None

    return largest(0, amounts[name], too_few) + 1 if too_few(0) else 0


def _why_not(plan_on: _PlanOn, amounts: dict[str, int]) -> InfeasibleRequestError | None:
    try:
        plan_on(_capacity(amounts))
    except InfeasibleRequestError as error:
        return error
    return None


def _short_of(error: InfeasibleRequestError) -> list[str]:
    """Return the names of what to add to the node; empty: more would not help."""
    if error.tried:
        return _short_of(error.tried[0])
    if error.short_of == "memory":
        return []  # the node's host memory is not known, which limits nothing already
    if error.short_of == GPU_MEMORY or error.short_of in ACCELERATOR_TYPES:
        return ["GPU", error.short_of]
    return [error.short_of]


def _capacity(amounts: dict[str, int]) -> ClusterCapacity:
    rest = {name: amount for name, amount in amounts.items() if amount}
    cpus, gpus, memory = (rest.pop(name, 0) for name in ("CPU", "GPU", GPU_MEMORY))
    types = [name for name in rest if name in ACCELERATOR_TYPES]
    devices = [GpuDevice(index=i, name="imagined", memory_bytes=memory * GIB) for i in range(gpus if memory else 0)]
    node = NodeCapacity(
        node_id="imagined",
        resources=Resources(cpus=cpus, gpus=gpus, custom={name: rest[name] for name in rest.keys() - set(types)}),
        accelerator_type=types[0] if types else None,
        devices=tuple(devices) if memory else None,
    )
    return ClusterCapacity(nodes=(node,))
