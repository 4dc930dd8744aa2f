"""The CPUs, host memory and GPUs that the process of a trial used."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Final

from pydantic import Field

from tune_policies.plan.trial_observation import SHORTEST_S
from tune_policies.values.resources import Count, amount_of
from tune_policies.values.units import format_bytes, two_digits
from tune_policies.values.value import Value

USAGE_KEY: Final = "usage"
"""The key of a process's usage in the results of its trial."""


class ProcessUsage(Value):
    """The resources that one process has used since its current trial began.

    Attributes:
        elapsed_s: The time since the trial began, in seconds.
        cpus: The number of reserved CPUs.
        cpu_s: The CPU time of the process and its children, in seconds.
        host_memory_bytes: The peak host memory of the process and its children, in bytes.
        gpu_utilization: The mean fraction of time, from 0 to 1, in which the GPUs of the process were busy, including
            work of other processes, or ``None`` if it is not known.
        note: Why the number of threads differs from the number of reserved CPUs, or an empty text.
    """

    elapsed_s: float
    cpus: float
    cpu_s: float
    host_memory_bytes: Count
    gpu_utilization: float | None = None
    note: str = ""


class SlotUse(Value):
    """The resources that the trials in one slot type used.

    Attributes:
        num_trials: The number of trials that reported their use and ran for at least 2 s. In a restored run, a trial
            that continued counts once in each part.
        cpus: The number of CPUs reserved for each process.
        used_cpus: The mean number of CPUs that a process used.
        host_memory_bytes: The largest peak host memory of a process, in bytes.
        gpu_utilization: The mean GPU utilization of the trials, from 0 to 1, or ``None`` if it is not known.
        gpu_memory_bytes: The largest peak GPU memory of a process, in bytes, or ``None`` if it is not known.
        num_workers: The number of Train workers of a trial, or 0. With workers, the process is one of them.
        elapsed_s: The total time of these trials in seconds, or 0 in records of earlier versions.
    """

    num_trials: Count
    cpus: float
    used_cpus: float
    host_memory_bytes: Count
    gpu_utilization: float | None = None
    gpu_memory_bytes: Count | None = None
    num_workers: Count = 0
    elapsed_s: float = Field(default=0.0, ge=0)

    def combined_with(self, later: "SlotUse") -> "SlotUse":
        """Return the use of an earlier part of a run (``self``) and a later part together."""
        elapsed_s = self.elapsed_s + later.elapsed_s
        used_cpus = later.used_cpus
        if elapsed_s:
            used_cpus = (self.used_cpus * self.elapsed_s + later.used_cpus * later.elapsed_s) / elapsed_s
        known = [part for part in (self, later) if part.gpu_utilization is not None and part.num_trials]
        gpu_utilization = None
        if known:
            rates, numbers = [part.gpu_utilization or 0.0 for part in known], [part.num_trials for part in known]
            gpu_utilization = fmean(rates, numbers)  # the mean of the trials, as in each part
        return SlotUse(
            num_trials=self.num_trials + later.num_trials,
            cpus=max(self.cpus, later.cpus),
            used_cpus=used_cpus,
            host_memory_bytes=max(self.host_memory_bytes, later.host_memory_bytes),
            gpu_utilization=gpu_utilization,
            gpu_memory_bytes=max(self.gpu_memory_bytes or 0, later.gpu_memory_bytes or 0) or None,
            num_workers=later.num_workers,
            elapsed_s=elapsed_s,
        )

    def __str__(self) -> str:
        parts = [
            f"{two_digits(self.used_cpus)} of {amount_of(self.cpus, 'CPU')}",
            f"{format_bytes(self.host_memory_bytes)} of host memory",
        ]
        if self.gpu_utilization is not None:
            parts.append(f"{self.gpu_utilization:.0%} of the GPU's time")
        if self.gpu_memory_bytes is not None:
            parts.append(f"{format_bytes(self.gpu_memory_bytes)} of GPU memory")
        process = "worker" if self.num_workers else "trial"
        return f"{', '.join(parts)} per {process}"


def use_of_slot(usages: Iterable[tuple[ProcessUsage, int | None]]) -> SlotUse | None:
    """Return the use of a slot type, or ``None`` if no trial ran for at least 2 s.

    ``usages`` contains the last usage of each trial and its GPU memory in bytes, or ``None`` if that is not known.
    """
    long = [(usage, gpu_bytes) for usage, gpu_bytes in usages if usage.elapsed_s >= SHORTEST_S]
    if not long:
        return None
    rates = [usage.gpu_utilization for usage, _ in long if usage.gpu_utilization is not None]
    elapsed_s = sum(usage.elapsed_s for usage, _ in long)
    return SlotUse(
        num_trials=len(long),
        cpus=max(usage.cpus for usage, _ in long),
        # Longer trials count more, because they use their CPUs for longer.
        used_cpus=sum(usage.cpu_s for usage, _ in long) / elapsed_s,
        host_memory_bytes=max(usage.host_memory_bytes for usage, _ in long),
        gpu_utilization=mean_utilization(rates),
        gpu_memory_bytes=max((gpu_bytes for _, gpu_bytes in long if gpu_bytes), default=None),
        elapsed_s=elapsed_s,
    )


def mean_utilization(samples: Sequence[float]) -> float | None:
    """Return the mean of the sampled fractions, or ``None`` if there are no samples."""
    if samples:
        return fmean(samples)
    return None
