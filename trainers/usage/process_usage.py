"""The CPUs, host memory and GPUs that the process of a trial used, and advice on a smaller slot."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Final

from tune_policies.plan.learned_needs import HEADROOM
from tune_policies.values.resources import Count
from tune_policies.values.units import GIB, MIB, format_bytes
from tune_policies.values.value import Value

USAGE_KEY: Final = "usage"
"""The key of a process's usage in the results of its trial."""

SHORTEST_S: Final = 2.0
"""The minimum duration of a trial in seconds. Shorter trials are ignored, because imports take most of their time."""

_LOW: Final = 0.5
"""A smaller slot is advised only if trials used at most this fraction of the CPUs, or of the GPU's time."""


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
        num_trials: The number of trials that reported their use and ran for at least 2 s.
        cpus: The number of CPUs reserved for each process.
        used_cpus: The mean number of CPUs that a process used.
        host_memory_bytes: The largest peak host memory of a trial, in bytes.
        gpu_utilization: The mean GPU utilization of the trials, from 0 to 1, or ``None`` if it is not known.
        gpu_memory_bytes: The largest peak GPU memory of a trial, in bytes, or ``None`` if it is not known.
    """

    num_trials: Count
    cpus: float
    used_cpus: float
    host_memory_bytes: Count
    gpu_utilization: float | None = None
    gpu_memory_bytes: Count | None = None

    def __str__(self) -> str:
        parts = [
            f"{self.used_cpus:.2g} of {self.cpus:g} CPUs",
            f"{format_bytes(self.host_memory_bytes)} of host memory",
        ]
        if self.gpu_utilization is not None:
            parts.append(f"{self.gpu_utilization:.0%} of the GPU's time")
        if self.gpu_memory_bytes is not None:
            parts.append(f"{format_bytes(self.gpu_memory_bytes)} of GPU memory")
        return ", ".join(parts)


def use_of_slot(usages: Iterable[tuple[ProcessUsage, int | None]]) -> SlotUse | None:
    """Return the use of a slot type, or ``None`` if no trial ran for at least 2 s.

    ``usages`` contains the last usage of each trial and its GPU memory in bytes, or ``None`` if that is not known.
    """
    long = [(usage, gpu_bytes) for usage, gpu_bytes in usages if usage.elapsed_s >= SHORTEST_S]
    if not long:
        return None
    return SlotUse(
        num_trials=len(long),
        cpus=max(usage.cpus for usage, _ in long),
        used_cpus=sum(usage.cpu_s for usage, _ in long) / sum(usage.elapsed_s for usage, _ in long),
        host_memory_bytes=max(usage.host_memory_bytes for usage, _ in long),
        gpu_utilization=mean_utilization([rate for each, _ in long if (rate := each.gpu_utilization) is not None]),
        gpu_memory_bytes=max((gpu_bytes for _, gpu_bytes in long if gpu_bytes), default=None),
    )


def advice(use: SlotUse, *, gpus: float, gpu_memory_bytes: int | None, device_bytes: int | None, at_once: int) -> str:
    """Return a sentence that suggests a policy to run more trials of this slot type concurrently.

    Return ``""`` if the measured use does not support a suggestion.

    Args:
        use: The use of the slot type.
        gpus: The number of GPUs of a trial.
        gpu_memory_bytes: The GPU memory that a plan should give to a trial, or ``None`` if it is not known.
        device_bytes: The memory of the GPU in bytes, or ``None`` if it is not known.
        at_once: The number of slots of the type.
    """
    if gpus > 1:
        return ""  # the use of each single GPU is not known
    if gpus == 0:
        needed = max(1, math.ceil(use.used_cpus * (1 + HEADROOM)))
        more = math.floor(at_once * use.cpus / needed)
        if use.used_cpus > _LOW * use.cpus or more <= at_once:
            return ""
        memory = _rounded(use.host_memory_bytes, 64 * MIB)
        return f'CpuPolicy(cpus={needed}, memory="{memory // MIB}MiB") would run up to {more} trials at once.'
    if use.gpu_utilization is None or use.gpu_utilization > _LOW or gpu_memory_bytes is None or device_bytes is None:
        return ""
    step = GIB // 10
    wanted = _rounded(gpu_memory_bytes, step)
    now = max(1, round(1 / gpus))
    by_utilization = math.floor(1 / max(use.gpu_utilization, 0.01))
    if (
        by_utilization < device_bytes // wanted
    ):  # with the needed memory, more trials would run than the GPU has time for
        wanted = device_bytes // by_utilization // step * step
        wanted += step if device_bytes // wanted > by_utilization else 0
    if (more := device_bytes // wanted) <= now:
        return ""
    return f'GpuMemoryPolicy(gpu_memory="{wanted / GIB:.1f}GiB") would run {more} trials on each GPU instead of {now}.'


def _rounded(amount: int, step: int) -> int:
    """Return ``amount`` plus the headroom, rounded up to a multiple of ``step``."""
    return math.ceil(amount * (1 + HEADROOM) / step) * step


def mean_utilization(samples: Sequence[float]) -> float | None:
    """Return the mean of the sampled fractions, or ``None`` if there are no samples."""
    return fmean(samples) if samples else None
