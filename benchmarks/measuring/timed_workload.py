"""Measures a workload in a fresh process.

The process prepares the workload as a trial would, runs its first epoch, and times blocks of steps.
``WorkloadProcess`` becomes a Ray actor with its own process. It returns errors of a workload as text, because the
driver may not be able to unpickle the exception.

Blocks are timed with ``timeit``, as in ``torch.utils.benchmark``. Before the clock is read, the frameworks that the
process has imported wait for their devices. Other frameworks are not imported, because that would change the
measurement.
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
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from tune_policies.trainers.gpu_memory.framework_memory import peak_gpu_memory_bytes, read_counters
from tune_policies.trainers.gpu_memory.free_memory import end_gpu_processes
from tune_policies.trainers.process.current_process import CURRENT
from tune_policies.trainers.process.process_setup import ProcessSetup
from tune_policies.values.errors import ProbeError

from ..record.run_set import Phase
from ..workloads import steps as steps_module
from ..workloads.registry import load_workload
from ..workloads.steps import Steps, checked_loss, checked_steps
from .noise import NoiseCounters, read_noise

BLOCK_S: Final = 0.03
"""The target duration of a block in seconds. It is long enough to make the cost of the clock and of synchronization
negligible, and short enough for many turns in a round."""

_CALLED_BEFORE: Final = 2
"""The minimum number of warm-up steps before a block. They refill the caches that other processes have used. As in
PyTorch's timer, a block of 300 or more steps has 1 % as many warm-up steps."""


