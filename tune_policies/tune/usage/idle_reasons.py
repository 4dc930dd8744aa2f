"""Says why, at one moment of a run, some of the cluster stands idle.

It knows the plan, the trials and their queue alone. The parts of a resource add up to what no trial has of it: where a
trial holds more than its slot, so that less is left than a reason accounts for, that part is cut.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.placement.idle import idle
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import to_ticks

COUNTED_RESOURCES: Final = frozenset({"CPU", *DEVICE_RESOURCES})
"""The resources whose use is counted."""

ON_PURPOSE: Final = "left idle on purpose near the end: a trial there would have ended last"
STARTING: Final = "trials were starting, or waited for Ray to place them"
PAUSED: Final = "paused trials waited for others"
SEARCH: Final = "the search gave no trial, though more were to come"
LAST_RUNNING: Final = "no trial was waiting: the last ones were still running"
NOTHING_RAN: Final = "nothing was left to run: the run was ending"
LESS_THAN_SLOT: Final = "trials had less than the plan's slots hold"


class SlotKind(NamedTuple):
    """A kind of slot: how many slots there are, and what a trial in one holds with its workers, in ticks."""

    num_slots: int
    needs: Mapping[str, int]


class AvailableResources(NamedTuple):
    """The resources that trials can use.

    Attributes:
        total: The cluster's amount of each resource that is counted, in ticks.
        unplanned: The part of it that the plan does not use, by resource and reason, in ticks.
        kinds: The kinds of slots of the plan.
    """

    total: Mapping[str, int]
    unplanned: Mapping[tuple[str, str], int]
    kinds: tuple[SlotKind, ...]


class TrialReservation(NamedTuple):
    """What a running trial reserves.

    Attributes:
        kind: The index of its kind of slot in the plan; ``None``: not known.
        slot: The slot as text.
        accelerator_type: Ray's name of its device type; ``None``: none, or not known.
        amounts: What it reserves with its workers, in ticks.
    """

    kind: int | None
    slot: str
    accelerator_type: str | None
    amounts: Mapping[str, int]


class TrialQueue(NamedTuple):
    """The trials that do not run.

    Attributes:
        num_waiting: How many would run if a slot were free.
        num_paused: How many the scheduler has paused until others are as far.
        more_to_come: Whether the searcher will give more trials.
        left_idle: Slots of each kind that are left idle on purpose.
    """

    num_waiting: int = 0
    num_paused: int = 0
    more_to_come: bool = False
    left_idle: Mapping[int, int] = {}


def available_resources(plan: TrialPlan, cluster: ClusterCapacity | None) -> AvailableResources:
    """Return what trials can use of ``cluster`` under ``plan``; where it is not known, the slots are all."""
    kinds = tuple(SlotKind(slot.max_concurrent_trials, slot_ticks(slot)) for slot in plan.slots)
    planned: Counter[str] = Counter()
    for kind in kinds:
        planned.update({name: kind.num_slots * ticks for name, ticks in kind.needs.items()})
    if cluster is None:
        return AvailableResources(dict(planned), {}, kinds)
    total: Counter[str] = Counter()
    for node, count in cluster.groups:
        total.update({name: count * ticks for name, ticks in _counted(node.resources.ticks).items()})
    try:
        rows = [(row.resource, row.reason, to_ticks(row.amount)) for row in idle(cluster, plan)]
    except InvalidResourcesError:  # the plan is for another cluster: nodes came or went, or are still to be added
        rows = [(name, f"limited by {plan.limited_by}", total[name] - planned[name]) for name in total]
    unplanned = {(name, f"not in the plan: {why}"): ticks for name, why, ticks in rows if name in total and ticks > 0}
    return AvailableResources(dict(total), unplanned, kinds)


def slot_ticks(slot: TrialSlot) -> dict[str, int]:
    """Return what a trial in the slot holds with its workers, in ticks."""
    needs = Counter(slot.trial.ticks)
    needs.update({name: slot.num_workers * ticks for name, ticks in slot.per_worker.ticks.items()})
    return _counted(needs)


def _counted(ticks: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in ticks.items() if name in COUNTED_RESOURCES}


def idle_by_reason(
    available: AvailableResources, running: Collection[TrialReservation], queue: TrialQueue
) -> Counter[tuple[str, str]]:
    """Return the ticks that no trial holds, by resource and reason."""
    left = Counter(available.total)
    for reservation in running:
        left.subtract(reservation.amounts)
    left = +left
    parts: Counter[tuple[str, str]] = Counter()

    def take(name: str, reason: str, ticks: int) -> None:
        taken = min(left[name], ticks)
        left[name] -= taken
        parts[name, reason] += taken

    for (name, reason), ticks in available.unplanned.items():
        take(name, reason, ticks)
    for kind, reasons in zip(available.kinds, _free_slots(available, running, queue), strict=True):
        for reason, count in reasons.items():
            for name, ticks in kind.needs.items():
                take(name, reason, count * ticks)
    for name, ticks in tuple(left.items()):
        take(name, LESS_THAN_SLOT, ticks)
    return +parts


def _free_slots(
    available: AvailableResources, running: Collection[TrialReservation], queue: TrialQueue
) -> list[Counter[str]]:
    """Return how many slots of each kind are free, by reason. Waiting trials count for the better kinds first."""
    busy = Counter(reservation.kind for reservation in running)
    waiting, paused = queue.num_waiting, queue.num_paused
    last = LAST_RUNNING if running or waiting or paused else NOTHING_RAN
    rest = SEARCH if queue.more_to_come else last
    found = []
    for number, kind in enumerate(available.kinds):
        free = max(0, kind.num_slots - busy[number])
        left_idle = min(free, queue.left_idle.get(number, 0))
        starting = min(free - left_idle, waiting)
        held = min(free - left_idle - starting, paused)
        waiting, paused = waiting - starting, paused - held
        none_left = free - left_idle - starting - held
        found.append(Counter({ON_PURPOSE: left_idle, STARTING: starting, PAUSED: held, rest: none_left}))
    return found
