"""Chooses the nodes on which resources are reserved for other programs.

No choice depends on the names of nodes: nodes are compared by what they have, and nodes that differ only in their names
are interchangeable. On a small cluster, all choices are returned. On a large cluster, only a few are returned, because
a policy makes a plan for each of them.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Final

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import matcher
from tune_policies.cluster.node import NodeCapacity
from tune_policies.placement.count_trials import largest, subtract, with_rounded_memory, workers_on_node
from tune_policies.placement.request import request_of
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import TICKS, Amounts, Resources

_sort_key: Final = attrgetter("sort_key")

_SMALL: Final = 16
"""The maximum number of nodes of a cluster for which all choices of nodes are returned."""

_MOST: Final = 128
"""The maximum number of choices for a small cluster."""

_DEEPEST: Final = 4
"""The number of nodes that are chosen freely. Further nodes are chosen by their cost."""

Reservation = Mapping[str, NodeCapacity]
"""The nodes on which resources are reserved, with their remaining resources, by node ID."""


def first_reservations(capacity: ClusterCapacity, wish: Resources) -> Iterator[Reservation]:
    """Yield the reservation of ``wish`` on as few nodes as possible.

    If these nodes have devices, also yield the reservation of the CPUs on more nodes.

    Raises:
        InfeasibleRequestError: The cluster has fewer resources than ``wish``.
    """
    on_few_nodes = reserve(capacity, wish)
    yield on_few_nodes
    # CPUs that are reserved on few nodes can leave the devices of these nodes without CPUs, so a second choice takes a
    # few CPUs from each of many nodes.
    if wish.cpus and any(map(_num_devices, on_few_nodes.values())):
        of_devices = reserve(capacity, wish.replaced(cpus=0))
        rest = capacity.replacing(of_devices)
        cpus = Resources(cpus=wish.cpus)
        kept = _max_reserved_per_device(rest, cpus.ticks["CPU"])
        yield {**of_devices, **reserve(rest, cpus, kept_per_device=kept)}


def other_reservations(
    capacity: ClusterCapacity, wish: Resources, slots: Sequence[TrialSlot], known: Collection[Reservation]
) -> Iterator[Reservation]:
    """Yield further reservations of ``wish``, starting with those that displace the fewest trials.

    On a large cluster, at most one is yielded, and only if it displaces fewer trials than the ``known`` ones.

    Args:
        capacity: The cluster. It has at least the resources in ``wish``.
        wish: The resources to reserve.
        slots: Slots that fit the cluster, to estimate how many trials are displaced.
        known: Other reservations. They are not yielded again.
    """
    is_small = len(capacity.nodes) <= _SMALL
    kinds = _Kinds(capacity, wish, slots, is_small=is_small)
    if is_small:
        yield from kinds.all_others(known)
    else:
        costs = [kinds.cost(reservation) for reservation in known]
        found = [(kinds.cost(reservation), reservation) for reservation in (kinds.of_unused(), kinds.cheapest())]
        cost, reservation = min(found, key=itemgetter(0))
        if not costs or cost < min(costs):
            yield reservation


_Cost = tuple[float, float]
"""The numbers of trials with and without devices. Trials with devices matter more."""


class _Kinds:
    """The nodes of a cluster, grouped into kinds of interchangeable nodes.

    The kinds on which a reservation displaces the fewest trials come first. On a large cluster, nodes of a kind may
    differ in labels that no slot selects.
    """

    def __init__(
        self, capacity: ClusterCapacity, wish: Resources, slots: Sequence[TrialSlot], *, is_small: bool
    ) -> None:
        self._wish = wish.ticks
        # Many slots have the same selector, which can list thousands of nodes.
        matchers = {slot.label_selector: matcher(slot.label_selector) for slot in slots}
        self._slots = [(request_of(slot), matchers[slot.label_selector], slot.has_device) for slot in slots]
        self._original = {node.node_id: node for node in capacity.nodes}
        selectors = [selects for selector, selects in matchers.items() if selector]
        kinds: list[tuple[tuple[object, ...], Sequence[NodeCapacity]]] = []
        seen = capacity if is_small else with_rounded_memory(capacity, memory=wish.memory_bytes, num_workers=0)
        for shape, nodes in seen.nodes_by_shape.items():
            by_others: dict[tuple[object, ...], Sequence[NodeCapacity]] = {(): nodes}
            if is_small:
                # The last item of the sort key is the node ID, and no choice may depend on it.
                by_others = _grouped(nodes, lambda node: node.sort_key[:-1])
            elif selectors:
                by_others = _grouped(nodes, lambda node: tuple(selects(node.ray_labels) for selects in selectors))
            for others, alike in by_others.items():
                one = alike[0]
                order = self._cost_per_part(one), preference(one, self._wish), repr(shape), others
                kinds.append((order, alike))
        self._kinds = [nodes for _, nodes in sorted(kinds, key=itemgetter(0))]

    def cost(self, reservation: Reservation) -> _Cost:
        """Return the approximate number of trials that the reservation displaces."""
        lost = [self._lost(self._original[node_id], node) for node_id, node in reservation.items()]
        return sum(on_devices for on_devices, _ in lost), sum(others for _, others in lost)

    def cheapest(self) -> Reservation:
        """Return the reservation on the nodes with the fewest trials for the reserved amounts."""
        return self._completed(_Reserved(self._wish)).changed

    def of_unused(self) -> Reservation:
        """Return the reservation of what the slots leave unused, and then of the nodes with the fewest trials."""
        unused = _Reserved(self._wish)
        for nodes in self._kinds:
            most = takeable(self._without_slots(nodes[0]))
            if any(_taken(unused.left, most).values()):  # sorting the nodes takes a while
                unused.take(self._exact(nodes), most=most)
        return self._completed(unused).changed

    def all_others(self, known: Iterable[Reservation]) -> Iterator[Reservation]:
        """Yield all reservations that differ from the known ones in more than names, cheapest first."""
        kind_of = {node.node_id: kind for kind, nodes in enumerate(self._kinds) for node in nodes}

        def identity(reservation: Reservation) -> object:
            changes = [(kind_of[node_id], *sorted(node.amounts.items())) for node_id, node in reservation.items()]
            return tuple(sorted(changes))

        seen = set(map(identity, known))
        found: list[tuple[_Cost, Reservation]] = []
        # The number of choices grows quickly with the number of kinds, so the search ends after ``_MOST`` of them.
        searched = self._search(_Reserved(self._wish), [0] * len(self._kinds), identity, set())
        for reservation in chain([self.of_unused()], islice(searched, _MOST)):
            key = identity(reservation)
            if key not in seen:
                seen.add(key)
                found.append((self.cost(reservation), reservation))
        yield from (reservation for _, reservation in sorted(found, key=itemgetter(0)))

    def _search(
        self, reserved: "_Reserved", used: list[int], identity: Callable[[Reservation], object], seen: set[object]
    ) -> Iterator[Reservation]:
        """Yield reservations that start with ``reserved``. ``used`` is the number of nodes of each kind in it."""
        longer: list[tuple[_Reserved, list[int]]] = []
        if not reserved.is_complete and sum(used) < _DEEPEST:
            # The nodes of a kind are interchangeable, so only its next unused node is tried.
            for kind, number in enumerate(used):
                next_nodes = self._exact(self._kinds[kind])[number : number + 1]
                extended = reserved.copy()
                if extended.take(next_nodes):
                    longer.append((extended, [*used[:kind], number + 1, *used[kind + 1 :]]))
        if not longer:
            yield self._completed(reserved).changed
        for extended, now_used in longer:
            state = identity(extended.changed)
            if state not in seen:
                seen.add(state)
                yield from self._search(extended, now_used, identity, seen)

    def _completed(self, reserved: "_Reserved") -> "_Reserved":
        for nodes in self._kinds:
            if reserved.is_complete:
                break
            reserved.take(self._exact(nodes))
        return reserved

    def _exact(self, nodes: Iterable[NodeCapacity]) -> list[NodeCapacity]:
        """Return the nodes in order, with their own host memory instead of the rounded host memory."""
        return sorted((self._original[node.node_id] for node in nodes), key=_sort_key)

    def _cost_per_part(self, node: NodeCapacity) -> _Cost:
        """Return the number of trials that a reservation on the node displaces, relative to the reserved part."""
        taken = _taken(self._wish, takeable(node))
        part = sum(amount / self._wish[name] for name, amount in taken.items())
        if not part:
            return math.inf, math.inf
        on_devices, others = self._lost(node, subtract(node, taken))
        return on_devices / part, others / part

    def _lost(self, before: NodeCapacity, after: NodeCapacity) -> _Cost:
        (devices_before, others_before), (devices_after, others_after) = self._room(before), self._room(after)
        return devices_before - devices_after, others_before - others_after

    def _room(self, node: NodeCapacity) -> _Cost:
        """Return how many trials with and without devices fit the node, each as if it had no other trials."""
        with_devices, others = 0.0, 0.0
        for request, selects, has_device in self._slots:
            if selects(node.ray_labels):
                fit = workers_on_node(node, request) / request.processes
                if has_device:
                    with_devices = max(with_devices, fit)
                else:
                    others = max(others, fit)
        return with_devices, others

    def _without_slots(self, node: NodeCapacity) -> NodeCapacity:
        """Return what is left of a node if it has as many of the slots as fit."""
        for request, selects, _ in self._slots:
            if not selects(node.ray_labels):
                continue
            fit = workers_on_node(node, request)
            if fit:
                node = subtract(node, request.worker.ticks, fit)
        return node


def _grouped(
    nodes: Iterable[NodeCapacity], key: Callable[[NodeCapacity], tuple[object, ...]]
) -> dict[tuple[object, ...], Sequence[NodeCapacity]]:
    groups: dict[tuple[object, ...], list[NodeCapacity]] = defaultdict(list)
    for node in nodes:
        groups[key(node)].append(node)
    return {**groups}


class _Reserved:
    """A part of a reservation: the changed nodes, and the amounts that are still missing."""

    def __init__(self, left: Amounts, changed: Reservation | None = None) -> None:
        self.left = dict(left)
        self.changed = dict(changed or {})

    def copy(self) -> "_Reserved":
        return _Reserved(self.left, self.changed)

    @property
    def is_complete(self) -> bool:
        return not any(self.left.values())

    def take(self, nodes: Iterable[NodeCapacity], *, most: Amounts | None = None) -> bool:
        """Reserve as much as possible on each of these equal nodes, up to ``most``.

        Return whether anything was reserved.
        """
        has_taken = False
        for node in nodes:
            before = self.changed.get(node.node_id, node)
            taken = _taken(self.left, takeable(before))
            if most is not None:
                taken = _taken(taken, most)
            if any(taken.values()):
                has_taken = True
                self.left = {name: amount - taken[name] for name, amount in self.left.items()}
                self.changed[node.node_id] = subtract(before, taken)
            elif before is node:
                break  # the remaining nodes have nothing that is needed, either
        return has_taken


def _taken(wish: Amounts, has: Amounts) -> Amounts:
    return {name: min(amount, has.get(name, 0)) for name, amount in wish.items()}


def preference(node: NodeCapacity, wish: Amounts, kept_per_device: int = 0) -> tuple[object, ...]:
    """Return a key that sorts nodes for a reservation on few nodes.

    Nodes that have all of ``wish`` come first, then nodes with fewer GPUs, less GPU memory, and then more CPUs.
    """
    has = takeable(node, kept_per_device)
    alone = all(has.get(name, 0) >= amount for name, amount in wish.items())
    # GPUs are kept for trials, and of equal nodes, one with more CPUs loses a smaller part of them.
    return (not alone, has.get("GPU", 0), node.smallest_gpu_memory_bytes or 0, -has.get("CPU", 0))


def reserve(capacity: ClusterCapacity, wish: Resources, *, kept_per_device: int = 0) -> dict[str, NodeCapacity]:
    """Reserve ``wish`` on as few nodes as possible, and return these nodes with their remaining resources, by node ID.

    A node keeps ``kept_per_device`` ticks of CPUs for each of its devices.

    Raises:
        InfeasibleRequestError: The cluster has fewer resources than ``wish``.
    """
    left = dict(wish.ticks)
    kept: dict[str, NodeCapacity] = {}
    seen = with_rounded_memory(capacity, memory=wish.memory_bytes, num_workers=0)
    # In ``seen``, nodes can have a larger, rounded host memory, so subtract from the original nodes.
    exact = {} if seen is capacity else {node.node_id: node for node in capacity.nodes}
    by_shape = [
        (preference(nodes[0], wish.ticks, kept_per_device), repr(shape), nodes)
        for shape, nodes in seen.nodes_by_shape.items()
    ]
    for _, _, nodes in sorted(by_shape, key=itemgetter(0, 1)):
        if not any(left.values()):
            break
        for listed in sorted(nodes, key=_sort_key):
            node = exact.get(listed.node_id, listed)
            taken = _taken(left, takeable(node, kept_per_device))
            if not any(taken.values()):
                break
            left = {name: amount - taken[name] for name, amount in left.items()}
            kept[node.node_id] = subtract(node, taken)
    if any(node.resources.memory_bytes is None for node, _ in seen.groups):
        # A node with unknown host memory may have any amount, so memory is never reported as missing.
        left.pop("memory", None)
    short_of = sorted(name for name, amount in left.items() if amount > 0)
    if short_of:
        asked, hint = f"resources in addition to the {wish} reserved for other programs", "Reserve less, or add nodes."
        raise InfeasibleRequestError(asked, "the cluster has less than the reserved amount", short_of[0], hint)
    return kept


def _max_reserved_per_device(capacity: ClusterCapacity, cpus: int) -> int:
    """Return the maximum number of CPUs, in ticks, that each device can keep if ``cpus`` ticks are reserved.

    A number above one CPU is rounded down to whole CPUs.
    """
    nodes = [(group.num_nodes, group.node.resources.ticks.get("CPU", 0), group.node) for group in capacity.groups]
    has = [(count, ticks, _num_devices(node)) for count, ticks, node in nodes]

    def is_enough(kept: int) -> bool:
        return sum(count * max(0, ticks - kept * num_devices) for count, ticks, num_devices in has) >= cpus

    kept = largest(0, max(ticks for _, ticks, _ in has), is_enough)
    if kept < TICKS:
        return kept
    return kept // TICKS * TICKS


def _num_devices(node: NodeCapacity) -> int:
    return -(-sum(node.resources.ticks.get(name, 0) for name in DEVICE_RESOURCES) // TICKS)


def takeable(node: NodeCapacity, kept_per_device: int = 0) -> dict[str, int]:
    """Return the amounts that can be reserved on a node that keeps ``kept_per_device`` CPUs for each device."""
    # Only whole GPUs can be reserved, because all fractions on a device must be equal.
    ticks = node.resources.ticks
    cpus = ticks.get("CPU", 0) - kept_per_device * _num_devices(node)
    return ticks | {"CPU": max(0, cpus), "GPU": ticks.get("GPU", 0) // TICKS * TICKS}
