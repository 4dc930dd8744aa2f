"""Fills the remaining capacity of a cluster with slots of one type.

Slots are placed on the nodes in a fixed order, and a node that has as many slots as fit is followed by the next one.
Nodes of one shape are filled together, because a large cluster has thousands of equal nodes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress
from operator import attrgetter, itemgetter, not_
from typing import Final, NamedTuple, Self

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import NODE_ID, conditions_of
from tune_policies.cluster.lazy_nodes import ReducedNodes, original_nodes
from tune_policies.cluster.node import NodeCapacity, NodeGroup, Shape
from tune_policies.cluster.tpu_slices import SliceShape, find_slices
from tune_policies.placement.count_trials import count_trials, drivers_on_node, subtract, workers_on_node
from tune_policies.placement.request import request_of
from tune_policies.placement.trial_slot import TrialSlot, WorkerNodes
from tune_policies.values.resources import TICKS, Count, PositiveCount, Resources
from tune_policies.values.units import MOST_BYTES
from tune_policies.values.value import Value

_node_id: Final = attrgetter("node_id")
_sort_key: Final = attrgetter("sort_key")


class Placement(Value):
    """Slots of one type on the same node.

    Attributes:
        slot_type: The index of the slot type in the plan's ``slots``.
        node_id: Ray's identifier of the node of the trial or its Train driver, or ``None`` if a node has to be added.
        count: The number of slots.
        worker_nodes: The nodes of each trial's Train workers, and the number of workers on each node. The tuple is
            empty without Train workers, or if Train chooses the nodes.
    """

    slot_type: Count
    node_id: str | None
    count: PositiveCount
    worker_nodes: WorkerNodes = ()

    @property
    def nodes(self) -> set[str]:
        """The identifiers of the nodes on which a trial with this placement runs, including its workers' nodes."""
        return {*filter(None, [self.node_id]), *(node_id for node_id, _ in self.worker_nodes)}


