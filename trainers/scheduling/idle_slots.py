"""Decides when a slow slot should stay idle, from the durations of trials.

While many trials wait, every free slot is used. Near the end of a run, a trial that starts in a slow slot may be the
last to finish, although the faster slots could run all waiting trials sooner.

This module does not import Ray or read the clock. Callers pass the current time.
"""

import heapq
from bisect import insort
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tune_policies.placement.trial_slot import TrialSlot

from .slot_board import SlotAssignment, SlotTypes

_SHORTEST_S: Final = 1e-6
"""The minimum duration of a trial in seconds, to prevent a division by zero."""

_ENOUGH_TRIALS: Final = 5
"""If a slot type has fewer measured trials, the duration of its trials is estimated from the speeds."""

_NUM_QUANTILES: Final = 20
"""The number of quantiles that represent the distribution of the measured durations."""


class TrialDurations:
    """The durations of trials in each slot type, measured or estimated from the speeds.

    Args:
        speeds: The speed of a trial in each slot type, in any common unit, or ``None`` for a type whose speed is not
            known.
    """

    def __init__(self, speeds: Sequence[float | None]) -> None:
        self._speeds = tuple(speeds)
        self._measured_s: tuple[list[float], ...] = tuple([] for _ in self._speeds)

    def add(self, slot_type: int, seconds: float) -> None:
        """Add the duration of a trial that completed in a slot of this type."""
        insort(self._measured_s[slot_type], max(seconds, _SHORTEST_S))

    def typical_s(self, slot_type: int) -> float | None:
        """Return the typical duration of a trial in a slot of this type in seconds, or ``None`` if it is not known.

        The typical duration is the median, because it is robust against outliers. The shortest trials end first, so the
        median of few trials is too low. Therefore, while a type has few measured trials, its duration is estimated from
        the type with the most trials and the ratio of the speeds of both types.
        """
        here, speed = self._measured_s[slot_type], self._speeds[slot_type]
        reference = most = 0
        for other, times in enumerate(self._measured_s):
            if self._speeds[other] and len(times) > most:
                reference, most = other, len(times)
        there, its_speed = self._measured_s[reference], self._speeds[reference]
        if len(here) < _ENOUGH_TRIALS and speed is not None and its_speed is not None and there:
            return max(_SHORTEST_S, _median(there) * its_speed / speed)
        if here:
            return _median(here)
        return None

    def by_speed(self, slot_type: int) -> float | None:
        """Return the inverse speed of this type as a relative duration, or ``None`` if the speed is not known."""
        speed = self._speeds[slot_type]
        if speed is None:
            return None
        return 1 / speed

    def is_known(self, slot_type: int) -> bool:
        """Return whether this type has a speed or a measured trial."""
        return self._speeds[slot_type] is not None or bool(self._measured_s[slot_type])

    def quantiles(self) -> list[float]:
        """Return equally likely durations of a trial, each relative to the median.

        The durations are from the type with the most completed trials. If many trials have completed, the longest
        duration is left out, because that trial may have hung. Until a trial has completed, all durations are assumed
        to be equal.
        """
        times = max(self._measured_s, key=len)
        # The midpoints of equal parts of the distribution. Its ends would overweight the shortest and the longest
        # trial.
        ranks = [(2 * i + 1) * len(times) // (2 * _NUM_QUANTILES) for i in range(_NUM_QUANTILES)]
        if times:
            return [times[rank] / _median(times) for rank in ranks]
        return [1.0]


def _median(sorted_s: Sequence[float]) -> float:
    """Return the median of sorted durations. Unlike ``statistics.median``, this function does not sort them again."""
    middle = len(sorted_s) // 2
    if len(sorted_s) % 2:
        return sorted_s[middle]
    return (sorted_s[middle - 1] + sorted_s[middle]) / 2


class RunningTrial(NamedTuple):
    """The slot type of a running trial and the time that it has run so far, in seconds."""

    slot_type: int
    elapsed_s: float


def should_idle(
    slot_type: int,
    *,
    durations: TrialDurations,
    slots: Sequence[int],
    running: Sequence[RunningTrial],
    num_waiting: int,
) -> bool:
    """Return whether a free slot of ``slot_type`` should stay idle, although trials are waiting.

    If a trial starts in this slot, the faster types have one fewer trial to run and finish slightly earlier. But if
    this trial ends after all trials in faster slots, the run takes longer. The slot is used if the gain is larger than
    the loss, averaged over the measured durations of trials.

    If all trials of a type take equally long, the slot is used if and only if its trial would end before the faster
    types finish all waiting trials. This rule, applied at each free slot, gives the shortest run.

    Until a trial has completed in a type with a known speed, types are compared by their speeds alone. Until then,
    all running trials count as just started, because their progress is not known.

    A slot of the fastest type, or of a type without a known duration, is never left idle. The comparison ignores other
    types without a known duration.

    Args:
        slot_type: The index of the free slot's type.
        durations: The durations of trials in each type.
        slots: The number of slots of each type, both used and free.
        running: The running trials in slots of any type.
        num_waiting: The number of trials that wait for a slot.
    """
    # Measured durations and inverse speeds have different units, so all types use the same kind.
    is_measured = durations.typical_s(slot_type) is not None
    duration_s = durations.typical_s if is_measured else durations.by_speed
    typical_s = [duration_s(other) for other in range(len(slots))]
    here_s = typical_s[slot_type]
    if here_s is None or num_waiting <= 0:
        return False
    # First, when each faster slot becomes free, and how long a trial takes in it.
    free_s: list[tuple[float, float]] = []
    for other, num_slots in enumerate(slots):
        each_s = typical_s[other]
        if each_s is not None and each_s < here_s:
            elapsed = [trial.elapsed_s for trial in running if trial.slot_type == other]
            if not is_measured:  # speeds are relative to each other, so they are no times
                elapsed = [0.0] * len(elapsed)
            free_s += [(at_s, each_s) for at_s in _seconds_until_free(each_s, elapsed, num_slots)]
    if not free_s:
        return False
    # Together, the faster slots complete a trial every gain_s seconds, so they end earlier by this time if they have
    # one trial fewer to run.
    gain_s = 1 / sum(1 / each_s for _, each_s in free_s)
    # Second, when a trial that starts in this slot would end, for equally likely durations.
    ends_s = [here_s * quantile for quantile in durations.quantiles()]
    # The faster slots take at least gain_s per trial. If this bound is enough to decide, skip the loop in _makespan_s.
    if (num_waiting - 1) * gain_s >= max(ends_s):
        return False
    # Third, when the faster slots have run all waiting trials, if this slot stays idle.
    others_end_s = _makespan_s(num_waiting, free_s)
    # The faster slots would not run the trial that starts here, so the run is late only after their earlier end.
    late_s = [max(0, end_s - (others_end_s - gain_s)) for end_s in ends_s]
    # Last, the mean delay of the run against the gain of the faster slots.
    return sum(late_s) / len(late_s) >= gain_s


def _makespan_s(num_trials: int, slots: list[tuple[float, float]]) -> float:
    """Return the time in seconds until the slots have run all trials.

    Each slot is a pair of the time until it is free and the duration of a trial in it, both in seconds.
    """
    ends = [(free_s + each_s, each_s) for free_s, each_s in slots]
    heapq.heapify(ends)
    # Each trial goes to the slot that is free first, so the first entry of the heap is the end of the next trial.
    for _ in range(num_trials - 1):
        end_s, each_s = ends[0]
        heapq.heapreplace(ends, (end_s + each_s, each_s))
    return ends[0][0]


def _seconds_until_free(each_s: float, elapsed: Sequence[float], num_slots: int) -> list[float]:
    """Return the time until each slot of a type becomes free, in seconds.

    The remaining time of an overdue trial is assumed to equal its delay so far. Therefore, the longer a trial hangs,
    the later its slot is expected to become free. If more trials run than there are slots, the trials that end first do
    not free a slot.
    """
    left = [abs(each_s - so_far) for so_far in elapsed]
    # A changed plan may have fewer slots than trials run. Then the factor is negative, and Python returns an empty
    # list.
    free = [0.0] * (num_slots - len(left))
    return sorted(left + free, reverse=True)[:num_slots]


class TrialTimer:
    """Measures the durations of the trials of a run, excluding their pauses.

    Args:
        slot_types: The slot types of the plan.
    """

    def __init__(self, slot_types: SlotTypes) -> None:
        self._finished: list[tuple[TrialSlot, float]] = []
        self._ran_s: dict[Any, float] = {}
        self._since_s: dict[Any, float] = {}
        self.change_types(slot_types)

    def change_types(self, slot_types: SlotTypes) -> None:
        """Replace the slot types with the types of another plan, and keep the durations of types in both plans."""
        self._slot_types = slot_types
        self._durations = TrialDurations([slot.speed for slot in slot_types.slots])
        # The durations are kept with their slots, because the indices of the types may differ in the new plan.
        finished, self._finished = self._finished, []
        for slot, seconds in finished:
            self._add(slot, seconds)

    def _add(self, slot: TrialSlot, seconds: float) -> None:
        self._finished.append((slot, seconds))
        slot_type = self._slot_types.type_of(slot)
        if slot_type is not None:
            self._durations.add(slot_type, seconds)

    def start(self, trial: Any, now_s: float) -> None:
        """Start the clock of a running trial, unless the clock is already running."""
        self._since_s.setdefault(trial, now_s)

    def stop(self, trial: Any, now_s: float) -> None:
        """Stop the clock of a trial that no longer runs."""
        since_s = self._since_s.pop(trial, None)
        if since_s is not None:
            self._ran_s[trial] = self._ran_s.get(trial, 0.0) + now_s - since_s

    def finish(self, trial: Any, slot: TrialSlot, now_s: float) -> None:
        """Add the duration of a trial that completed in ``slot``."""
        if trial in self._since_s:
            self.stop(trial, now_s)
            self._add(slot, self._ran_s[trial])

    def should_idle(
        self,
        slot_type: int,
        slots: Sequence[int],
        assignments: Mapping[Any, SlotAssignment],
        num_waiting: int,
        now_s: float,
    ) -> bool:
        """Return whether a free slot of a type should stay idle, although ``num_waiting`` trials are waiting.

        ``slots`` are the numbers of slots of each type in which trials run or can start.
        """
        if not self._durations.is_known(slot_type):
            return False
        running = [
            RunningTrial(
                slot_type=assignment.slot_type,
                elapsed_s=self._ran_s.get(trial, 0.0) + now_s - self._since_s.get(trial, now_s),
            )
            for trial, assignment in assignments.items()
            if assignment.slot_type is not None
        ]
        return should_idle(slot_type, durations=self._durations, slots=slots, running=running, num_waiting=num_waiting)
