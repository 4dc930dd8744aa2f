"""Chooses the cheapest nodes on which a number of trials with one slot type run concurrently.

The slot of a trial may depend on the nodes. If each node type has its own slots, a node runs as many trials as
the policy plans on this node alone. If all trials get the same slot, its CPUs may depend on the node with the lowest
number of CPUs per GPU, and its GPU fraction on the GPU with the least memory. Therefore, this module counts capacity in
several ways: the trials on each node type alone, and the workers of each slot that the policy chooses on any node type.
For each way, it finds the cheapest nodes, and checks with the policy whether the trials fit on them.

A unit is a node, or all hosts of a TPU slice.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import reduce
from itertools import islice
from math import gcd
from typing import Final, NamedTuple, Self

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import matcher
from tune_policies.cluster.lazy_nodes import AlikeNodes
from tune_policies.cluster.node import NodeCapacity, NodeGroup
from tune_policies.cluster.tpu_slices import TOPOLOGY
from tune_policies.kuberay.design.catalog_file import NodeType
from tune_policies.kuberay.design.cluster_spec import DesignedGroup
from tune_policies.placement.count_trials import count_workers, largest
from tune_policies.placement.request import request_of
from tune_policies.placement.scale_up import uses_devices
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import TICKS, Resources, to_ticks

Units = Mapping[str, int]
"""The number of units of each node type, by the name of the type."""

MOST_NODES_OF_TYPE: Final = 10_000
_MOST_NODES: Final = 100_000
_LEAST_LIMIT: Final = 1000
"""The maximum number of nodes of a type is ``_MOST_NODES`` divided by the number of types.

