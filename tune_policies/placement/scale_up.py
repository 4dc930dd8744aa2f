"""Computes nodes to add: the types that fit a plan, the minimum number of nodes, and the smallest node for a trial."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import itemgetter
from typing import Final, TypeVar

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import matcher
from tune_policies.cluster.node import GpuDevice, NodeCapacity, NodeGroup, NodeTypeCapacity
from tune_policies.placement.count_trials import count_drivers, count_workers, largest
from tune_policies.placement.layout import with_places
from tune_policies.placement.request import Limit, Request, request_of
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import Resources
from tune_policies.values.units import GIB


def nodes_within_limits(limits: Mapping[str, int], order: Iterable[str], most: int | None) -> dict[str, int]:
    """Return the number of nodes of each type, chosen in ``order`` up to ``limits`` per type and ``most`` in total."""
    chosen: dict[str, int] = {}
    for name in order:
        number = limits[name]
        if most is not None:
            number = min(number, most - sum(chosen.values()))
        if number > 0:
            chosen[name] = number
    return chosen


def fewest_nodes(slots: tuple[TrialSlot, ...], capacity: ClusterCapacity, most: Mapping[str, int]) -> dict[str, int]:
    """Return the smallest number of nodes of each type to add so that all trials in ``slots`` can run.

    The numbers of nodes in ``most`` must be enough for all trials. If the slot of a trial depends on its config, the
    result is for the configs with the largest requests.
    """
    if len(slots) > 1:
        return _fewest_for_slots(slots, capacity, most)
    return _fewest_for(slots[0], capacity, most)


def _fewest_for_slots(
    slots: tuple[TrialSlot, ...], capacity: ClusterCapacity, most: Mapping[str, int]
) -> dict[str, int]:
    """Return the minimum number of nodes of each type for slots of several types.

    The numbers are minimized one node type after another. Node types with devices come first, because they cost the
    most. Otherwise, small node types come first.
    """
    fewest = dict(most)
    types = {node_type.name: node_type.resources for node_type in capacity.node_types or ()}

    def preference(name: str) -> tuple[object, ...]:
        has = types[name]
        return (not has.ticks.keys() & DEVICE_RESOURCES, has.gpus, has.cpus, name)

    def is_short_with(name: str, number: int) -> bool:
        return with_places(slots, capacity.with_nodes_added({**fewest, name: number})) != slots

    if with_places(slots, capacity.with_nodes_added(most)) != slots:
        return fewest  # the policy reserves resources for other work, so only the policy can place the slots
    for name in sorted(most, key=preference):
        if most[name] and is_short_with(name, most[name] - 1):
            continue  # tested first, because plans usually need all nodes
        if is_short_with(name, 0):
            fewest[name] = 1 + largest(0, most[name], partial(is_short_with, name))
        else:
            del fewest[name]
    return fewest


def uses_devices(slot: TrialSlot) -> bool:
    """Return whether a worker of the slot reserves devices or a device fraction."""
    return slot.has_device


def most_for_devices(
    slots: tuple[TrialSlot, ...], capacity: ClusterCapacity, most: Mapping[str, int]
) -> dict[str, int]:
    """Return ``most`` with fewer nodes that have devices: only as many as slots with devices need.

    ``most`` is unchanged if all slots or no slots have devices, or if a slot without devices needs a node with devices.
    """
    with_devices = tuple(filter(uses_devices, slots))
    others = [slot for slot in slots if not uses_devices(slot)]
    if not with_devices or not others:
        return dict(most)
    types = capacity.node_types or ()
    plain = {node_type.name for node_type in types if DEVICE_RESOURCES.isdisjoint(node_type.resources.ticks)}
    available = {name for name in plain if most.get(name)}
    for slot in others:
        with_room = {node_type.name for node_type in types_with_room(slot, capacity, slot.max_concurrent_trials)}
        if available.isdisjoint(with_room):
            return dict(most)
    needed = fewest_nodes(with_devices, capacity, most)
    enough = dict(most)
    for name in most.keys() - plain:
        enough[name] = needed.get(name, 0)
    return enough


def _fewest_for(slot: TrialSlot, capacity: ClusterCapacity, most: Mapping[str, int]) -> dict[str, int]:
    request = request_of(slot)
    is_selected = matcher(slot.label_selector)
    alive = capacity
    if slot.label_selector:
        alive = capacity.where(lambda node: is_selected(node.ray_labels))
    needed = slot.max_concurrent_trials
    missing = needed * request.processes - _workers(alive.groups, request, needed)
    drivers_left = needed - _drivers(alive.groups, request, needed)
    taken: dict[str, int] = {}
    for node_type in types_with_room(slot, capacity, needed):
        if missing <= 0 and drivers_left <= 0:
            break
        node = (NodeGroup(node_type.as_node(), 1),)
        holds, for_drivers = _workers(node, request, needed), _drivers(node, request, needed)
        number = max(0, -(-missing // holds))
        # Drivers need only host memory, and can need more nodes than the workers.
        if for_drivers:
            number = max(number, -(-drivers_left // for_drivers))
        number = min(number, most.get(node_type.name, 0))
        if number:
            taken[node_type.name] = number
            missing -= number * holds
            drivers_left -= number * for_drivers
    return taken


def types_with_room(slot: TrialSlot, capacity: ClusterCapacity, num_trials: int) -> list[NodeTypeCapacity]:
    """Return the node types with room for a worker of ``slot``, sorted by room in descending order.

    For a worker without GPUs, types with GPUs come last, because Ray adds these only if no other type fits.
    """
    request = request_of(slot)
    is_selected = matcher(slot.label_selector)
    found: list[tuple[tuple[bool, int, str], NodeTypeCapacity]] = []
    for node_type in capacity.node_types or ():
        node = node_type.as_node()
        if not is_selected(node.ray_labels):
            continue
        holds = _workers((NodeGroup(node, 1),), request, num_trials)
        if holds:
            is_last = node_type.resources.gpus > 0 and not slot.worker.gpus
            found.append(((is_last, -holds, node_type.name), node_type))
    return [node_type for _, node_type in sorted(found, key=itemgetter(0))]


def _workers(groups: Iterable[NodeGroup], request: Request, num_trials: int) -> int:
    num_drivers = num_trials if request.num_workers else 0
    return count_workers(groups, request, num_drivers=num_drivers)


def _drivers(groups: Iterable[NodeGroup], request: Request, num_trials: int) -> int:
    """Return the number of drivers that fit, or ``num_trials`` if drivers need not be counted separately."""
    if request.num_workers == 0 or request.worker.memory_bytes is not None:
        return num_trials
    return count_drivers(groups, num_trials)


_MOST: Final = 2**16
"""The maximum amount of a resource on a hypothetical node."""

_Plan = TypeVar("_Plan")
_PlanOn = Callable[[ClusterCapacity], _Plan]


def plan_on_smallest_node(plan_on: _PlanOn[_Plan]) -> _Plan | None:
    """Return the plan for the smallest node on which a trial runs, or ``None`` if no such node is found.

    If no node fits and the autoscaler's node types are unknown, this plan shows which node to request. The search tries
    larger and larger nodes, because the resources of a trial are unknown until the policy returns a plan. If a policy
    requires GPU memory, each worker gets a whole GPU with that much memory.
    """
    amounts: dict[str, int] = {}
    while True:
        # Each error names the resource that is missing, and the next, larger node has more of it.
        error = _why_not(plan_on, amounts)
        if error is None:
            break
        # Doubling finds a large enough node with few plans, and ``_least`` reduces it afterwards.
        grown = amounts | {name: max(1, 2 * amounts.get(name, 0)) for name in _short_of(error)}
        if grown == amounts or max(grown.values()) > _MOST:
            return None
        amounts = grown
    for name in sorted(amounts, reverse=True):  # GPUs are reduced before CPUs
        amounts = amounts | {name: _least(plan_on, amounts, name)}
    return plan_on(_capacity(amounts))


def _least(plan_on: _PlanOn[object], amounts: dict[str, int], name: str) -> int:
    def too_few(amount: int) -> bool:
        return _why_not(plan_on, amounts | {name: amount}) is not None

    if too_few(0):
        return largest(0, amounts[name], too_few) + 1
    return 0


def _why_not(plan_on: _PlanOn[object], amounts: dict[str, int]) -> InfeasibleRequestError | None:
    try:
        plan_on(_capacity(amounts))
    except InfeasibleRequestError as error:
        return error
    return None


def _short_of(error: InfeasibleRequestError) -> list[str]:
    """Return the resources to add to the node, or an empty list if more resources would not help."""
    if error.tried:
        # The first choice of a policy is the preferred one, so the node is sized for it.
        return _short_of(error.tried[0])
    if error.short_of == "memory":
        return []  # the hypothetical node has unknown host memory, which does not limit the trials
    if error.accelerator_type is not None:
        return ["GPU", ACCELERATOR_TYPE_PREFIX + error.accelerator_type]
    if error.short_of == Limit.GPU_MEMORY:
        return ["GPU", error.short_of]
    return [error.short_of]


def _capacity(amounts: dict[str, int]) -> ClusterCapacity:
    rest = {name: amount for name, amount in amounts.items() if amount}
    # ``amounts`` contains the memory of each GPU in GiB.
    cpus, gpus, memory = (rest.pop(name, 0) for name in ("CPU", "GPU", Limit.GPU_MEMORY))
    types = [name for name in rest if name.startswith(ACCELERATOR_TYPE_PREFIX)]
    devices = accelerator_type = None
    if memory:
        devices = tuple(GpuDevice(index=i, name="imagined", memory_bytes=memory * GIB) for i in range(gpus))
    if types:
        accelerator_type = types[0].removeprefix(ACCELERATOR_TYPE_PREFIX)
    node = NodeCapacity(
        node_id="imagined",
        resources=Resources(cpus=cpus, gpus=gpus, custom={name: rest[name] for name in rest.keys() - set(types)}),
        accelerator_type=accelerator_type,
        devices=devices,
    )
    return ClusterCapacity(nodes=(node,))
