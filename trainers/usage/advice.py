"""The advice for a run: which policy would run more of its trials at once, and about how many times as fast.

The end of a run, ``tune-policies usage`` and ``AuditCallback`` give the same advice. It is the plan that a
``LearningPolicy`` makes from what the trials used. The policy is ``LearningPolicy()``, or a policy with the learned
amounts if this is much faster, because pilots keep their slots. The speed-up comes from a simulation of the run under
the policy: pilots, the start of more processes, and CPUs and GPUs that the trials share.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Final, NamedTuple

from tune_policies.cluster.capacity import ClusterCapacity, GpuDevice, NodeCapacity
from tune_policies.plan.trial_observation import TrialNeed, TrialObservation
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.cpu import CpuPolicy
from tune_policies.policies.gpu_memory import GpuMemoryPolicy
from tune_policies.policies.learning import LearningPolicy
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InvalidResourcesError, ResourcePolicyError
from tune_policies.values.resources import MOST, TICKS, Resources
from tune_policies.values.units import MIB

from .gpu_memory_usage import GpuMemoryUsage, bytes_to_plan
from .process_usage import SHORTEST_S, ProcessUsage

_GAIN: Final = 1.1
"""The minimum speed-up that is worth another policy."""

_BUSY: Final = 0.95
"""The utilization from which a device counts as busy all the time."""

_MOST_SIMULATED: Final = 2_000
_START_CPU_S: Final = 1.0
"""The assumed CPU time of the start of a trial's process, in seconds, if it was not measured."""


