"""Adds up how long trials reserve the resources of a run, and how long resources are idle, by reason.

The use of processes is measured in ``measure_process_usage.py`` and ``trial_reader.py``.

Time is counted in whole milliseconds and amounts in ticks, so that used and idle amounts add up exactly to the total.
If a trial reserves more than its slot, the idle amounts are reduced accordingly.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.plan.idle import idle
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import TICKS, to_ticks

from .resource_usage import STARTING, IdleHours, ResourceHours, ResourceUsage, SlotHours

COUNTED_RESOURCES: Final = frozenset({"CPU", *DEVICE_RESOURCES})
"""The resources whose use is counted."""

ON_PURPOSE: Final = "left idle on purpose near the end, because a trial in this slot would have ended last"
HELD: Final = "the policy let trials wait, because of how the running trials progressed"
PAUSED: Final = "paused trials waited for other trials"
SEARCH: Final = "the searcher suggested no trial, although more trials were to come"
FEWER_LEFT: Final = "fewer trials were left than would fit"
NOTHING_RAN: Final = "no trial was left to run while the run was ending"
LESS_THAN_SLOT: Final = "trials reserved less than the slots of the plan"


class SlotType(NamedTuple):
    """The number of slots of a type, and the amounts that a trial and its workers reserve in a slot, in ticks."""

    num_slots: int
    needs: Mapping[str, int]


class AvailableResources(NamedTuple):
    """The resources that trials can use, in ticks, and the slot types of the plan.

    ``unplanned`` contains the amounts that the plan leaves idle, in ticks, keyed by resource and reason.
    """

    total: Mapping[str, int]
    unplanned: Mapping[tuple[str, str], int]
    slot_types: tuple[SlotType, ...]


class SlotRow(NamedTuple):
    """The key of a row of ``ResourceUsage.slots``: the slot type as text, and its device type or ``None``."""

    slot: str
    accelerator_type: str | None = None


class TrialReservation(NamedTuple):
    """The reservation of a running trial.

    Attributes:
        slot_type: The index of its slot type in the plan, or ``None`` if it is not known.
        row: The row of the usage record that counts this trial.
        amounts: The amounts that the trial and its workers reserve, in ticks.
    """

    slot_type: int | None
    row: SlotRow
    amounts: Mapping[str, int]


class TrialQueue(NamedTuple):
    """Counts of the trials that do not run, and of the slots that are left idle.

    Attributes:
        num_waiting: The number of trials that would run if a slot were free.
        num_paused: The number of trials that the inner scheduler has paused until other trials have caught up.
        more_to_come: Whether the searcher may create more trials.
        left_idle: The number of slots of each type that are left idle on purpose.
        is_held: Whether the policy lets the waiting trials wait although slots are free.
        num_starting: How many of the waiting trials have requested resources, so that their processes start. While a
            request waits for Ray, a search algorithm is not asked for the next trial.
    """

    num_waiting: int = 0
    num_paused: int = 0
    more_to_come: bool = False
    left_idle: Mapping[int, int] = {}
    is_held: bool = False
    num_starting: int = 0


def available_resources(plan: TrialPlan, cluster: ClusterCapacity | None) -> AvailableResources:
    """Return the resources of ``cluster`` under ``plan``, or the planned resources if ``cluster`` is ``None``."""
    planned: Counter[str] = Counter()
    slot_types = []
    for slot in plan.slots:
        needs = Counter(slot.trial.ticks)
        needs.update({name: slot.num_workers * ticks for name, ticks in slot.per_worker.ticks.items()})
        slot_types.append(SlotType(slot.max_concurrent_trials, counted_ticks(needs)))
        planned.update({name: slot.max_concurrent_trials * ticks for name, ticks in slot_types[-1].needs.items()})
    if cluster is None:
        return AvailableResources(dict(planned), {}, tuple(slot_types))
    total: Counter[str] = Counter()
    for node, count in cluster.groups:
        total.update({name: count * ticks for name, ticks in counted_ticks(node.resources.ticks).items()})
    try:
        rows = [(row.resource, row.reason, to_ticks(row.amount)) for row in idle(cluster, plan)]
    except InvalidResourcesError:  # the nodes have changed since the plan was made
        rows = [(name, f"limited by {plan.limited_by}", total[name] - planned[name]) for name in total]
    left = {(name, unplanned(why)): ticks for name, why, ticks in rows if name in total and ticks > 0}
    return AvailableResources(dict(total), left, tuple(slot_types))


def unplanned(why: str) -> str:
    """Return the reason text for an amount that the plan leaves idle because of ``why``."""
    return f"not in the plan: {why}"


def counted_ticks(ticks: Mapping[str, int]) -> dict[str, int]:
    """Return the amounts of the resources whose use is counted, in ticks."""
    return {name: amount for name, amount in ticks.items() if name in COUNTED_RESOURCES}


def idle_by_reason(
    available: AvailableResources, running: Collection[TrialReservation], queue: TrialQueue
) -> Counter[tuple[str, str]]:
    """Return the amounts that no trial reserves, in ticks, keyed by resource and reason."""
    left = Counter(available.total)
    for reservation in running:
        left.subtract(reservation.amounts)
    left = +left  # without negative amounts: a trial may still run on a node that is no longer reported
    parts: Counter[tuple[str, str]] = Counter()

    def take(name: str, reason: str, ticks: int) -> None:
        taken = min(left[name], ticks)
        left[name] -= taken
        parts[name, reason] += taken

    # First, what the plan never uses. Then the free slots, and last what is left over in the slots.
    for (name, reason), ticks in available.unplanned.items():
        take(name, reason, ticks)
    for slot_type, reasons in zip(available.slot_types, _free_by_reason(available, running, queue), strict=True):
        for reason, count in reasons.items():
            for name, ticks in slot_type.needs.items():
                take(name, reason, count * ticks)
    for name, ticks in tuple(left.items()):
        take(name, LESS_THAN_SLOT, ticks)
    return +parts


def _free_by_reason(
    available: AvailableResources, running: Collection[TrialReservation], queue: TrialQueue
) -> list[Counter[str]]:
    """Return the number of free slots of each type, keyed by the reason why the slots are free.

    Free slots of the better types are attributed to waiting trials first.
    """
    busy = Counter(reservation.slot_type for reservation in running)
    starting, paused = queue.num_starting, queue.num_paused
    waiting = queue.num_waiting - starting
    last = FEWER_LEFT if running or starting or waiting or paused else NOTHING_RAN
    why_waiting = HELD if queue.is_held else STARTING
    rest = last
    if queue.more_to_come:
        rest = SEARCH
        if queue.is_held or starting:  # the search algorithm was not asked
            rest = why_waiting
    found = []
    for number, slot_type in enumerate(available.slot_types):
        free = max(0, slot_type.num_slots - busy[number])
        left_idle = min(free, queue.left_idle.get(number, 0))
        free -= left_idle
        counts = Counter({ON_PURPOSE: left_idle})
        of_starting = min(free, starting)
        of_waiting = min(free - of_starting, waiting)
        of_paused = min(free - of_starting - of_waiting, paused)
        counts[STARTING] += of_starting
        counts[why_waiting] += of_waiting
        counts[PAUSED] += of_paused
        counts[rest] += free - of_starting - of_waiting - of_paused
        starting, waiting, paused = starting - of_starting, waiting - of_waiting, paused - of_paused
        found.append(counts)
    return found


# Products of ticks and milliseconds are integers, so used and idle amounts add up exactly to the total.
_MS_PER_HOUR: Final = 3_600_000
_TICK_MS_PER_HOUR: Final = TICKS * _MS_PER_HOUR


class ReservationMeter:
    """Adds up the reserved and the idle time. In a restored run, the meter continues from the record ``before``.

    A change applies from the end of the metered time, so call :meth:`count_until` before you report a change.

    Attributes:
        queue: The waiting and paused trials.
        max_at_once: The maximum number of trials that ran concurrently.
    """

    def __init__(self, before: ResourceUsage | None = None) -> None:
        before = before or ResourceUsage()
        # In a restored run, the clock starts at 0 again, so the time before the restore is added.
        self._began_ms = round(before.elapsed_s * 1000)
        self._now_ms = 0
        self._total: Counter[str] = Counter()
        self._idle: Counter[tuple[str, str]] = Counter()
        for metered in before.resources:
            self._total[metered.resource] = _ticks(metered.total_hours)
            for part in metered.idle:
                self._idle[metered.resource, part.reason] = _ticks(part.hours)
        self._used: Counter[tuple[SlotRow, str]] = Counter()
        self._trial_ms: Counter[SlotRow] = Counter()
        self._starts: Counter[SlotRow] = Counter()
        for slot in before.slots:
            row = SlotRow(slot.slot, slot.accelerator_type)
            self._used.update({(row, name): _ticks(hours) for name, hours in slot.hours.items()})
            self._trial_ms[row] += round(slot.trial_hours * _MS_PER_HOUR)
            self._starts[row] += slot.num_starts
        self.max_at_once = before.max_trials_at_once
        self._available = AvailableResources({}, {}, ())
        self.queue = TrialQueue()
        self._running: dict[str, TrialReservation] = {}
        self._rates: tuple[Counter[str], Counter[tuple[str, str]]] | None = None

    @property
    def elapsed_s(self) -> float:
        """The metered time in seconds, including the time before the run was restored."""
        return (self._began_ms + self._now_ms) / 1000

    def count_until(self, now_s: float) -> None:
        """Meter the time up to ``now_s``, in seconds since this meter began, unless it is already metered."""
        passed = max(0, round(now_s * 1000) - self._now_ms)
        if not passed:
            return
        self._now_ms += passed
        total, idle = self.current()
        self._total.update({name: ticks * passed for name, ticks in total.items()})
        self._idle.update({part: ticks * passed for part, ticks in idle.items()})
        for reservation in self._running.values():
            self._trial_ms[reservation.row] += passed
            for name, ticks in reservation.amounts.items():
                self._used[reservation.row, name] += ticks * passed

    def set_available(self, available: AvailableResources) -> None:
        """Set the resources that trials can use from now on."""
        self._available, self._rates = available, None

    def set_queue(self, queue: TrialQueue) -> None:
        """Set the waiting and paused trials from now on."""
        self.queue, self._rates = queue, None

    def start_trial(self, trial_id: str, reservation: TrialReservation) -> None:
        """Start metering a running trial with its reservation."""
        self._running[trial_id] = reservation
        self._starts[reservation.row] += 1
        self.max_at_once = max(self.max_at_once, len(self._running))
        self._rates = None

    def end_trial(self, trial_id: str) -> None:
        """Stop metering a trial, if it was metered."""
        if self._running.pop(trial_id, None) is not None:
            self._rates = None

    def current(self) -> tuple[Counter[str], Counter[tuple[str, str]]]:
        """Return the current total ticks of each resource, and the idle ticks keyed by resource and reason."""
        if self._rates is None:  # computed once for each change, not for each step of Tune's loop
            running = self._running.values()
            held: Counter[str] = Counter()
            for reservation in running:
                held.update(reservation.amounts)
            # A trial may still run on a node that is no longer reported, so the total includes its reservation.
            total = Counter(self._available.total) | held
            self._rates = total, idle_by_reason(self._available, running, self.queue)
        return self._rates

    def record(self) -> ResourceUsage:
        """Return a record with the metered fields. Callers fill in the other fields."""
        names = sorted(self._total, key=lambda name: (name != "CPU", name))
        return ResourceUsage(
            elapsed_s=self.elapsed_s,
            resources=tuple(map(self._resource, names)),
            slots=tuple(map(self._slot, self._starts)),
            max_trials_at_once=self.max_at_once,
        )

    def _slot(self, row: SlotRow) -> SlotHours:
        used = sorted((name, ticks) for (where, name), ticks in self._used.items() if where == row)
        return SlotHours(
            slot=row.slot,
            accelerator_type=row.accelerator_type,
            num_starts=self._starts[row],
            trial_hours=self._trial_ms[row] / _MS_PER_HOUR,
            hours={name: _hours(ticks) for name, ticks in used},
        )

    def _resource(self, name: str) -> ResourceHours:
        # The largest part comes first, and equal parts are sorted by their reasons.
        idle = [(-ticks, reason) for (resource, reason), ticks in self._idle.items() if resource == name and ticks]
        return ResourceHours(
            resource=name,
            total_hours=_hours(self._total[name]),
            used_hours=_hours(sum(ticks for (_, used), ticks in self._used.items() if used == name)),
            idle=tuple(IdleHours(reason=reason, hours=_hours(-negated)) for negated, reason in sorted(idle)),
        )


def _hours(tick_ms: int) -> float:
    return tick_ms / _TICK_MS_PER_HOUR


def _ticks(hours: float) -> int:
    return round(hours * _TICK_MS_PER_HOUR)
