"""Forecasts which nodes Ray's autoscaler launches for pending trials.

The functions follow ``ray.autoscaler.v2.scheduler`` (version 2) and version 1's ``resource_demand_scheduler`` in
``ray.autoscaler._private``, which score every node type by the resources that pending bundles would use on one node:

* Version 2 chooses nodes for one placement group after another. It first fills nodes that exist or that it has already
  chosen. Of node types with equal scores, it uses the first one in the cluster's configuration.
* Version 1 chooses each node for the bundles of all placement groups together, and ignores label selectors. Of node
  types with equal scores, it uses the last one in alphabetical order.
* A request (``request_resources``) contains all bundles together in both versions.

Amounts are floats because Ray uses floats here, and a rounding error can decide between two node types.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import matcher
from tune_policies.cluster.node import NodeCapacity, NodeTypeCapacity
from tune_policies.placement.trial_slot import Bundle, TrialSlot
from tune_policies.values.resources import Resources


class Launches(NamedTuple):
    """The launched nodes by type, and whether there is room for all trials."""

    nodes: dict[str, int]
    is_enough: bool


def launched_for_pending(slots: Sequence[TrialSlot], capacity: ClusterCapacity, limit: int | None = None) -> Launches:
    """Return the nodes that the autoscaler launches while all trials in ``slots`` are pending.

    Args:
        slots: The slot types with their numbers of trials.
        capacity: The alive nodes, which count as idle, and the node types that can be added.
        limit: The maximum number of nodes to add, of all types together, in addition to the limits of the cluster.
    """
    return _launched(list(_groups_of(slots)), capacity, limit)


def launched_for_request(slots: Sequence[TrialSlot], capacity: ClusterCapacity, limit: int | None = None) -> Launches:
    """Return the nodes that the autoscaler launches if all trials in ``slots`` are requested together."""
    together: Counter[_Demand] = Counter()
    for group in _groups_of(slots):
        for demand, number in group.bundles.items():
            together[demand] += number * group.number
    return _launched([_Group(together, 1)], capacity, limit)


def has_choice(slots: Sequence[TrialSlot], capacity: ClusterCapacity) -> bool:
    """Return whether the processes of a slot fit on several types of nodes that can be added."""
    types = [
        _Node.empty(_Kind(node_type.name, node_type))
        for node_type in capacity.node_types or ()
        if node_type.max_nodes_to_add
    ]
    demands = [demand for group in _groups_of(slots) for demand in group.bundles]
    return any(sum(_fits(node, demand) for node in types) > 1 for demand in demands)


def about_launches(
    slots: Sequence[TrialSlot], capacity: ClusterCapacity, launched: Mapping[str, int], fewest: Mapping[str, int]
) -> list[str]:
    """Return a sentence about how to get fewer nodes than the autoscaler launches for pending trials, if possible."""
    if sum(fewest.values()) >= sum(launched.values()):
        return []
    together = launched_for_request(slots, capacity)
    is_fewer = together.is_enough and sum(together.nodes.values()) < sum(launched.values())
    text = (
        f"Ray's autoscaler (version {capacity.autoscaler_version}) launches {format_nodes(launched)} for pending trials"
    )
    if is_fewer:
        return [f"{text}, but {format_nodes(together.nodes)} if you call request_capacity before the run"]
    return [f"{text}, although {format_nodes(fewest)} would be enough: to get these, select a label of their node type"]


def format_nodes(nodes: Mapping[str, int]) -> str:
    """Return numbers of nodes by type as text."""
    return ", ".join(f"{number} {name}" for name, number in sorted(nodes.items()))


class _Demand:
    """Bundles of equal resources and label selector. Equal demands are the same object."""

    def __init__(self, bundle: Bundle) -> None:
        self.amounts = {name: float(amount) for name, amount in bundle.resources.items() if amount}
        self.num_conditions = len(bundle.label_selector)
        self.is_selected = matcher(bundle.label_selector)
        self.has_selector = bool(bundle.label_selector)

    @cached_property
    def order(self) -> tuple[object, ...]:
        """Ray places bundles with many conditions, many resources and large amounts first."""
        amounts = self.amounts
        return self.num_conditions, len(amounts), sum(amounts.values()), sorted(amounts.items())

    @cached_property
    def order_in_v1(self) -> tuple[object, ...]:
        return self.order[1:]


class _Group(NamedTuple):
    """Equal placement groups: the bundles of one group, and the number of groups."""

    bundles: Mapping[_Demand, int]
    number: int


def _groups_of(slots: Iterable[TrialSlot]) -> Iterator[_Group]:
    demands: dict[str, _Demand] = {}

    def demand_of(bundle: Bundle) -> _Demand:
        return demands.setdefault(repr(bundle), _Demand(bundle))

    # Train requests the workers of a trial when its driver runs, so the drivers come first.
    drivers = [slot for slot in slots if slot.num_workers and slot.trial.ticks]
    for slot in drivers:
        yield _Group({demand_of(slot.bundles()[0]): 1}, slot.max_concurrent_trials)
    for slot in slots:
        # The last bundle is that of a worker, or of the trial itself.
        yield _Group({demand_of(slot.bundles()[-1]): max(1, slot.num_workers)}, slot.max_concurrent_trials)


class _Kind:
    """A kind of node: its resources as Ray's autoscaler reads them, its labels, and its place in the configuration."""

    def __init__(self, name: str, node: NodeTypeCapacity | NodeCapacity) -> None:
        is_type_counted = not isinstance(node, NodeTypeCapacity) or node.is_type_counted
        accelerator_type = node.accelerator_type if is_type_counted else None
        self.name = name
        self.total = _totals(node.resources, accelerator_type)
        self.labels = node.labels if isinstance(node, NodeTypeCapacity) else node.ray_labels
        self.has_gpus = self.total.get("GPU", 0) > 0
        # Ray adds memory that is unknown here, so it does not limit the number of trials.
        self.is_memory_known = "memory" in self.total


