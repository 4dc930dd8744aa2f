"""Places the slots of a plan on nodes, and says what they leave of the cluster for further slots.

A plan with slots of several types is sound only if every trial stays where the plan has counted it: a CPU trial on the
CPUs that a free GPU slot needs would keep that slot empty. So each slot has its node, and all slots of a node fit it,
in whatever order trials come and go. Ray may spread shares of a device over all devices of a node, so such devices
serve no other slot type. Whole devices beside whole ones are safe.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple, Self

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity, NodeCapacity, NodeGroup
from tune_policies.cluster.labels import matcher
from tune_policies.cluster.tpu_slices import SliceShape, find_slices
from tune_policies.placement.packing import count_drivers, count_trials, request_of, subtract, workers_on_node
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.values.resources import TICKS, Count, PositiveCount, Resources
from tune_policies.values.value import Value

_WHOLE: Final = TICKS
"""The share of a device that workers with whole devices have, however many."""


class Placement(Value):
    """How many slots of one type are on one node.

    Attributes:
        slot_type: The index of the slot type in the plan's ``slots``.
        node_id: Ray's identifier of the node; ``None``: on no node in particular, as the node is still to be added, or
            Train places the workers.
        count: How many.
    """

    slot_type: Count
    node_id: str | None
    count: PositiveCount


class Layout(Value):
    """Where the slots of a plan are.

    Attributes:
        places: At most one for each slot type and node, in the order of the slot types.
    """

    places: tuple[Placement, ...]

    def count(self, slot_type: int) -> int:
        """Return how many slots of a type have a place."""
        return sum(place.count for place in self.places if place.slot_type == slot_type)


def place_slots(plan_slots: Sequence[TrialSlot], capacity: ClusterCapacity) -> Layout:
    """Return which node holds how many slots of each type.

    All slots have a place on the capacity for which they were planned. On another one as many have as fit, the better
    types first. Slots for which the alive nodes have no room go to nodes that can still be added.
    """
    layout = _placed_on(plan_slots, capacity)
    missing = [slot.max_concurrent_trials - layout.count(slot_type) for slot_type, slot in enumerate(plan_slots)]
    if not any(missing) or not capacity.node_types:
        return layout
    workers = sum(short * max(1, slot.num_workers) for short, slot in zip(missing, plan_slots, strict=True))
    most = min(workers, workers if capacity.max_nodes_to_add is None else capacity.max_nodes_to_add)
    to_add = {each.name: min(most, each.max_nodes_to_add) for each in capacity.node_types}
    return _placed_on(plan_slots, capacity.with_nodes_added(to_add))


def with_places(plan_slots: Sequence[TrialSlot], capacity: ClusterCapacity) -> tuple[TrialSlot, ...]:
    """Return the slots that have a place on a cluster. On another than they were planned for, there may be fewer."""
    layout = place_slots(plan_slots, capacity)
    counts = [layout.count(slot_type) for slot_type in range(len(plan_slots))]
    return tuple(slot.capped(count) for slot, count in zip(plan_slots, counts, strict=True) if count)


class NodeWorkers(NamedTuple):
    """A node, and how many workers of each slot type are on it, in the order of the types."""

    node: NodeCapacity
    workers: tuple[int, ...]


def workers_on_nodes(plan_slots: Sequence[TrialSlot], capacity: ClusterCapacity) -> list[NodeWorkers]:
    """Return for each node, also one that is expected, how many workers of each slot type it has.

    Slots of several types are where they are placed. Of one type, and of Train workers, it is one way of several in
    which all find room: Ray chooses the nodes.
    """
    left = RemainingCapacity.all_of(capacity)
    found: dict[str, list[int]] = defaultdict(lambda: [0] * len(plan_slots))
    for slot_type, slot in enumerate(plan_slots):
        counts, after = left.allocate(slot)
        for node_id, count in left.filled(slot, sum(counts.values()) * max(1, slot.num_workers)).items():
            found[node_id][slot_type] = count
        left = after
    none = (0,) * len(plan_slots)
    return [NodeWorkers(node, tuple(found.get(node.node_id, none))) for node in capacity.nodes]


def _placed_on(plan_slots: Sequence[TrialSlot], capacity: ClusterCapacity) -> Layout:
    left = RemainingCapacity.all_of(capacity)
    places = []
    for slot_type, slot in enumerate(plan_slots):
        counts, left = left.allocate(slot)
        places += [Placement(slot_type=slot_type, node_id=node_id, count=count) for node_id, count in counts.items()]
    return Layout(places=tuple(places))


class RemainingCapacity(NamedTuple):
    """What placed slots leave of a cluster.

    Attributes:
        capacity: The cluster less what the slots take. A node where slots share devices has no such devices any more.
        shares: For each node in use, by resource, the share of a device in ticks that each slot has there.
    """

    capacity: ClusterCapacity
    shares: Mapping[str, Mapping[str, int]]

    @classmethod
    def all_of(cls, capacity: ClusterCapacity) -> Self:
        """Return the whole cluster."""
        return cls(capacity, {})

    @property
    def without_devices_in_use(self) -> ClusterCapacity:
        """The same cluster, but a node of which even one device is in use has no such devices any more."""
        changed = {}
        for node in self.capacity.nodes:
            if in_use := self.shares.get(node.node_id, {}).keys() & node.resources.ticks.keys():
                resources = node.resources
                for name in sorted(in_use):
                    resources = resources.with_ticks(name, 0)
                changed[node.node_id] = node.model_copy(update={"resources": resources})
        return self.capacity.replacing(changed)

    def grown(self, nodes_to_add: Mapping[str, int]) -> Self:
        """Return the same with so many nodes added of each type. As many fewer can be added after that."""
        before = self.capacity
        types = tuple(
            each.model_copy(update={"max_nodes_to_add": each.max_nodes_to_add - nodes_to_add.get(each.name, 0)})
            for each in before.node_types or ()
        )
        most = before.max_nodes_to_add
        most = None if most is None else max(0, most - sum(nodes_to_add.values()))
        after = before.with_nodes_added(nodes_to_add).model_copy(update={"node_types": types, "max_nodes_to_add": most})
        return self._replace(capacity=after)

    def fewest_nodes(self, slot: TrialSlot) -> list[str]:
        """Return the identifiers of as few nodes as hold all workers and drivers of a slot type."""
        request, drivers, chosen = request_of(slot), slot.max_concurrent_trials, []
        missing, drivers_left = drivers * slot.num_workers, drivers
        for node, _ in self._fitting(slot):
            holds = workers_on_node(node, request, num_drivers=drivers)
            for_drivers = count_drivers([NodeGroup(node, 1)], drivers)
            if (missing > 0 and holds) or (drivers_left > 0 and for_drivers):
                missing, drivers_left = missing - holds, drivers_left - for_drivers
                chosen.append(node.node_id)
        return chosen

    def allocate(self, slot: TrialSlot) -> tuple[dict[str | None, int], Self]:
        """Place slots of one type. Return how many each node holds, and the remaining capacity.

        Nodes are filled one after the other; see :meth:`_fitting`.
        """
        if slot.num_workers:
            return self._allocate_workers(slot)
        taken = self.filled(slot, slot.max_concurrent_trials)
        expected = {node.node_id for node in self.capacity.nodes if node.is_expected}
        counts: dict[str | None, int] = {node_id: count for node_id, count in taken.items() if node_id not in expected}
        if to_come := sum(count for node_id, count in taken.items() if node_id in expected):
            counts[None] = to_come
        return counts, self._subtract(slot.worker, taken)

    def filled(self, slot: TrialSlot, num_workers: int) -> dict[str, int]:
        """Return how many of so many workers each node holds, as they fill one node after the other."""
        wanted, taken = num_workers, {}
        for node, fit in self._fitting(slot) if slot.topology is None else self._fitting_slices(slot):
            if wanted == 0:
                break
            taken[node.node_id] = min(fit, wanted)
            wanted -= taken[node.node_id]
        return taken

    def _fitting_slices(self, slot: TrialSlot) -> Iterable[tuple[NodeCapacity, int]]:
        """Yield the hosts of the TPU slices that hold workers on every chip, slice by slice."""
        shape = SliceShape(slot.topology or "", slot.accelerator_type or "")
        fits = {node.node_id: (node, fit) for node, fit in self._fitting(slot)}
        for each in find_slices(self.capacity.nodes, shape).intact:
            hosts = [fits[host.node_id] for host in each.hosts if host.node_id in fits]
            if sum(fit for _, fit in hosts) * slot.worker.custom.get("TPU", 0) == shape.chips:
                yield from hosts

    def _allocate_workers(self, slot: TrialSlot) -> tuple[dict[str | None, int], Self]:
        """Place trials with Train workers.

        Train places the workers by itself. On one node they take what they need. On several nodes Train may fill any
        of them, so subtract from each node as many workers as it has room for.
        """
        fitting = self._fitting(slot)
        ids = {node.node_id for node, _ in fitting}
        nodes = self.capacity.where(lambda node: node.node_id in ids)
        trials = min(slot.max_concurrent_trials, count_trials(nodes.groups, request_of(slot)))
        if trials == 0:
            return {}, self
        taken = (
            dict.fromkeys(ids, trials * slot.num_workers)
            if len(ids) == 1
            else {node.node_id: fit for node, fit in fitting}
        )
        return {None: trials}, self._subtract(slot.per_worker, taken, num_drivers=trials)

    def _fitting(self, slot: TrialSlot) -> list[tuple[NodeCapacity, int]]:
        """Return the nodes that hold a worker of ``slot``, and how many each, in the order in which they are filled.

        Alive nodes come first. Then come nodes that have the CPUs for all of the slot's own devices, as slots that ask
        for fewer CPUs are for the others; then those with the fewest other devices that the slots would leave without
        CPUs; and then nodes that hold the most, so that as many nodes as possible stay unused.
        """
        request, is_selected = request_of(slot), matcher(slot.label_selector)
        own_devices = DEVICE_RESOURCES & slot.worker.ticks.keys()
        share = {name: min(_WHOLE, slot.worker.ticks[name]) for name in own_devices}
        order: list[tuple[tuple[object, ...], NodeCapacity, int]] = []
        for nodes in self.capacity.nodes_by_shape.values():
            one = nodes[0]
            if not (fit := workers_on_node(one, request)):
                continue
            others = DEVICE_RESOURCES & one.resources.ticks.keys() - own_devices
            stranded = sum(one.resources.ticks[name] for name in others)
            is_short_of_cpus = bool(own_devices) and fit < workers_on_node(one, request.with_cpus(0))
            order += [
                ((node.is_expected, is_short_of_cpus, stranded, -fit, node.node_id), node, fit)
                for node in nodes
                if is_selected(node.ray_labels) and _agree(self.shares.get(node.node_id, {}), share)
            ]
        order.sort(key=itemgetter(0))
        return [(node, fit) for _, node, fit in order]

    def _subtract(self, worker: Resources, taken: Mapping[str, int], *, num_drivers: int = 0) -> Self:
        """Subtract so many workers from each node, and all drivers from every node, as any node may hold them."""
        share = {name: min(_WHOLE, ticks) for name, ticks in worker.ticks.items() if name in DEVICE_RESOURCES}
        changed = {}
        for nodes in self.capacity.nodes_by_shape.values():
            left: dict[int, NodeCapacity] = {}  # nodes of one shape are alike, and most of them take as many
            for node in nodes:
                if count := taken.get(node.node_id):
                    if count not in left:
                        left[count] = subtract(node, worker.ticks, count, num_drivers=num_drivers)
                    changed[node.node_id] = node.with_less(left[count].resources)
        shares = {node_id: {**self.shares.get(node_id, {}), **share} for node_id in changed}
        return self._replace(capacity=self.capacity.replacing(changed), shares={**self.shares, **shares})


def _agree(in_use: Mapping[str, int], share: Mapping[str, int]) -> bool:
    return all(in_use.get(name, ticks) == ticks for name, ticks in share.items())