class RemainingCapacity(NamedTuple):
    """The capacity that remains after slots are placed.

    Attributes:
        capacity: The cluster without the resources that the slots reserve. A node with shared devices has no devices
            left.
        in_use: The devices that each slot type uses.
    """

    capacity: ClusterCapacity
    in_use: tuple["_DevicesInUse", ...]

    @classmethod
    def all_of(cls, capacity: ClusterCapacity) -> Self:
        """Return the capacity of a cluster without slots."""
        return cls(capacity, ())

    @property
    def without_devices_in_use(self) -> ClusterCapacity:
        """The cluster without the device resources that slots already use on each node."""
        changed: dict[Shape, list[tuple[Sequence[NodeCapacity], Resources | None]]] = {}
        for shape, nodes in self.capacity.nodes_by_shape.items():
            if not isinstance(nodes, ReducedNodes):  # nothing is in use
                continue
            resources, by_names = nodes[0].resources, defaultdict(list)
            in_use = [use for use in self.in_use if use.resource in resources.ticks]
            for node in nodes.originals:
                # A shape can have nodes with and without devices in use, so it is split by what is in use.
                names = frozenset(use.resource for use in in_use if node.node_id in use.node_ids)
                by_names[names].append(node)
            changed[shape] = [(some, _without(resources, names)) for names, some in by_names.items()]
        return self.capacity.with_less(changed)

    def grown(self, nodes_to_add: Mapping[str, int]) -> Self:
        """Return the capacity with these nodes added, and with lower limits for the nodes that can still be added."""
        before = self.capacity
        types = tuple(
            node_type.model_copy(
                update={"max_nodes_to_add": node_type.max_nodes_to_add - nodes_to_add.get(node_type.name, 0)}
            )
            for node_type in before.node_types or ()
        )
        most = before.max_nodes_to_add
        if most is not None:
            most = max(0, most - sum(nodes_to_add.values()))
        after = before.with_nodes_added(nodes_to_add).model_copy(update={"node_types": types, "max_nodes_to_add": most})
        return self._replace(capacity=after)

    def allocate(self, slot: TrialSlot) -> tuple[dict[str | None, int], "RemainingCapacity"]:
        """Place slots of one type, and return the number of slots by node ID, and the remaining capacity.

        The key ``None`` counts the trials with Train workers, and the trials on nodes that have to be added.
        """
        filled = self.fill(slot)
        counts: Counter[str | None] = Counter()
        if slot.num_workers:
            counts[None] = filled.num_trials  # workers of one trial may be on several nodes
        else:
            for node, count in filled.workers:
                node_id = None if node.is_expected else node.node_id
                counts[node_id] += count
        return +counts, filled.left()

    def fill(self, slot: TrialSlot) -> "FilledSlots":
        """Place as many slots of one type as fit, and return them. Nodes are filled one after the other.

        The workers of a trial share a node if they fit on one. The workers of the last trials are spread over the
        remaining room of several alive nodes before any trial is placed on a node that has to be added.
        """
        groups, size = self._fitting(slot), max(1, slot.num_workers)
        wanted = min(slot.max_concurrent_trials, _total(groups) // size)
        drivers: list[_Run] = []
        if slot.num_workers:
            if slot.worker.memory_bytes is not None:  # drivers and workers share the host memory
                alike = [NodeGroup(run.one, len(run.nodes)) for run in groups if run.per_node]
                wanted = min(wanted, count_trials(alike, request_of(slot)))
            # The drivers come first, because ``groups`` then shows how many workers fit beside them.
            drivers, groups = _with_drivers(slot, groups, wanted)
            wanted = _total(drivers)
        if slot.topology is not None:
            return self._fill_slices(slot, groups, wanted, drivers)
        # Trials that are placed on alive nodes can start at once, so they do not wait for an expected node.
        alive = [run for run in groups if not run.one.is_expected]
        num_alive = min(wanted, _total(alive) // size)
        runs = _with_workers(alive, num_alive, size)
        runs += _with_workers([run for run in groups if run.one.is_expected], wanted - num_alive, size)
        if _total(runs) < wanted * size:  # a trial needs alive and expected nodes
            runs = _with_workers(groups, wanted, size)
        return FilledSlots(self, slot, wanted, runs, drivers, held=runs)

    def _fill_slices(
        self, slot: TrialSlot, groups: Sequence["_Run"], wanted: int, drivers: list["_Run"]
    ) -> "FilledSlots":
        """Place trials on whole TPU slices. Because Train may choose any slice, keep all slices free of other slots."""
        held = [run for run in groups if run.per_node]
        fits = _by_node(held)
        shape = SliceShape(slot.topology or "", slot.accelerator_type or "")
        runs, missing = [], wanted * slot.num_workers
        for tpu_slice in find_slices(self.capacity.nodes, shape).intact:
            hosts = [_Run(host, [host], fits[host.node_id]) for host in tpu_slice.hosts if host.node_id in fits]
            workers = _total(hosts)
            # Train reserves whole slices, so a slice is used only if its workers use all its chips.
            if missing > 0 and workers * slot.worker.custom.get("TPU", 0) == shape.chips:
                runs += hosts
                missing -= workers
        return FilledSlots(self, slot, wanted, runs, drivers, held=held)

    def _fitting(self, slot: TrialSlot) -> list["_Run"]:
        """Return the nodes in filling order, with the number of workers of ``slot`` that fit on each node.

        Nodes with room only for drivers come last.
        """
        conditions, in_use = conditions_of(slot.label_selector), self._used_by_others(slot)
        holding: list[_Run] = []
        for_drivers: list[tuple[tuple[object, ...], _Run]] = []
        held = 0
        for (is_expected, *_, shape), fit, nodes in self._filling_order(slot):
            if not slot.num_workers and held >= slot.max_concurrent_trials:
                break  # a large cluster can have thousands of further nodes
            free = _selected(nodes, conditions)
            only_drivers: Sequence[NodeCapacity] = ()
            if not fit:
                free, only_drivers = (), free
            elif in_use and isinstance(nodes, ReducedNodes):  # slots use no devices on other nodes
                # Drivers reserve no device, so they may still use the node.
                is_used = [any(node.node_id in ids for ids in in_use) for node in free]
                only_drivers = list(compress(free, is_used))
                free = list(compress(free, map(not_, is_used)))
            if free:
                holding.append(_Run(nodes[0], free, fit))
                held += fit * len(free)
            if only_drivers:
                for_drivers.append(((is_expected, shape), _Run(nodes[0], only_drivers, 0)))
        if slot.num_workers:
            for_drivers.sort(key=itemgetter(0))
            holding += (run for _, run in for_drivers)
        return holding

    def _filling_order(self, slot: TrialSlot) -> list[tuple[tuple[object, ...], int, Sequence[NodeCapacity]]]:
        """Return a sort key, the number of workers per node, and the nodes of each shape, in filling order.

        Alive nodes come before expected nodes. The order prefers:

        1. nodes with enough CPUs for all of the slot's devices, because slots with fewer CPUs can use other nodes,
        2. nodes with the fewest devices of other kinds, because the slots would leave these devices without CPUs,
        3. nodes with the most room, because this leaves more nodes unused.
        """
        request = request_of(slot)
        without_cpus = request.with_cpus(0)
        own_devices = DEVICE_RESOURCES & slot.worker.ticks.keys()
        # The shapes of a large cluster mostly differ only in their host memory, so these values are computed only once.
        cached: dict[tuple[object, ...], tuple[int, str]] = {}
        order: list[tuple[tuple[object, ...], int, Sequence[NodeCapacity]]] = []
        for nodes in self.capacity.nodes_by_shape.values():
            one = nodes[0]
            fit = workers_on_node(one, request)
            # A node without room for a worker may still have room for a Train driver.
            if not fit and not slot.num_workers:
                continue
            memory, others = one.shape
            if others not in cached:
                stranded = sum(one.resources.ticks.get(name, 0) for name in DEVICE_RESOURCES - own_devices)
                cached[others] = stranded, repr(others)
            stranded, others_text = cached[others]
            is_short = bool(own_devices) and fit < workers_on_node(one, without_cpus)
            shape = f"({memory}, {others_text})"
            order.append(((one.is_expected, is_short, stranded, -fit, shape), fit, nodes))
        order.sort(key=itemgetter(0))
        return order

    def _used_by_others(self, slot: TrialSlot) -> list[frozenset[str]]:
        """Return the identifiers of nodes whose devices slots with another device fraction use."""
        own_devices = slot.worker.ticks.keys() & DEVICE_RESOURCES
        return [
            used.node_ids
            for used in self.in_use
            if used.resource in own_devices and used.share != _share(slot, used.resource)
        ]


def _selected(
    nodes: Sequence[NodeCapacity], conditions: Iterable[tuple[str, frozenset[str], bool]]
) -> Sequence[NodeCapacity]:
    """Return the nodes that satisfy all conditions of a label selector."""
    nodes = original_nodes(nodes)
    for key, values, is_excluded in conditions:
        field = "ray_labels" if key == NODE_ID else "labels"  # ``labels`` is faster
        labels_of = attrgetter(field)
        nodes = [node for node in nodes if (labels_of(node).get(key) in values) != is_excluded]
    return nodes


@dataclass(frozen=True)
class _DevicesInUse:
    """The nodes on which slots of a type use a device resource, and the fraction per worker in ticks."""

    resource: str
    share: int
    runs: Sequence["_Run"]

    @cached_property
    def node_ids(self) -> frozenset[str]:
        return frozenset(chain.from_iterable(map(_node_id, run.nodes) for run in self.runs))


class _Run(NamedTuple):
    """Nodes of one shape with the same number of workers or drivers.

    Attributes:
        one: A node of that shape with its remaining resources.
        nodes: The nodes. Only their identifiers and labels are valid, because their resources may be outdated.
        per_node: The number of workers or drivers on each node.
    """

    one: NodeCapacity
    nodes: Sequence[NodeCapacity]
    per_node: int

    def times(self, factor: int) -> Self:
        return self._replace(per_node=self.per_node * factor)


class FilledSlots(NamedTuple):
    """The placed slots of a type.

    Attributes:
        before: The capacity before these slots were placed.
        slot: The slot type.
        num_trials: The number of placed slots.
        runs: The nodes with their numbers of workers, in the order in which they were filled.
        drivers: The nodes with their numbers of Train drivers.
        held: The nodes on which room for workers is reserved. They include unused nodes if Train chooses the nodes.
    """

    before: RemainingCapacity
    slot: TrialSlot
    num_trials: int
    runs: Sequence[_Run]
    drivers: Sequence[_Run]
    held: Sequence[_Run]

    @property
    def workers(self) -> Iterator[tuple[NodeCapacity, int]]:
        """The nodes with their numbers of workers. A node can occur twice."""
        return _each(self.runs)

    def left(self) -> RemainingCapacity:
        """Return the capacity that remains after these slots are placed.

        Nodes of the same shape with the same slots are computed together.
        """
        before = self.before
        workers, drivers = _by_shape(self.held), _by_shape(self.drivers)
        left: dict[Shape, list[tuple[Sequence[NodeCapacity], Resources | None]]] = {}
        for shape in workers.keys() | drivers.keys():
            nodes = before.capacity.nodes_by_shape[shape]
            parts = _alike(original_nodes(nodes), workers.get(shape, []), drivers.get(shape, []))
            left[shape] = [(some, self._left_on(nodes[0], *taken)) for some, taken in parts]
        devices = sorted(DEVICE_RESOURCES & self.slot.worker.ticks.keys())
        in_use = (_DevicesInUse(name, _share(self.slot, name), self.held) for name in devices)
        return RemainingCapacity(before.capacity.with_less(left), (*before.in_use, *in_use))

    def _left_on(self, node: NodeCapacity, workers: int, drivers: int) -> Resources | None:
        """Return the remaining resources of a node, or ``None`` if the node has neither workers nor drivers."""
        if not workers and not drivers:
            return None
        worker = self.slot.worker.ticks if workers else {}
        return subtract(node, worker, workers, num_drivers=drivers).resources

    def placements(self, slot_type: int) -> Iterator[Placement]:
        """Yield the placements of the slots. Slots on nodes that have to be added come last, without a node ID."""
        to_come = 0
        for driver, worker_nodes, count in self._trials():
            # A trial with at least one node that has to be added cannot be assigned to node IDs yet.
            if driver.is_expected or any(node.is_expected for node, _ in worker_nodes):
                to_come += count
            else:
                nodes = tuple((node.node_id, number) for node, number in worker_nodes)
                yield Placement(slot_type=slot_type, node_id=driver.node_id, count=count, worker_nodes=nodes)
        if to_come:
            yield Placement(slot_type=slot_type, node_id=None, count=to_come)

    def _trials(self) -> Iterator[tuple[NodeCapacity, Sequence[tuple[NodeCapacity, int]], int]]:
        """Yield the trials grouped by their nodes.

        Each group has the node of the trial or its Train driver, the nodes of the workers, and the number of trials.
        For a trial on TPU slices, only the driver's node can be chosen.
        """
        if not self.slot.num_workers:
            yield from ((node, (), count) for node, count in self.workers)
            return
        if self.slot.topology is not None:
            yield from ((node, (), count) for node, count in _each(self.drivers))
            return
        drivers, driver, room = _each(self.drivers), None, 0
        for worker_nodes, number in _gathered(self.workers, self.slot.num_workers):
            # One driver node may have room for the drivers of several trials, and the trials may have several driver
            # nodes.
            while number:
                if driver is None or not room:
                    driver, room = next(drivers)
                count = min(number, room)
                yield driver, worker_nodes, count
                number, room = number - count, room - count


def _each(runs: Iterable[_Run]) -> Iterator[tuple[NodeCapacity, int]]:
    return ((node, run.per_node) for run in runs for node in sorted(run.nodes, key=_sort_key))


def _total(runs: Iterable[_Run]) -> int:
    return sum(len(run.nodes) * run.per_node for run in runs)


def _by_node(runs: Iterable[_Run]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in runs:
        for node_id in map(_node_id, run.nodes):
            counts[node_id] = counts.get(node_id, 0) + run.per_node
    return counts


def _by_shape(runs: Iterable[_Run]) -> dict[Shape, list[_Run]]:
    of_shape: dict[Shape, list[_Run]] = defaultdict(list)
    for run in runs:
        of_shape[run.one.shape].append(run)
    return of_shape


def _alike(
    nodes: Sequence[NodeCapacity], workers: Sequence[_Run], drivers: Sequence[_Run]
) -> list[tuple[Sequence[NodeCapacity], tuple[int, int]]]:
    """Group the nodes of a shape by their numbers of workers and drivers."""
    # The usual case is fast: all nodes of the shape have the same workers and drivers.
    if all(len(run.nodes) == len(nodes) for run in (*workers, *drivers)):
        return [(nodes, (sum(run.per_node for run in workers), sum(run.per_node for run in drivers)))]
    of_workers, of_drivers = _by_node(workers), _by_node(drivers)
    parts: dict[tuple[int, int], list[NodeCapacity]] = defaultdict(list)
    for node in nodes:
        parts[of_workers.get(node.node_id, 0), of_drivers.get(node.node_id, 0)].append(node)
    return [(some, taken) for taken, some in parts.items()]


def _gathered(
    workers: Iterable[tuple[NodeCapacity, int]], size: int
) -> Iterator[tuple[Sequence[tuple[NodeCapacity, int]], int]]:
    """Group the workers into trials of ``size`` workers. Yield the nodes of a trial, and the number of such trials."""
    some: list[tuple[NodeCapacity, int]] = []
    missing = size
    for node, left in workers:
        if left >= size:  # trials on one node come before trials that span nodes
            yield [(node, size)], left // size
            continue
        while left:
            taken = min(left, missing)
            some.append((node, taken))
            left, missing = left - taken, missing - taken
            if not missing:
                yield some, 1
                some, missing = [], size


def _spread(groups: Iterable[_Run], wanted: int) -> list[_Run]:
    """Return nodes for ``wanted`` workers, with as many workers on each node as its group allows."""
    runs: list[_Run] = []
    for group in groups:
        if not wanted:
            break
        parts = [run for run in _parts(group, wanted) if run.per_node]
        wanted -= _total(parts)
        runs += parts
    return runs


def _with_workers(groups: Sequence[_Run], wanted: int, size: int) -> list[_Run]:
    """Return the nodes for ``wanted`` trials of ``size`` workers each, starting with trials that fit on one node."""
    whole_trials = [_Run(one, nodes, fit // size) for one, nodes, fit in groups]
    runs = [run.times(size) for run in _spread(whole_trials, wanted)]
    missing = wanted * size - _total(runs)
    if missing:  # the remaining trials span nodes
        rest = [_Run(one, nodes, fit % size) for one, nodes, fit in groups]
        runs += _spread(rest, missing)
    return runs


def _parts(group: _Run, wanted: int) -> list[_Run]:
    """Split a group into full nodes, a node with the remaining workers, and empty nodes."""
    one, nodes, most = group
    number, rest = divmod(wanted, most) if most else (0, 0)
    if number >= len(nodes):
        return [group]
    # Sorting thousands of nodes takes a while, and is only needed if the group is split.
    ordered = nodes
    if wanted and most:
        ordered = sorted(nodes, key=_sort_key)
    used = number + (rest > 0)
    parts = (ordered[:number], most), (ordered[number:used], rest), (ordered[used:], 0)
    return [_Run(one, some, count) for some, count in parts if some]


def _with_drivers(slot: TrialSlot, groups: Sequence[_Run], wanted: int) -> tuple[list[_Run], list[_Run]]:
    """Return the nodes of Train drivers, and the nodes with the number of workers that fit beside the drivers.

    A node first gets the drivers of the trials whose workers all fit on it, and then one driver of a trial that spans
    nodes. The remaining drivers are placed on any node with enough host memory.
    """
    # Each place is a group of nodes, and the number of drivers on each of its nodes so far.
    places = [(group, 0) for group in groups]
    drivers: list[_Run] = []
    for wish in (lambda fit: fit // slot.num_workers, lambda fit: -(-fit // slot.num_workers), lambda _: MOST_BYTES):
        if not wanted:
            break
        found: list[tuple[_Run, int]] = []
        for place in places:
            group, held = place
            most = min(drivers_on_node(group.one), wish(group.per_node)) - held
            if not wanted or most <= 0:
                found.append(place)
                continue
            one, nodes, fit = group
            # A group is split if its nodes get different numbers of drivers.
            for part in _parts(_Run(one, nodes, most), wanted):
                found.append((_Run(one, part.nodes, fit), held + part.per_node))
                if part.per_node:
                    drivers.append(part)
                    wanted -= len(part.nodes) * part.per_node
        places = found
    if slot.worker.memory_bytes is None:
        return drivers, [group for group, _ in places]
    request = request_of(slot)
    beside: list[_Run] = []
    for (one, nodes, fit), held in places:
        if fit and held:
            fit = workers_on_node(one, request, num_drivers=held)
        beside.append(_Run(one, nodes, fit))
    return drivers, beside


def _without(resources: Resources, names: Iterable[str]) -> Resources | None:
    left = None
    for name in sorted(names):
        left = (left or resources).with_ticks(name, 0)
    return left


def _share(slot: TrialSlot, resource: str) -> int:
    """Return the fraction of a device that a worker reserves, in ticks. For whole devices, the result is one device."""
    return min(TICKS, slot.worker.ticks[resource])