It is at least ``_LEAST_LIMIT`` and at most ``MOST_NODES_OF_TYPE``.
"""

_NO_LIMIT: Final = 1_000
"""The maximum number of units of a node type without a ``count``."""

_PER_MONEY: Final = 10**6
"""Prices are added up in whole millionths of the currency, so that equal sums compare as equal."""


@dataclass(frozen=True)
class NodePool:
    """The available node types by name, the head, the units that always exist, and the currency of the prices."""

    node_types: Mapping[str, NodeType]
    head: NodeCapacity
    least: Units = field(default_factory=dict)
    currency: str = "USD"
    _nodes: dict[tuple[str, bool], list[NodeCapacity]] = field(default_factory=dict, repr=False, compare=False)
    """The nodes of each type that were created so far. The search for the cheapest nodes needs them many times."""
    _plans: dict[Hashable, tuple[ResourcePolicy, TrialPlan | InfeasibleRequestError]] = field(
        default_factory=dict, repr=False, compare=False
    )
    """The plans that were made so far, by the identity of the policy and the units."""

    def of(self, holds: Callable[[NodeType], bool]) -> Self:
        """Return the pool with only the node types for which ``holds`` returns true."""
        kept = {name: node_type for name, node_type in self.node_types.items() if holds(node_type)}
        return replace(self, node_types=kept)

    def from_scratch(self) -> "NodePool":
        """Return the pool as if the head ran no trials and no units always existed."""
        memory_bytes = self.head.resources.memory_bytes
        head = self.head.model_copy(update={"resources": Resources(memory_bytes=memory_bytes)})
        return NodePool(self.node_types, head, currency=self.currency)

    @property
    def most(self) -> dict[str, int]:
        """The maximum number of units of each node type."""
        limit = min(MOST_NODES_OF_TYPE, max(_LEAST_LIMIT, _MOST_NODES // max(1, len(self.node_types))))
        return {
            name: min(node_type.count or _NO_LIMIT * node_type.num_hosts, limit) // node_type.num_hosts
            for name, node_type in self.node_types.items()
        }

    @property
    def has_prices(self) -> bool:
        """Whether any node type has a price."""
        return any(node_type.price_per_hour is not None for node_type in self.node_types.values())

    def unit(self, name: str) -> tuple[NodeCapacity, ...]:
        """Return the nodes of one unit."""
        return tuple(self._nodes_of(name, self.node_types[name].num_hosts, is_expected=True))

    def _nodes_of(self, name: str, number: int, *, is_expected: bool) -> list[NodeCapacity]:
        """Return the first nodes of a type."""
        nodes = self._nodes.setdefault((name, is_expected), [])
        if len(nodes) < number:
            spec = self.group(name, 1).spec
            nodes += islice(spec.nodes(number, is_expected=is_expected), len(nodes), None)
        return nodes[:number]

    def group(self, name: str, units: int) -> DesignedGroup:
        """Return a worker group with this number of units."""
        node_type = self.node_types[name]
        hosts, least = node_type.num_hosts, min(units, self.least.get(name, 0))
        return DesignedGroup(node_type=node_type, min_nodes=least * hosts, max_nodes=units * hosts, num_hosts=hosts)

    def with_least(self, units: Units) -> dict[str, int]:
        """Return ``units``, with each number raised to at least the number of units that always exist."""
        return {name: max(units.get(name, 0), self.least.get(name, 0)) for name in sorted({**units, **self.least})}

    def capacity(self, units: Units, *, is_expected: bool = True) -> ClusterCapacity:
        """Return the cluster with these units and the units that always exist.

        If ``is_expected`` is true, nodes that do not always exist are marked as nodes that do not exist yet.
        """
        parts: list[Sequence[NodeCapacity]] = [(self.head,)]
        for name, number in self.with_least(units).items():
            hosts = self.node_types[name].num_hosts
            always = min(number, self.least.get(name, 0)) * hosts
            parts += self._parts(name, range(always), is_expected=False)
            parts += self._parts(name, range(always, number * hosts), is_expected=is_expected)
        return ClusterCapacity.of_parts(parts)

    def _parts(self, name: str, numbers: range, *, is_expected: bool) -> Iterator[Sequence[NodeCapacity]]:
        """Yield the nodes of a type with these numbers, in parts with the same resources."""
        if not numbers:
            return
        if self.node_types[name].topology is not None:  # only the first host of a TPU slice has the slice's resource
            yield from ([host] for host in self._nodes_of(name, numbers.stop, is_expected=is_expected)[numbers.start :])
            return
        first = self._nodes_of(name, numbers.start + 1, is_expected=is_expected)[-1]
        yield AlikeNodes(
            first,
            len(numbers),
            lambda: self._nodes_of(name, numbers.stop, is_expected=is_expected)[numbers.start :],
        )

    def plan(self, policy: ResourcePolicy, units: Units) -> TrialPlan | None:
        """Return the policy's plan on these units, or ``None`` if not even one trial fits."""
        try:
            return self.plan_or_raise(policy, units)
        except InfeasibleRequestError:
            return None

    def plan_or_raise(self, policy: ResourcePolicy, units: Units) -> TrialPlan:
        """Return the policy's plan on these units. The same plan is made only once.

        Raises:
            InfeasibleRequestError: Not even one trial fits.
        """
        # The identity is faster than a comparison of policies, and the search plans with the same few objects many
        # times.
        key = id(policy), tuple((name, number) for name, number in self.with_least(units).items() if number)
        if key not in self._plans:
            made: TrialPlan | InfeasibleRequestError
            try:
                made = policy.plan(self.capacity(units))
            except InfeasibleRequestError as error:
                made = error
            self._plans[key] = policy, made  # without a reference to the policy, another one could get its identity
        _, made = self._plans[key]
        if isinstance(made, InfeasibleRequestError):
            raise made
        return made

    def cost(self, name: str, *, uses_devices: bool) -> tuple[int, ...]:
        """Return the cost of a unit as a tuple that is compared in order.

        Its parts are the number of nodes without a price (if other nodes have one), the price, the number of idle
        devices, and the number of nodes.
        """
        node_type = self.node_types[name]
        price = node_type.price_per_hour
        idle = 0 if uses_devices else int(sum(node_type.devices.values()))
        of_node = (int(self.has_prices and price is None), round((price or 0) * _PER_MONEY), idle, 1)
        return tuple(part * node_type.num_hosts for part in of_node)

    def price_per_hour(self, units: Units) -> float | None:
        """Return the price of these units for an hour, or ``None`` if a price is unknown."""
        total = 0.0
        for name, number in units.items():
            node_type = self.node_types[name]
            if number and node_type.price_per_hour is None:
                return None
            total += (node_type.price_per_hour or 0) * number * node_type.num_hosts
        return round(total, 6)


_SPARE: Final = (0, 1, 2, 4, 8, 16, 32, 64)
"""The numbers of additional workers to try in turn, because some policies leave resources free."""


class NodeChoice(NamedTuple):
    """Nodes for the trials of one policy, the policy's plan on these nodes, and the number of concurrent trials."""

    units: Units
    plan: TrialPlan
    num_trials: int


