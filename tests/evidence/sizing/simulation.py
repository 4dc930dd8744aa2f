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
_TOLERANCE = 1e-9
"""The rounding error of times and parts of the work."""
_ROOM = 1e-6
"""The rounding error of amounts of resources."""


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

    def note_end(self, trial_id: str) -> str:
        """Record that a process of a trial has ended."""

    def note_result(self, trial_id: str, *, num_running: int, num_left: int, now_s: float, trained_s: float) -> str:
        """Record a result."""


class Outcome(NamedTuple):
    """The makespan in seconds, the number of out-of-memory errors, and the number of trials that never finished."""

    makespan_s: float
    num_ooms: int
    num_lost: int


@dataclass
class _Process:
    """A running trial. Its ``speed`` alone is 1, and ``done`` is the finished part of its work."""

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

    @property
    def name(self) -> str:
        return str(self.index)

    @property
    def is_done(self) -> bool:
        return self.done >= 1 - _TOLERANCE

    def gpu_gib(self) -> float:
        return self.trial.gpu_gib * self._part()

    def host_gib(self) -> float:
        return self.trial.host_gib * self._part()

    def _part(self) -> float:
        if self.done >= self.trial.peak_at - _TOLERANCE:
            return 1.0
        return self.trial.early

    def cpus(self) -> float:
        return min(self.trial.cpus, max(1.0, math.floor(self.request.cpus)))

    def num_steps_of(self, num_steps: int) -> int:
        """Return how many of the trial's ``num_steps`` steps are done."""
        return math.floor(self.done * num_steps + _TOLERANCE)


