"""What runs in a fresh process: prepares a workload as a trial would, runs its first epoch, and times blocks of it.

The class becomes a Ray actor, whose process serves nobody else. Nothing that a workload raises leaves it as an
exception: its class may not be there where it would be unpickled.
"""

import os
import platform
import resource
import sys
import time
import traceback
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from tune_policies.probe.nvml import GpuCounters
from tune_policies.trainers.gpu_memory.counters import read_counters
from tune_policies.trainers.gpu_memory.free_memory import end_gpu_processes
from tune_policies.trainers.gpu_memory.trial_usage import peak_gpu_memory_bytes
from tune_policies.trainers.process import ProcessSetup
from tune_policies.values.errors import ProbeError

from ..record.run_set import Phase
from ..workloads.registry import load_workload
from .noise import NoiseCounters, read_noise
from .timing_core import BlockTimer, steps_of_block, wait_for_devices
from .workload import Steps, checked_loss, checked_steps

_COUNTED: Final = ("torch", "tensorflow", "jax", "cupy")
"""Frameworks that tell whether they have used a GPU."""

_UNCOUNTED: Final = ("numba.cuda", "xgboost", "lightgbm")
"""Those that may have used one without telling."""

GPU_USE_UNKNOWN: Final = (
    "none of its libraries tells whether it used the GPU, and its times may be the CPU's: look at nvidia-smi as it runs"
)
"""The warning of a user's own workload that was asked for a GPU."""


def has_used_gpu(counters: Mapping[str, Any], imported: Container[str]) -> bool:
    """Return whether a framework has used a GPU; where it is not sure, no.

    Args:
        counters: What each framework that began to use GPUs says of its memory there.
        imported: The modules of the process.

    Raises:
        ProbeError: Only frameworks are there that would tell, and none has used one.
    """
    if any(map(_has_held, counters.values())):
        return True
    if not any(name in imported for name in _COUNTED) or any(name in imported for name in _UNCOUNTED):
        return False
    raise ProbeError(
        "the workload was asked for gpu, and used none: take torch_device(device) or its like of "
        "tune_policies.benchmarks.measuring.frameworks, which say why, or leave the device out"
    )


def _has_held(memory: Any) -> bool:
    """Return whether something was put on a GPU: to wait for one begins to use it, and pools fill without it."""
    return bool(memory.held_bytes if memory.peak_allocated_bytes is None else memory.peak_allocated_bytes)


_Answer = TypeVar("_Answer")

_MOST_LOSSES: Final = 100
"""So many are kept: devices that agree on these did the same work."""

_MOST_CHARACTERS: Final = 500
"""Of a message: some frameworks append pages to theirs."""

_TRIED_ONCE_S: Final = 3.0
"""A step that takes so long is tried out once: what compiles has compiled in the first epoch."""

_LONG_STEP_S: Final = 1.0
"""A step that takes so long is not tried out before it is timed: that would cost as much as the rest."""


class Task(NamedTuple):
    """What a process is to do.

    Attributes:
        workload: Its name, or ``module:function``.
        size: In its unit.
        device: What the workload is told: ``"cpu"``, ``"gpu"``, or a family by Ray's name.
        folder: Where the driver works; modules there can be imported.
        setup: How the process is set up, as that of a trial.
        max_steps: How many steps it does at the most.
        epoch_s: After so many seconds its first epoch is cut.
        num_blocks: How many blocks of each phase are timed, with warm-ups.
    """

    workload: str
    size: int
    device: str
    folder: str
    setup: ProcessSetup
    max_steps: int
    epoch_s: float
    num_blocks: int


class FirstEpoch(NamedTuple):
    """What a process tells of its first epoch.

    Attributes:
        prepare_s: How long the workload prepared itself.
        epoch_s: How long its epoch took; ``None``: it was cut.
        num_steps: How many steps it did.
        losses: Of its first steps.
        phases: What can be timed of it.
        step_s: How long the shortest step took; ``None``: not known.
        num_threads: CPU threads of the process.
        dtype: As the workload says.
        samples_per_step: As the workload says.
        steps_per_epoch: As the workload says.
        tolerance: As the workload says.
    """

    prepare_s: float
    epoch_s: float | None
    num_steps: int
    losses: tuple[float, ...]
    phases: tuple[Phase, ...]
    step_s: float | None
    num_threads: int
    dtype: str | None
    samples_per_step: int | None
    steps_per_epoch: int
    tolerance: float


class TimedBlock(NamedTuple):
    """How long a block took, and what the GPUs used in it, where NVML tells."""

    seconds: float
    energy_j: float | None


class Ending(NamedTuple):
    """What a process tells at its end."""

    peak_host_bytes: int | None
    peak_gpu_bytes: int | None
    warnings: tuple[str, ...]


class Raised(NamedTuple):
    """What a workload raised, in a line."""

    message: str


