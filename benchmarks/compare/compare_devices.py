"""Compares pairs of devices for each workload, size and phase that was measured on both devices.

A disturbance, such as load from other processes, causes a doubt if it exceeds a limit in this module. If there is
a doubt, a verdict is ambiguous unless the difference is large.
"""

from collections.abc import Iterator, Sequence
from math import exp, log
from statistics import fmean
from typing import Final

from tune_policies.values.resources import PositiveCount
from tune_policies.values.value import Value

from ..record.run_set import Configuration, NoiseReading, Phase, ProcessRun, RunSet
from ..record.summary import in_words
from .time_ratio import SURE, Comparison, Outcome, common_rounds, compare_times, ratio_interval

MOST_LOAD: Final = 0.2
"""The maximum number of CPUs that other processes may use, as a mean over the rounds. On an idle machine, the mean is
below 0.1."""
MOST_PART_OF_CPUS: Final = 0.05
"""The maximum fraction of all CPUs that other processes may use. The larger of this limit and ``MOST_LOAD`` applies,
because other processes usually run on other CPUs if the machine is large."""
MOST_THROTTLED_S: Final = 0.1
"""The maximum time that the cgroup may be throttled over all rounds, in seconds: one period of its quota."""
OF_THE_WORK: Final = {"dtype": "dtype", "samples_per_step": "samples per step", "num_threads": "CPU threads"}
"""Fields that must agree between configurations, with their names in messages."""


def problems_of_readings(noise: Sequence[NoiseReading], num_cpus: int) -> Iterator[str]:
    """Yield a sentence for each disturbance during the rounds on a machine with ``num_cpus`` CPUs."""
    most_load = max(MOST_LOAD, MOST_PART_OF_CPUS * num_cpus)
    if not noise:
        return
    # The mean over the rounds, because a short disturbance of one round hardly changes the medians.
    load = fmean(reading.load for reading in noise)
    if load > most_load:
        yield f"other processes used {load:.2f} CPUs (limit: {most_load:g}). Stop them, or measure on an idle machine"
    throttled_s = sum(reading.throttled_s or 0 for reading in noise)
    if throttled_s > MOST_THROTTLED_S:
        yield f"the cgroup's quota stopped the processes for {throttled_s:.1f} s. Use fewer CPUs, or raise the quota"
    causes: set[str] = set()
    for reading in noise:
        causes.update(reading.gpu_throttled)
    if causes:
        yield f"a GPU's clock was throttled ({', '.join(sorted(causes))}). Cool the GPU, or lock its clocks"


def control_problem(run_set: RunSet, configuration: Configuration, phase: Phase, same_within: float) -> str | None:
    """Return a sentence about the difference between a configuration and its control.

    Return ``None`` if the difference is unknown or below the limit. The limit is ``same_within``, or half of it if the
    difference is significant.
    """
    twin = configuration.model_copy(update={"is_control": True})
    first, second = run_set.times_s(configuration, phase), run_set.times_s(twin, phase)
    if configuration.is_control or not common_rounds(first, second):
        return None
    found = ratio_interval(first, second)
    surer = found.at_confidence(SURE)
    is_sure = surer.low > 1 or surer.high < 1
    # Logarithms, so that a ratio and its inverse are equally far from 1.
    apart = abs(log(found.ratio))
    allowed = log(1 + same_within)
    if is_sure:
        # A significant difference of equal configurations is a doubt earlier than one that may be chance.
        allowed *= 0.5
    if apart <= allowed:
        return None
    return (
        f"two equal configurations on {configuration.device} seem to differ by {exp(apart) - 1:.1%}"
        f" (ratio {found.low:.3f} to {found.high:.3f}). Run more rounds, or measure on an idle machine"
    )


def doubts_of(
    run_set: RunSet, first: Configuration, second: Configuration, phase: Phase, same_within: float
) -> list[str]:
    """Return the doubts about the times of two configurations of one workload and size, as sentences."""
    # Only one device has a control. If the control differs from its twin, the times on all devices are doubtful.
    group = (first.workload, first.size)
    doubts = list(problems_of_readings(run_set.noise, run_set.environment.num_cpus))
    for configuration in run_set.configurations:
        if (configuration.workload, configuration.size) != group:
            continue
        problem = control_problem(run_set, configuration, phase, same_within)
        if problem:
            doubts.append(problem)
    disagreements = [
        failure.message
        for failure in run_set.failures
        if failure.kind == "disagreed" and (failure.configuration.workload, failure.configuration.size) == group
    ]
    # One disagreement of the losses is enough for a doubt.
    differences = [*disagreements[:1], *_other_work(run_set.of(first), run_set.of(second))]
    doubts += [f"the configurations did not do the same work: {difference}" for difference in differences]
    return doubts


def _other_work(first: Sequence[ProcessRun], second: Sequence[ProcessRun]) -> Iterator[str]:
    """Yield one sentence about the recorded differences between the work of two configurations, if there are any."""
    differ = []
    for field, name in OF_THE_WORK.items():
        # A field that a workload does not report is no difference.
        one = sorted({str(getattr(run, field)) for run in first} - {"None"})
        other = sorted({str(getattr(run, field)) for run in second} - {"None"})
        if one and other and one != other:
            differ.append(f"{name} {' or '.join(one)} against {' or '.join(other)}")
    if differ:
        yield "; ".join(differ)


class Verdict(Value):
    """The comparison of two devices, ``first`` and ``second``, for one workload, size and phase."""

    workload: str
    size: PositiveCount
    phase: Phase
    first: str
    second: str
    comparison: Comparison

    @property
    def word(self) -> str:
        """The name of the faster device (``"GPU"``, ``"CPU"``, ``"gpu@0.25"``), ``"same"`` or ``"ambiguous"``."""
        outcome = self.comparison.outcome
        faster = {Outcome.FIRST: self.first, Outcome.SECOND: self.second}.get(outcome)
        if faster is None:
            return outcome.value
        return in_words(faster)


def verdicts(run_set: RunSet, phase: Phase, same_within: float = 0.05) -> tuple[Verdict, ...]:
    """Return a verdict for each workload, size and pair of devices with times in a common round.

    The CPU is compared with every other device. If the CPU was not measured, the first measured device is used instead.

    Raises:
        InvalidResourcesError: ``same_within`` is not valid.
    """
    first_device, *others = run_set.measured_devices or ("cpu",)
    found = []
    for first in run_set.configurations:
        # A control measures the noise of the run. It is no device of its own.
        if first.device != first_device or first.is_control:
            continue
        for second in (first.model_copy(update={"device": device}) for device in others):
            times = run_set.times_s(first, phase), run_set.times_s(second, phase)
            if common_rounds(*times):
                doubts = doubts_of(run_set, first, second, phase, same_within)
                names = {"first": first.device, "second": second.device, "phase": phase}
                compared = compare_times(*times, same_within=same_within, doubts=doubts)
                found.append(Verdict(workload=first.workload, size=first.size, comparison=compared, **names))
    return tuple(sorted(found, key=lambda verdict: (run_set.workloads.index(verdict.workload), verdict.size)))
