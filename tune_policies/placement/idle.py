"""What a plan leaves unused of a cluster, and why.

Kept node by node where the plan fills the cluster: there each node holds as many workers as fit it, wherever Ray puts
them. A plan that runs fewer trials than fit leaves the difference free, in sum; on which nodes cannot be known.
"""

from collections import Counter
from typing import Final

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import matcher
from tune_policies.placement.packing import Request, request_of, slots_on_node
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import TICKS, amount_of, format_amount, from_ticks
from tune_policies.values.units import format_bytes
from tune_policies.values.value import Value

Parts = Counter[tuple[str, str]]
"""Idle ticks (of host memory: bytes) by resource and reason."""

ROUNDING: Final = "lost to rounding, as Ray counts in steps of 0.0001"
"""The reason for what shares of 1/k of a device leave of it: next to nothing."""

LEFT_FREE: Final = "left free by the policy"
"""The reason for what a policy was told to leave to others: no fault."""

_NOT_SELECTED: Final = "on nodes that the plan's label selector leaves out"

_NONE: Final = "their nodes have no"

_TOO_LITTLE: Final = "their nodes have too little"

_BESIDE: Final = "the policy leaves free what else more trials need"

_GROWTH: Final = "left for one trial to grow into"

_TOO_SMALL: Final = "less than one more {} needs"


class Idle(Value):
    """An amount of one resource that no trial of a plan uses.

    Attributes:
        resource: Its name, as Ray spells it.
        amount: How much of it is idle for this reason; of ``memory`` in bytes.
        total: How much there is, used or not.
        reason: Why no further trial takes it.
    """

    resource: str
    amount: float
    total: float
    reason: str

    def __str__(self) -> str:
        if self.resource == "memory":
            return f"{format_bytes(int(self.amount))} of {format_bytes(int(self.total))} of host memory: {self.reason}"
        return f"{format_amount(self.amount)} of {amount_of(self.total, self.resource)}: {self.reason}"


def idle(capacity: ClusterCapacity, plan: TrialPlan) -> tuple[Idle, ...]:
    """Return what ``plan`` leaves unused of ``capacity`` and of the nodes that it adds.

    For each resource, what is used and what is idle add up to what there is. Host memory is left out where the trials
    reserve none, or where some node's is not known.

    Raises:
        InvalidResourcesError: The plan uses more than there is, so it was made for another cluster.
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
                f"the plan uses more {name} than the cluster has: it was made for another cluster"
            )
    parts = _parts(cluster, plan)
    if parts is None:
        limits = dict.fromkeys(total, f"limited by {plan.limited_by}")
        limits[plan.limited_by] = _TOO_SMALL.format("trial")
        parts = Counter({(name, limits[name]): total[name] - used[name] for name in total})
    _tell_what_is_left_free(parts, plan)
    rows = sorted((name not in ("CPU", "GPU"), name, -amount, reason) for (name, reason), amount in parts.items())
    return tuple(
        Idle(resource=name, amount=_amount(name, -negated), total=_amount(name, total[name]), reason=reason)
        for _, name, negated, reason in rows
        if negated and name in total
    )


def _parts(cluster: ClusterCapacity, plan: TrialPlan) -> Parts | None:
    """Return the idle amounts by reason; ``None``: the plan's places cannot be told node by node."""
    slot = plan.slots[0]
    if len(plan.slots) > 1:
        return None
    request = request_of(slot)
    is_selected = matcher(slot.label_selector)
    room, parts = _left_on_full_nodes(cluster.where(lambda node: is_selected(node.ray_labels)), request)
    _merge_with_left(parts)
    if plan.divides_cpus:
        _tell_what_is_rounded_down(parts, slot)
    for name, ticks in _total(cluster.where(lambda node: not is_selected(node.ray_labels))).items():
        parts[name, _NOT_SELECTED] += ticks
    spare = room - slot.max_concurrent_trials * request.processes
    if spare < 0:
        return None
    growth = min(spare, slot.max_workers - slot.num_workers) if slot.max_workers is not None else 0
    spare -= growth
    too_few = spare % request.processes
    for name, needed in request.worker.ticks.items():
        parts[name, _GROWTH] += growth * needed
        parts[name, _TOO_SMALL.format("trial")] += too_few * needed
        parts[name, _why_spare(name, cluster, plan)] += (spare - too_few) * needed
    _take_drivers(parts, slot)
    return parts


