"""Checks how often the 90 % interval of a forecast contains the true end, over simulated runs.

In the runs with *rungs*, a scheduler such as ASHA stops trials at a quarter and a sixteenth of their length, so the
progress of a running trial does not tell when it ends.
"""

import heapq
import random
from collections.abc import Callable, Iterator
from typing import Final

from tune_policies.plan.end_forecast import EndForecast, RunningTrial, forecast_end

LENGTHS: Final[dict[str, Callable[[random.Random], float]]] = {
    "nearly equal": lambda rng: rng.uniform(0.95, 1.05),
    "uniform, 0.5 to 1.5": lambda rng: rng.uniform(0.5, 1.5),
    "log-normal, sigma 0.5": lambda rng: rng.lognormvariate(0, 0.5),
    "log-normal, sigma 1": lambda rng: rng.lognormvariate(0, 1),
    "two populations, 1 and 8": lambda rng: rng.choice((1, 1, 1, 8)) * rng.uniform(0.9, 1.1),
    "early stopping, 1 to 16": lambda rng: rng.choice((1, 1, 1, 1, 2, 2, 4, 16)) * rng.uniform(0.95, 1.05),
    "rungs of early stopping": lambda rng: rng.choice((0.25, 0.25, 0.25, 1, 1, 4)) * rng.uniform(0.95, 1.05),
}
_RUNGS: Final = "rungs of early stopping"
_LONGEST: Final = 4 * 600.0
"""The duration of a trial that is not stopped at a rung, in seconds."""


def forecasts(
    name: str, rng: random.Random, *, num_trials: int, at_once: int, knows_progress: bool
) -> Iterator[tuple[EndForecast, float]]:
    """Yield the forecast and the true remaining time of a run in seconds, at four points.

    The last point is when the last trial has just started.
    """
    works = [600 * LENGTHS[name](rng) for _ in range(num_trials)]
    free = [0.0] * at_once
    begins = []
    for work in works:
        begin = heapq.heappop(free)
        begins.append(begin)
        heapq.heappush(free, begin + work)
    end = max(begin + work for begin, work in zip(begins, works, strict=True))
    for now in (0.25 * end, 0.5 * end, 0.75 * end, max(begins) + 1):
        finished = [work for begin, work in zip(begins, works, strict=True) if begin + work <= now]
        running = []
        for begin, work in zip(begins, works, strict=True):
            if begin <= now < begin + work:
                progress = None
                if knows_progress:
                    # Steps take a varying time, so the progress deviates from the elapsed fraction of the time.
                    length = _LONGEST if name == _RUNGS else work
                    progress = min(0.99, (now - begin) / length * rng.lognormvariate(0, 0.05))
                running.append(RunningTrial(elapsed_s=now - begin, progress=progress))
        waiting = sum(begin > now for begin in begins)
        stopped = 0.0
        if name == _RUNGS and finished:
            stopped = sum(work < _LONGEST / 2 for work in finished) / len(finished)
        found = forecast_end(finished, running, num_waiting=waiting, at_once=at_once, stopped_fraction=stopped)
        if found is not None:
            yield found, end - now


def coverage(name: str, seeds: range, *, knows_progress: bool) -> tuple[int, int]:
    """Return how many intervals contain the true end, and the number of intervals."""
    inside = total = 0
    for seed in seeds:
        rng = random.Random(f"{name} {seed}")
        sizes = {"num_trials": rng.choice((20, 40, 100)), "at_once": rng.choice((2, 4, 8))}
        for found, left_s in forecasts(name, rng, **sizes, knows_progress=knows_progress):
            inside += found.low_s <= left_s <= found.high_s
            total += 1
    return inside, total