@dataclass
class Simulation:
    """One sweep under one rule. ``run`` returns its outcome.

    Trials that are left after ``limit_s`` count as lost. ``starts_s`` are the times in seconds from the start of each
    process until its training begins. Further processes need their mean. Meanwhile, each of them uses ``start_cpus``.
    Tune's driver and Ray's own processes always use ``overhead_cpus``. A trial reports ``num_steps`` times.
    ``thrashing`` is the fraction by which the total speed of the disk falls if twice as much is requested as it
    delivers.
    """

    machine: Machine
    trials: Sequence[SimTrial]
    rule: SizingRule
    limit_s: float = math.inf
    starts_s: Sequence[float] = (START_S,)
    start_cpus: float = 0.0
    overhead_cpus: float = 0.0
    num_steps: int = NUM_STEPS
    thrashing: float = THRASHING
    now_s: float = 0.0
    num_ooms: int = 0
    num_lost: int = 0
    running: list[_Process] = field(default_factory=list)
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
        """Start the first waiting trials whose requests fit."""
        self._measure_free()
        for index in list(self.waiting):
            if not self._may_run_more():
                break
            if index not in self.chosen:
                self.chosen[index] = self.rule.requests(index, self.trials[index].config, self.failed.get(index, ()))
            for request in self.chosen[index]:
                if request.cpus > self.free_cpus + _ROOM or request.host_gib > self.free_host_gib + _ROOM:
                    continue
                device = self._device_for(request) if request.gpu else None
                if request.gpu and device is None:
                    continue
                self._start(index, request, device)
                break

    def _measure_free(self) -> None:
        self.free_gpus = [1.0] * len(self.machine.gpus_gib)
        self.free_cpus = self.machine.cpus
        self.free_host_gib = self.machine.host_gib
        for process in self.running:
            self._reserve(process.request, process.device)

    def _reserve(self, request: Request, device: int | None) -> None:
        self.free_cpus -= request.cpus
        self.free_host_gib -= request.host_gib
        if device is not None:
            self.free_gpus[device] -= request.gpu

    def _device_for(self, request: Request) -> int | None:
        """Return the fullest device with room for the request, or ``None``."""
        fitting = []
        for device, gib in enumerate(self.machine.gpus_gib):
            has_room = self.free_gpus[device] + _ROOM >= request.gpu
            if has_room and gib >= request.device_gib - _ROOM:
                fitting.append((self.free_gpus[device], device))
        if not fitting:
            return None
        return min(fitting)[1]

    def _start(self, index: int, request: Request, device: int | None) -> None:
        self._reserve(request, device)
        start_s = self.start_s
        if self.num_started < len(self.starts_s):
            start_s = self.starts_s[self.num_started]
        self.num_started += 1
        done = self.progress.get(index, 0.0)
        process = _Process(index, self.trials[index], request, device, self.now_s + start_s, done)
        process.reported = process.num_steps_of(self.num_steps)
        self.running.append(process)
        self.waiting.remove(index)
        if self.rule.progress is not None:
            self.rule.progress.note_start(process.name)

    def _is_training(self, process: _Process) -> bool:
        return process.training_from_s <= self.now_s + _TOLERANCE

    def _set_speeds(self) -> None:
        """Divide the time of each GPU, the CPUs and the disk among the training trials."""
        active = [process for process in self.running if self._is_training(process)]
        load = [0.0] * len(self.machine.gpus_gib)
        for process in active:
            process.speed = process.cpus() / process.trial.cpus if process.trial.cpus else 1.0
            if process.device is not None:
                load[process.device] += process.trial.utilization * process.speed
        for process in active:
            process.is_crowded = process.device is not None and load[process.device] > 1
            if process.device is not None and process.is_crowded:
                process.speed /= load[process.device]
        used = sum(process.trial.cpus * process.speed for process in active)
        used += self.start_cpus * (len(self.running) - len(active))
        for process in active:
            # The kernel gives processes that need little what they need, so the trials share the rest.
            process.speed /= max(1.0, used / (self.machine.cpus - self.overhead_cpus))
        disk = sum(process.trial.disk * process.speed for process in active)
        for process in active:
            if process.trial.disk and disk > 1:
                process.speed /= disk * (1 + self.thrashing * (disk - 1))

    def _advance(self) -> None:
        """Advance to the next start of a training, result, growth of memory, or end, and handle it."""
        until = min(self._next_of(process) for process in self.running)
        step_s = max(0.0, until - self.now_s)
        self.now_s = until
        for process in self.running:
            if process.training_from_s <= until - step_s + _TOLERANCE:
                process.elapsed_s += step_s
                process.done = min(1.0, process.done + step_s * process.speed / process.trial.work_s)
        self._check_gpu_memory()
        self._free_host_memory()
        for process in list(self.running):
            self._report(process)

    def _next_of(self, process: _Process) -> float:
        """Return the time of the next event of a process."""
        if not self._is_training(process):
            return process.training_from_s
        if process.done >= 1:
            return self.now_s
        ends = [(process.reported + 1) / self.num_steps, 1.0]
        if process.done < process.trial.peak_at - _TOLERANCE:
            ends.append(process.trial.peak_at)
        left = min(end for end in ends if end > process.done + 1e-12) - process.done
        return self.now_s + max(0.0, left) * process.trial.work_s / process.speed

    def _check_gpu_memory(self) -> None:
        """Record the memory peaks, and fail the trials that exceed the GPU memory of their fraction."""
        for process in list(self.running):
            if not self._is_training(process):
                continue
            if process.device is not None:
                limit_gib = process.request.gpu * self.machine.gpus_gib[process.device]
                if process.gpu_gib() > limit_gib * 1.0001:
                    self._fail(process, TrialNeed(gpu_memory_bytes=int(limit_gib * GIB)))
                    continue
            gpu, host = self.peak.get(process.index, (0.0, 0.0))
            self.peak[process.index] = (max(gpu, process.gpu_gib()), max(host, process.host_gib()))

    def _free_host_memory(self) -> None:
        """Fail the trials that exceed their requests most, until the others fit the host memory."""
        active = [process for process in self.running if self._is_training(process)]
        while active and sum(process.host_gib() for process in active) > self.machine.host_gib * 1.0001:
            worst = max(active, key=lambda process: process.host_gib() - process.request.host_gib)
            active.remove(worst)
            too_little_gib = max(worst.request.host_gib, worst.host_gib() / 2)
            self._fail(worst, TrialNeed(host_memory_bytes=int(too_little_gib * GIB)))

    def _fail(self, process: _Process, too_little: TrialNeed) -> None:
        self.num_ooms += 1
        self._stop(process)
        index = process.index
        self.failed.setdefault(index, []).append(process.request)
        kept = self._saved_part(process) if process.trial.saves else 0.0
        lost_s = (process.done - kept) * process.trial.work_s / (process.speed or 1.0) + self.start_s
        self.lost_s[index] = self.lost_s.get(index, 0.0) + lost_s
        self.progress[index] = kept
        if len(self.failed[index]) >= MOST_FAILURES:
            self.num_lost += 1
        else:
            self.waiting.insert(0, index)
        self.chosen.pop(index, None)
        self._tell(process, too_little)

    def _saved_part(self, process: _Process) -> float:
        """Return the part of the work until the last result."""
        return process.num_steps_of(self.num_steps) / self.num_steps

    def _stop(self, process: _Process) -> None:
        self.running.remove(process)
        self.may_start = True
        if self.rule.progress is not None:
            self.rule.progress.note_end(process.name)

    def _report(self, process: _Process) -> None:
        """Report a result of a trial if it has done another step."""
        steps = process.num_steps_of(self.num_steps)
        if not self._is_training(process) or steps <= process.reported:
            return
        process.reported = steps
        process.num_reports += 1
        could_run_more = self._may_run_more()
        if self.rule.progress is not None:
            num_running = len(self.running)
            num_left = num_running + len(self.waiting)
            trained_s = self.now_s - process.training_from_s
            self.rule.progress.note_result(
                process.name, num_running=num_running, num_left=num_left, now_s=self.now_s, trained_s=trained_s
            )
            self.may_start = True  # the limit may have changed
        if process.is_done:
            self._stop(process)
        if process.num_reports == 2 or steps == self.num_steps:
            self._tell(process, TrialNeed())
        elif self._may_run_more() and not could_run_more:
            self._resume_in_smaller_slots()

    def _may_run_more(self) -> bool:
        """Return whether the progress allows another trial."""
        if self.rule.progress is None:
            return True
        most = self.rule.progress.most_at_once()
        return most is None or len(self.running) < most

    def _tell(self, process: _Process, too_little: TrialNeed) -> None:
        """Let the rule learn from a trial."""
        seen = TrialObservation(
            trial_id=process.name,
            config=process.trial.config,
            reserved=TrialNeed(cpus=process.request.cpus),
            used=self._usage_of(process),
            too_little=too_little,
            num_steps=process.num_steps_of(self.num_steps),
            is_saved=process.trial.saves,
            elapsed_s=process.elapsed_s,
            lost_s=self.lost_s.get(process.index, 0.0),
            ended=process.is_done,
        )
        if self.rule.observe(seen):
            self.chosen.clear()
            self.may_start = True
            self._resume_in_smaller_slots()

    def _usage_of(self, process: _Process) -> TrialNeed:
        gpu_gib, host_gib = self.peak.get(process.index, (0.0, 0.0))
        has_trained = process.elapsed_s > 0
        cpus = gpu_memory_bytes = utilization = None
        if has_trained:
            cpus = process.trial.cpus * process.speed
        if process.device is not None:
            gpu_memory_bytes = int(gpu_gib * GIB) or None
            if has_trained and not process.is_crowded:  # on a crowded device, a trial alone would use more of its time
                utilization = process.trial.utilization * process.speed
        return TrialNeed(
            cpus=cpus,
            host_memory_bytes=int(host_gib * GIB) or None,
            gpu_memory_bytes=gpu_memory_bytes,
            gpu_utilization=utilization,
        )

    def _resume_in_smaller_slots(self) -> None:
        """Restart trials with checkpoints that reserve at least twice what they need, if the restart pays.

        It pays only if other trials may use what they release.
        """
        if not self.waiting or not self._may_run_more():
            return
        for process in list(self.running):
            choices = self.rule.requests(process.index, process.trial.config, self.failed.get(process.index, ()))
            if not process.trial.saves:
                continue
            now, then = process.request, choices[0]
            part = then.gpu / now.gpu if now.gpu else then.cpus / now.cpus
            estimated_left_s = process.elapsed_s * (1 - process.done) / max(process.done, 0.01)
            if part <= 0.5 and (1 - part) * estimated_left_s > 2 * self.start_s:
                self._stop(process)
                self.progress[process.index] = self._saved_part(process)
                self.waiting.insert(0, process.index)
