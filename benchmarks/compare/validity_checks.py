"""What is to be said against the times of a run, by the run itself: a sentence for each doubt.

A doubt makes a verdict ambiguous rather than wrong. Each has its limit here, and what to do about it.
"""

from collections.abc import Iterator, Sequence
from math import exp, log
from statistics import fmean, median
from typing import Final

import numpy as np

from ..record.run_set import Arm, NoiseReading, Phase, ProcessRun, RunSet
from .bootstrap import Times, ratio_interval, student_quantile

MOST_LOAD: Final = 0.2
"""CPUs that other processes may use, mean over rounds: a machine at rest uses a few hundredths…"""
MOST_PART_OF_CPUS: Final = 0.05
"""…or this part of its CPUs, where that is more: on a large machine they find others than the arms'."""
MOST_THROTTLED_S: Final = 0.1
"""Seconds for which the cgroup may be throttled in all rounds together, one period of its quota."""
OF_THE_WORK: Final = {"dtype": "dtype", "samples_per_step": "samples a step", "num_threads": "CPU threads"}
"""What processes that do the same work have in common, as far as they say it, and what it is called."""
SURE: Final = 0.99
"""Confidence at which a difference of equal arms, or a drift, is believed."""


def noise_problems(run_set: RunSet) -> tuple[str, ...]:
    """Return what disturbed the run as a whole: other processes, and clocks that were held down."""
    return tuple(problems_of_readings(run_set.noise, run_set.environment.num_cpus))


def problems_of_readings(noise: tuple[NoiseReading, ...], num_cpus: int) -> Iterator[str]:
    """Yield what disturbed the rounds, on a machine of so many CPUs."""
    if not noise:
        return
    most_load = max(MOST_LOAD, MOST_PART_OF_CPUS * num_cpus)
    if (load := fmean(each.load for each in noise)) > most_load:
        yield (
            f"other processes used {load:.2f} CPUs, more than {most_load:g}: end them, or run when the machine is quiet"
        )
    if (throttled_s := sum(each.throttled_s or 0 for each in noise)) > MOST_THROTTLED_S:
        yield f"the cgroup's quota stopped the processes for {throttled_s:.1f} s: use fewer CPUs, or raise the quota"
    if causes := sorted({cause for each in noise for cause in each.gpu_throttled}):
        yield f"a GPU's clock was held down ({', '.join(causes)}): cool it, or fix its clocks"


def control_problem(run_set: RunSet, arm: Arm, phase: Phase, same_within: float) -> str | None:
    """Return by how much an arm's control seems to differ from it, if too much; ``None``: not, or there is no control.

    A control's difference matters if it is as large as what counts as the same, or surely there and half as large.
    """
    twin = arm.model_copy(update={"is_control": True})
    first, second = run_set.times_s(arm, phase), run_set.times_s(twin, phase)
    if arm.is_control or not first or not second:
        return None
    found = ratio_interval(first, second)
    surer = found.at_confidence(SURE)
    is_sure = surer.low > 1 or surer.high < 1
    apart = abs(log(found.ratio))
    if apart <= log(1 + same_within) * (0.5 if is_sure else 1):
        return None
    return (
        f"two equal arms on {arm.device} seem to differ by {exp(apart) - 1:.1%}"
        f" ({found.low:.3f} to {found.high:.3f}): run more rounds, or when the machine is quiet"
    )


def drift_of_ratio(first: Times, second: Times, same_within: float) -> str | None:
    """Return how the arms' ratio changed from the first to the last common round, if that is sure and matters.

    Both arms of a round may become slower together; their ratio should not. It is a line's slope by least squares, with
    its t interval.
    """
    common = sorted(number for number in first.keys() & second.keys() if first[number] and second[number])
    if len(common) < 4:
        return None
    rounds = np.array(common, dtype=float)
    logs = np.array([log(median(first[number]) / median(second[number])) for number in common])
    centred = rounds - rounds.mean()
    slope = float(centred @ logs / (centred @ centred))
    rest = logs - logs.mean() - slope * centred
    error = float(np.sqrt(rest @ rest / (len(common) - 2) / (centred @ centred)))
    change = slope * (common[-1] - common[0])
    is_sure = abs(slope) > student_quantile(SURE, len(common) - 2) * error
    if not is_sure or abs(change) <= log(1 + same_within):
        return None
    return f"the ratio drifted by {exp(abs(change)) - 1:.1%} from the first round to the last: run it again, longer"


def disagreement(run_set: RunSet, *arms: Arm) -> str | None:
    """Return what is known of results that differ between devices; ``None``: they agree."""
    pairs = {(arm.workload, arm.size) for arm in arms}
    found = [
        each for each in run_set.failures if each.kind == "disagreed" and (each.arm.workload, each.arm.size) in pairs
    ]
    return f"the arms did not do the same work: {found[0].message}" if found else None


def other_work(first: Sequence[ProcessRun], second: Sequence[ProcessRun]) -> str | None:
    """Return in what two arms differ by what their processes say of their work; ``None``: in nothing."""
    differ = []
    for field, name in OF_THE_WORK.items():
        one, other = ({getattr(run, field) for run in runs} - {None} for runs in (first, second))
        if one and other and one != other:
            differ.append(f"{name} {_listed(one)} against {_listed(other)}")
    return f"the arms did not do the same work: {'; '.join(differ)}" if differ else None


def _listed(values: set[object]) -> str:
    return " or ".join(sorted(map(str, values)))