def _tell_what_is_left_free(parts: Parts, plan: TrialPlan) -> None:
    """Tell of so much of a resource that it is left free: first of what more trials would take."""
    for name, ticks in plan.left_free.ticks.items():
        reasons = [reason for each, reason in parts if each == name and reason not in (_GROWTH, LEFT_FREE)]
        for reason in sorted(reasons, key=lambda reason: (reason != _BESIDE, reason)):
            moved = min(parts[name, reason], ticks - parts[name, LEFT_FREE])
            parts[name, LEFT_FREE] += moved
            parts[name, reason] -= moved


def _left_on_full_nodes(cluster: ClusterCapacity, request: Request) -> tuple[int, Parts]:
    """Return how many workers the nodes hold when they are full, and what then remains of them."""
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


def _why_left(name: str, request: Request, slots: dict[str, int], left: dict[str, int]) -> str:
    wanted_type = request.accelerator_type
    if wanted_type is not None and slots[ACCELERATOR_TYPE_PREFIX + wanted_type] == 0:
        return f"on nodes of another type than {wanted_type}"
    if name not in request.worker.ticks:
        return f"no trial asks for {name}"
    needed = request.worker.ticks[name]
    held = min(slots.values(), default=0)
    if name != "memory" and left[name] <= _lost_to_rounding(needed, left[name] + held * needed):
        return ROUNDING
    others = [stop for stop in slots if slots[stop] == held and stop != name]
    if left[name] < needed or not others:
        return _TOO_SMALL.format("worker" if request.num_workers else "trial")

    def is_used_up(stop: str) -> bool:  # but for what rounding leaves
        return left.get(stop, 0) * 100 < request.worker.ticks.get(stop, 1)

    # What is used up says more than what is merely too little.
    stop = min(others, key=lambda other: (not is_used_up(other), other))
    return f"{_NONE if is_used_up(stop) else _TOO_LITTLE} {stop}" + (" left" if held else "")


def _tell_what_is_rounded_down(parts: Parts, slot: TrialSlot) -> None:
    """Tell of CPUs that were divided by the slots of a node why no trial has more of them."""
    workers = slot.max_concurrent_trials * max(1, slot.num_workers)
    each = "worker" if slot.num_workers else "trial"
    for name, reason in [part for part in parts if part[0] == "CPU" and part[1].endswith(" left")]:
        if slot.worker.cpus >= 1 and parts[name, reason] < workers * TICKS:  # workers get whole ones
            why = f"too few to give each {each} one more"
        elif reason.startswith(_NONE):  # all workers get the same, and the node with the fewest CPUs decides
            why = f"not every node has enough to give each {each} more"
        else:
            continue
        parts[name, f"{why}, and {reason}"] = parts.pop((name, reason))


def _merge_with_left(parts: Parts) -> None:
    """Tell of nodes that never had a resource together with those that have none left: trials want it on both."""
    for name, reason in [part for part in parts if (part[0], f"{part[1]} left") in parts]:
        both = f"{reason}, or none left" if reason.startswith(_NONE) else f"{reason} left"
        amount = parts.pop((name, reason)) + parts.pop((name, f"{reason} left"))
        parts[name, both] = amount


def _lost_to_rounding(share: int, has: int) -> int:
    """Return the ticks that shares of floor(1/k) leave on all the devices of a node that has so much."""
    lost = TICKS % share
    return has // TICKS * lost if lost < TICKS // share else 0


def _why_spare(name: str, cluster: ClusterCapacity, plan: TrialPlan) -> str:
    """Return why trials do not take what would hold more of them."""
    resources = _total(cluster).keys() | {"memory"}
    if plan.limited_by in resources or plan.limited_by.startswith(ACCELERATOR_TYPE_PREFIX):
        return _BESIDE if plan.left_free.ticks else LEFT_FREE
    return f"held back by the cap {plan.limited_by}"


def _take_drivers(parts: Parts, slot: TrialSlot) -> None:
    """Take from the idle host memory what the drivers hold, on whichever nodes they are."""
    if slot.num_workers == 0:
        return
    for name, needed in slot.trial.ticks.items():
        held = slot.max_concurrent_trials * needed
        for part in sorted(part for part in parts if part[0] == name):
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
