"""What the figures show of raw times: the middle of an arm, and how sure that is."""

import math
import statistics
from collections.abc import Sequence
from typing import Final, NamedTuple

from ..record.run_set import Arm, Phase, ProcessRun, RunSet

CONFIDENCE: Final = 0.95


class Middle(NamedTuple):
    """The median over processes, and the interval that holds the true one.

    Attributes:
        median: In the unit of the values.
        low: The lower end of the interval.
        high: Its upper end.
    """

    median: float
    low: float
    high: float


def middle(values: Sequence[float]) -> Middle:
    """Return the median with its distribution-free interval, from the sign test.

    The k-th lowest and k-th highest of n values hold the median with a probability of ``1 - 2 * B(k - 1; n, 1/2)``
    (Conover, Practical Nonparametric Statistics, 3.2). Below six values not even all of them give 95 %: five give 94.
    """
    ordered = sorted(values)
    count, cut = len(ordered), 0
    while 2 * _lowest_tail(count, cut + 1) <= 1 - CONFIDENCE:
        cut += 1
    return Middle(statistics.median(ordered), ordered[cut], ordered[-1 - cut])


def _lowest_tail(count: int, most: int) -> float:
    """How probable it is that at most ``most`` of so many values lie below their median."""
    return sum(math.comb(count, each) for each in range(most + 1)) / float(2**count)


def step_time(run_set: RunSet, arm: Arm, phase: Phase) -> Middle | None:
    """Return seconds of a step (of the first epoch: of all of it) over the arm's processes; ``None``: no times."""
    times = [statistics.median(each) for each in run_set.times_s(arm, phase).values()]
    return middle(times) if times else None


def by_workload(run_set: RunSet) -> dict[str, RunSet]:
    """Return the run of each workload by itself, by name: what is asked of it then takes no look at all the others."""
    runs: dict[str, list[ProcessRun]] = {}
    for run in run_set.runs:
        runs.setdefault(run.arm.workload, []).append(run)
    return {name: run_set.model_copy(update={"runs": tuple(runs[name])}) for name in sorted(runs)}


def ordered_devices(run_set: RunSet) -> tuple[str, ...]:
    """Return the devices that were asked for or measured: the CPU first, as others are compared with it."""
    measured = sorted({run.arm.device for run in run_set.runs})
    asked = [each.device for each in run_set.devices]
    return tuple(sorted(dict.fromkeys((*asked, *measured)), key=lambda each: each != "cpu"))


def measured_devices(run_set: RunSet) -> tuple[str, ...]:
    """Return the devices of which something was measured, in the same order."""
    measured = {run.arm.device for run in run_set.runs}
    return tuple(each for each in ordered_devices(run_set) if each in measured)