@dataclass(frozen=True)
class Advice:
    """A policy that would run more trials of a run at once.

    Attributes:
        policy: The policy.
        at_once: The number of trials that would run at once.
        instead_of: The number of trials that could run at once.
        speedup: How many times as fast the run would be, or ``None`` if this is not known.
        is_rough: Whether the speed-up is uncertain, because other programs used much of the CPUs.
    """

    policy: ResourcePolicy
    at_once: int
    instead_of: int
    speedup: float | None = None
    is_rough: bool = False

    def __str__(self) -> str:
        text = f"{self.policy!r} would run up to {self.at_once} trials at once instead of {self.instead_of}"
        if self.speedup is None:
            return text
        faster = f"about {self.speedup:.2g} times as fast"
        if self.is_rough:
            faster += ", a rough estimate because other programs used the CPUs"
        return f"{text} ({faster})"


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
        gpus: The GPUs that it reserved.
    """

    trial_id: str
    config: Mapping[str, Any] = field(default_factory=dict)
    ran_s: float = 0.0
    told_s: float | None = None
    process: ProcessUsage | None = None
    gpu_memory: GpuMemoryUsage | None = None
    gpus: float = 0.0

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
        amounts["host_memory_bytes"] = usage.host_memory_bytes
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
        num_trials: The number of trials of the run, as far as it is known.
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


def advise(trials: Sequence[TrialFacts], capacity: ClusterCapacity, facts: RunFacts) -> Advice | str:
    """Return a policy under which more of these trials run at once, or the reason why none is suggested."""
    step = max(1, len(trials) // _MOST_SIMULATED)
    trials = trials[::step]
    start = _learning_policy(trials, capacity)
    learned = start.model_copy(update={"num_pilots": 1}).learn(_observations(trials))
    if learned.needs is None or not learned.needs.amounts.keys() & {"cpus", "gpu_memory_bytes"}:
        return f"what the trials used is not known, because none of them was measured for {SHORTEST_S:g} s"
    try:
        plan = learned.plan(capacity)
        parts = [_part_of_cluster(plan, trial.config) for trial in trials]
        pilots = start.start.plan(capacity).max_concurrent_trials
    except ResourcePolicyError as error:
        return str(error)
    would_fit = round(1 / fmean(parts))
    at_once = min(facts.most_open, would_fit, facts.num_trials)
    if would_fit <= facts.at_once:
        return "more trials at once would need more than the cluster has"
    if facts.num_trials <= facts.at_once:
        return f"all {facts.num_trials} trials could run at once"
    if at_once <= facts.at_once:
        return (
            f"{would_fit} trials would fit at once, but the run never had more than {at_once} unfinished trials. "
            "Omit max_concurrent_trials, or raise the limit of the search algorithm"
        )
    advice = Advice(start, at_once, facts.at_once)
    is_sample = step > 1  # the duration of the run follows only from all trials
    if not facts.elapsed_s or is_sample:
        return advice
    if any(trial.gpus and trial.need.gpu_utilization is None for trial in trials):
        return advice
    simulation = _Simulation(trials, capacity, facts)
    before_s = simulation.duration_s([1 / facts.at_once] * len(trials))
    # The run also took time for other things, such as its end, which another policy does not change.
    rest_s = max(0.0, facts.elapsed_s - before_s) + simulation.probe_s
    after_s = simulation.duration_s([1 / pilots] * len(trials), parts, start.num_pilots)
    advice = replace(advice, speedup=facts.elapsed_s / (after_s + rest_s), is_rough=simulation.is_rough)
    fixed = _with_learned_amounts(learned, plan)
    if fixed is not None:
        fits = fixed.plan(capacity).max_concurrent_trials
        speedup = facts.elapsed_s / (simulation.duration_s([1 / fits] * len(trials)) + rest_s)
        if speedup >= _GAIN * (advice.speedup or 1.0):
            advice = replace(advice, policy=fixed, speedup=speedup)
    if advice.speedup is not None and advice.speedup < _GAIN:
        return (
            f"{would_fit} trials would fit at once instead of {facts.at_once}, but this run would not end earlier, "
            "because trials share the CPUs, and their processes take time to start"
        )
    return advice


def _with_learned_amounts(learned: LearningPolicy, plan: TrialPlan) -> ResourcePolicy | None:
    """Return a policy that starts with what was learned, or ``None`` if this depends on the config."""
    if learned.needs is None or learned.needs.depends_on_config or len(plan.slots) > 1:
        return None
    need = learned.needs.need_for({})
    host = {}
    if need.host_memory_bytes is not None:
        host["memory"] = _mebibytes(need.host_memory_bytes)
    if not plan.use_gpu:
        cpus = 1.0
        if need.cpus is not None:
            cpus = math.floor(need.cpus * TICKS) / TICKS
        if cpus >= 1:  # learned amounts above 1 are whole, and users read ``cpus=2``
            cpus = int(cpus)
        return CpuPolicy(cpus=cpus, **host)
    if need.gpu_memory_bytes is None:
        return None
    most = max(1, round(1 / plan.worker.gpus))
    return GpuMemoryPolicy(gpu_memory=_mebibytes(need.gpu_memory_bytes), max_trials_per_gpu=most, **host)


def _mebibytes(amount: int) -> str:
    return f"{-(-amount // MIB)}MiB"


def trials_per_gpu(usages: Sequence[GpuMemoryUsage], device_bytes: int) -> int:
    """Return how many trials ``LearningPolicy()`` would run on a GPU of this size after these trials."""
    observations = []
    for number, usage in enumerate(usages):
        too_little = TrialNeed()
        if usage.num_ooms:
            too_little = TrialNeed(gpu_memory_bytes=usage.share_bytes or device_bytes)
        used = TrialNeed(gpu_memory_bytes=bytes_to_plan(usage))
        observations.append(TrialObservation(trial_id=str(number), used=used, too_little=too_little, ended=True))
    gpu = GpuDevice(index=0, name="GPU", memory_bytes=device_bytes)
    node = NodeCapacity(node_id="gpu", resources=Resources(cpus=1, gpus=1), devices=(gpu,))
    learned = LearningPolicy(num_pilots=1).learn(observations)
    return learned.plan(ClusterCapacity(nodes=(node,))).max_concurrent_trials


def _learning_policy(trials: Sequence[TrialFacts], capacity: ClusterCapacity) -> LearningPolicy:
    """Return the policy to suggest. ``AutoPolicy`` would move trials without GPUs to GPUs."""
    has_gpus = any(node.resources.gpus for node, _ in capacity.groups)
    if has_gpus and not any(trial.gpus for trial in trials):
        return LearningPolicy(CpuPolicy())
    return LearningPolicy()


def _observations(trials: Sequence[TrialFacts]) -> list[TrialObservation]:
    found = []
    for trial in trials:
        if trial.process is None and trial.gpu_memory is None:
            continue
        try:
            seen = TrialObservation(trial_id=trial.trial_id, config=dict(trial.config), used=trial.need, ended=True)
        except InvalidResourcesError:
            continue  # a config that is not plain data
        found.append(seen)
    return found


def _part_of_cluster(plan: TrialPlan, config: Mapping[str, Any]) -> float:
    slot = None
    if plan.by_config is not None:
        slot = plan.by_config.slot_for(config)
    if slot is None:
        return 1 / plan.max_concurrent_trials
    return 1 / slot.max_concurrent_trials


class _Simulation:
    """Simulates the trials of a run, in the order of their starts. All trials are as long as they were."""

    def __init__(self, trials: Sequence[TrialFacts], capacity: ClusterCapacity, facts: RunFacts) -> None:
        import numpy as np

        needs = [trial.need for trial in trials]
        known_cpus = [need.cpus for need in needs if need.cpus is not None]
        mean_cpus = fmean(known_cpus) if known_cpus else 0.0
        nodes = capacity.groups
        self._facts = facts
        machines = facts.machines
        self._cpus = machines.usable_cpus or sum(node.resources.cpus * count for node, count in nodes)
        self._gpus = max(1.0, sum(node.resources.gpus * count for node, count in nodes))
        self._start_cpu_s = _START_CPU_S if machines.start_cpu_s is None else machines.start_cpu_s
        gap_s = facts.gap_s
        self._reuses = gap_s < self._start_cpu_s / 2
        if not self._reuses:  # each trial starts a process, and the gap contains its start
            gap_s -= self._start_cpu_s
        self._ran = np.array([trial.ran_s + max(0.0, gap_s) for trial in trials])
        self._told = np.array([trial.ran_s if trial.told_s is None else trial.told_s for trial in trials])
        self._cpu = np.array([mean_cpus if need.cpus is None else need.cpus for need in needs])
        self._gpu = np.array([need.gpu_utilization or 0.0 for need in needs])
        # The load of other programs slows only the start of processes here: the observed trials were already slower.
        self._others = max(0.0, machines.load - facts.at_once * float(self._cpu.mean()))

    @property
    def is_rough(self) -> bool:
        """Whether other programs used at least half of the CPUs, so that the speed of processes varied."""
        return self._others > self._cpus / 2

    @property
    def probe_s(self) -> float:
        """The time in which a policy reads the nodes when the run begins: Ray starts a process on each node."""
        return self._start_cpu_s * max(1.0, (1 + self._others) / self._cpus)

    def duration_s(
        self, parts: Sequence[float], learned_parts: Sequence[float] | None = None, num_pilots: int = 0
    ) -> float:
        """Return the duration of the run, in seconds.

        Args:
            parts: The part of the cluster that each trial reserves.
            learned_parts: The parts after the policy has learned.
            num_pilots: The number of trials from which the policy learns.
        """
        import numpy as np

        waiting = deque(range(len(self._ran)))
        start, ran = np.zeros(len(self._ran)), np.zeros(len(self._ran))
        active = np.zeros(0, dtype=int)
        taken = np.zeros(len(self._ran))
        now_s, num_told, num_idle_processes = 0.0, 0, 0
        has_learned = learned_parts is None
        while waiting or len(active):
            while waiting and len(active) < self._facts.most_open:
                part = parts[waiting[0]]
                if len(active) and taken[active].sum() + part > 1 + 1e-9:
                    break
                i = waiting.popleft()
                taken[i] = part
                active = np.append(active, i)
                if self._reuses and num_idle_processes:
                    num_idle_processes -= 1
                else:
                    start[i] = self._start_cpu_s
            is_starting = start[active] > 1e-9
            speed = np.where(is_starting, *self._speeds(active, is_starting))
            left = np.where(is_starting, start[active], self._ran[active] - ran[active])
            if not has_learned:
                to_tell = self._told[active] - ran[active]
                left = np.where(~is_starting & (to_tell > 1e-6), np.minimum(left, to_tell), left)
            step_s = float((left / speed).min())
            now_s += step_s
            start[active] = np.where(is_starting, np.maximum(0.0, start[active] - speed * step_s), 0.0)
            ran[active] += np.where(is_starting, 0.0, speed * step_s)
            has_ended = ~is_starting & (ran[active] >= self._ran[active] - 1e-6)
            num_idle_processes += int(has_ended.sum())
            active = active[~has_ended]
            if not has_learned:
                num_told = int((ran >= self._told - 1e-6).sum())
                num_begun = len(ran) - len(waiting)
                has_learned = num_told >= min(num_pilots, max(2, num_begun))
                if has_learned and learned_parts is not None:
                    parts = learned_parts
        return now_s

    def _speeds(self, active: Any, is_starting: Any) -> tuple[Any, Any]:
        """Return the relative speed of processes that start, and of the trials that run."""
        import numpy as np

        running = active[~is_starting]
        demand = max(1e-9, is_starting.sum() + self._cpu[running].sum())
        cpus = self._cpus / demand
        gpus = self._gpus / max(1e-9, self._gpu[running].sum())
        speed = np.ones(len(active))
        for use, free in ((self._cpu[active], min(1.0, cpus)), (self._gpu[active], min(1.0, gpus))):
            bound = np.minimum(use, 1.0)  # only this part of the time is longer if the resource is shared
            speed = np.minimum(speed, 1 / (1 - bound + bound / free))
        return min(1.0, self._cpus / (demand + self._others)), speed
