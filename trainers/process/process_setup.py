"""Sets the devices, the number of threads and the GPU memory limit of a process before the user's code runs."""

import functools
import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, NamedTuple, Self

import ray

from tune_policies.cluster.accelerators import GPU_VISIBILITY_VARIABLES
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.ray_compat.kernel_kills import note_kernel_kills
from tune_policies.values.resources import Resources, from_ticks, ray_ticks, to_ticks
from tune_policies.values.value import Value

from ..gpu_memory.fraction_limits import GpuShare, LimitOptions, SharedDevice
from ..gpu_memory.framework_overhead import load_overheads
from .current_process import CURRENT
from .process_threads import num_threads_of


def limit_options(isolation: Literal["mps"] | None, on_unenforced_limit: Literal["raise", "warn"]) -> LimitOptions:
    """Return the options of a memory limit, with the overheads that were measured on this machine."""
    return LimitOptions(isolation=isolation, on_unenforced_limit=on_unenforced_limit, overheads=load_overheads())


class ProcessSetup(Value):
    """The set-up of a process that runs in a slot of a plan.

    Attributes:
        slot: The slot of the trial that the process belongs to.
        resources: The resources of the slot that this process may use.
        limits: The options of the GPU memory limit.
    """

    slot: TrialSlot
    resources: Resources
    limits: LimitOptions

    @classmethod
    def for_trial(cls, slot: TrialSlot, limits: LimitOptions) -> Self:
        """Return the set-up of a trial's own process. With Train workers, this process only waits for them."""
        resources = slot.trial if slot.num_workers else slot.worker
        return cls(slot=slot, resources=resources, limits=limits)

    @classmethod
    def for_worker(cls, slot: TrialSlot, limits: LimitOptions) -> Self:
        """Return the set-up of a process that trains: the trial itself, or one of its Train workers."""
        return cls(slot=slot, resources=slot.worker, limits=limits)

    def apply(self) -> None:
        """Set up this process.

        Raises:
            MemoryLimitError: The GPU memory of this process cannot be limited, or other processes use it.
        """
        # Ray assigns the devices. The slot only defines the fraction of a device.
        assigned = _assigned_resources()
        if assigned is None:
            assigned = {name: from_ticks(ticks) for name, ticks in self.resources.ticks.items()}
        else:
            context = ray.get_runtime_context()
            # An actor keeps its devices. A process that runs tasks gets new devices for each task.
            CURRENT.devices.bind(context.get_actor_id() or context.get_task_id())
        note_kernel_kills()
        # Before ``bind_trial``, which adds the note about the threads to the trial's results.
        CURRENT.threads.bind(num_threads_of(assigned.get("CPU", 0)))
        if not assigned.get("GPU"):  # some Ray versions make all GPUs visible to a trial without GPUs
            os.environ.update(dict.fromkeys(GPU_VISIBILITY_VARIABLES, ""))
        CURRENT.bind_trial(assigned.get("CPU", 0), self._share(assigned), self.limits)

    def _share(self, assigned: Mapping[str, float]) -> GpuShare | None:
        """Return the assigned fraction of a device, or ``None`` if no device is assigned.

        The memory limit is proportional to the assigned fraction, which may be larger than planned.
        """
        device: SharedDevice = "NPU" if assigned.get("NPU") else "GPU"
        fraction = assigned.get(device)
        if not fraction:
            return None
        if fraction >= 1:
            return GpuShare(fraction=fraction, device=device)
        planned = self.resources.ticks.get(device, 0)
        memory_bytes = None
        if planned and self.slot.gpu_memory_bytes is not None:
            memory_bytes = self.slot.gpu_memory_bytes * to_ticks(fraction) // planned
        return GpuShare(
            fraction=fraction,
            memory_bytes=memory_bytes,
            overhead_bytes=self.slot.gpu_overhead_bytes,
            measured_with=self.slot.measured_with,
            device=device,
        )


