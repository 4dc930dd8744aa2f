"""When a slow slot is worth using: how long trials take in each kind of slot, and what that means near a run's end.

While many trials wait, every slot helps. Near the end a trial that starts in a slow slot may be the last to finish,
when faster slots would have done all that waits before. Neither Ray nor a clock is in here: times come from outside.
"""

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ray.tune.experiment import Trial

from tune_policies.placement.layout import Placement
from tune_policies.plan.trial_slot import TrialSlot

from .slot_assignment import Kinds, Seat

_SHORTEST_S: Final = 1e-6
"""No trial counts as shorter: a pace is divided by."""

_ENOUGH: Final = 5
"""So many trials say more of a kind than the ratio of speeds does."""

_NUM_LENGTHS: Final = 20
"""Into so many equally frequent lengths the trials that were seen are divided."""


class Pace:
    """How long a trial takes in each kind of slot, from what was seen, and from the speeds where nothing was.

    Args:
        speeds: How fast a trial runs in each kind, in any one unit; ``None``: not known.
    """

    def __init__(self, speeds: Sequence[float | None]) -> None:
        self._speeds = tuple(speeds)
        self._seen: tuple[list[float], ...] = tuple([] for _ in self._speeds)

    def finished(self, kind: int, seconds: float) -> None:
        """Take note that a trial ran for so long in a slot of this kind, to its end."""
        insort(self._seen[kind], max(seconds, _SHORTEST_S))

    def seconds(self, kind: int) -> float | None:
        """Return how long a trial typically takes in a slot of this kind; ``None``: not known.

        It is the median of those that were seen there, which a few odd trials do not move. While these are few, and the
        shortest end first, it follows from the kind of which the most were seen, by the ratio of the speeds.
        """
        here, speed = self._seen[kind], self._speeds[kind]
        _, reference = max((len(times) if self._speeds[other] else 0, -other) for other, times in enumerate(self._seen))
        there, its_speed = self._seen[-reference], self._speeds[-reference]
        if len(here) < _ENOUGH and speed is not None and its_speed is not None and there:
            return max(_SHORTEST_S, _median(there) * its_speed / speed)
        return _median(here) if here else None

    def relative(self, kind: int) -> float | None:
        """Return how long a trial takes in a slot of this kind, in the unit in which all speeds are; ``None``: unknown.

        Until a trial has ended that is all there is to compare kinds by.
        """
        speed = self._speeds[kind]
        return None if speed is None else 1 / speed

    def is_known(self, kind: int) -> bool:
        """Return whether anything is known of this kind."""
        return self._speeds[kind] is not None or bool(self._seen[kind])

    def lengths(self) -> list[float]:
        """Return how long trials are, compared with a typical one: equally frequent lengths.

        They are those of the kind of which the most were seen. Of many, the very longest, which may hang, is left out.
        Until a trial has ended, all are taken to be equally long.
        """
        times = max(self._seen, key=len)
        ranks = [(2 * i + 1) * len(times) // (2 * _NUM_LENGTHS) for i in range(_NUM_LENGTHS)]
        return [times[rank] / _median(times) for rank in ranks] if times else [1.0]


def _median(times: Sequence[float]) -> float:
    middle = len(times) // 2
    return times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2


class Running(NamedTuple):
    """A trial that runs.

    Attributes:
        kind: The kind of slot in which it runs.
        elapsed_s: For how long it has run there, in seconds; 0 or more.
    """

    kind: int
    elapsed_s: float


def leave_idle(kind: int, *, pace: Pace, slots: Sequence[int], running: Sequence[Running], num_waiting: int) -> bool:
    """Return whether a free slot of ``kind`` is better left idle than given to one more waiting trial.

    One trial less for the faster kinds ends the run a little earlier, unless the trial that starts here ends after
    them: it starts if that is a gain, in the mean over the lengths that trials were seen to have. Where all trials of a
    kind take equally long, that is exactly if it ends before the faster kinds would have done all that waits, and asked
    anew whenever a slot is free this gives the shortest run that there is: of all the ends that trials could have in
    some slot, as many as there are trials are the earliest, and a slot is used if it has one of those.

    Until a trial has ended in a kind whose speed is given, kinds are compared by their speeds alone, and what runs is
    taken to have just begun: no length is known of which a part could be over.

    It is never better to leave a slot of the fastest kind idle, nor one of a kind of which nothing is known. Others of
    which nothing is known are not counted on.

    Args:
        kind: The kind of the free slot.
        pace: How long trials take.
        slots: How many slots there are of each kind, used and free.
        running: The trials that run now, in slots of any kind.
        num_waiting: Trials that have no slot yet, and may take one of any kind. One that must have a slot of this kind
            is not to be asked about: no other would ever run it.
    """
    is_timed = pace.seconds(kind) is not None
    each = [(pace.seconds if is_timed else pace.relative)(other) for other in range(len(slots))]
    here_s = each[kind]
    if here_s is None or num_waiting <= 0:
        return False
    free_s: list[tuple[float, float]] = []
    for other, num_slots in enumerate(slots):
        each_s = each[other]
        if each_s is not None and each_s < here_s:
            elapsed = [trial.elapsed_s if is_timed else 0.0 for trial in running if trial.kind == other]
            free_s += [(at_s, each_s) for at_s in _free_in(each_s, elapsed, num_slots)]
    if not free_s:
        return False
    gain_s = 1 / sum(1 / each_s for _, each_s in free_s)
    ends_s = [here_s * length for length in pace.lengths()]
    # The others take no less than gain_s for each trial. A search without an end gives more than can be counted out.
    if (num_waiting - 1) * gain_s >= max(ends_s):
        return False
    others_end_s = _end_of(num_waiting, free_s)
    late_s = [max(0, end_s - (others_end_s - gain_s)) for end_s in ends_s]
    return sum(late_s) / len(late_s) >= gain_s


def _end_of(num_trials: int, slots: list[tuple[float, float]]) -> float:
    """Return when so many trials are done in slots that are free at some time and take so long for each, in seconds."""
    ends = [(free_s + each_s, each_s) for free_s, each_s in slots]
    heapq.heapify(ends)
    for _ in range(num_trials - 1):
        end_s, each_s = ends[0]
        heapq.heapreplace(ends, (end_s + each_s, each_s))
    return ends[0][0]


def _free_in(each_s: float, elapsed: Sequence[float], num_slots: int) -> list[float]:
    """Return in how many seconds each slot of a kind is free.

    A trial that has run longer than is typical is taken to run on for as long as it is late: one that hangs is counted
    on less and less. Where fewer slots are left than trials run, those that end first make room for none.
    """
    left = [abs(each_s - so_far) for so_far in elapsed]
    free = [0.0] * (num_slots - len(left))
    return sorted(left + free, reverse=True)[:num_slots]


class RunPace:
    """The times of a run's trials.

    Args:
        kinds: The kinds of slots of the plan.
    """

    def __init__(self, kinds: Kinds) -> None:
        self._seen: list[tuple[TrialSlot, float]] = []
        self._ran_s: dict[Trial, float] = {}
        self._since_s: dict[Trial, float] = {}
        self.change_kinds(kinds)

    def change_kinds(self, kinds: Kinds) -> None:
        """Go on with the kinds of another plan; what was seen of those that are in both stays."""
        self._kinds = kinds
        self._pace = Pace([slot.speed for slot in kinds.slots])
        for slot, seconds in self._seen:
            self._take(slot, seconds)

    def _take(self, slot: TrialSlot, seconds: float) -> None:
        kind = self._kinds.of(slot)
        if kind is not None:
            self._pace.finished(kind, seconds)

    def runs(self, trial: Trial, now_s: float) -> None:
        """Take note that a trial runs now."""
        self._since_s.setdefault(trial, now_s)

    def rests(self, trial: Trial, now_s: float) -> None:
        """Take note that a trial does not run now."""
        since_s = self._since_s.pop(trial, None)
        if since_s is not None:
            self._ran_s[trial] = self._ran_s.get(trial, 0.0) + now_s - since_s

    def finished(self, trial: Trial, slot: TrialSlot, now_s: float) -> None:
        """Take note that a trial ended in ``slot``."""
        if trial in self._since_s:
            self.rests(trial, now_s)
            self._seen.append((slot, self._ran_s[trial]))
            self._take(*self._seen[-1])

    def is_better_idle(
        self, kind: int, places: Sequence[Placement], seats: Mapping[Trial, Seat], num_waiting: int, now_s: float
    ) -> bool:
        """Return whether a free slot of ``kind`` is better left idle than given to one of ``num_waiting`` trials."""
        if not self._pace.is_known(kind):
            return False
        counts = Counter(dict.fromkeys(range(len(self._kinds.slots)), 0))
        for place in places:
            counts[place.kind] += place.count
        running = [
            Running(kind=seat.kind, elapsed_s=self._elapsed_s(trial, now_s))
            for trial, seat in seats.items()
            if seat.kind is not None
        ]
        return leave_idle(kind, pace=self._pace, slots=list(counts.values()), running=running, num_waiting=num_waiting)

    def _elapsed_s(self, trial: Trial, now_s: float) -> float:
        return self._ran_s.get(trial, 0.0) + now_s - self._since_s.get(trial, now_s)
