"""Simulates how long the trials of a run would take if more or fewer of them ran at once.

The simulation contains the pilots of a ``LearningPolicy``, the start of more processes, and CPUs and GPUs that the
trials share.
"""

import math
from collections import deque
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, Final, NamedTuple, Self

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.plan.admission_by_speed import GROWTH, careful_limit

from .run_facts import RunFacts, TrialFacts

_START_CPU_S: Final = 1.0
"""The assumed CPU time of the start of a trial's process, in seconds, if it was not measured."""


class _SimulatedAdmission:
    """The number of trials that may run at once, if they are found not to slow down each other.

    Args:
        window_s: The time until a run knows it, in seconds: more trials start, and report twice.
        most_open: The maximum number of unfinished trials that the run suggests at once.

    Attributes:
        most: The number of trials that may run at once.
        grows_at_s: The time at which it grows next, in seconds.
    """

    def __init__(self, window_s: float, most_open: int) -> None:
        self.most = most_open
        self.grows_at_s = math.inf
        self._window_s = window_s
        self._most_open = most_open

    def begin(self, at_once: int, num_left: int, now_s: float) -> None:
        """Record that the policy has learned while ``at_once`` trials ran."""
        self.most = min(careful_limit(at_once, num_left), self._most_open)
        self.grows_at_s = now_s + self._window_s

    def grow(self, num_left: int, now_s: float) -> None:
        """Let more trials run if it is time, unless all may run already."""
        if now_s >= self.grows_at_s:
            self.most = min(GROWTH * self.most, self._most_open)
            self.grows_at_s = now_s + self._window_s
        if self.most >= min(num_left, self._most_open):
            self.grows_at_s = math.inf


class _State:
    """The state of a simulated run.

    Attributes:
        waiting: The numbers of the trials that have not started.
        active: The numbers of the trials that start or run.
        start: The CPU time that the start of each trial's process still takes, in seconds.
        ran: The time for which each trial has run, in seconds of the observed run.
        taken: The part of the cluster that each trial reserves.
        now_s: The time since the start of the run, in seconds.
        num_idle_processes: The number of processes whose trials have ended.
    """

    def __init__(self, num_trials: int) -> None:
        import numpy as np

        self.waiting = deque(range(num_trials))
        self.active: Any = np.zeros(0, dtype=int)
        self.start: Any = np.zeros(num_trials)
        self.ran: Any = np.zeros(num_trials)
        self.taken: Any = np.zeros(num_trials)
        self.now_s = 0.0
        self.num_idle_processes = 0

    @property
    def num_left(self) -> int:
        """The number of trials that have not ended."""
        return len(self.active) + len(self.waiting)


class _FirstInProcess(NamedTuple):
    """How much more the first trial in a process takes than later ones, for instance because it imports libraries.

    Attributes:
        ran_s: The additional time, in seconds.
        cpu_s: The additional CPU time, in seconds. Trials that start together share the CPUs, so at most the time.
    """

    ran_s: float = 0.0
    cpu_s: float = 0.0

    @classmethod
    def of(cls, trials: Sequence[TrialFacts]) -> Self:
        """Return the difference of the medians, or zero if no trial has reused a process."""
        told_s: dict[bool, list[float]] = {True: [], False: []}
        cpu_s: dict[bool, list[float]] = {True: [], False: []}
        for trial in trials:
            if trial.told_s is None or trial.process is None:
                continue
            told_s[trial.reuses_process].append(trial.told_s)
            cpu_s[trial.reuses_process].append(trial.process.cpu_s)
        if not told_s[True] or not told_s[False]:
            return cls()
        # The times of the second reports can be compared even if later trials were stopped early.
        more_s = max(0.0, median(told_s[False]) - median(told_s[True]))
        more_cpu_s = max(0.0, median(cpu_s[False]) - median(cpu_s[True]))
        return cls(more_s, min(more_s, more_cpu_s))


