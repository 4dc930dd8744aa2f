"""What runs in a fresh process: prepares a workload as a trial would, runs its first epoch, and times blocks of it.

The class becomes a Ray actor, whose process serves nobody else. Nothing that a workload raises leaves it as an
exception: its class may not be there where it would be unpickled.

The clocks and loops are not ours: where PyTorch does the work, ``torch.utils.benchmark``; else Python's ``timeit`` with
pyperf's clock. Only frameworks are asked that the process has imported: to import one would change what is measured.
"""

import functools
import os
import platform
import resource
import sys
import time
import timeit
import traceback
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import pyperf

from tune_policies.probe.nvml import GpuCounters
from tune_policies.trainers.gpu_memory.counters import read_counters
from tune_policies.trainers.gpu_memory.free_memory import end_gpu_processes
from tune_policies.trainers.gpu_memory.trial_usage import peak_gpu_memory_bytes
from tune_policies.trainers.process_setup import ProcessSetup, set_num_threads
from tune_policies.values.errors import ProbeError

from ..record.run_set import Phase
from ..workloads import steps as steps_module
from ..workloads.registry import load_workload
from ..workloads.steps import Steps, checked_loss, checked_steps
from .noise import NoiseCounters, read_noise

BLOCK_S: Final = 0.03
"""A block is long enough for the clock and the synchronisation not to count, and short enough to take many turns."""

_CALLED_BEFORE: Final = 2
"""Steps before a block that has several: since the last one, another arm has used the caches. As PyTorch's timer does,
for the hundredth part of the block where that is more."""