class WorkloadProcess:
    """One process of one arm."""

    _task: Task
    _steps: Steps
    _timers: dict[Phase, BlockTimer]
    _num_done: int = 0
    _gpus: GpuCounters | None = None
    _gpu_use_is_unknown: bool = False

    def begin(self) -> tuple[int, str]:
        """Return the process's number and its host."""
        return os.getpid(), platform.node()

    def first_epoch(self, task: Task) -> FirstEpoch | Raised:
        """Set up the process, prepare the workload, and run its first epoch."""
        return _told(lambda: self._first_epoch(task))

    def steps_of_block(self, phase: Phase, step_s: float | None) -> int | Raised:
        """Return how many steps make a block of a phase.

        Args:
            phase: Which.
            step_s: How long a step took in the first epoch; ``None``: not known.
        """
        return _told(lambda: self._steps_of_block(phase, step_s))

    def time_block(self, phase: Phase, num_steps: int) -> TimedBlock | Raised:
        """Time a block."""
        return _told(lambda: self._time_block(phase, num_steps))

    def read_noise(self) -> NoiseCounters:
        """Read how busy this host is."""
        return read_noise()

    def finish(self) -> Ending:
        """Return what was used, and end what the workload has started on the GPU."""
        warnings = list(end_gpu_processes())
        if self._gpu_use_is_unknown:
            warnings.append(GPU_USE_UNKNOWN)
        try:
            peak_gpu_bytes = peak_gpu_memory_bytes()
        except ProbeError as error:
            peak_gpu_bytes = None
            warnings.append(str(error))
        return Ending(_peak_host_bytes(), peak_gpu_bytes, tuple(warnings))

    def _first_epoch(self, task: Task) -> FirstEpoch:
        self._task = task
        task.setup.apply()
        if task.folder not in sys.path:
            sys.path.insert(0, task.folder)
        workload = load_workload(task.workload)
        start = time.perf_counter()
        self._steps = steps = checked_steps(workload(task.size, task.device), task.workload)
        prepared = time.perf_counter()
        losses, times = self._run_epoch(prepared + task.epoch_s)
        ended = time.perf_counter()
        self._num_done = len(times)
        if task.device != "cpu":
            # Those that come with the benchmarks ask their libraries themselves.
            is_sure = _has_used(task.device)
            self._gpu_use_is_unknown = ":" in task.workload and not is_sure
            self._gpus = GpuCounters.visible()
        num_threads = int(os.environ["OMP_NUM_THREADS"])  # as the setup has set it
        phases = {Phase.TRANSFERS: steps.with_transfers, Phase.COMPUTE: steps.compute}
        self._timers = {
            phase: BlockTimer(step, steps.synchronize, num_threads)
            for phase, step in phases.items()
            if step is not None
        }
        return FirstEpoch(
            prepare_s=prepared - start,
            epoch_s=ended - prepared if len(times) == steps.steps_per_epoch else None,
            num_steps=self._num_done,
            losses=tuple(losses[:_MOST_LOSSES]),
            phases=tuple(self._timers),
            # The first step may compile; without a loss nobody has waited for the others.
            step_s=min(times[1:], default=None) if losses else None,
            num_threads=num_threads,
            dtype=steps.dtype,
            samples_per_step=steps.samples_per_step,
            steps_per_epoch=steps.steps_per_epoch,
            tolerance=steps.tolerance,
        )

    def _run_epoch(self, deadline: float) -> tuple[list[float], list[float]]:
        """Return the losses of the steps, and the time of each in seconds."""
        losses: list[float] = []
        times: list[float] = []
        result = None
        for _ in range(min(self._steps.steps_per_epoch, self._task.max_steps)):
            start = time.perf_counter()
            result = self._steps.with_transfers()
            if result is not None:
                losses.append(checked_loss(result, self._task.workload, len(times) + 1))
            times.append(time.perf_counter() - start)
            if start + times[-1] > deadline:
                break
        wait_for_devices(result)
        return losses, times

    def _steps_of_block(self, phase: Phase, step_s: float | None) -> int:
        timer = self._timers[phase]
        left = self._task.max_steps - self._num_done
        most = max(1, left // (len(self._timers) * self._task.num_blocks))
        if phase is not Phase.TRANSFERS and (step_s or 0) < _LONG_STEP_S:
            step_s = None  # data that lie on the device may make all the difference
        # The first step with data on the device may compile; those with transfers the epoch has done before.
        if step_s is None or step_s < _LONG_STEP_S:
            first_s = timer.seconds(1)
            if phase is Phase.TRANSFERS and first_s >= _TRIED_ONCE_S:
                return 1
        return steps_of_block(timer.seconds, step_s=step_s, most=most)

    def _time_block(self, phase: Phase, num_steps: int) -> TimedBlock:
        before = None if self._gpus is None else self._gpus.energy_j()
        seconds = self._timers[phase].seconds(num_steps)
        after = None if self._gpus is None else self._gpus.energy_j()
        return TimedBlock(seconds, None if before is None or after is None else after - before)


def _told(action: Callable[[], _Answer]) -> _Answer | Raised:
    """Return what ``action`` returns, or what it raised."""
    try:
        return action()
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a workload may raise anything
        return Raised(_line(error))


def _line(error: BaseException) -> str:
    """Return the last line of the error's traceback, and where in the workload it was raised."""
    last = " ".join(traceback.format_exception_only(error)[-1].split())
    last = last if len(last) <= _MOST_CHARACTERS else f"{last[:_MOST_CHARACTERS]}..."
    own = str(Path(__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    return f"{last} ({frames[-1].filename}:{frames[-1].lineno})" if frames else last


def _has_used(device: str) -> bool:
    """Return whether a GPU was used, as far as that can be told; of other devices nobody asks."""
    return device != "gpu" or _has_apple_gpu() or has_used_gpu(read_counters(), sys.modules)


def _has_apple_gpu() -> bool:
    """Return whether PyTorch may have used an Apple GPU, of which it keeps no counts."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.backends.mps.is_available())


def _peak_host_bytes() -> int | None:
    try:
        # Not what getrusage tells: that begins with what the parent of the process held.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
