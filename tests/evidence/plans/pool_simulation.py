"""Runs of a pool with several slot types, without Ray: who starts when, and when the last one ends.

The scheduler's own decisions are made here (``should_idle``), with trials of any lengths, in no time.
"""

import heapq
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from tune_policies.tune.slot_assignment import RunningTrial, TrialDurations, should_idle


class SlotType(NamedTuple):
    """One slot type: how many there are, and how much work one does in a second."""

    num_slots: int
    speed: float


def simulate(work: Sequence[float], slot_types: Sequence[SlotType], *, durations: TrialDurations | None) -> float:
    """Return when the last trial ends, in seconds, where each takes a slot as it becomes free.

    Args:
        work: How much each trial has to do, in the order in which they start.
        slot_types: The slots, the best type first.
        durations: What is known of the types before; the run adds to it. ``None``: every free slot is taken at once.
    """
    waiting = list(reversed(work))
    running: list[tuple[float, int, int]] = []  # when it ends, its number, its type
    started: dict[int, tuple[int, float]] = {}
    now_s = 0.0

    def may_start(slot_type: int) -> bool:
        if len([None for of, _ in started.values() if of == slot_type]) == slot_types[slot_type].num_slots:
            return False
        if durations is None:
            return True
        now = [RunningTrial(slot_type=of, elapsed_s=now_s - since_s) for of, since_s in started.values()]
        slots = [each.num_slots for each in slot_types]
        return not should_idle(slot_type, durations=durations, slots=slots, running=now, num_waiting=len(waiting))

    while waiting or running:
        while (
            waiting
            and (slot_type := next((slot_type for slot_type in range(len(slot_types)) if may_start(slot_type)), None))
            is not None
        ):
            number = len(waiting)
            started[number] = (slot_type, now_s)
            heapq.heappush(running, (now_s + waiting.pop() / slot_types[slot_type].speed, number, slot_type))
        now_s, number, slot_type = heapq.heappop(running)
        _, since_s = started.pop(number)
        if durations is not None:
            durations.add(slot_type, now_s - since_s)
    return now_s


def least_makespan(work: Sequence[float], slot_types: Sequence[SlotType]) -> float:
    """Return a time in which no way to run the trials is done, in seconds.

    The ``i`` longest trials use ``i`` slots at the most, so they take at least as long as the ``i`` fastest slots need
    for all of their work; where all trials are alike, as many must have ended as there are. The first bound is that of
    Horvath, Lam and Sethi for trials that may move (Journal of the ACM 24, 1977).
    """
    speeds = sorted((slot_type.speed for slot_type in slot_types for _ in range(slot_type.num_slots)), reverse=True)
    totals = accumulate(sorted(work, reverse=True))
    together = [*accumulate(speeds)]
    moving = [total / together[min(i, len(speeds) - 1)] for i, total in enumerate(totals)]
    bound = max(moving)
    if min(work) == max(work):
        ends = sorted(done * work[0] / speed for speed in speeds for done in range(1, len(work) + 1))
        bound = max(bound, ends[len(work) - 1])
    return bound


def ratio_with_speeds(work: Sequence[float], slot_types: Sequence[SlotType]) -> float:
    """Return how long a run takes whose speeds are known, beside the better of the best type only and all types."""
    best = max(slot_types, key=lambda slot_type: slot_type.speed)
    found = simulate(work, slot_types, durations=TrialDurations([slot_type.speed for slot_type in slot_types]))
    return found / min(simulate(work, [best], durations=None), simulate(work, slot_types, durations=None))
