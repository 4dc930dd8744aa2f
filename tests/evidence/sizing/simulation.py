"""A discrete-event simulation of a sweep: trials with their true needs, on the devices and CPUs of one node.

Tune starts the first waiting trials whose requests fit. Trials on a device share its compute, and all trials share the
CPUs and the disk of the node. A disk delivers less in total if more is requested than it delivers. A trial that exceeds
the GPU memory of its fraction, or the largest trial if the host memory is full, runs out of memory. It starts again,
from its last result if trials save checkpoints.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple, Protocol

from tune_policies.plan.trial_observation import TrialNeed, TrialObservation

GIB = 2**30
NUM_STEPS = 20
START_S = 9.0
"""The time from the start of a trial until its training begins, in seconds: that of a process with PyTorch."""
MOST_FAILURES = 12
THRASHING = 0.2
"""The fraction by which the total speed of a disk falls if twice as much is requested as it delivers."""


class Machine(NamedTuple):
    """A node: the memory of each GPU in GiB, the CPUs, and the host memory in GiB."""

    gpus_gib: tuple[float, ...]
    cpus: float
    host_gib: float


class SimTrial(NamedTuple):
    """A trial and its true needs, which no rule except the oracle may read.

    ``work_s`` is its duration alone with enough CPUs. Until the fraction ``peak_at`` of the work is done, it uses the
    fraction ``early`` of its peak memory. ``disk`` is the part of the node's disk that it uses at full speed.
    """

    config: dict[str, Any]
    work_s: float
    gpu_gib: float = 0.0
    host_gib: float = 1.0
    cpus: float = 1.0
    utilization: float = 0.0
    early: float = 1.0
    peak_at: float = 0.0
    saves: bool = True
    disk: float = 0.0


class Request(NamedTuple):
    """What a trial reserves: CPUs, host memory, and a fraction of a GPU with at least ``device_gib``."""

    cpus: float = 1.0
    host_gib: float = 0.0
    gpu: float = 0.0
    device_gib: float = 0.0


class SizingRule(Protocol):
    """Decides what trials reserve. ``name`` is shown in tables."""

    name: str

    @property
    def progress(self) -> "Progress | None":
        """What measures the progress of trials as a run does, and limits how many run at once."""

    def begin(self, machine: Machine, trials: Sequence[SimTrial]) -> None:
        """Begin a sweep. Only the oracle may read the needs of ``trials``."""

    def requests(self, index: int, config: dict[str, Any], failed: Sequence[Request]) -> list[Request]:
        """Return the acceptable requests of a trial, best first. ``failed`` are those that were too small."""

    def observe(self, observation: TrialObservation) -> bool:
        """Learn from a trial. Return whether the requests of waiting trials may have changed."""


class Progress(Protocol):
    """Measures the progress of trials, as ``RunAdmission`` does in a run."""

    def most_at_once(self) -> int | None:
        """Return how many trials may run at once, or ``None``."""

    def note_start(self, trial_id: str) -> None:
        """Record that a process of a trial starts."""

    def note_end(self, trial_id: str) -> None:
        """Record that a process of a trial has ended."""

    def note_result(self, trial_id: str, num_running: int, now_s: float) -> str:
        """Record a result."""


class Outcome(NamedTuple):
    """The makespan in seconds, the number of out-of-memory errors, and the number of trials that never finished."""

    makespan_s: float
    num_ooms: int
    num_lost: int


@dataclass
class _Running:
    index: int
    trial: SimTrial
    request: Request
    device: int | None
    training_from_s: float
    done: float
    speed: float = 0.0
    is_crowded: bool = False
    elapsed_s: float = 0.0
    reported: int = 0
    num_reports: int = 0

    def gpu_gib(self) -> float:
        return self.trial.gpu_gib * self._part()

    def host_gib(self) -> float:
        return self.trial.host_gib * self._part()

    def _part(self) -> float:
        return 1.0 if self.done >= self.trial.peak_at - 1e-9 else self.trial.early

    def cpus(self) -> float:
        return min(self.trial.cpus, max(1.0, math.floor(self.request.cpus)))


@dataclass
class Simulation:
    """One sweep under one rule. ``run`` returns its outcome.

    Trials that are left after ``limit_s`` count as lost. ``starts_s`` are the times in seconds from the start of each
    process until its training begins. Further processes need their mean. Meanwhile, each of them uses ``start_cpus``. A
    trial reports ``num_steps`` times.
    """

    machine: Machine
    trials: Sequence[SimTrial]
    rule: SizingRule
    limit_s: float = math.inf
    starts_s: Sequence[float] = (START_S,)
    start_cpus: float = 0.0
    num_steps: int = NUM_STEPS
    now_s: float = 0.0
    num_ooms: int = 0
    num_lost: int = 0
    running: list[_Running] = field(default_factory=list)
    failed: dict[int, list[Request]] = field(default_factory=dict)
    progress: dict[int, float] = field(default_factory=dict)
    lost_s: dict[int, float] = field(default_factory=dict)
    peak: dict[int, tuple[float, float]] = field(default_factory=dict)
    chosen: dict[int, list[Request]] = field(default_factory=dict)
    may_start: bool = True

    def run(self) -> Outcome:
        self.waiting = list(range(len(self.trials)))
        self.num_started = 0
        self.start_s = fmean(self.starts_s)
        self.rule.begin(self.machine, self.trials)
        while self.waiting or self.running:
            if self.may_start:
                self.may_start = False
                self._start_trials()
            if not self.running or self.now_s > self.limit_s:  # no request of a waiting trial fits the empty machine
                self.num_lost += len(self.waiting) + len(self.running)
                break
            self._set_speeds()
            self._advance()
        return Outcome(self.now_s, self.num_ooms, self.num_lost)

    def _start_trials(self) -> None:
        free = [1.0] * len(self.machine.gpus_gib)
        cpus, host = self.machine.cpus, self.machine.host_gib
        for other in self.running:
            cpus, host = cpus - other.request.cpus, host - other.request.host_gib
            if other.device is not None:
                free[other.device] -= other.request.gpu
        progress = self.rule.progress
        for index in list(self.waiting):
            most = None if progress is None else progress.most_at_once()
            if most is not None and len(self.running) >= most:
                break
            if index not in self.chosen:
                self.chosen[index] = self.rule.requests(index, self.trials[index].config, self.failed.get(index, ()))
            for request in self.chosen[index]:
                if request.cpus > cpus + 1e-6 or request.host_gib > host + 1e-6:
                    continue
                device = None
                if request.gpu:
                    fitting = [
                        (free[i], i)
                        for i, gib in enumerate(self.machine.gpus_gib)
                        if free[i] + 1e-6 >= request.gpu and gib >= request.device_gib - 1e-6
                    ]
                    if not fitting:
                        continue
                    device = min(fitting)[1]
                    free[device] -= request.gpu
                cpus, host = cpus - request.cpus, host - request.host_gib
                trial = self.trials[index]
                done = self.progress.get(index, 0.0)
                steps = math.floor(done * self.num_steps + 1e-9)
                is_measured = self.num_started < len(self.starts_s)
                begin_s = self.now_s + (self.starts_s[self.num_started] if is_measured else self.start_s)
                self.num_started += 1
                self.running.append(_Running(index, trial, request, device, begin_s, done, reported=steps))
                self.waiting.remove(index)
                if progress is not None:
                    progress.note_start(str(index))
                break

    def _set_speeds(self) -> None:
        active = [each for each in self.running if each.training_from_s <= self.now_s + 1e-9]
        load = [0.0] * len(self.machine.gpus_gib)
        for each in active:
            each.speed = each.cpus() / each.trial.cpus if each.trial.cpus else 1.0
            if each.device is not None:
                load[each.device] += each.trial.utilization * each.speed
        for each in active:
            each.is_crowded = each.device is not None and load[each.device] > 1
            if each.device is not None and load[each.device] > 1:
                each.speed /= load[each.device]
        used = sum(each.trial.cpus * each.speed for each in active)
        used += self.start_cpus * (len(self.running) - len(active))
        for each in active:
            each.speed /= max(1.0, used / self.machine.cpus)
        disk = sum(each.trial.disk * each.speed for each in active)
        for each in active:
            if each.trial.disk and disk > 1:
                each.speed /= disk * (1 + THRASHING * (disk - 1))

    def _advance(self) -> None:
        """Advance to the next start of a training, result, growth of memory, or end, and handle it."""
        until = min(self._next_of(each) for each in self.running)
        step_s = max(0.0, until - self.now_s)
        self.now_s = until
        for each in self.running:
            if each.training_from_s <= until - step_s + 1e-9:
                each.elapsed_s += step_s
                each.done = min(1.0, each.done + step_s * each.speed / each.trial.work_s)
        for each in list(self.running):
            if each.training_from_s > self.now_s + 1e-9:
                continue
            gpu, host = self.peak.get(each.index, (0.0, 0.0))
            if each.device is not None:
                has = each.request.gpu * self.machine.gpus_gib[each.device]
                if each.gpu_gib() > has * 1.0001:
                    self._fail(each, TrialNeed(gpu_memory_bytes=int(has * GIB)))
                    continue
            self.peak[each.index] = (max(gpu, each.gpu_gib()), max(host, each.host_gib()))
        self._free_host_memory()
        for each in list(self.running):
            self._report(each)

    def _next_of(self, each: _Running) -> float:
        if each.training_from_s > self.now_s + 1e-9:
            return each.training_from_s
        ends = [(each.reported + 1) / self.num_steps, 1.0]
        if each.done < each.trial.peak_at - 1e-9:
            ends.append(each.trial.peak_at)
        left = max(0.0, min(end for end in ends if end > each.done + 1e-12) - each.done) if each.done < 1 else 0.0
        return self.now_s + left * each.trial.work_s / each.speed

    def _free_host_memory(self) -> None:
        active = [each for each in self.running if each.training_from_s <= self.now_s + 1e-9]
        while active and sum(each.host_gib() for each in active) > self.machine.host_gib * 1.0001:
            worst = max(active, key=lambda each: each.host_gib() - each.request.host_gib)
            active.remove(worst)
            self._fail(worst, TrialNeed(host_memory_bytes=int(max(worst.request.host_gib, worst.host_gib() / 2) * GIB)))

    def _fail(self, each: _Running, too_little: TrialNeed) -> None:
        self.num_ooms += 1
        self._stop(each)
        self.failed.setdefault(each.index, []).append(each.request)
        kept = math.floor(each.done * self.num_steps + 1e-9) / self.num_steps if each.trial.saves else 0.0
        lost_s = (each.done - kept) * each.trial.work_s / (each.speed or 1.0) + self.start_s
        self.lost_s[each.index] = self.lost_s.get(each.index, 0.0) + lost_s
        self.progress[each.index] = kept
        if len(self.failed[each.index]) >= MOST_FAILURES:
            self.num_lost += 1
        else:
            self.waiting.insert(0, each.index)
        self.chosen.pop(each.index, None)
        self._tell(each, too_little)

    def _stop(self, each: _Running) -> None:
        self.running.remove(each)
        self.may_start = True
        if self.rule.progress is not None:
            self.rule.progress.note_end(str(each.index))

    def _report(self, each: _Running) -> None:
        steps = math.floor(each.done * self.num_steps + 1e-9)
        if each.training_from_s > self.now_s + 1e-9 or steps <= each.reported:
            return
        each.reported = steps
        each.num_reports += 1
        if self.rule.progress is not None:
            self.rule.progress.note_result(str(each.index), len(self.running), self.now_s)
            self.may_start = True  # the limit may have changed
        if each.done >= 1 - 1e-9:
            self._stop(each)
        if each.num_reports == 2 or steps == self.num_steps:
            self._tell(each, TrialNeed())

    def _tell(self, each: _Running, too_little: TrialNeed) -> None:
        gpu, host = self.peak.get(each.index, (0.0, 0.0))
        has_device = each.device is not None
        has_trained = each.elapsed_s > 0
        seen = TrialObservation(
            trial_id=str(each.index),
            config=each.trial.config,
            reserved=TrialNeed(cpus=each.request.cpus),
            used=TrialNeed(
                cpus=each.trial.cpus * each.speed if has_trained else None,
                host_memory_bytes=int(host * GIB) or None,
                gpu_memory_bytes=(int(gpu * GIB) or None) if has_device else None,
                gpu_utilization=each.trial.utilization * each.speed
                if has_device and has_trained and not each.is_crowded
                else None,
            ),
            too_little=too_little,
            num_steps=math.floor(each.done * self.num_steps + 1e-9),
            is_saved=each.trial.saves,
            elapsed_s=each.elapsed_s,
            lost_s=self.lost_s.get(each.index, 0.0),
            ended=each.done >= 1 - 1e-9,
        )
        if self.rule.observe(seen):
            self.chosen.clear()
            self.may_start = True
            self._resume_in_smaller_slots()

    def _resume_in_smaller_slots(self) -> None:
        """Restart trials with checkpoints that reserve at least twice what they need, if the restart pays."""
        if not self.waiting:
            return
        for each in list(self.running):
            choices = self.rule.requests(each.index, each.trial.config, self.failed.get(each.index, ()))
            now, then = each.request, choices[0]
            share = max(then.gpu / now.gpu if now.gpu else 0.0, then.cpus / now.cpus if not now.gpu else 0.0)
            estimated_left_s = each.elapsed_s * (1 - each.done) / max(each.done, 0.01)
            if each.trial.saves and share <= 0.5 and (1 - share) * estimated_left_s > 2 * self.start_s:
                self._stop(each)
                self.progress[each.index] = math.floor(each.done * self.num_steps + 1e-9) / self.num_steps
                self.waiting.insert(0, each.index)