def choose_nodes(policy: ResourcePolicy, pool: NodePool, most: Units, num_trials: int) -> NodeChoice:
    """Return the cheapest nodes on which ``num_trials`` trials run concurrently, or as many trials as possible.

    Args:
        policy: A policy with one slot type.
        pool: The node types.
        most: The maximum number of units of each node type.
        num_trials: The number of trials to run concurrently.

    Raises:
        InfeasibleRequestError: Not even one trial fits on all units together.
    """
    most = {name: number for name, number in sorted(most.items()) if number and name in pool.node_types}
    try:
        return _choose_from(policy, pool, most, num_trials)
    except InfeasibleRequestError:
        # Ray does not distinguish parts of GPUs from whole GPUs of the same type. If parts have too little memory for a
        # trial, choose nodes with one kind of GPU only.
        found = list(_choose_per_gpu_kind(policy, pool, most, num_trials))
        if not found:
            raise
        return min(found, key=lambda choice: (-choice.num_trials, _cost(choice.units, pool, uses_devices=True)))


def _choose_per_gpu_kind(policy: ResourcePolicy, pool: NodePool, most: Units, num_trials: int) -> Iterator[NodeChoice]:
    by_gpu: dict[Hashable, dict[str, int]] = {}
    for name, number in most.items():
        parts = pool.node_types[name].known_gpus
        by_gpu.setdefault(parts and parts[0], {})[name] = number
    if len(by_gpu) == 1:
        return  # these are all nodes, on which no trial fits
    for alike in by_gpu.values():
        with suppress(InfeasibleRequestError):
            yield _choose_from(policy, pool, alike, num_trials)


def _choose_from(policy: ResourcePolicy, pool: NodePool, most: Units, num_trials: int) -> NodeChoice:
    enough, plan = _sufficient_units(policy, pool, most, num_trials)
    target = min(num_trials, plan.min_concurrent_trials)
    counts = list(_counts(policy, pool, most, plan))
    best: Units | None = None
    least_cost: tuple[int, ...] | None = None
    # A cover is found by counting workers. If the policy plans fewer trials on it, the next one has spare workers.
    for spare in _SPARE:
        covers = _covers(pool, most, counts, target, spare)
        if least_cost is not None:
            covers = [(cost, units) for cost, units in covers if cost < least_cost]
        if not covers:
            break  # additional spare workers only increase the cost
        for cost, units in covers:
            found = pool.plan(policy, units)
            if found is not None and found.min_concurrent_trials >= target:
                least_cost, best = cost, units
                break
    if best is None:
        best = enough
    return _trimmed(policy, pool, best, target)