class BlockTimer:
    """Times blocks of one step.

    Args:
        step: What is timed.
        synchronize: Waits until the device has done what it was given; ``None``: as the framework does.
        num_threads: CPU threads of this process.
    """

    def __init__(self, step: Callable[[], Any], synchronize: Callable[[], None] | None, num_threads: int) -> None:
        self._step = step
        self._synchronize = synchronize
        self._num_threads = num_threads
        self._result: Any = None

    def seconds(self, num_steps: int) -> float:
        """Return how long so many steps took together."""
        others = _WAITS.keys() - {"torch"}
        if self._synchronize is None and num_steps > 1 and "torch" in sys.modules and not others & sys.modules.keys():
            from torch.utils.benchmark import Timer

            timer = Timer("step()", globals={"step": self._step}, num_threads=self._num_threads)
            return float(timer.timeit(num_steps).raw_times[0])
        if num_steps > 1:  # a step that fills a block by itself has warmed up when it begins to count
            for _ in range(max(_CALLED_BEFORE, num_steps // 100)):
                self._keep_result()
        return timeit.Timer(self._keep_result, timer=self._synchronized_clock).timeit(num_steps)

    def _keep_result(self) -> None:
        self._result = self._step()  # JAX is waited for by what it returned

    def _synchronized_clock(self) -> float:
        if self._synchronize is None:
            wait_for_devices(self._result)
        else:
            self._synchronize()
        return float(pyperf.perf_counter())


def steps_of_block(seconds: Callable[[int], float], *, step_s: float | None = None, most: int) -> int:
    """Return how many steps make a block.

    Args:
        seconds: Times so many steps.
        step_s: How long a step is known to take at the least; ``None``: not known.
        most: A block has no more steps, 1 or above.
    """
    if step_s is not None and step_s >= BLOCK_S:
        return 1
    number = 1
    while True:
        taken = max(seconds(number), 1e-9)
        fitting = max(1, min(most, round(number * BLOCK_S / taken)))
        # From a third of a block on, the clock and the first step after a pause do not count any more.
        if taken >= BLOCK_S / 3 or number >= most:
            return fitting
        number = min(fitting, number * 10) if fitting > number else min(most, number * 2)


def wait_for_devices(result: Any) -> None:
    """Wait until each imported framework has done what it was given; ``result`` is what the last step returned."""
    for name, wait in _WAITS.items():
        if (module := sys.modules.get(name)) is not None:
            wait(module, result)


def _wait_for_torch(torch: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif (accelerator := getattr(torch, "accelerator", None)) is not None and accelerator.is_available():
        accelerator.synchronize()
    elif torch.backends.mps.is_available():  # before PyTorch 2.6, which knows no accelerator in general
        torch.mps.synchronize()


_WAITS: Final[dict[str, Callable[[Any, Any], object]]] = {
    "torch": lambda torch, _: _wait_for_torch(torch),
    "tensorflow": lambda tensorflow, _: tensorflow.test.experimental.sync_devices(),
    "jax": lambda jax, result: jax.block_until_ready(result),
    "cupy": lambda cupy, _: cupy.cuda.is_available() and cupy.cuda.Device().synchronize(),
    "numba.cuda": lambda cuda, _: cuda.is_available() and cuda.synchronize(),
}
"""By module of a framework: how to wait for what it was given, with the module and what the last step returned."""


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
    for memory in counters.values():
        # What was put there: to wait for a GPU begins to use it, and pools fill without it.
        if memory.held_bytes if memory.peak_allocated_bytes is None else memory.peak_allocated_bytes:
            return True
    if not any(name in imported for name in _COUNTED) or any(name in imported for name in _UNCOUNTED):
        return False
    raise ProbeError(
        "the workload was asked for gpu, but used none: get its device from torch_device(device) or its like in "
        "tune_policies.benchmarks.workloads.steps, which say why there is none, or leave the device out"
    )


_Answer = TypeVar("_Answer")
_Given = ParamSpec("_Given")

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
        phases: What can be timed of it.
        step_s: How long the shortest step took; ``None``: not known.
        facts: Fields of the record by name: its first losses, its threads, and what the workload says of itself.
    """

    prepare_s: float
    epoch_s: float | None
    num_steps: int
    phases: tuple[Phase, ...]
    step_s: float | None
    facts: dict[str, Any]


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


def _told(method: Callable[_Given, _Answer]) -> Callable[_Given, _Answer | Raised]:
    """Return the method such that it returns what it raised, too."""

    @functools.wraps(method)
    def returning(*args: _Given.args, **kwargs: _Given.kwargs) -> _Answer | Raised:
        try:
            return method(*args, **kwargs)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a workload may raise anything
            return Raised(_line(error))

    return returning


def _line(error: BaseException) -> str:
    """Return the last line of the error's traceback, and where in the workload it was raised."""
    last = " ".join(traceback.format_exception_only(error)[-1].split())
    last = last if len(last) <= _MOST_CHARACTERS else f"{last[:_MOST_CHARACTERS]}..."
    # A device that a framework does not see is the user's line to change, not that of `torch_device`.
    own = (str(Path(__file__).parent), steps_module.__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    return f"{last} ({frames[-1].filename}:{frames[-1].lineno})" if frames else last


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

    @_told
    def first_epoch(self, task: Task) -> FirstEpoch:
        """Set up the process, prepare the workload, and run its first epoch."""
        self._task = task
        task.setup.apply()
        # Ray counts no CPUs for a process that takes turns with another on the same ones, which it uses all.
        set_num_threads(max(1, int(task.setup.resources.cpus)))
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
            torch = sys.modules.get("torch")
            # Of an Apple GPU PyTorch keeps no counts; of other devices than GPUs nobody asks.
            is_sure = task.device != "gpu" or (torch is not None and torch.backends.mps.is_available())
            is_sure = is_sure or has_used_gpu(read_counters(), sys.modules)
            # Those that come with the benchmarks ask their libraries themselves.
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
            phases=tuple(self._timers),
            # The first step may compile; without a loss nobody has waited for the others.
            step_s=min(times[1:], default=None) if losses else None,
            facts={
                "losses": tuple(losses[:_MOST_LOSSES]),
                "num_threads": num_threads,
                "dtype": steps.dtype,
                "samples_per_step": steps.samples_per_step,
                "steps_per_epoch": steps.steps_per_epoch,
                "tolerance": steps.tolerance,
            },
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

    @_told
    def steps_of_block(self, phase: Phase, step_s: float | None) -> int:
        """Return how many steps make a block; ``step_s`` is how long one took in the first epoch, if known."""
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

    @_told
    def time_block(self, phase: Phase, num_steps: int) -> TimedBlock:
        """Time a block."""
        before = None if self._gpus is None else self._gpus.energy_j()
        seconds = self._timers[phase].seconds(num_steps)
        after = None if self._gpus is None else self._gpus.energy_j()
        return TimedBlock(seconds, None if before is None or after is None else after - before)


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
