"""Computes the resources of a cluster that a plan leaves idle, and the reasons.

If the plan fills the cluster, each node has as many workers as fit. Otherwise, only the total of the idle resources is
known, because Ray chooses the nodes.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from pydantic import Field

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import matcher
from tune_policies.cluster.node import NodeGroup
from tune_policies.placement.count_trials import slots_on_node, workers_on_node
from tune_policies.placement.request import Limit, Request, request_of
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import TICKS, amount_of, format_amount, from_ticks
from tune_policies.values.units import MIB, format_bytes
from tune_policies.values.value import Value

_LEAST_SHOWN: Final = 0.001
"""The fraction of a resource below which an idle amount of less than 1 counts as rounding, such as 0.0002 of 2 CPUs."""


class Why(StrEnum):
    """The kinds of reasons why an amount is idle. ``{}`` stands for a name. Usage records contain these texts."""

    ROUNDING = "lost to rounding, because Ray counts in steps of 0.0001"
    LEFT_FREE = "reserved for others by the policy"
    BESIDE = "more trials would need resources that the policy reserves for others"
    GROWTH = "reserved for the growth of one trial"
    NOT_SELECTED = "on nodes that the plan's label selector excludes"
    OTHER_TYPE = "on nodes of a type other than {}"
    NOT_ASKED = "no trial requests {}"
    TOO_SMALL = "too little for one more {}"
    NONE_LEFT = "no {} is left on their nodes"
    TOO_LITTLE = "too little {} is left on their nodes"
    CAPPED = "not needed, because {} limits the number of trials"
    LIMITED = "limited by {}"


class Reason(NamedTuple):
    """The reason why an amount is idle, and the name that replaces ``{}``."""

    why: Why
    name: str = ""

    def __str__(self) -> str:
        return self.why.format(self.name)


Parts = Counter[tuple[str, Reason]]
"""The idle amounts by resource and reason, in ticks, or in bytes for host memory."""


class Idle(Value):
    """An amount of a resource that no trial of a plan uses.

    Attributes:
        resource: Ray's name of the resource.
        amount: The amount that is idle for this reason. ``memory`` is in bytes.
        total: The total amount in the cluster.
        reason: The reason why no trial uses the amount.
        why: The kind of the reason.
    """

    resource: str
    amount: float
    total: float
    reason: str
    why: Why | None = Field(default=None, exclude=True, repr=False)

    def __str__(self) -> str:
        if self.resource == "memory":
            return f"{format_bytes(int(self.amount))} of {format_bytes(int(self.total))} of host memory: {self.reason}"
        return f"{format_amount(self.amount)} of {amount_of(self.total, self.resource)}: {self.reason}"


def idle(capacity: ClusterCapacity, plan: TrialPlan) -> tuple[Idle, ...]:
    """Return the idle resources of ``capacity`` and of the nodes that the plan adds.

    Used and idle amounts add up to the total. Host memory is omitted if trials reserve none, or if the memory of a node
    is unknown.

    Raises:
        InvalidResourcesError: The plan uses more resources than the cluster has, so it was made for another cluster.
    """
    cluster = with_planned_nodes(capacity, plan)
    total = _total(cluster.groups)
    is_reserved = any(slot.worker.memory_bytes for slot in plan.slots)
    if not is_reserved or any(node.resources.memory_bytes is None for node, _ in cluster.groups):
        total.pop("memory", None)
    used = _used(plan)
    # A cluster without any device or CPU that the plan uses is another cluster. Other resources can be unknown.
    for name in total.keys() | (used.keys() & (DEVICE_RESOURCES | {"CPU"})):
        if used[name] > total[name]:
            raise InvalidResourcesError(
                f"the plan uses more {name} than the cluster has. Pass the capacity for which the plan was made"
            )
    parts = _parts(cluster, plan)
    if parts is None:
        parts = _parts_of_totals(total, used, plan.limited_by)
    _assign_reserved(parts, plan)
    left = [
        Idle(
            resource=name,
            amount=_amount(name, ticks),
            total=_amount(name, total[name]),
            reason=str(reason),
            why=reason.why,
        )
        for (name, reason), ticks in parts.items()
        if ticks and name in total
    ]
    return tuple(sorted(left, key=_position))


def idle_to_show(capacity: ClusterCapacity, plan: TrialPlan) -> tuple[Idle, ...]:
    """Return the idle resources of ``capacity`` without amounts that come from rounding.

    Raises:
        InvalidResourcesError: The plan uses more resources than the cluster has, so it was made for another cluster.
    """
    return tuple(part for part in idle(capacity, plan) if not _is_rounding(part))


def idle_heading(plan: TrialPlan, left: Collection[Idle]) -> str:
    """Return the heading of the idle resources ``left``. They are idle while all slots of the plan are in use."""
    heading = "stays idle" if left else "nothing stays idle"
    if plan.by_config is not None and plan.by_config.varies:
        heading += " if the configs use all slots"
    return heading


def _is_rounding(part: Idle) -> bool:
    if part.resource == "memory":
        return part.amount < MIB  # a request of memory is at least 1 MiB
    return part.why is Why.ROUNDING or (part.amount < 1 and part.amount < _LEAST_SHOWN * part.total)


def with_planned_nodes(capacity: ClusterCapacity, plan: TrialPlan) -> ClusterCapacity:
    """Return the cluster with the nodes that the autoscaler must add for the plan."""
    if not plan.nodes_to_add:
        return capacity  # its cached properties, which planning computed, save time
    return capacity.with_nodes_added(plan.nodes_to_add)


def _position(part: Idle) -> tuple[object, ...]:
    """Return the sort key of a part: CPUs and GPUs come first, and large amounts of a resource before small ones."""
    return part.resource not in ("CPU", "GPU"), part.resource, -part.amount, part.reason, part.why


def _parts(cluster: ClusterCapacity, plan: TrialPlan) -> Parts | None:
    """Return the idle amounts by resource and reason, or ``None`` if it is unknown on which nodes trials run."""
    if len(plan.slots) > 1:
        return None
    slot = plan.slots[0]
    request = request_of(slot)
    selected, excluded = _split(cluster, slot.label_selector)
    room, parts = _left_on_full_nodes(selected, request)
    spare = room - slot.max_concurrent_trials * request.processes
    if spare < 0:
        return None
    for name, ticks in _total(excluded).items():
        parts[name, Reason(Why.NOT_SELECTED)] += ticks
    # Room for more workers is first the room into which one elastic trial can grow while the others have their minimum,
    # then the workers that are too few for another trial, and then room for whole trials.
    growth = 0
    if slot.max_workers is not None:
        growth = min(spare, slot.max_workers - slot.num_workers)
    spare -= growth
    too_few = spare % request.processes
    for name, needed in request.worker.ticks.items():
        parts[name, Reason(Why.GROWTH)] += growth * needed
        parts[name, Reason(Why.TOO_SMALL, "trial")] += too_few * needed
        parts[name, _why_spare(plan)] += (spare - too_few) * needed
    _subtract_drivers(parts, slot)
    return parts


def _parts_of_totals(total: Mapping[str, int], used: Mapping[str, int], limited_by: str) -> Parts:
    """Return the idle amounts of the whole cluster. The limit on the number of trials is the reason for all of them."""
    parts = Parts()
    for name, ticks in total.items():
        reason = Reason(Why.LIMITED, limited_by)
        if name == limited_by:
            reason = Reason(Why.TOO_SMALL, "trial")
        parts[name, reason] = ticks - used.get(name, 0)
    return parts


def _split(cluster: ClusterCapacity, selector: Mapping[str, str]) -> tuple[Sequence[NodeGroup], Sequence[NodeGroup]]:
    """Return the nodes that match a label selector, and the other nodes, each grouped by shape."""
    if not selector:
        return cluster.groups, ()
    is_selected = matcher(selector)
    selected: list[NodeGroup] = []
    excluded: list[NodeGroup] = []
    for nodes in cluster.nodes_by_shape.values():
        count = sum(is_selected(node.ray_labels) for node in nodes)
        if count:
            selected.append(NodeGroup(nodes[0], count))
        if count < len(nodes):
            excluded.append(NodeGroup(nodes[0], len(nodes) - count))
    return selected, excluded


def _assign_reserved(parts: Parts, plan: TrialPlan) -> None:
    """Assign ``LEFT_FREE`` to the amounts that the policy reserves, first to amounts whose reason is ``BESIDE``."""
    left_free = Reason(Why.LEFT_FREE)
    for name, ticks in plan.left_free.ticks.items():
        reasons = [
            reason for resource, reason in parts if resource == name and reason.why not in (Why.GROWTH, Why.LEFT_FREE)
        ]
        for reason in sorted(reasons, key=lambda reason: (reason.why is not Why.BESIDE, str(reason))):
            moved = min(parts[name, reason], ticks - parts[name, left_free])
            parts[name, left_free] += moved
            parts[name, reason] -= moved


def _left_on_full_nodes(groups: Iterable[NodeGroup], request: Request) -> tuple[int, Parts]:
    """Fill all nodes with workers, and return the number of workers and the idle amounts."""
    room, parts = 0, Parts()
    needed = request.worker.ticks
    for alike in _with_equal_reasons(groups, request):
        node = alike[0].node
        num_nodes = sum(count for _, count in alike)
        workers = workers_on_node(node, request)
        room += workers * num_nodes
        slots = slots_on_node(node, request)
        left = {name: has - workers * needed.get(name, 0) for name, has in node.resources.ticks.items()}
        for name, ticks in left.items():
            total = ticks * num_nodes
            if name == "memory":  # nodes that are alike in all other resources can differ in their host memory
                has = sum(count * node.resources.ticks[name] for node, count in alike)
                total = has - workers * needed.get(name, 0) * num_nodes
            if total:
                parts[name, _why_left(name, request, slots, left)] += total
    return room, parts


def _with_equal_reasons(groups: Iterable[NodeGroup], request: Request) -> Collection[Sequence[NodeGroup]]:
    """Combine the groups of nodes that are equal except for their host memory, and have the same idle resources.

    In a large cluster, each machine can have a different host memory. For the reasons, it only matters whether the host
    memory limits the number of workers, and whether it is used up.
    """
    needed = request.worker.memory_bytes
    combined: dict[tuple[object, ...], list[NodeGroup]] = defaultdict(list)
    for group in groups:
        memory, others = group.node.shape
        workers = workers_on_node(group.node, request)
        is_limit = is_used_up = False
        if needed is not None and memory is not None:
            is_limit = memory // needed == workers
            is_used_up = _is_used_up(memory - workers * needed, needed)
        combined[others, workers, memory is None, is_limit, is_used_up].append(group)
    return combined.values()


def _why_left(name: str, request: Request, slots: dict[str, int], left: dict[str, int]) -> Reason:
    """Return the reason why an amount is idle on a node that is full of workers.

    ``slots`` has the number of workers that fit by resource, and ``left`` has the idle amounts.
    """
    wanted_type = request.accelerator_type
    if wanted_type is not None and slots[ACCELERATOR_TYPE_PREFIX + wanted_type] == 0:
        return Reason(Why.OTHER_TYPE, wanted_type)
    if name not in request.worker.ticks:
        return Reason(Why.NOT_ASKED, name)
    needed = request.worker.ticks[name]
    workers = min(slots.values(), default=0)
    if name != "memory" and left[name] <= _lost_to_rounding(needed, left[name] + workers * needed):
        return Reason(Why.ROUNDING)
    others = [resource for resource, count in slots.items() if count == workers and resource != name]
    if left[name] < needed or not others:
        return Reason(Why.TOO_SMALL, request.unit)
    used_up = [other for other in others if _is_used_up(left.get(other, 0), request.worker.ticks.get(other, 1))]
    if used_up:  # the first name, so that equal plans have equal texts
        return Reason(Why.NONE_LEFT, min(used_up))
    return Reason(Why.TOO_LITTLE, min(others))


def _is_used_up(left: int, needed: int) -> bool:
    return left * 100 < needed  # rounding can leave up to 1 % of the request


def _lost_to_rounding(share: int, has: int) -> int:
    """Return the ticks that remain on full devices of a node because the fraction 1/k of a worker is rounded down."""
    lost = TICKS % share
    if lost >= TICKS // share:
        return 0  # too much for rounding
    return has // TICKS * lost


def _why_spare(plan: TrialPlan) -> Reason:
    """Return the reason why resources with room for more trials are idle."""
    if isinstance(plan.limited_by, Limit):
        return Reason(Why.CAPPED, plan.limited_by)
    if plan.left_free.ticks:
        return Reason(Why.BESIDE)
    return Reason(Why.LEFT_FREE)


def _subtract_drivers(parts: Parts, slot: TrialSlot) -> None:
    """Subtract the resources of the trial drivers from the idle amounts. A driver may be on any node."""
    if slot.num_workers == 0:
        return
    for name, needed in slot.trial.ticks.items():
        reserved = slot.max_concurrent_trials * needed
        of_name = [part for part in parts if part[0] == name]
        for part in sorted(of_name, key=lambda part: str(part[1])):
            taken = min(reserved, parts[part])
            parts[part] -= taken
            reserved -= taken


def _used(plan: TrialPlan) -> Counter[str]:
    used: Counter[str] = Counter()
    for slot in plan.slots:
        for name, ticks in slot.trial.ticks.items():
            used[name] += slot.max_concurrent_trials * ticks
        for name, ticks in slot.per_worker.ticks.items():
            used[name] += slot.max_concurrent_trials * slot.num_workers * ticks
    return used


def _total(groups: Iterable[NodeGroup]) -> Counter[str]:
    total: Counter[str] = Counter()
    for node, count in groups:
        for name, ticks in node.resources.ticks.items():
            total[name] += ticks * count
    return total


def _amount(name: str, ticks: int) -> float:
    if name == "memory":
        return ticks
    return from_ticks(ticks)