def _sufficient_units(
    policy: ResourcePolicy, pool: NodePool, most: Units, num_trials: int
) -> tuple[dict[str, int], TrialPlan]:
    """Return units with room for the trials, or for as many trials as possible, and the plan on these units."""
    number = 1
    before: TrialPlan | None = None
    # Doubling needs few plans. The caller removes the units that are not needed.
    while True:
        # All node types grow together, because the policy may need nodes of several types.
        units = {name: min(number, limit) for name, limit in most.items()}
        plan = pool.plan(policy, units)
        if plan is None:
            if number == 1:  # usually, no trial fits on more nodes either
                try:
                    pool.plan_or_raise(policy, most)
                except InfeasibleRequestError as error:
                    raise error.with_texts(offered=f"with all nodes of the catalog, {error.offered}") from error
        elif plan.min_concurrent_trials >= num_trials or units == most:
            return units, plan
        elif before and number >= 2 * request_of(plan.slots[0]).processes and _is_limited(plan, before):
            grown = [name for name, limit in most.items() if limit > number // 2]
            without_room = (name for name in grown if not workers_in_unit(pool.unit(name), plan.slots[0]))
            if not any(pool.plan(policy, {name: 1}) for name in without_room):
                return units, plan  # each added unit has room for a worker, so the policy limits the trials
        before = plan
        number *= 2


def _is_limited(plan: TrialPlan, before: TrialPlan) -> bool:
    """Return whether ``plan`` has as many trials in the same slots as ``before``, although it has more nodes."""
    same = plan.slots[0].worker == before.slots[0].worker
    return same and plan.min_concurrent_trials == before.min_concurrent_trials


class _Count(NamedTuple):
    """A way to count capacity: the workers per unit (by node type), the workers per trial, and the use of devices."""

    in_unit: Mapping[str, int]
    per_trial: int
    uses_devices: bool


def _counts(policy: ResourcePolicy, pool: NodePool, most: Units, plan: TrialPlan) -> Iterator[_Count]:
    """Yield ways to count capacity: by trials on each node type alone, and by workers in each slot of the policy."""
    if plan.num_workers == 0:
        in_unit = {}
        for name in most:
            alone = pool.plan(policy, {name: 1})
            in_unit[name] = 0 if alone is None else alone.min_concurrent_trials
        yield _Count(in_unit, 1, uses_devices(plan.slots[0]))
    found: list[TrialSlot] = []
    for name, number in most.items():
        with suppress(InfeasibleRequestError):
            found += _sufficient_units(policy, pool, {name: number}, 1)[1].slots
    found += [*plan.slots, plan.common_slot]
    slots = [slot.of_fixed_size().model_copy(update={"max_concurrent_trials": 1}) for slot in found]
    if len({slot.worker.cpus for slot in slots}) > 1:
        # The policy chooses fewer CPUs on nodes with few CPUs, so that no device stays idle. Therefore, also count
        # workers without CPUs.
        for slot in filter(uses_devices, tuple(slots)):
            field = "per_worker" if slot.num_workers else "trial"
            slots.append(slot.model_copy(update={field: slot.worker.replaced(cpus=0)}))
    for at, slot in enumerate(slots):
        if slot not in slots[:at]:
            in_unit = {name: workers_in_unit(pool.unit(name), slot) for name in most}
            yield _Count(in_unit, request_of(slot).processes, uses_devices(slot))


def _covers(
    pool: NodePool, most: Units, counts: Sequence[_Count], target: int, spare: int
) -> list[tuple[tuple[int, ...], dict[str, int]]]:
    """Return the cheapest units with room for ``target`` trials and ``spare`` more workers.

    The list has at most one item, with the cost and the units, for each capacity count. It is sorted by cost.
    """
    found: dict[tuple[tuple[str, int], ...], tuple[int, ...]] = {}
    for count in counts:
        costs = {name: pool.cost(name, uses_devices=count.uses_devices) for name in most}
        items = [Item(name, count.in_unit[name], number, costs[name]) for name, number in most.items()]
        units = cheapest_cover(items, target * count.per_trial + spare)
        if units is not None:
            found[tuple(units.items())] = _cost(units, pool, uses_devices=count.uses_devices)
    return [(cost, dict(units)) for units, cost in sorted(found.items(), key=lambda cover: (cover[1], cover[0]))]


def _cost(units: Units, pool: NodePool, *, uses_devices: bool) -> tuple[int, ...]:
    costs = ([part * number for part in pool.cost(name, uses_devices=uses_devices)] for name, number in units.items())
    return tuple(sum(parts) for parts in zip(*costs, strict=True))


def workers_in_unit(unit: Sequence[NodeCapacity], slot: TrialSlot) -> int:
    """Return how many workers of a slot Ray can place on a unit."""
    is_selected = matcher(slot.label_selector)
    usable = [node for node in unit if is_selected(node.ray_labels) and _has_memory(node, slot)]
    if slot.topology is not None:
        usable = [node for node in usable if node.labels.get(TOPOLOGY) == slot.topology]
    return count_workers((NodeGroup(node, 1) for node in usable), request_of(slot))


def _has_memory(node: NodeCapacity, slot: TrialSlot) -> bool:
    """Return whether the node's GPUs have enough memory for the slot."""
    if slot.gpu_memory_bytes is None or not slot.worker.gpus:
        return True
    per_device = max(1, TICKS // to_ticks(slot.worker.gpus))
    return (node.smallest_gpu_memory_bytes or 0) // per_device >= slot.gpu_memory_bytes


def _trimmed(policy: ResourcePolicy, pool: NodePool, units: Units, target: int) -> NodeChoice:
    """Remove units that the trials do not need, and return the resulting choice."""

    def holds(fewer: Units) -> bool:
        found = pool.plan(policy, fewer)
        return found is not None and found.min_concurrent_trials >= target

    plan = pool.plan_or_raise(policy, units)
    kept = trimmed(units, pool, uses_devices=uses_devices(plan.slots[0]), holds=holds)
    if kept != units:
        plan = pool.plan_or_raise(policy, kept)
    return NodeChoice(kept, plan, target)


def trimmed(units: Units, pool: NodePool, *, uses_devices: bool, holds: Callable[[Units], bool]) -> dict[str, int]:
    """Remove units, the most expensive first, as long as ``holds`` returns true for the remaining units."""
    kept = dict(units)
    for name in sorted(kept, key=lambda name: (pool.cost(name, uses_devices=uses_devices), name), reverse=True):

        def fails_with(number: int, name: str = name) -> bool:
            return not holds({**kept, name: number})

        if kept[name] and holds({**kept, name: kept[name] - 1}):
            fewest = 0
            if fails_with(0):
                fewest = 1 + largest(0, kept[name] - 1, fails_with)
            kept[name] = fewest
    return {name: number for name, number in kept.items() if number}


_Link = tuple["_Link | None", str, int]
"""Chosen items as a linked list: the previous items, then the name of an item and its number of pieces."""


class Item(NamedTuple):
    """An item of the knapsack problem.

    Attributes:
        holds: The contribution of one piece to the cover.
        most: The maximum number of pieces.
        cost: The cost of one piece, as a tuple of non-negative numbers that is compared in order.
    """

    name: str
    holds: int
    most: int
    cost: tuple[int, ...]


def cheapest_cover(items: Sequence[Item], needed: int) -> dict[str, int] | None:
    """Return the number of pieces of each item in the cheapest set that covers ``needed``.

    Returns ``None`` if all pieces together do not cover ``needed``.

    This is the bounded knapsack problem in its covering form. Dynamic programming over the missing amount solves it
    exactly.
    """
    usable = sorted(item for item in items if item.holds > 0 and item.most > 0)
    if needed <= 0:
        return {}
    if sum(item.holds * item.most for item in usable) < needed:
        return None
    # A common divisor of all contributions makes the table of the search smaller.
    step = reduce(gcd, (item.holds for item in usable))
    usable = [item._replace(holds=item.holds // step) for item in usable]
    missing = -(-needed // step)
    surely = _certain_pieces(usable, missing)
    rest = [item._replace(most=item.most - surely[item.name]) for item in usable]
    found = _search(rest, missing - sum(item.holds * surely[item.name] for item in usable))
    counts = {item.name: surely[item.name] + found.get(item.name, 0) for item in usable}
    return {name: count for name, count in counts.items() if count}


def _certain_pieces(items: Sequence[Item], needed: int) -> dict[str, int]:
    """Return, by item, numbers of pieces that at least one cheapest set contains, to shorten the search.

    Consider an item that contributes n, and any n pieces of other items. Some of these pieces together contribute a
    multiple of n. If they cost more for the same contribution, pieces of the item can replace them. After all
    replacements, a cheapest set has fewer than n pieces of more expensive items, or nearly all pieces of this item.
    """
    largest = max(item.holds for item in items)
    counts, by_better = {}, 0
    for item in sorted(items, key=lambda item: [Fraction(cost, item.holds) for cost in item.cost]):
        by_need = -(-(needed - by_better - item.holds * largest) // item.holds)
        counts[item.name] = max(0, min(item.most - largest, by_need))
        by_better += item.holds * item.most
    return counts


def _search(items: Sequence[Item], needed: int) -> dict[str, int]:
    if needed <= 0:
        return {}
    # A cheapest set has at most ``needed`` pieces, so cost tuples that are encoded as integers in this base keep their
    # order.
    base = 1 + needed * max(max(item.cost) for item in items)
    # The entry of an amount is the lowest cost with which it can be covered, and the chosen items.
    unknown: tuple[int, _Link | None] | None = None
    found = [unknown] * (needed + 1)
    found[0] = (0, None)
    for item in items:
        cost = reduce(lambda total, digit: total * base + digit, item.cost)
        for number, order in _portions(item, needed):
            for missing in order:
                before = found[max(0, missing - number * item.holds)]
                if before is None:
                    continue
                now = found[missing]
                if now is None or before[0] + number * cost < now[0]:
                    found[missing] = (before[0] + number * cost, (before[1], item.name, number))
    counts: dict[str, int] = {}
    best = found[needed]
    if best is None:
        return counts
    _, link = best
    while link is not None:
        link, name, number = link
        counts[name] = counts.get(name, 0) + number
    return counts


def _portions(item: Item, needed: int) -> Iterator[tuple[int, range]]:
    """Yield portions that can add up to any number of pieces, each with the order in which to search missing amounts.

    In ascending order, the search can use a portion repeatedly. In descending order, it uses a portion at most once.
    """
    # With so many pieces, their maximum number is no limit.
    if item.most * item.holds >= needed + item.holds:
        yield 1, range(1, needed + 1)
        return
    left, portion = item.most, 1
    while left > 0:
        number = min(portion, left)
        yield number, range(needed, 0, -1)
        left -= number
        portion *= 2
