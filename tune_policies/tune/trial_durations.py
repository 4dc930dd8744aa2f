"""Decides when a slow slot is better left idle, by how long trials take in each kind of slot.

While many trials wait, every slot helps. Near the end of a run, a trial that starts in a slow slot may be the last to
finish: the faster slots would have done all that waits before. This module reads no clock; callers pass times in.
"""

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ray.tune.experiment import Trial

from tune_policies.placement.layout import Placement
from tune_policies.plan.trial_slot import TrialSlot

from .slot_assignment import SlotAssignment, SlotKinds

_SHORTEST_S: Final = 1e-6
"""No trial counts as shorter: durations are divided by."""

_ENOUGH_TRIALS: Final = 5
"""From so many trials on, the median of a kind's own trials is better than the ratio of speeds."""

_NUM_QUANTILES: Final = 20
"""How many equally likely durations stand for all that were measured."""


class TrialDurations:
    """How long trials take in each kind of slot: as measured, or by the speeds where nothing was measured.

    Args:
        speeds: How fast a trial runs in each kind, in any one unit; ``None``: not known.
    """

    def __init__(self, speeds: Sequence[float | None]) -> None:
        self._speeds = tuple(speeds)
        self._measured_s: tuple[list[float], ...] = tuple([] for _ in self._speeds)

    def add(self, kind: int, seconds: float) -> None:
        """Add the duration of a trial that ran to its end in a slot of this kind."""
        insort(self._measured_s[kind], max(seconds, _SHORTEST_S))

    def typical_s(self, kind: int) -> float | None:
        """Return how long a trial typically takes in a slot of this kind, in seconds; ``None``: not known.

        That is the median, which a few odd trials do not move. The shortest trials end first, so while a kind has only
        few measured trials, the kind with the most measured trials and the ratio of both speeds tell more.
        """
        here, speed = self._measured_s[kind], self._speeds[kind]
        _, reference = max(
            (len(times) if self._speeds[other] else 0, -other) for other, times in enumerate(self._measured_s)
        )
        there, its_speed = self._measured_s[-reference], self._speeds[-reference]
        if len(here) < _ENOUGH_TRIALS and speed is not None and its_speed is not None and there:
            return max(_SHORTEST_S, _median(there) * its_speed / speed)
        return _median(here) if here else None

    def by_speed(self, kind: int) -> float | None:
        """Return how long a trial takes in a slot of this kind by its speed alone, in no unit; ``None``: not known.

        Until a trial has ended, kinds can be compared by this alone.
        """
        speed = self._speeds[kind]
        return None if speed is None else 1 / speed

    def is_known(self, kind: int) -> bool:
        """Return whether this kind has a speed or a measured trial."""
        return self._speeds[kind] is not None or bool(self._measured_s[kind])

    def quantiles(self) -> list[float]:
        """Return equally likely durations of a trial, each relative to the median.

        They are those of the kind with the most measured trials. Where these are many, the longest one, which may hang,
        is left out. Until a trial has ended, all trials count as equally long.
        """
        times = max(self._measured_s, key=len)
        ranks = [(2 * i + 1) * len(times) // (2 * _NUM_QUANTILES) for i in range(_NUM_QUANTILES)]
        return [times[rank] / _median(times) for rank in ranks] if times else [1.0]


def _median(times: Sequence[float]) -> float:
    middle = len(times) // 2
    return times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2


class RunningTrial(NamedTuple):
    """A trial that runs.

    Attributes:
        kind: The kind of slot in which it runs.
        elapsed_s: For how long it has run there, in seconds; 0 or more.
    """

    kind: int
    elapsed_s: float


def should_idle(
    kind: int,
    *,
    durations: TrialDurations,
    slots: Sequence[int],
    running: Sequence[RunningTrial],
    num_waiting: int,
) -> bool:
    """Return whether a free slot of ``kind`` is better left idle than given to one more waiting trial.

    A trial in this slot leaves one trial less for the faster kinds, so they are done a little earlier. But if it ends
    after them, it makes the run longer. The slot is used if the gain is larger than the mean loss over the durations
    that trials have shown.

    Where all trials of a kind take equally long, the slot is used exactly if its trial ends before the faster kinds
    would have done all that waits. Decided anew at each free slot, this gives the shortest run: of all times at
    which some slot could end a trial, the run uses the earliest ones, as many as there are trials.

    Until a trial has ended in a kind with a speed, kinds are compared by their speeds alone. Running trials then count
    as just begun, as nobody knows how much of them is over.

    A slot of the fastest kind is never left idle, nor one of a kind of which nothing is known. Other kinds of which
    nothing is known are not counted on.

    Args:
        kind: The kind of the free slot.
        durations: How long trials take.
        slots: How many slots there are of each kind, used and free.
        running: The trials that run now, in slots of any kind.
        num_waiting: How many trials have no slot yet and may take one of any kind. Do not count a trial that needs this
            kind: no other slot would ever run it.
    """
    is_measured = durations.typical_s(kind) is not None
    each = [(durations.typical_s if is_measured else durations.by_speed)(other) for other in range(len(slots))]
    here_s = each[kind]
    if here_s is None or num_waiting <= 0:
        return False
    free_s: list[tuple[float, float]] = []
    for other, num_slots in enumerate(slots):
        each_s = each[other]
        if each_s is not None and each_s < here_s:
            elapsed = [trial.elapsed_s if is_measured else 0.0 for trial in running if trial.kind == other]
            free_s += [(at_s, each_s) for at_s in _seconds_until_free(each_s, elapsed, num_slots)]
    if not free_s:
        return False
    gain_s = 1 / sum(1 / each_s for _, each_s in free_s)
    ends_s = [here_s * quantile for quantile in durations.quantiles()]
    # The others take gain_s or more for each trial. This bound spares counting out a search without an end.
    if (num_waiting - 1) * gain_s >= max(ends_s):
        return False
    others_end_s = _makespan_s(num_waiting, free_s)
    late_s = [max(0, end_s - (others_end_s - gain_s)) for end_s in ends_s]
    return sum(late_s) / len(late_s) >= gain_s


def _makespan_s(num_trials: int, slots: list[tuple[float, float]]) -> float:
    """Return when the slots have done so many trials. Each slot says when it is free, and how long its trials take."""
    ends = [(free_s + each_s, each_s) for free_s, each_s in slots]
    heapq.heapify(ends)
    for _ in range(num_trials - 1):
        end_s, each_s = ends[0]
        heapq.heapreplace(ends, (end_s + each_s, each_s))
    return ends[0][0]


def _seconds_until_free(each_s: float, elapsed: Sequence[float], num_slots: int) -> list[float]:
    """Return in how many seconds each slot of a kind is free.

    A late trial counts as running on for as long as it is late already, so a trial that hangs is counted on less and
    less. Where more trials run than slots are left, the trials that end first free no slot.
    """
    left = [abs(each_s - so_far) for so_far in elapsed]
    free = [0.0] * (num_slots - len(left))
    return sorted(left + free, reverse=True)[:num_slots]


class TrialTimer:
    """Times the trials of a run, without their pauses.

    Args:
        kinds: The kinds of slots of the plan.
    """

    def __init__(self, kinds: SlotKinds) -> None:
        self._finished: list[tuple[TrialSlot, float]] = []
        self._ran_s: dict[Trial, float] = {}
        self._since_s: dict[Trial, float] = {}
        self.change_kinds(kinds)

    def change_kinds(self, kinds: SlotKinds) -> None:
        """Go on with the kinds of another plan, and keep the durations of kinds that are in both."""
        self._kinds = kinds
        self._durations = TrialDurations([slot.speed for slot in kinds.slots])
        for slot, seconds in self._finished:
            self._add(slot, seconds)

    def _add(self, slot: TrialSlot, seconds: float) -> None:
        kind = self._kinds.kind_of(slot)
        if kind is not None:
            self._durations.add(kind, seconds)

    def start(self, trial: Trial, now_s: float) -> None:
        """Start the clock of a trial that runs, if it does not go already."""
        self._since_s.setdefault(trial, now_s)

    def stop(self, trial: Trial, now_s: float) -> None:
        """Stop the clock of a trial that does not run, if it goes."""
        since_s = self._since_s.pop(trial, None)
        if since_s is not None:
            self._ran_s[trial] = self._ran_s.get(trial, 0.0) + now_s - since_s

    def finish(self, trial: Trial, slot: TrialSlot, now_s: float) -> None:
        """Add the duration of a trial that ended in ``slot``."""
        if trial in self._since_s:
            self.stop(trial, now_s)
            self._finished.append((slot, self._ran_s[trial]))
            self._add(*self._finished[-1])

    def should_idle(
        self,
        kind: int,
        placements: Sequence[Placement],
        assignments: Mapping[Trial, SlotAssignment],
        num_waiting: int,
        now_s: float,
    ) -> bool:
        """Return whether a free slot of ``kind`` is better left idle than given to one of ``num_waiting`` trials."""
        if not self._durations.is_known(kind):
            return False
        counts = Counter(dict.fromkeys(range(len(self._kinds.slots)), 0))
        for placement in placements:
            counts[placement.slot_type] += placement.count
        running = [
            RunningTrial(kind=assignment.kind, elapsed_s=self._elapsed_s(trial, now_s))
            for trial, assignment in assignments.items()
            if assignment.kind is not None
        ]
        slots = list(counts.values())
        return should_idle(kind, durations=self._durations, slots=slots, running=running, num_waiting=num_waiting)

    def _elapsed_s(self, trial: Trial, now_s: float) -> float:
        return self._ran_s.get(trial, 0.0) + now_s - self._since_s.get(trial, now_s)
