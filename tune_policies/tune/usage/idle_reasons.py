"""Why, at one moment of a run, some of the cluster stands idle.

Only what can be told from the plan, the trials and their queue is told. The parts of a resource add up to what no
trial has of it: a part that is not there any more, as a trial holds more than its slot, is cut.
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

COUNTED: Final = frozenset({"CPU", *DEVICE_RESOURCES})
"""The resources whose use is counted: those that cost by the hour, and that stand idle."""

ON_PURPOSE: Final = "left idle on purpose near the end: a trial there would have ended last"
STARTING: Final = "trials were starting, or waited for Ray to place them"
PAUSED: Final = "paused trials waited for others"
SEARCH: Final = "the search gave no trial, though more were to come"
LAST_RUNNING: Final = "no trial was waiting: the last ones were still running"
NOTHING_RAN: Final = "nothing was left to run: the run was ending"
LESS_THAN_SLOT: Final = "trials had less than the plan's slots hold"


class Kind(NamedTuple):
    """A kind of slot: how many there are, and what a trial in one holds with its workers, in ticks."""

    num_slots: int
    needs: Mapping[str, int]


class Offer(NamedTuple):
    """What there is to use.

    Attributes:
        total: What the cluster has of each resource that is counted, in ticks.
        unplanned: What of it the plan does not use, by resource and reason, in ticks.
        kinds: The plan's slots.
    """

    total: Mapping[str, int]
    unplanned: Mapping[tuple[str, str], int]
    kinds: tuple[Kind, ...]


class Holding(NamedTuple):
    """What a running trial holds.

    Attributes:
        kind: The number of its kind of slot in the plan; ``None``: not known.
        slot: The kind as text.
        accelerator_type: Ray's name of its device type; ``None``: none, or not known.
        amounts: What it holds with its workers, in ticks.
    """

    kind: int | None
    slot: str
    accelerator_type: str | None
    amounts: Mapping[str, int]


class Queue(NamedTuple):
    """The trials that do not run.

    Attributes:
        num_waiting: Those that would run if there were room.
        num_paused: Those that their scheduler holds back until others are as far.
        more_to_come: Whether the search has not given all of its trials yet.
        held_back: Slots of each kind that are left idle on purpose.
    """

    num_waiting: int = 0
    num_paused: int = 0
    more_to_come: bool = False
    held_back: Mapping[int, int] = {}


def offer_of(plan: TrialPlan, cluster: ClusterCapacity | None) -> Offer:
    """Return what ``plan`` offers on ``cluster``; where that is not known, its slots are all that there is."""
    kinds = tuple(Kind(slot.max_concurrent_trials, needs_of(slot)) for slot in plan.slots)
    planned: Counter[str] = Counter()
    for kind in kinds:
        planned.update({name: kind.num_slots * ticks for name, ticks in kind.needs.items()})
    if cluster is None:
        return Offer(dict(planned), {}, kinds)
    total: Counter[str] = Counter()
    for node, count in cluster.groups:
        total.update({name: count * ticks for name, ticks in _counted(node.resources.ticks).items()})
    try:
        rows = [(row.resource, row.reason, to_ticks(row.amount)) for row in idle(cluster, plan)]
    except InvalidResourcesError:  # it was made for another cluster: nodes came or went, or are still to be added
        rows = [(name, f"limited by {plan.limited_by}", total[name] - planned[name]) for name in total]
    unplanned = {(name, f"not in the plan: {why}"): ticks for name, why, ticks in rows if name in total and ticks > 0}
    return Offer(dict(total), unplanned, kinds)


def needs_of(slot: TrialSlot) -> dict[str, int]:
    """Return what a trial in the slot holds with its workers, in ticks."""
    needs = Counter(slot.trial.ticks)
    needs.update({name: slot.num_workers * ticks for name, ticks in slot.per_worker.ticks.items()})
    return _counted(needs)


def _counted(ticks: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in ticks.items() if name in COUNTED}


def why_idle(offer: Offer, running: Collection[Holding], queue: Queue) -> Counter[tuple[str, str]]:
    """Return the ticks that no trial holds, by resource and reason."""
    left = Counter(offer.total)
    for holding in running:
        left.subtract(holding.amounts)
    left = +left
    parts: Counter[tuple[str, str]] = Counter()

    def take(name: str, reason: str, ticks: int) -> None:
        taken = min(left[name], ticks)
        left[name] -= taken
        parts[name, reason] += taken

    for (name, reason), ticks in offer.unplanned.items():
        take(name, reason, ticks)
    for kind, reasons in zip(offer.kinds, _free_slots(offer, running, queue), strict=True):
        for reason, count in reasons.items():
            for name, ticks in kind.needs.items():
                take(name, reason, count * ticks)
    for name, ticks in tuple(left.items()):
        take(name, LESS_THAN_SLOT, ticks)
    return +parts


def _free_slots(offer: Offer, running: Collection[Holding], queue: Queue) -> list[Counter[str]]:
    """Return for each kind of slot how many are free, by the reason; the better kind is the first to be taken."""
    busy = Counter(holding.kind for holding in running)
    waiting, paused = queue.num_waiting, queue.num_paused
    last = LAST_RUNNING if running or waiting or paused else NOTHING_RAN
    rest = SEARCH if queue.more_to_come else last
    found = []
    for number, kind in enumerate(offer.kinds):
        free = max(0, kind.num_slots - busy[number])
        on_purpose = min(free, queue.held_back.get(number, 0))
        starting = min(free - on_purpose, waiting)
        held = min(free - on_purpose - starting, paused)
        waiting, paused = waiting - starting, paused - held
        none_left = free - on_purpose - starting - held
        found.append(Counter({ON_PURPOSE: on_purpose, STARTING: starting, PAUSED: held, rest: none_left}))
    return found