class TrialSetup(Value):
    """What the process of a trial is told when it starts, or when it is reset for another trial.

    Attributes:
        slot: The slot of the trial, with the resources that the trial reserves now.
        label: The text that describes the slot in results.
        limits: The options of the GPU memory limit.
    """

    slot: TrialSlot
    label: str
    limits: LimitOptions

    @classmethod
    def of(cls, slot: TrialSlot, bundles: Sequence[Mapping[str, float]], limits: LimitOptions) -> Self:
        """Return the set-up of a trial that reserves ``bundles``, which may be more or less than its slot."""
        if slot.num_workers:
            return cls(slot=slot, label=str(slot), limits=limits)
        # With several bundles, the slot describes only the trial's own process. Another scheduler may reserve less.
        own = ray_ticks(bundles[0])
        is_less = any(own.get(name, 0) < ticks for name, ticks in slot.trial.ticks.items())
        final = slot.with_more(bundles[0])
        label = str(final)
        if len(bundles) > 1 or is_less:
            # Each trial's process imports this module, but only the driver needs the capacity of clusters.
            from tune_policies.cluster.ray_totals import to_resources

            totals: Counter[str] = Counter()  # amounts may be fractions
            for bundle in bundles:
                totals.update(bundle)
            label = str(to_resources(totals))
        return cls(slot=final, label=label, limits=limits)

    def to_text(self) -> str:
        """Return the set-up as compact JSON."""
        return self.model_dump_json(exclude_defaults=True)

    @classmethod
    # A reused process may run thousands of trials in a few kinds of slots.
    @functools.lru_cache(maxsize=64)
    def from_text(cls, text: str) -> Self:
        """Return the set-up that :meth:`to_text` described."""
        return cls.from_json(text)


def _assigned_resources() -> dict[str, float] | None:
    """Return the resources that Ray assigned to this process, or ``None`` if it is not a Ray worker."""
    if not ray.is_initialized():  # the call below would start Ray
        return None
    try:
        return dict(ray.get_runtime_context().get_assigned_resources())
    except AssertionError:  # this process is not a Ray worker
        return None


class _OwnProcess(NamedTuple):
    """The steps before and after a user's function. This is a class, because Ray pickles nested functions by value."""

    set_up: Callable[[Any], None]
    at_end: Callable[[], None] | None

    @contextmanager
    def around(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        config = args[0] if args else kwargs.get("config")
        self.set_up(config)
        try:
            with CURRENT.trial.noted_on_oom():
                yield
        finally:
            CURRENT.trial.end_gpu_processes()
            if self.at_end is not None:
                self.at_end()


def set_up_before(
    function: Callable[..., Any], set_up: Callable[[Any], None], at_end: Callable[[], None] | None = None
) -> Callable[..., Any]:
    """Return a new function that sets up its process and then calls ``function``.

    Args:
        function: A function that takes a config or no arguments.
        set_up: A function that is called with the config or ``None``, in the process and thread of ``function``.
        at_end: A function that is called in the same thread, after ``function`` has ended and its GPU processes have
            been terminated.
    """
    wrapper = wrapped_in(function, _OwnProcess(set_up, at_end).around)
    wrapper.__name__ = name_of(function)  # Tune uses this name in the names of trials
    return wrapper


def wrapped_in(
    function: Callable[..., Any],
    around: Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[None]],
    to_arguments: Callable[[tuple[Any, ...]], tuple[Any, ...]] = tuple,
) -> Callable[..., Any]:
    """Return a wrapper that calls ``function`` in the context ``around(args, kwargs)``.

    For a generator or coroutine function, the wrapper has the same kind, because Tune and Ray check the kind.

    Args:
        function: The function.
        around: The context of each call.
        to_arguments: A function that returns the positional arguments for ``function``, given those of the call.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        with around(args, kwargs):
            return function(*to_arguments(args), **kwargs)

    def generate(*args: Any, **kwargs: Any) -> Any:
        with around(args, kwargs):
            return (yield from function(*to_arguments(args), **kwargs))

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        with around(args, kwargs):
            return await function(*to_arguments(args), **kwargs)

    async def generate_async(*args: Any, **kwargs: Any) -> Any:
        with around(args, kwargs):
            async for item in function(*to_arguments(args), **kwargs):
                yield item

    chosen: Callable[..., Any] = call
    if inspect.isgeneratorfunction(function):
        chosen = generate
    elif inspect.isasyncgenfunction(function):
        chosen = generate_async
    elif inspect.iscoroutinefunction(function):
        chosen = call_async
    wrapper = functools.wraps(function)(chosen)
    # Ray counts the parameters to decide whether to pass a config.
    wrapper.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return wrapper


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, or the class name of a callable object without a name."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return getattr(function, "__name__", type(function).__name__)
