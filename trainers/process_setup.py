"""What a process does before the user's code runs in it: see its own devices only, use its own CPUs, keep its share."""

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Literal, NamedTuple, Self

import ray
import wrapt
from threadpoolctl import ThreadpoolController

from tune_policies.cluster.accelerators import FAMILIES, GPU_VISIBILITY_VARIABLES
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.ray_compat.kernel_kills import note_kernel_kills
from tune_policies.values.errors import MemoryLimitError
from tune_policies.values.resources import Resources, from_ticks, to_ticks
from tune_policies.values.value import Value

from .gpu_memory.enforcement import cuda_has_started, enforce, note_whole_devices
from .gpu_memory.free_memory import end_gpu_processes, mark_processes, wait_for_free_memory
from .gpu_memory.overhead import NOTHING_MEASURED, Overheads, load_overheads
from .gpu_memory.share import GpuShare, SharedDevice
from .gpu_memory.trial_usage import add_warnings, begin_stats, noted_on_oom
from .usage_meter import begin_usage

_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",  # Ray sets this one: to 1 in a trial that names GPUs and no CPUs
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",  # TensorFlow reads these two when its runtime starts
    "TF_NUM_INTEROP_THREADS",
    "NPROC",  # XLA, so JAX, reads this one when its back end for CPUs starts
)
_DEVICE_VARIABLES: Final = (
    "CUDA_DEVICE_ORDER",
    *dict.fromkeys(family.visibility_variable for family in FAMILIES if family.visibility_variable),
)


class LimitOptions(Value):
    """How a process is held to its share of GPU memory.

    Attributes:
        isolation: ``"mps"``: also by NVIDIA's MPS daemon, where one answers.
        on_void_limit: What to do where a limit cannot hold: an error, or a warning in the result.
        overheads: What the frameworks were measured to use outside their allocators.
    """

    isolation: Literal["mps"] | None = None
    on_void_limit: Literal["raise", "warn"] = "raise"
    overheads: Overheads = NOTHING_MEASURED


def limit_options(isolation: Literal["mps"] | None, on_void_limit: Literal["raise", "warn"]) -> LimitOptions:
    """Return the options with the overheads that were measured on this machine."""
    return LimitOptions(isolation=isolation, on_void_limit=on_void_limit, overheads=load_overheads())


class ProcessSetup(Value):
    """How a process that runs in a slot of a plan is set up.

    Attributes:
        slot: The slot of its trial.
        resources: What of the slot is for this process.
        limits: How it is held to its share of GPU memory.
    """

    slot: TrialSlot
    resources: Resources
    limits: LimitOptions

    @classmethod
    def for_trial(cls, slot: TrialSlot, limits: LimitOptions) -> Self:
        """Return the set-up of the process that Tune starts for a trial; with Train workers, it only waits for them."""
        return cls(slot=slot, resources=slot.trial if slot.num_workers else slot.worker, limits=limits)

    @classmethod
    def for_worker(cls, slot: TrialSlot, limits: LimitOptions) -> Self:
        """Return the set-up of each process that trains: of the trial itself, or each of its Train workers."""
        return cls(slot=slot, resources=slot.worker, limits=limits)

    def apply(self) -> None:
        """Set up this process.

        Raises:
            MemoryLimitError: Its GPU memory cannot be limited, or others hold the memory of its share.
        """
        # Ray's assignment decides what the process has, and the slot only which part of a device is its own.
        assigned = _assigned_resources()
        if assigned is None:
            assigned = {name: from_ticks(ticks) for name, ticks in self.resources.ticks.items()}
        else:
            _set_devices_of_ray()
        note_kernel_kills()
        set_num_threads(max(1, int(assigned.get("CPU", 0))))
        if not assigned.get("GPU"):  # by default a newer Ray shows them all to a trial that asked for none
            os.environ.update(dict.fromkeys(GPU_VISIBILITY_VARIABLES, ""))
        begin_usage(assigned.get("CPU", 0), has_gpu=bool(assigned.get("GPU")))
        device: SharedDevice = "NPU" if assigned.get("NPU") else "GPU"
        amount = assigned.get(device)
        if not amount:
            return
        if device == "GPU":
            # Ray numbers GPUs as the driver does, along the PCI bus; CUDA by itself begins with the fastest.
            os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        # In this order: the trial's own processes are marked before any can start, and what an earlier trial left here
        # is freed before free memory is waited for.
        mark_processes()
        begin_stats(amount, device)
        share = self._share(device, amount) if amount < 1 else None
        if device == "GPU":  # NVML knows no NPU
            wait_for_free_memory(share)
        if share is not None:
            enforce(
                share,
                overheads=self.limits.overheads,
                isolation=self.limits.isolation,
                on_void_limit=self.limits.on_void_limit,
            )
        else:
            note_whole_devices()

    def _share(self, device: SharedDevice, assigned: float) -> GpuShare:
        """Return the share; a trial that has more of the device than planned also has more of its memory."""
        planned = self.resources.ticks.get(device, 0)
        memory_bytes = self.slot.gpu_memory_bytes if planned else None
        if memory_bytes is not None:
            memory_bytes = memory_bytes * to_ticks(assigned) // planned
        return GpuShare(
            fraction=assigned,
            memory_bytes=memory_bytes,
            overhead_bytes=self.slot.gpu_overhead_bytes,
            measured_with=self.slot.measured_with,
            device=device,
        )


