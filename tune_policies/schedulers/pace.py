"""When a slow slot is worth using: how long trials take in each kind of slot, and what that means near a run's end.

While many trials wait, every slot helps. Near the end a trial that starts in a slow slot may be the last to finish,
when faster slots would have done all that waits before. Neither Ray nor a clock is in here: times come from outside.
"""

import math
from bisect import insort
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from tune_policies.resources import Count
from tune_policies.values import Value

_SHORTEST_S = 1e-6
"""No trial counts as shorter: a pace is divided by."""


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

        It is the median of those that were seen there, which a few odd trials do not move. Where none was, it follows
        by the ratio of the speeds from the kind of which the most were seen.
        """
        if self._seen[kind]:
            return _median(self._seen[kind])
        speed = self._speeds[kind]
        seen = [(len(times), -other) for other, times in enumerate(self._seen) if times and self._speeds[other]]
        if speed is None or not seen:
            return None
        other = -max(seen)[1]
        return _median(self._seen[other]) * (self._speeds[other] or 0) / speed


def _median(times: Sequence[float]) -> float:
    middle = len(times) // 2
    return times[middle] if len(times) % 2 else (times[middle - 1] + times[middle]) / 2


class Running(Value):
    """A trial that runs.

    Attributes:
        kind: The kind of slot in which it runs.
        elapsed_s: For how long it has run there, in seconds.
    """

    kind: Count
    elapsed_s: Annotated[float, Field(ge=0)]


def leave_idle(kind: int, *, pace: Pace, slots: Sequence[int], running: Sequence[Running], num_waiting: int) -> bool:
    """Return whether a free slot of ``kind`` is better left idle than given to one more waiting trial.

    It is, where the faster kinds finish all that waits no later than a trial that starts here now would. Asked anew
    whenever a slot is free, this gives the shortest run that there is where all trials of a kind take equally long: of
    all the ends that trials could have in some slot, as many as there are trials are the earliest, and a slot is used
    exactly if it has one of those. It is never better to leave a slot of the fastest kind idle, nor one of a kind whose
    pace is not known, and kinds whose pace is not known are not counted on.

    Args:
        kind: The kind of the free slot.
        pace: How long trials take.
        slots: How many slots there are of each kind, used and free.
        running: The trials that run now, in slots of any kind.
        num_waiting: Trials that have no slot yet, and may take one of any kind. One that must have a slot of this kind
            is not to be asked about: no other would ever run it.
    """
    ends_s = pace.seconds(kind)
    if ends_s is None or num_waiting <= 0:
        return False
    others = 0
    for faster, num_slots in enumerate(slots):
        each_s = pace.seconds(faster)
        if each_s is not None and each_s < ends_s:
            elapsed = [trial.elapsed_s for trial in running if trial.kind == faster]
            others += sum(
                math.floor((ends_s - free_s) / each_s)
                for free_s in _free_in(each_s, elapsed, num_slots)
                if free_s < ends_s
            )
    return others >= num_waiting


def _free_in(each_s: float, elapsed: Sequence[float], num_slots: int) -> list[float]:
    """Return in how many seconds each slot of a kind is free.

    A trial that has run longer than is typical is taken to run on for as long as it is late: one that hangs is counted
    on less and less. Where fewer slots are left than trials run, those that end first make room for none.
    """
    left = [abs(each_s - so_far) for so_far in elapsed]
    free = [0.0] * (num_slots - len(left))
    return sorted(left + free, reverse=True)[:num_slots]
