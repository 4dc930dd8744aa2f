"""Computes the resources of a cluster that a plan leaves idle, and the reasons.

If the plan fills the cluster, each node has as many workers as fit. Otherwise, only the total of the idle resources is
known, because Ray chooses the nodes.
"""

from collections import Counter
from enum import StrEnum
from typing import NamedTuple

from pydantic import Field

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import matcher
from tune_policies.placement.packing import Limit, Request, request_of, slots_on_node
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import TICKS, amount_of, format_amount, from_ticks
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value


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
    cluster = capacity.with_nodes_added(plan.nodes_to_add)
    total = _total(cluster)
    is_reserved = any(slot.worker.memory_bytes for slot in plan.slots)
    if not is_reserved or any(node.resources.memory_bytes is None for node, _ in cluster.groups):
        total.pop("memory", None)
    used = _used(plan)
    for name in total.keys() | (used.keys() & (DEVICE_RESOURCES | {"CPU"})):
        if used[name] > total[name]:
            raise InvalidResourcesError(
                f"the plan uses more {name} than the cluster has. Pass the capacity for which the plan was made"
            )
    parts = _parts(cluster, plan)
    if parts is None:
        limits = dict.fromkeys(total, Reason(Why.LIMITED, plan.limited_by))
        limits[plan.limited_by] = Reason(Why.TOO_SMALL, "trial")
        parts = Counter({(name, limits[name]): total[name] - used[name] for name in total})
    _move_reserved(parts, plan)
    rows = sorted(
        (name not in ("CPU", "GPU"), name, -amount, str(reason), reason.why) for (name, reason), amount in parts.items()
    )
    return tuple(
        Idle(resource=name, amount=_amount(name, -negated), total=_amount(name, total[name]), reason=text, why=why)
        for _, name, negated, text, why in rows
        if negated and name in total
    )


def _parts(cluster: ClusterCapacity, plan: TrialPlan) -> Parts | None:
    """Return the idle amounts by resource and reason, or ``None`` if it is unknown on which nodes trials run."""
    slot = plan.slots[0]
    if len(plan.slots) > 1:
        return None
    request = request_of(slot)
    is_selected = matcher(slot.label_selector)
    room, parts = _left_on_full_nodes(cluster.where(lambda node: is_selected(node.ray_labels)), request)
    for name, ticks in _total(cluster.where(lambda node: not is_selected(node.ray_labels))).items():
        parts[name, Reason(Why.NOT_SELECTED)] += ticks
    spare = room - slot.max_concurrent_trials * request.processes
    if spare < 0:
        return None
    growth = min(spare, slot.max_workers - slot.num_workers) if slot.max_workers is not None else 0
    spare -= growth
    too_few = spare % request.processes
    for name, needed in request.worker.ticks.items():
        parts[name, Reason(Why.GROWTH)] += growth * needed
        parts[name, Reason(Why.TOO_SMALL, "trial")] += too_few * needed
        parts[name, _why_spare(plan)] += (spare - too_few) * needed
    _take_drivers(parts, slot)
    return parts


def _move_reserved(parts: Parts, plan: TrialPlan) -> None:
    """Assign ``LEFT_FREE`` to the amounts that the policy reserves, first to amounts whose reason is ``BESIDE``."""
    for name, ticks in plan.left_free.ticks.items():
        left_free = Reason(Why.LEFT_FREE)
        reasons = [reason for each, reason in parts if each == name and reason.why not in (Why.GROWTH, Why.LEFT_FREE)]
        for reason in sorted(reasons, key=lambda reason: (reason.why is not Why.BESIDE, str(reason))):
            moved = min(parts[name, reason], ticks - parts[name, left_free])
            parts[name, left_free] += moved
            parts[name, reason] -= moved


def _left_on_full_nodes(cluster: ClusterCapacity, request: Request) -> tuple[int, Parts]:
    """Fill all nodes with workers, and return the number of workers and the idle amounts."""
    room, parts = 0, Parts()
    needed = request.worker.ticks
    for node, count in cluster.groups:
        slots = slots_on_node(node, request)
        held = min(slots.values(), default=0)
        room += held * count
        left = {name: has - held * needed.get(name, 0) for name, has in node.resources.ticks.items()}
        for name, amount in left.items():
            if amount:
                parts[name, _why_left(name, request, slots, left)] += amount * count
    return room, parts


def _why_left(name: str, request: Request, slots: dict[str, int], left: dict[str, int]) -> Reason:
    wanted_type = request.accelerator_type
    if wanted_type is not None and slots[ACCELERATOR_TYPE_PREFIX + wanted_type] == 0:
        return Reason(Why.OTHER_TYPE, wanted_type)
    if name not in request.worker.ticks:
        return Reason(Why.NOT_ASKED, name)
    needed = request.worker.ticks[name]
    held = min(slots.values(), default=0)
    if name != "memory" and left[name] <= _lost_to_rounding(needed, left[name] + held * needed):
        return Reason(Why.ROUNDING)
    others = [stop for stop in slots if slots[stop] == held and stop != name]
    if left[name] < needed or not others:
        return Reason(Why.TOO_SMALL, "worker" if request.num_workers else "trial")

    def is_used_up(stop: str) -> bool:  # up to 1 % of the request may remain because of rounding
        return left.get(stop, 0) * 100 < request.worker.ticks.get(stop, 1)

    stop = min(others, key=lambda other: (not is_used_up(other), other))
    return Reason(Why.NONE_LEFT if is_used_up(stop) else Why.TOO_LITTLE, stop)


def _lost_to_rounding(share: int, has: int) -> int:
    """Return the ticks that remain on full devices of a node because the fraction 1/k of a worker is rounded down."""
    lost = TICKS % share
    return has // TICKS * lost if lost < TICKS // share else 0


def _why_spare(plan: TrialPlan) -> Reason:
    """Return the reason why resources with room for more trials are idle."""
    if isinstance(plan.limited_by, Limit):
        return Reason(Why.CAPPED, plan.limited_by)
    return Reason(Why.BESIDE if plan.left_free.ticks else Why.LEFT_FREE)


def _take_drivers(parts: Parts, slot: TrialSlot) -> None:
    """Subtract the resources of the trial drivers from the idle amounts. A driver may be on any node."""
    if slot.num_workers == 0:
        return
    for name, needed in slot.trial.ticks.items():
        held = slot.max_concurrent_trials * needed
        for part in sorted((part for part in parts if part[0] == name), key=lambda part: str(part[1])):
            taken = min(held, parts[part])
            parts[part] -= taken
            held -= taken


def _used(plan: TrialPlan) -> Counter[str]:
    used: Counter[str] = Counter()
    for slot in plan.slots:
        for resources, times in ((slot.trial, 1), (slot.per_worker, slot.num_workers)):
            for name, amount in resources.ticks.items():
                used[name] += slot.max_concurrent_trials * times * amount
    return used


def _total(cluster: ClusterCapacity) -> Counter[str]:
    total: Counter[str] = Counter()
    for node, count in cluster.groups:
        total.update({name: ticks * count for name, ticks in node.resources.ticks.items()})
    return total


def _amount(name: str, ticks: int) -> float:
    return ticks if name == "memory" else from_ticks(ticks)
