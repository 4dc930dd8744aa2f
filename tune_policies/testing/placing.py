"""Places the trials of a plan one by one, process by process and device by device.

The module is intentionally slow and simple, and shares no arithmetic with the planner, so that it can verify plans.
Memory is in bytes, and all other amounts are in Ray's ticks of 1/10,000.
"""

import copy
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import NodeCapacity
from tune_policies.cluster.tpu_slices import SliceShape, find_slices
from tune_policies.placement.fill_nodes import Placement
from tune_policies.placement.layout import place_slots, workers_on_nodes
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.resources import Resources

TICKS: Final = 10_000
_WORKERS_OF_A_TYPE: Final = 1000
"""A node has one unit of the resource of its device type, and each worker for that type reserves 0.001."""


class NodeState:
    """The free resources of a node, with each device counted individually."""

    def __init__(self, node: NodeCapacity) -> None:
        has = node.resources
        self.memory = has.memory_bytes
        self._node = node
        self._labels = node.ray_labels
        self._typed_workers = _WORKERS_OF_A_TYPE
        self._amounts = {"CPU": round(has.cpus * TICKS)}
        self._devices: dict[str, list[int]] = {}
        for name, amount in {"GPU": has.gpus, **has.custom}.items():
            ticks = round(amount * TICKS)
            if name in DEVICE_RESOURCES:
                whole, part = divmod(ticks, TICKS)
                self._devices[name] = [TICKS] * whole + [part] * (part > 0)
            else:
                self._amounts[name] = ticks

    def is_selected(self, slot: TrialSlot) -> bool:
        """Return whether the slot's label selector matches the node.

        A condition is ``a``, ``!a``, ``in(a,b)`` or ``!in(a,b)``.
        """
        for key, condition in slot.label_selector.items():
            listed = condition.removeprefix("!").removeprefix("in(").removesuffix(")").split(",")
            if (self._labels.get(key) in [value.strip() for value in listed]) == condition.startswith("!"):
                return False
        return True

    def take(self, wanted: Resources, accelerator_type: str | None = None) -> bool:
        """Reserve the resources of a process, and return whether they fit. If they do not, nothing is reserved."""
        is_typed = accelerator_type is not None
        if is_typed and (accelerator_type != self._node.accelerator_type or not self._typed_workers):
            return False
        memory = wanted.memory_bytes or 0
        if self.memory is not None and memory > self.memory:
            return False
        named = {"CPU": wanted.cpus, "GPU": wanted.gpus, **wanted.custom}
        ticks = {name: round(amount * TICKS) for name, amount in named.items() if amount}
        amounts = {name: amount for name, amount in ticks.items() if name not in DEVICE_RESOURCES}
        if any(self._amounts.get(name, 0) < amount for name, amount in amounts.items()):
            return False
        found = {name: self._free_devices(name, amount) for name, amount in ticks.items() if name not in amounts}
        if any(devices is None for devices in found.values()):
            return False
        for name, devices in found.items():
            for device in devices or ():
                self._devices[name][device] -= min(TICKS, ticks[name])
        for name, amount in amounts.items():
            self._amounts[name] -= amount
        self._typed_workers -= is_typed
        if self.memory is not None:
            self.memory -= memory
        return True

    def memory_beside_workers(self, slot: TrialSlot) -> float:
        """Return the host memory in bytes that workers leave, or infinity if it is unknown or no worker fits."""
        filled = copy.copy(self)
        filled._amounts = dict(self._amounts)
        filled._devices = {name: list(devices) for name, devices in self._devices.items()}
        if self.memory is None or not filled.take(slot.worker, slot.accelerator_type):
            return math.inf
        while filled.take(slot.worker, slot.accelerator_type):
            pass
        return filled.memory or 0

    def _free_devices(self, name: str, ticks: int) -> Sequence[int] | None:
        """Return the indices of free devices for a fraction or whole devices, or ``None`` if too few are free."""
        free = self._devices.get(name, [])
        needed = max(1, ticks // TICKS)
        fitting = [device for device, left in enumerate(free) if left >= min(TICKS, ticks)][:needed]
        if len(fitting) == needed:
            return fitting
        return None


def place_trials(capacity: ClusterCapacity, plan: TrialPlan, wanted: int) -> int:
    """Return how many of the ``wanted`` trials fit at once.

    If all trials reserve the same resources, Ray may place them in any order. So the nodes are used in a random order,
    and Train drivers start first, on the nodes from which they displace the most workers. If the plan has several slot
    types, each slot is placed on its planned node, and trials beyond the planned number may be of any type.
    """
    if len(plan.slots) == 1:
        return _place_alike(capacity, plan.slots[0], wanted)
    nodes = {node.node_id: NodeState(node) for node in capacity.nodes}
    placed = 0
    for place in _planned_places(plan.slots, capacity):
        slot = plan.slots[place.slot_type]
        if place.node_id is None:
            # The nodes of the trial's workers are unknown, so the trial is not checked.
            placed += min(place.count, wanted - placed)
            continue
        on_nodes = [nodes[node_id] for node_id, count in place.worker_nodes for _ in range(count)]
        for _ in range(min(place.count, wanted - placed)):
            if not _place_own(slot, nodes[place.node_id], on_nodes):
                return placed
            placed += 1
    while placed < wanted and any(_place_anywhere(slot, list(nodes.values())) for slot in plan.slots):
        placed += 1
    return placed


def _planned_places(slots: Sequence[TrialSlot], capacity: ClusterCapacity) -> Iterator[Placement]:
    """Yield the planned placements. Trials without Train workers also have a node if it still has to be added."""
    for place in place_slots(slots, capacity).places:
        if place.node_id is not None or slots[place.slot_type].num_workers:
            yield place
    for node, workers in workers_on_nodes(slots, capacity):
        for slot_type, count in enumerate(workers):
            if node.is_expected and count and not slots[slot_type].num_workers:
                yield Placement(slot_type=slot_type, node_id=node.node_id, count=count)


def _place_own(slot: TrialSlot, home: NodeState, on_nodes: Sequence[NodeState]) -> bool:
    """Place a trial on ``home``, and return whether it fits.

    Its Train workers are placed on ``on_nodes``, or on ``home`` if ``on_nodes`` is empty.
    """
    if not slot.num_workers:
        return home.take(slot.worker, slot.accelerator_type)
    if not home.take(slot.trial):
        return False
    workers = on_nodes or [home] * slot.num_workers
    return all(node.take(slot.worker, slot.accelerator_type) for node in workers)


def _place_anywhere(slot: TrialSlot, nodes: Iterable[NodeState]) -> bool:
    selected = [node for node in nodes if node.is_selected(slot)]
    return not slot.num_workers and _place_process(slot.worker, selected, slot.accelerator_type)


def _place_alike(capacity: ClusterCapacity, slot: TrialSlot, wanted: int) -> int:
    """Place trials that all reserve the resources of ``slot``, and return how many fit."""
    if slot.num_workers:
        fitting = (count for count in range(wanted, 0, -1) if _train_runs_fit(capacity, slot, count))
        return next(fitting, 0)
    nodes = [node for node in map(NodeState, capacity.nodes) if node.is_selected(slot)]
    random.Random(wanted).shuffle(nodes)  # noqa: S311 - for tests
    for placed in range(wanted):
        if not _place_process(slot.worker, nodes, slot.accelerator_type):
            return placed
    return wanted


def _train_runs_fit(capacity: ClusterCapacity, slot: TrialSlot, count: int) -> bool:
    """Return whether ``count`` trials with Train workers fit if their drivers start first, on the worst nodes."""
    states = {node.node_id: NodeState(node) for node in capacity.nodes}
    selected = [node for node in states.values() if node.is_selected(slot)]
    random.Random(count).shuffle(selected)  # noqa: S311 - for tests
    for_workers = selected
    if slot.topology is not None:
        slices = find_slices(capacity.nodes, SliceShape(slot.topology, slot.accelerator_type or "")).intact
        for_workers = [states[host.node_id] for tpu_slice in slices for host in tpu_slice.hosts]
    if not _place_drivers(slot, selected, count):
        return False
    num_workers = count * slot.num_workers
    return all(_place_process(slot.worker, for_workers, slot.accelerator_type) for _ in range(num_workers))


def count_workers(capacity: ClusterCapacity, slot: TrialSlot) -> int:
    """Return how many Train workers fit beside the drivers of all trials, up to a limit above the planned number."""
    nodes = [state for state in map(NodeState, capacity.nodes) if state.is_selected(slot)]
    if not _place_drivers(slot, nodes, slot.max_concurrent_trials):
        return 0
    most = slot.max_concurrent_trials * slot.num_workers + (slot.max_workers or 0)
    return sum(_place_process(slot.worker, nodes, slot.accelerator_type) for _ in range(most))


def _place_drivers(slot: TrialSlot, nodes: Sequence[NodeState], count: int) -> bool:
    """Place the drivers of trials where they displace the most workers, and return whether all of them fit.

    Ray may place a driver on any node. A driver displaces a worker from a node that the workers fill exactly, and none
    from a node on which no worker fits.
    """
    if not slot.worker.memory_bytes:  # the drivers displace no workers
        return all(_place_process(slot.trial, nodes) for _ in range(count))
    left = {node: node.memory_beside_workers(slot) for node in nodes}
    for _ in range(count):
        worst_first = sorted(nodes, key=left.__getitem__)
        taken = next((node for node in worst_first if node.take(slot.trial)), None)
        if taken is None:
            return False
        left[taken] = taken.memory_beside_workers(slot)
    return True


def _place_process(wanted: Resources, nodes: Iterable[NodeState], accelerator_type: str | None = None) -> bool:
    return any(node.take(wanted, accelerator_type) for node in nodes)
