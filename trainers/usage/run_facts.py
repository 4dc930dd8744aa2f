"""What is known about a run and its trials when a policy is suggested for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tune_policies.plan.trial_observation import SHORTEST_S, TrialNeed
from tune_policies.values.resources import MOST

from .gpu_memory_records import GpuMemoryUsage, bytes_to_plan
from .process_usage import ProcessUsage

_BUSY: Final = 0.95
"""The utilization from which a device counts as busy all the time."""


@dataclass
class TrialFacts:
    """What is known about a trial of a run.

    Attributes:
        trial_id: The ID of the trial.
        config: Its config.
        ran_s: The time for which it has run, in seconds.
        told_s: The time after which it had reported twice and its use was known, in seconds, or ``None``.
        process: What its process used, or ``None`` if it was not measured.
        gpu_memory: The GPU memory that it used, or ``None`` if it was not measured.
        gpus: The GPUs that it reserved in its latest attempt, whose usage is known.
        reuses_process: Whether it ran in the process of an earlier trial.
    """

    trial_id: str
    config: Mapping[str, Any] = field(default_factory=dict)
    ran_s: float = 0.0
    told_s: float | None = None
    process: ProcessUsage | None = None
    gpu_memory: GpuMemoryUsage | None = None
    gpus: float = 0.0
    reuses_process: bool = False

    @property
    def need(self) -> TrialNeed:
        """What the trial used, as in a ``LearningPolicy``."""
        return need_of(self.process, self.gpu_memory, self.gpus)


def need_of(usage: ProcessUsage | None, gpu_memory: GpuMemoryUsage | None, gpus: float) -> TrialNeed:
    """Return what a trial needs according to the usage of its process.

    CPUs and GPU time count after two seconds, because imports take most of the time of a shorter trial. The driver
    reports the utilization of a device by all processes, so a trial on a fraction of a GPU counts for its part.

    Args:
        usage: The usage of CPUs, host memory and GPU time, or ``None`` if it was not measured.
        gpu_memory: The usage of GPU memory, or ``None`` if it was not measured.
        gpus: The number of GPUs that the trial reserved.
    """
    amounts: dict[str, float | None] = {}
    if usage is not None:
        amounts["host_memory_bytes"] = usage.host_memory_bytes or None  # 0 for a process that was read while it ended
        if usage.elapsed_s >= SHORTEST_S:
            amounts["cpus"] = usage.cpu_s / usage.elapsed_s
            utilization = usage.gpu_utilization
            # A busy device does not show how much a trial on a part of it could use.
            is_hidden = utilization is not None and gpus < 1 and utilization >= _BUSY
            if utilization is not None and not is_hidden:
                amounts["gpu_utilization"] = utilization * min(1.0, gpus)
    if gpu_memory is not None:
        amounts["gpu_memory_bytes"] = bytes_to_plan(gpu_memory)
    return TrialNeed.from_dict(amounts)


class Machines(NamedTuple):
    """What was measured about the machines of a run.

    Attributes:
        usable_cpus: The CPUs that they really have, or ``None`` for those that Ray counts.
        load: The mean number of processes of all programs that used or waited for a CPU.
        start_cpu_s: The CPU time of the start of a trial's process, in seconds, or ``None`` if it is not known.
    """

    usable_cpus: float | None = None
    load: float = 0.0
    start_cpu_s: float | None = None


@dataclass
class RunFacts:
    """What the simulation must know about a run.

    Attributes:
        elapsed_s: The duration of the run, in seconds.
        at_once: The number of trials that could run at once.
        num_trials: The number of trials of the run. It is large if it is not known or unlimited.
        most_open: The maximum number of unfinished trials that the run suggested at once.
        gap_s: The time between the end of a trial and the start of the next one in its slot, in seconds.
        machines: What was measured about the machines.
    """

    elapsed_s: float
    at_once: int
    num_trials: int
    most_open: int = MOST
    gap_s: float = 0.0
    machines: Machines = field(default_factory=Machines)
