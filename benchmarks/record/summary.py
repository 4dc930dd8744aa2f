"""What an arm came to: the middle of its processes, and the most that they took. A view; the record are the samples."""

import statistics
from collections.abc import Iterable

from tune_policies.resources import PositiveCount, UsedBytes
from tune_policies.values import Value

from ..timing import spread
from .run_set import Arm, Phase, ProcessRun, RunSet


class Middle(Value):
    """A time over processes, in seconds.

    Attributes:
        median: The median of the processes' medians.
        half_iqr: Half their interquartile range; ``None``: there is one process only.
        num_processes: How many.
    """

    median: float
    half_iqr: float | None = None
    num_processes: PositiveCount


class ArmSummary(Value):
    """What was measured of an arm.

    Attributes:
        arm: Which.
        times_s: Of a step by phase, of the first epoch as a whole; phases without a time are left out.
        samples_per_s: With transfers; ``None``: the workload has no samples, or no such time.
        peak_host_bytes: The most host memory of a process; ``None``: not known.
        peak_gpu_bytes: The most GPU memory of a process; ``None``: not known, or none.
        energy_j: What a process used over all that it ran, the median; ``None``: not known.
    """

    arm: Arm
    times_s: dict[Phase, Middle]
    samples_per_s: float | None = None
    peak_host_bytes: UsedBytes | None = None
    peak_gpu_bytes: UsedBytes | None = None
    energy_j: float | None = None


def summarize(run_set: RunSet) -> tuple[ArmSummary, ...]:
    """Return a summary for each arm, by workload, size and device."""
    return tuple(_summarize(arm, run_set.of(arm)) for arm in run_set.sorted_arms)


def _summarize(arm: Arm, processes: tuple[ProcessRun, ...]) -> ArmSummary:
    times = {phase: middle for phase in Phase if (middle := _middle(run.times_s(phase) for run in processes))}
    samples = _most(run.samples_per_step for run in processes)
    with_transfers = times.get(Phase.TRANSFERS)
    energies = [run.energy_j for run in processes if run.energy_j is not None]
    return ArmSummary(
        arm=arm,
        times_s=times,
        samples_per_s=samples / with_transfers.median if samples and with_transfers else None,
        peak_host_bytes=_most(run.peak_host_bytes for run in processes),
        peak_gpu_bytes=_most(run.peak_gpu_bytes for run in processes),
        energy_j=statistics.median(energies) if energies else None,
    )


def _middle(times_s: Iterable[tuple[float, ...]]) -> Middle | None:
    medians = [statistics.median(each) for each in times_s if each]
    if not medians:
        return None
    over = spread(medians)
    return Middle(median=over.median, half_iqr=over.iqr / 2 if len(medians) > 1 else None, num_processes=len(medians))


def _most(amounts: Iterable[int | None]) -> int | None:
    return max((amount for amount in amounts if amount is not None), default=None)