class BlockTimer:
    """Times blocks of calls of ``step``.

    ``synchronize`` waits until the device has finished its work. If it is ``None``, all imported frameworks wait.
    """

    def __init__(self, step: Callable[[], Any], synchronize: Callable[[], None] | None) -> None:
        self._step = step
        self._synchronize = synchronize
        self._result: Any = None

    def seconds(self, num_steps: int) -> float:
        """Run ``num_steps`` steps, and return their total duration in seconds."""
        if num_steps > 1:  # a step that is as long as a block needs no warm-up
            for _ in range(max(_CALLED_BEFORE, num_steps // 100)):
                self._keep_result()
        return timeit.Timer(self._keep_result, timer=self._synchronized_clock).timeit(num_steps)

    def _keep_result(self) -> None:
        self._result = self._step()  # JAX can wait only for a result

    def _synchronized_clock(self) -> float:
        if self._synchronize is None:
            wait_for_devices(self._result)
        else:
            self._synchronize()
        return time.perf_counter()


def steps_of_block(seconds: Callable[[int], float], *, step_s: float | None = None) -> int:
    """Return the number of steps that take about ``BLOCK_S`` seconds.

    ``seconds`` runs a number of steps and returns their duration in seconds. ``step_s`` is a lower bound of the
    duration of a step in seconds, if known.
    """
    if step_s is not None and step_s >= BLOCK_S:
        return 1
    number = 1
    while True:
        # At least a nanosecond, to prevent a division by zero.
        taken = max(seconds(number), 1e-9)
        fitting = max(1, round(number * BLOCK_S / taken))
        # If the steps take at least a third of `BLOCK_S`, the cost of the clock and of the first step is negligible.
        if taken >= BLOCK_S / 3:
            return fitting
        if fitting > number:
            number = min(fitting, number * 10)
        else:
            number *= 2


def wait_for_devices(result: Any) -> None:
    """Wait until the devices of all imported frameworks are idle. ``result`` is the result of the last step."""
    for name, wait in _WAITS.items():
        module = sys.modules.get(name)
        if module is not None:
            wait(module, result)


def _wait_for_torch(torch: Any) -> None:
    accelerator = getattr(torch, "accelerator", None)  # PyTorch before 2.6 does not have it
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif accelerator is not None and accelerator.is_available():
        accelerator.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()


def _wait_for_tensorflow(tensorflow: Any) -> None:
    # RLlib disables eager mode. Without it, a session returns only after its work is done, so no wait is needed.
    if tensorflow.executing_eagerly():
        tensorflow.test.experimental.sync_devices()


def _wait_for_cupy(cupy: Any) -> None:
    if cupy.cuda.is_available():
        cupy.cuda.Device().synchronize()


def _wait_for_numba(cuda: Any) -> None:
    if cuda.is_available():
        cuda.synchronize()


_WAITS: Final[dict[str, Callable[[Any, Any], object]]] = {
    "torch": lambda torch, _: _wait_for_torch(torch),
    "tensorflow": lambda tensorflow, _: _wait_for_tensorflow(tensorflow),
    "jax": lambda jax, result: jax.block_until_ready(result),
    "cupy": lambda cupy, _: _wait_for_cupy(cupy),
    "numba.cuda": lambda cuda, _: _wait_for_numba(cuda),
}
"""Functions that wait until a framework's work is done, by module name. They receive the module and the result of the
last step."""


_COUNTED: Final = ("torch", "tensorflow", "jax", "cupy")
"""Frameworks that report their use of a GPU."""

_UNCOUNTED: Final = ("numba.cuda", "xgboost", "lightgbm")
"""Frameworks that may use a GPU without reporting it."""

GPU_USE_UNKNOWN: Final = (
    "its libraries do not report whether they used the GPU, so its times may be CPU times. Watch "
    "nvidia-smi during the run"
)
"""The warning for a user's own workload on a GPU if it is unknown whether the workload used the GPU."""


def has_used_gpu(counters: Mapping[str, Any], imported: Container[str]) -> bool:
    """Return whether memory counters show that a framework used a GPU. ``False`` means unknown.

    Raises:
        ProbeError: All imported frameworks report their GPU memory, and none used a GPU.
    """
    for memory in counters.values():
        # Prefer the peak of allocations, because waiting for a GPU can grow the memory pool without an allocation.
        used_bytes = memory.peak_allocated_bytes
        if used_bytes is None:
            used_bytes = memory.held_bytes
        if used_bytes:
            return True
    if not any(name in imported for name in _COUNTED) or any(name in imported for name in _UNCOUNTED):
        return False
    raise ProbeError(
        "the workload was called for a GPU, but used none. Get the device from torch_device(device) or a similar "
        "function in tune_policies.benchmarks.workloads.steps, or omit the GPU from the run"
    )


_Answer = TypeVar("_Answer")
_Given = ParamSpec("_Given")

_MOST_LOSSES: Final = 100
"""The maximum number of losses in the record. They are enough to check that all devices did the same work."""

_MOST_CHARACTERS: Final = 500
"""The maximum length of an error message. Some frameworks append pages of text."""


class Task(NamedTuple):
    """The work of a process.

    Attributes:
        workload: The name of the workload, or ``module:function``.
        size: The size of the workload, in the workload's own unit.
        device: The device to pass to the workload: ``"cpu"``, ``"gpu"``, or the Ray resource name of an accelerator.
        folder: The driver's working directory. The process can import modules from it.
        setup: The setup of a trial's process, such as its resources and limits.
        epoch_s: The first epoch stops after this number of seconds.
    """

    workload: str
    size: int
    device: str
    folder: str
    setup: ProcessSetup
    epoch_s: float


class FirstEpoch(NamedTuple):
    """The report of a process on its first epoch.

    Attributes:
        epoch_s: The duration of the epoch in seconds, or ``None`` if the epoch was stopped early.
        num_steps: The number of completed steps.
        phases: The phases that can be timed.
        step_s: The duration of the shortest step in seconds, or ``None`` if unknown.
        facts: Values of other fields of ``ProcessRun``, by name.
    """

    epoch_s: float | None
    num_steps: int
    phases: tuple[Phase, ...]
    step_s: float | None
    facts: dict[str, Any]


class Raised(NamedTuple):
    """An exception that the workload raised, as one line of text."""

    message: str


def _returns_errors(method: Callable[_Given, _Answer]) -> Callable[_Given, _Answer | Raised]:
    """Decorate a method so that it returns exceptions as ``Raised`` instead of raising them."""

    @functools.wraps(method)
    def returning(*args: _Given.args, **kwargs: _Given.kwargs) -> _Answer | Raised:
        try:
            return method(*args, **kwargs)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # a workload may raise anything
            return Raised(_line(error))

    return returning


def _line(error: BaseException) -> str:
    """Return the error's type and message as one line, with the file and line that raised it."""
    last = " ".join(traceback.format_exception_only(error)[-1].split())
    last = last if len(last) <= _MOST_CHARACTERS else f"{last[:_MOST_CHARACTERS]}..."
    # Skip frames of the measurement and of `torch_device`, because the error is usually in the workload.
    own = (str(Path(__file__).parent), steps_module.__file__)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(own)]
    if frames:
        return f"{last} ({frames[-1].filename}:{frames[-1].lineno})"
    return last


class WorkloadProcess:
    """The process that measures one configuration. Methods that run the workload return its errors as ``Raised``."""

    _task: Task
    _steps: Steps
    _timers: dict[Phase, BlockTimer]
    _gpu_use_is_unknown: bool = False

    def begin(self) -> tuple[int, str]:
        """Return the process ID and the host name."""
        return os.getpid(), platform.node()

    def read_noise(self) -> NoiseCounters:
        """Read the load counters of this host."""
        return read_noise()

    def finish(self) -> tuple[dict[str, Any], list[str]]:
        """Terminate the workload's processes on the GPU. Return the remaining fields of the record, and warnings."""
        warnings = list(end_gpu_processes())
        if self._gpu_use_is_unknown:
            warnings.append(GPU_USE_UNKNOWN)
        try:
            peak_gpu_bytes = peak_gpu_memory_bytes()
        except ProbeError as error:
            peak_gpu_bytes = None
            warnings.append(str(error))
        return {"peak_host_bytes": _peak_host_bytes(), "peak_gpu_bytes": peak_gpu_bytes}, warnings

    @_returns_errors
    def first_epoch(self, task: Task) -> FirstEpoch:
        """Set up the process, prepare the workload, and run its first epoch."""
        self._task = task
        task.setup.apply()
        # A process that shares CPUs can reserve 0 CPUs. Ray would then set the wrong number of threads.
        CURRENT.threads.bind(max(1, int(task.setup.resources.cpus)))
        if task.folder not in sys.path:
            sys.path.insert(0, task.folder)
        workload = load_workload(task.workload)
        self._steps = steps = checked_steps(workload(task.size, task.device), task.workload)
        prepared = time.perf_counter()
        losses, times = self._run_epoch(prepared + task.epoch_s)
        ended = time.perf_counter()
        if task.device != "cpu":
            torch = sys.modules.get("torch")
            # PyTorch has no counters for Apple GPUs, and devices other than GPUs are not checked.
            is_sure = task.device != "gpu" or (torch is not None and torch.backends.mps.is_available())
            is_sure = is_sure or has_used_gpu(read_counters(), sys.modules)
            # The built-in workloads check whether their libraries use the GPU.
            self._gpu_use_is_unknown = ":" in task.workload and not is_sure
        # The trial's process sets the variable. It may also contain the numbers of nested levels, as in "4,2".
        num_threads = int(os.environ["OMP_NUM_THREADS"].partition(",")[0])
        phases = {Phase.TRANSFERS: steps.with_transfers, Phase.COMPUTE: steps.compute}
        self._timers = {
            phase: BlockTimer(step, steps.synchronize) for phase, step in phases.items() if step is not None
        }
        epoch_s = None
        # A stopped epoch has no duration that could be compared.
        if len(times) == steps.steps_per_epoch:
            epoch_s = ended - prepared
        # The first step may include compilation. Without losses, a step may end before its work is done.
        step_s = min(times[1:], default=None) if losses else None
        return FirstEpoch(
            epoch_s=epoch_s,
            num_steps=len(times),
            phases=tuple(self._timers),
            step_s=step_s,
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
        """Run the first epoch until ``deadline``. Return the losses, and the durations of the steps in seconds."""
        losses: list[float] = []
        times: list[float] = []
        result = None
        for _ in range(self._steps.steps_per_epoch):
            start = time.perf_counter()
            result = self._steps.with_transfers()
            if result is not None:
                losses.append(checked_loss(result, self._task.workload, len(times) + 1))
            times.append(time.perf_counter() - start)
            if start + times[-1] > deadline:
                break
        wait_for_devices(result)
        return losses, times

    @_returns_errors
    def steps_of_block(self, phase: Phase, step_s: float | None) -> int:
        """Return the number of steps for a block of this phase.

        ``step_s`` is the duration of a step in the first epoch in seconds, if known.
        """
        # ``step_s`` includes transfers, so it does not apply to ``COMPUTE``, whose steps may be much faster.
        if phase is not Phase.TRANSFERS:
            step_s = None
        return steps_of_block(self._timers[phase].seconds, step_s=step_s)

    @_returns_errors
    def time_block(self, phase: Phase, num_steps: int) -> float:
        """Time a block of ``num_steps`` steps, and return its duration in seconds."""
        return self._timers[phase].seconds(num_steps)


def _peak_host_bytes() -> int:
    with suppress(OSError):
        # `getrusage` would include the peak memory of the parent process before the fork.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