class RunSimulation:
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
        # If the next trial began faster than a process can start, it reused a process.
        self._reuses = gap_s < self._start_cpu_s / 2
        if not self._reuses:  # each trial starts a process, and the gap contains its start
            gap_s -= self._start_cpu_s
        first = _FirstInProcess.of(trials)
        self._process_cpu_s = self._start_cpu_s + first.cpu_s
        ran, told, cpus = [], [], []
        for trial, need in zip(trials, needs, strict=True):
            more_s = 0.0 if trial.reuses_process else first.ran_s
            told_s = trial.ran_s if trial.told_s is None else trial.told_s
            # A trial that failed early can have run for less than the imports of others take.
            ran.append(max(0.0, trial.ran_s + max(0.0, gap_s) - more_s))
            told.append(max(0.0, told_s - more_s))
            cpus.append(mean_cpus if need.cpus is None else need.cpus)
        self._ran = np.array(ran)
        self._told = np.array(told)
        self._cpu = np.array(cpus)
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

    def duration_s(self, at_once: int, learned_parts: Sequence[float] | None = None, num_pilots: int = 0) -> float:
        """Return the duration of the run, in seconds.

        Args:
            at_once: The number of trials that fit at once, with ``learned_parts`` before the policy has learned.
            learned_parts: The part of the cluster that each trial reserves after the policy has learned.
            num_pilots: The number of trials from which the policy learns.
        """
        parts: Sequence[float] = [1 / at_once] * len(self._ran)
        state = _State(len(self._ran))
        has_learned = learned_parts is None
        admission = _SimulatedAdmission(self._process_cpu_s + median(self._told.tolist()), self._facts.most_open)
        while state.num_left:
            self._start_trials(state, parts, admission.most)
            num_active = len(state.active)
            self._advance(state, admission.grows_at_s, until_told=not has_learned)
            if not has_learned:
                num_told = int((state.ran >= self._told - 1e-6).sum())
                num_begun = len(self._ran) - len(state.waiting)
                # A policy learns from its pilots, or from all begun trials (at least two) if they are fewer.
                has_learned = num_told >= min(num_pilots, max(2, num_begun))
                if has_learned and learned_parts is not None:
                    parts = learned_parts
                    admission.begin(num_active, state.num_left, state.now_s)
            admission.grow(state.num_left, state.now_s)
        return state.now_s

    def _start_trials(self, state: _State, parts: Sequence[float], most: int) -> None:
        """Start waiting trials in their order while the cluster has room and fewer than ``most`` trials run."""
        import numpy as np

        while state.waiting and len(state.active) < most:
            trial = state.waiting[0]
            # With a tolerance, because sums of floats such as nine times 1/9 exceed 1.
            if len(state.active) and state.taken[state.active].sum() + parts[trial] > 1 + 1e-9:
                return
            state.waiting.popleft()
            state.taken[trial] = parts[trial]
            state.active = np.append(state.active, trial)
            if self._reuses and state.num_idle_processes:
                state.num_idle_processes -= 1
            else:
                state.start[trial] = self._process_cpu_s

    def _advance(self, state: _State, at_most_until_s: float, *, until_told: bool) -> None:
        """Advance the time until a process has started or a trial has ended, or to a given time.

        With ``until_told``, also stop when the use of another trial is known.
        """
        import numpy as np

        active = state.active
        is_starting = state.start[active] > 1e-9
        # Between two events, all speeds are constant. So the next event is the one with the shortest remaining time.
        speed_of_starts, speed_of_trials = self._speeds(active, is_starting)
        speed = np.where(is_starting, speed_of_starts, speed_of_trials)
        left = np.where(is_starting, state.start[active], self._ran[active] - state.ran[active])
        if until_told:
            to_tell = self._told[active] - state.ran[active]
            left = np.where(~is_starting & (to_tell > 1e-6), np.minimum(left, to_tell), left)
        step_s = min(float((left / speed).min()), at_most_until_s - state.now_s)
        state.now_s += step_s
        state.start[active] = np.where(is_starting, np.maximum(0.0, state.start[active] - speed * step_s), 0.0)
        state.ran[active] += np.where(is_starting, 0.0, speed * step_s)
        has_ended = ~is_starting & (state.ran[active] >= self._ran[active] - 1e-6)
        state.num_idle_processes += int(has_ended.sum())
        state.active = active[~has_ended]

    def _speeds(self, active: Any, is_starting: Any) -> tuple[Any, Any]:
        """Return the relative speed of processes that start, and of the trials that run."""
        import numpy as np

        running = active[~is_starting]
        # A process that starts uses one CPU, and a trial uses as many as it was observed to use.
        demand = max(1e-9, is_starting.sum() + self._cpu[running].sum())
        cpus = self._cpus / demand
        gpus = self._gpus / max(1e-9, self._gpu[running].sum())
        speed = np.ones(len(active))
        for use, free in ((self._cpu[active], min(1.0, cpus)), (self._gpu[active], min(1.0, gpus))):
            bound = np.minimum(use, 1.0)  # only this part of the time is longer if the resource is shared
            # Amdahl's law: the rest of the time does not depend on the shared resource.
            speed = np.minimum(speed, 1 / (1 - bound + bound / free))
        return min(1.0, self._cpus / (demand + self._others)), speed
