"""Sets up a process before the user's code runs in it: its devices, its threads, and its limit of GPU memory."""

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, NamedTuple, Self

import ray

from tune_policies.cluster.accelerators import GPU_VISIBILITY_VARIABLES
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.ray_compat.kernel_kills import note_kernel_kills
from tune_policies.values.resources import Resources, from_ticks, to_ticks
from tune_policies.values.value import Value

from .current_process import CURRENT
from .gpu_memory.overhead import load_overheads
from .gpu_memory.share import GpuShare, LimitOptions, SharedDevice


def limit_options(isolation: Literal["mps"] | None, on_unenforced_limit: Literal["raise", "warn"]) -> LimitOptions:
    """Return the options with the overheads that were measured on this machine."""
    return LimitOptions(isolation=isolation, on_unenforced_limit=on_unenforced_limit, overheads=load_overheads())


class ProcessSetup(Value):
    """How a process that runs in a slot of a plan is set up.

    Attributes:
        slot: The slot of its trial.
        resources: The resources of the slot that this process may use.
        limits: How the process is limited to its fraction of GPU memory.
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
        # Ray's assignment decides what the process has. The slot only decides which part of a device is its own.
        assigned = _assigned_resources()
        if assigned is None:
            assigned = {name: from_ticks(ticks) for name, ticks in self.resources.ticks.items()}
        else:
            context = ray.get_runtime_context()
            # An actor keeps its devices. Ray assigns them again for each task that a process serves.
            CURRENT.restore_devices(context.get_actor_id() or context.get_task_id())
        note_kernel_kills()
        CURRENT.set_num_threads(max(1, int(assigned.get("CPU", 0))))
        if not assigned.get("GPU"):  # by default a newer Ray shows them all to a trial that asked for none
            os.environ.update(dict.fromkeys(GPU_VISIBILITY_VARIABLES, ""))
        CURRENT.begin_trial(assigned.get("CPU", 0), self._share(assigned), self.limits)

    def _share(self, assigned: Mapping[str, float]) -> GpuShare | None:
        """Return the share; a trial that has more of the device than planned also has more of its memory."""
        device: SharedDevice = "NPU" if assigned.get("NPU") else "GPU"
        fraction = assigned.get(device)
        if not fraction:
            return None
        if fraction >= 1:
            return GpuShare(fraction=fraction, device=device)
        planned = self.resources.ticks.get(device, 0)
        memory_bytes = self.slot.gpu_memory_bytes if planned else None
        if memory_bytes is not None:
            memory_bytes = memory_bytes * to_ticks(fraction) // planned
        return GpuShare(
            fraction=fraction,
            memory_bytes=memory_bytes,
            overhead_bytes=self.slot.gpu_overhead_bytes,
            measured_with=self.slot.measured_with,
            device=device,
        )


def _assigned_resources() -> dict[str, float] | None:
    """Return the resources that Ray assigned to this process, or ``None`` if it is no worker of Ray."""
    if not ray.is_initialized():  # the question below would start Ray
        return None
    try:
        return dict(ray.get_runtime_context().get_assigned_resources())
    except AssertionError:  # Ray's way to say that this is no worker
        return None


class _OwnProcess(NamedTuple):
    """The steps around a user's function in its process. A function in a function would be pickled by value."""

    set_up: Callable[[Any], None]
    at_end: Callable[[], None] | None

    @contextmanager
    def around(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        self.set_up(args[0] if args else kwargs.get("config"))
        try:
            with CURRENT.noted_on_oom():
                yield
        finally:
            CURRENT.end_gpu_processes()
            if self.at_end is not None:
                self.at_end()


def set_up_before(
    function: Callable[..., Any], set_up: Callable[[Any], None], at_end: Callable[[], None] | None = None
) -> Callable[..., Any]:
    """Return a new function that sets up its process and then calls ``function``, which stays as it is.

    Args:
        function: Takes a config, or nothing.
        set_up: Is called with the config, or ``None``, in the process and in the thread that runs ``function``.
        at_end: Is called there after ``function`` has returned or raised, and its GPU processes were terminated.
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
    # Ray counts the parameters to find out whether to pass a config. Callable objects and partials have them too.
    wrapper.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return wrapper


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function; of a callable object without one, that of its class."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return getattr(function, "__name__", type(function).__name__)
