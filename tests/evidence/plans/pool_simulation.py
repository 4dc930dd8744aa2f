"""Simulates runs on several slot types to compare their makespans. The makespan is the duration of a run.

The simulation does not need Ray and does not wait. It uses the scheduler's own decision function, ``should_idle``.
"""

import heapq
import random
import statistics
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, empty_table
from tune_policies.trainers.scheduling.idle_slots import RunningTrial, TrialDurations, should_idle


class SlotType(NamedTuple):
    """The number of slots of one type, and the work that a trial does per second in such a slot."""

    num_slots: int
    speed: float


def simulate(work: Sequence[float], slot_types: Sequence[SlotType], *, durations: TrialDurations | None) -> float:
    """Return the makespan in seconds if each trial starts in the first slot that it may use.

    Args:
        work: The work of each trial, in the order in which the trials start.
        slot_types: The slot types, best first.
        durations: The known durations. The simulated run adds its durations. If it is ``None``, no slot is idle while
            trials wait.
    """
    waiting = list(reversed(work))
    running: list[tuple[float, int, int]] = []  # (end time, number, slot type) of each running trial
    started: dict[int, tuple[int, float]] = {}
    now_s = 0.0

    def may_start(slot_type: int) -> bool:
        num_used = sum(used == slot_type for used, _ in started.values())
        if num_used == slot_types[slot_type].num_slots:
            return False
        if durations is None:
            return True
        now = [RunningTrial(slot_type=used, elapsed_s=now_s - since_s) for used, since_s in started.values()]
        slots = [slots_of_type.num_slots for slots_of_type in slot_types]
        return not should_idle(slot_type, durations=durations, slots=slots, running=now, num_waiting=len(waiting))

    def open_type() -> int | None:
        """Return the first slot type in which a trial may start now."""
        if not waiting:
            return None
        return next(filter(may_start, range(len(slot_types))), None)

    while waiting or running:
        slot_type = open_type()
        if slot_type is not None:
            number = len(waiting)
            started[number] = (slot_type, now_s)
            heapq.heappush(running, (now_s + waiting.pop() / slot_types[slot_type].speed, number, slot_type))
            continue
        now_s, number, slot_type = heapq.heappop(running)
        _, since_s = started.pop(number)
        if durations is not None:
            durations.add(slot_type, now_s - since_s)
    return now_s


def least_makespan(work: Sequence[float], slot_types: Sequence[SlotType]) -> float:
    """Return a lower bound of the makespan in seconds.

    The ``i`` longest trials use at most ``i`` slots, so they take at least as long as the ``i`` fastest slots need for
    their total work. This is the bound of Horvath, Lam and Sethi for trials that may move between slots (Journal of the
    ACM 24, 1977). If all trials are equal, the bound also takes into account that each slot finishes whole trials.
    """
    speeds: list[float] = []
    for slot_type in slot_types:
        speeds += [slot_type.speed] * slot_type.num_slots
    speeds.sort(reverse=True)
    totals = accumulate(sorted(work, reverse=True))
    together = [*accumulate(speeds)]
    bound = max(total / together[min(i, len(speeds) - 1)] for i, total in enumerate(totals))
    if min(work) == max(work):
        ends = []
        for speed in speeds:
            ends += [done * work[0] / speed for done in range(1, len(work) + 1)]
        ends.sort()
        bound = max(bound, ends[len(work) - 1])
    return bound


_LENGTHS: Final[dict[str, Callable[[random.Random], float]]] = {
    "equal": lambda _: 1,
    "uniform, 0.5 to 1.5": lambda rng: rng.uniform(0.5, 1.5),
    "log-normal, sigma 0.5": lambda rng: rng.lognormvariate(0, 0.5),
    "log-normal, sigma 1": lambda rng: rng.lognormvariate(0, 1),
}


def measure_makespan(num_trials: int, slowdown: float, num_runs: int) -> None:
    """Print the mean and largest ratio of simulated makespans to the lower bound, by configuration and trial length."""
    slots = [SlotType(8, 1), SlotType(4, 1 / slowdown)]
    configurations: dict[str, Callable[[list[float]], float]] = {
        "PolicyScheduler, speeds known": lambda work: simulate(
            work, slots, durations=TrialDurations([slot_type.speed for slot_type in slots])
        ),
        "PolicyScheduler, speeds unknown": lambda work: simulate(work, slots, durations=TrialDurations([None, None])),
        "every slot whenever it is free": lambda work: simulate(work, slots, durations=None),
        "GPU slots only": lambda work: simulate(work, slots[:1], durations=None),
    }
    table = empty_table(f"{num_trials} trials, 8 GPU slots and 4 CPU slots, {num_runs} runs", "Slots", *_LENGTHS)
    for name, makespan in configurations.items():
        cells = []
        for draw in _LENGTHS.values():
            works = [[draw(rng) for _ in range(num_trials)] for rng in map(random.Random, range(num_runs))]
            ratios = [makespan(work) / least_makespan(work, slots) for work in works]
            cells.append(f"{statistics.mean(ratios):.3f} (to {max(ratios):.3f})")
        table.add_row(name, *cells)
    TextConsole(width=120).print(table)
    print(f"{describe_machine()}\ncommand: {own_command()}")