def _assigned_resources() -> dict[str, float] | None:
    """Return what Ray assigned to this process; ``None``: it is no worker of Ray's."""
    if not ray.is_initialized():  # to ask would start one
        return None
    try:
        return dict(ray.get_runtime_context().get_assigned_resources())
    except AssertionError:  # Ray's way to say that this is no worker
        return None


def _set_devices_of_ray() -> None:
    """Set the variables of devices as Ray set them for this process, which an earlier trial may have changed.

    Raises:
        MemoryLimitError: Ray has assigned this task another GPU than the one on which an earlier task started CUDA.
    """
    context = ray.get_runtime_context()
    # An actor keeps its devices. Ray assigns them anew to each task that a process serves.
    for name, value in _devices_of_ray(context.get_actor_id() or context.get_task_id()).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    check_gpus_of_cuda(os.environ.get("CUDA_VISIBLE_DEVICES", ""))


@functools.lru_cache(maxsize=1)
def _devices_of_ray(assigned_to: str) -> dict[str, str | None]:
    """Return the variables as they are before the first trial or task of ``assigned_to``, an actor or a task."""
    return {name: os.environ.get(name) for name in _DEVICE_VARIABLES}


_gpus_of_cuda: str | None = None
"""The visible GPUs at the last set-up before CUDA started in this process, which are those that CUDA keeps."""


def check_gpus_of_cuda(gpus: str) -> None:
    """Raise ``MemoryLimitError`` if CUDA has started in this process with other visible GPUs than these."""
    global _gpus_of_cuda
    if _gpus_of_cuda is None or not cuda_has_started():
        _gpus_of_cuda = gpus
    elif gpus != _gpus_of_cuda:
        raise MemoryLimitError(
            f"Ray assigned GPU {gpus} to this task, but an earlier task has started CUDA in this process on GPU "
            f"{_gpus_of_cuda}, and CUDA keeps that one: use remote_options(reuse='release'), or an actor"
        )


class _OwnProcess(NamedTuple):
    """What is done around a user's function in its process. A function in a function would be pickled by value."""

    set_up: Callable[[Any], None]
    at_end: Callable[[], None] | None

    @contextmanager
    def around(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        self.set_up(args[0] if args else kwargs.get("config"))
        try:
            with noted_on_oom():
                yield
        finally:
            add_warnings(end_gpu_processes())
            if self.at_end is not None:
                self.at_end()


def set_up_before(
    function: Callable[..., Any], set_up: Callable[[Any], None], at_end: Callable[[], None] | None = None
) -> Callable[..., Any]:
    """Return a new function that sets up its process and then calls ``function``, which stays as it is.

    Args:
        function: Takes a config, or nothing.
        set_up: Is called with the config, or ``None``, in the process and in the thread that runs ``function``.
        at_end: Is called there when ``function`` has ended, however it did, and what it has left is ended.
    """
    wrapper = wrapped_in(function, _OwnProcess(set_up, at_end).around)
    wrapper.__name__ = name_of(function)  # Tune names trials after it
    return wrapper


def wrapped_in(
    function: Callable[..., Any],
    around: Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[None]],
) -> Callable[..., Any]:
    """Return a function of the same kind that calls ``function`` in the context of its arguments.

    Tune and Ray recognize generators and coroutine functions by their code.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with around(args, kwargs):
            return function(*args, **kwargs)

    def generate(*args: Any, **kwargs: Any) -> Any:
        with around(args, kwargs):
            return (yield from function(*args, **kwargs))

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        with around(args, kwargs):
            return await function(*args, **kwargs)

    async def generate_async(*args: Any, **kwargs: Any) -> Any:
        with around(args, kwargs):
            async for item in function(*args, **kwargs):
                yield item

    chosen: Callable[..., Any] = call
    if inspect.isgeneratorfunction(function):
        chosen = generate
    elif inspect.isasyncgenfunction(function):
        chosen = generate_async
    elif inspect.iscoroutinefunction(function):
        chosen = call_async
    wrapper = functools.wraps(function)(chosen)
    # Ray counts the parameters to know whether to pass a config; callable objects and partials have them too.
    wrapper.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return wrapper


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function; of a callable object without one, that of its class."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return getattr(function, "__name__", type(function).__name__)


@functools.lru_cache(maxsize=1)
def _numerical_libraries(num_modules: int) -> ThreadpoolController:
    """Return the libraries that are loaded. To find them takes longer than the rest of a set-up together.

    A process that serves many trials looks for them again only where ``num_modules``, those that are imported, changed.
    """
    return ThreadpoolController()


def set_num_threads_of_thread() -> None:
    """Set the threads of numerical libraries in another thread of a process that was set up: OpenMP needs it."""
    if not hasattr(_thread, "num_threads"):
        set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


_thread: Final = threading.local()
"""``num_threads``, as it was set in this thread."""


def set_num_threads(num_threads: int) -> None:
    """Set the threads of this process's numerical libraries: those loaded now, and those loaded later."""
    _thread.num_threads = num_threads
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = str(num_threads)
    _numerical_libraries(len(sys.modules)).limit(limits=num_threads)
    _set_threads_of_torch()


def _set_threads_of_torch() -> None:
    """Set PyTorch's threads, now or when it is imported: it takes no more from the variable than there are cores."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    else:
        _wait_for_torch()


@functools.cache  # a process that serves many trials waits once
def _wait_for_torch() -> None:
    wrapt.register_post_import_hook(lambda _: _set_threads_of_torch(), "torch")