def _totals(resources: Resources, accelerator_type: str | None) -> dict[str, float]:
    amounts: dict[str, float] = {"CPU": resources.cpus, "GPU": resources.gpus}
    if resources.memory_bytes is not None:
        amounts["memory"] = resources.memory_bytes
    amounts |= resources.custom
    if accelerator_type is not None:
        amounts[ACCELERATOR_TYPE_PREFIX + accelerator_type] = 1.0
    return {name: float(amount) for name, amount in amounts.items() if amount}


class _Node(NamedTuple):
    """The state of a node: its free amounts, the resources that bundles on it use, and whether one has a selector."""

    kind: _Kind
    free: tuple[float, ...]
    uses: frozenset[str] = frozenset()
    has_selector: bool = False

    @classmethod
    def empty(cls, kind: _Kind) -> "_Node":
        return cls(kind, tuple(kind.total.values()))

    def room_for(self, demand: _Demand) -> int:
        """Return the number of bundles that fit."""
        free = dict(zip(self.kind.total, self.free, strict=True))
        least = math.inf
        for name, amount in demand.amounts.items():
            if name == "memory" and not self.kind.is_memory_known:
                continue
            # A float division, because Ray subtracts floats: 20 bundles of 0.2 do not fit on 4 GPUs.
            least = min(least, free.get(name, 0.0) // amount)
        if least == math.inf:
            return 2**63
        return int(least)

    def with_bundles(self, demand: _Demand, number: int) -> "_Node":
        taken = demand.amounts
        free = []
        for name, amount in zip(self.kind.total, self.free, strict=True):
            if name in taken:
                amount -= taken[name] * number
            free.append(amount)
        return _Node(self.kind, tuple(free), self.uses.union(taken), self.has_selector or demand.has_selector)

    @property
    def score(self) -> tuple[float, ...]:
        """The score of version 2, in which a node without a score of its own is never compared."""
        return self.has_selector, *self._score_of(self.uses)

    def _score_of(self, requested: frozenset[str]) -> tuple[float, ...]:
        """Return whether no GPU is wasted, the number of matching resources, and the minimum and mean utilization."""
        used = []
        for total, free in zip(self.kind.total.values(), self.free, strict=True):
            utilization = (total - free) / total
            # As in Ray: the cube prefers a resource that is used completely over several that are used in part.
            used.append(total * (utilization**3))
        is_no_waste = not self.kind.has_gpus or "GPU" in requested
        matching = len(requested & self.kind.total.keys())
        if not used:
            return is_no_waste, matching, 0.0, 0.0
        return is_no_waste, matching, min(used), sum(used) / len(used)

    def score_in_v1(self, requested: frozenset[str]) -> tuple[float, ...]:
        """Return the score of version 1, for which the resources of all pending bundles match."""
        return self._score_of(requested)


def _fits(node: _Node, demand: _Demand) -> bool:
    return demand.is_selected(node.kind.labels) and node.room_for(demand) > 0


def _placed(
    node: _Node, bundles: Mapping[_Demand, int], *, reads_labels: bool = True
) -> tuple[_Node, dict[_Demand, int]]:
    """Return the node with as many bundles as fit, in their order, and the remaining bundles."""
    left: dict[_Demand, int] = {}
    for demand, number in bundles.items():
        fits = 0
        if not reads_labels or demand.is_selected(node.kind.labels):
            fits = min(number, node.room_for(demand))
        if fits:
            node = node.with_bundles(demand, fits)
        if fits < number:
            left[demand] = number - fits
    return node, left


def _launched(groups: list[_Group], capacity: ClusterCapacity, limit: int | None) -> Launches:
    limits = [most for most in (limit, capacity.max_nodes_to_add) if most is not None]
    most = min(limits, default=2**63)
    types = [(_Kind(node_type.name, node_type), node_type.max_nodes_to_add) for node_type in capacity.node_types or ()]
    alive = _alive_nodes(capacity, {demand for group in groups for demand in group.bundles if demand.has_selector})
    if capacity.autoscaler_version == 1:
        return _launched_by_v1(groups, alive, types, most)
    return _LaunchesOfV2(alive, types, most).launched(groups)


def _alive_nodes(capacity: ClusterCapacity, selective: Collection[_Demand]) -> Counter[_Node]:
    """Count the alive nodes. Nodes of equal resources are one kind if the same selectors match their labels."""
    found: Counter[_Node] = Counter()
    kinds: dict[tuple[object, ...], _Node] = {}
    for shape, nodes in capacity.nodes_by_shape.items():
        if not selective:
            found[_Node.empty(_Kind(nodes[0].node_id, nodes[0]))] += len(nodes)
            continue
        for node in nodes:
            key = shape, tuple(demand.is_selected(node.ray_labels) for demand in selective)
            if key not in kinds:
                kinds[key] = _Node.empty(_Kind(node.node_id, node))
            found[kinds[key]] += 1
    return found


class _LaunchesOfV2:
    """The nodes that version 2 has chosen so far.

    ``nodes`` counts the nodes with room in each state, because a cluster has many nodes and few states.
    """

    def __init__(self, alive: Counter[_Node], types: list[tuple[_Kind, int]], limit: int) -> None:
        self.nodes = dict(alive)
        self.left_of = dict(types)
        self.limit = limit
        self.added: Counter[str] = Counter()
        self.scores: dict[tuple[_Node, tuple[tuple[_Demand, int], ...]], tuple[float, ...] | None] = {}
        """The score of each node with as many of some bundles as fit, or ``None`` if none fits."""

    def launched(self, groups: list[_Group]) -> Launches:
        is_enough = True
        # Ray sorts placement groups by their number of bundles. Sorting keeps the order of equal ones.
        for group in sorted(groups, key=lambda group: sum(group.bundles.values()), reverse=True):
            is_enough &= self._add(group)
        return Launches(dict(self.added), is_enough)

    def _add(self, group: _Group) -> bool:
        """Place equal placement groups, one after another, and return whether all of them have room."""
        bundles = dict(sorted(group.bundles.items(), key=lambda item: item[0].order, reverse=True))
        if sum(bundles.values()) == 1:
            return self._add_single(next(iter(bundles)), group.number)
        return all(self._add_one(bundles) for _ in range(group.number))

    def _add_single(self, demand: _Demand, number: int) -> bool:
        """Place groups of one bundle. The node with the best score for one of them is also the best for the next.

        If the best node is full afterwards, an equal node is the next best one, so equal nodes are filled together.
        """
        while number > 0:
            best = self._best(self.nodes, {demand: 1})
            # Existing and chosen nodes come first. A node is launched only if the bundle fits on none of them.
            is_new = best is None
            if is_new and self.limit > 0:
                best = self._best((_Node.empty(kind) for kind, left in self.left_of.items() if left > 0), {demand: 1})
            if best is None:
                return False
            most = min(self.left_of[best.kind], self.limit) if is_new else self.nodes[best]
            fits = min(number, best.room_for(demand))
            filled = best.with_bundles(demand, fits)
            # A rounding error can leave room for another bundle, which Ray then places on the same node.
            equal = min(most, number // fits) if filled.room_for(demand) == 0 else 1
            if is_new:
                self._launch(best.kind, equal)
            else:
                self._take(best, equal)
            self.nodes[filled] = self.nodes.get(filled, 0) + equal
            number -= fits * equal
        return True

    def _add_one(self, bundles: dict[_Demand, int]) -> bool:
        """Place all bundles of a group, or none of them."""
        before = dict(self.nodes), dict(self.left_of), self.limit, Counter(self.added)
        touched: Counter[_Node] = Counter()  # Ray considers each node once for a group
        while bundles:
            # First the nodes that exist or were chosen for earlier groups, and then new nodes.
            best = self._best(self.nodes, bundles)
            if best is None:
                break
            filled, bundles = _placed(best, bundles)
            self._take(best)
            touched[filled] += 1
        pool = [kind for kind, left in self.left_of.items() if left > 0]
        while bundles:
            best = self._new_node(bundles, pool)
            if best is None:
                break
            filled, bundles = _placed(best, bundles)
            touched[filled] += 1
        for node, number in touched.items():
            self.nodes[node] = self.nodes.get(node, 0) + number
        if bundles:  # version 2 launches all nodes for a placement group, or none
            self.nodes, self.left_of, self.limit, self.added = before
        return not bundles

    def _best(self, nodes: Iterable[_Node], bundles: Mapping[_Demand, int]) -> _Node | None:
        """Return the node whose score is the highest after as many bundles as possible are placed on it."""
        best, highest = None, None
        wanted = tuple(bundles.items())
        for node in nodes:
            key = node, wanted
            if key not in self.scores:
                filled, left = _placed(node, bundles)
                self.scores[key] = None if left == bundles else filled.score
            score = self.scores[key]
            # Ray sorts the nodes by score in descending order, and the sort is stable, so the first of equal nodes is
            # used (``_sched_best_node``).
            if score is not None and (highest is None or score > highest):
                best, highest = node, score
        return best

    def _new_node(self, bundles: Mapping[_Demand, int], pool: list[_Kind]) -> _Node | None:
        """Return a new node of the best type in ``pool``, which contains the types that can be added."""
        if self.limit <= 0:
            return None
        best = self._best(map(_Node.empty, pool), bundles)
        if best is None:
            return None
        self._launch(best.kind, 1)
        # Within a placement group, Ray moves a type that it has used to the end of its list.
        pool.remove(best.kind)
        if self.left_of[best.kind] > 0:
            pool.append(best.kind)
        return best

    def _launch(self, kind: _Kind, number: int) -> None:
        self.limit -= number
        self.left_of[kind] -= number
        self.added[kind.name] += number

    def _take(self, node: _Node, number: int = 1) -> None:
        self.nodes[node] -= number
        if not self.nodes[node]:
            del self.nodes[node]


def _launched_by_v1(
    groups: list[_Group], alive: Counter[_Node], types: list[tuple[_Kind, int]], limit: int
) -> Launches:
    wanted: Counter[_Demand] = Counter()
    for group in groups:
        for demand, number in group.bundles.items():
            wanted[demand] += number * group.number
    bundles = dict(sorted(wanted.items(), key=lambda item: item[0].order_in_v1, reverse=True))
    # Version 1 launches nodes only for what the alive nodes cannot take, in the order of its own sorting.
    for node in alive.elements():
        if not bundles:
            break
        _, bundles = _placed(node, bundles, reads_labels=False)
    left_of = dict(types)
    added: Counter[str] = Counter()
    while bundles and added.total() < limit:
        requested = frozenset(name for demand in bundles for name in demand.amounts)
        scores = []
        for kind, number in left_of.items():
            filled, left = _placed(_Node.empty(kind), bundles, reads_labels=False)
            if number > 0 and left != bundles:
                scores.append((filled.score_in_v1(requested), kind.name, kind, left))
        if not scores:
            break
        # Version 1 sorts pairs of score and name in descending order, so the last name wins a tie.
        _, name, kind, left = max(scores, key=lambda rank: rank[:2])
        equal = _equal_choices(kind, bundles, left_of, limit - added.total())
        if equal > 1:
            # ``left`` is what one node leaves. After several equal nodes, it is less.
            ((demand, number),) = bundles.items()
            left = {demand: number - equal * _Node.empty(kind).room_for(demand)}
        bundles = {demand: number for demand, number in left.items() if number}
        left_of[kind] -= equal
        added[name] += equal
    return Launches(dict(added), not bundles)


def _equal_choices(kind: _Kind, bundles: Mapping[_Demand, int], left_of: Mapping[_Kind, int], limit: int) -> int:
    """Return how many times version 1 certainly chooses the same type in a row: while equal bundles fill any type."""
    if len(bundles) != 1:
        return 1
    ((demand, number),) = bundles.items()
    most = max(_Node.empty(other).room_for(demand) for other, left in left_of.items() if left > 0)
    repeated = (number - most) // _Node.empty(kind).room_for(demand)
    return max(1, min(left_of[kind], limit, repeated + 1))
