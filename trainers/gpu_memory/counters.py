"""What each framework says of the GPU memory that it holds, and how it is made to give some back.

Only frameworks that this process has imported and that have begun to use a device are asked, and in a way that starts
none of them. A framework joins by an entry in ``_COUNTERS``.
"""

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from tune_policies.values.errors import ProbeError

MemoryKind = Literal["allocated", "reserved"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class FrameworkMemory:
    """The GPU memory of one framework in this process, all devices together.

    Attributes:
        allocated_bytes: What its tensors take now.
        reserved_bytes: What its allocator holds of the device now; ``None``: it does not tell.
        peak_allocated_bytes: The most that its tensors took; ``None``: it does not tell.
        peak_reserved_bytes: The most that its allocator held; ``None``: it does not tell.
        num_ooms: Allocations that it refused since the process began; ``None``: it does not count them.
        how: How the figures were measured.
    """

    allocated_bytes: int
    reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    num_ooms: int | None = None
    how: str = ""

    def peak_bytes(self, kind: MemoryKind) -> int | None:
        """Return the peak of what was allocated, or reserved; ``None``: it does not tell."""
        return self.peak_allocated_bytes if kind == "allocated" else self.peak_reserved_bytes

    @property
    def held_bytes(self) -> int:
        """What it holds now, as far as it tells."""
        return self.allocated_bytes if self.reserved_bytes is None else self.reserved_bytes


class Counter:
    """Reads one framework's figures; ``module`` is the imported framework."""

    def read(self, module: Any) -> FrameworkMemory | None:
        """Return the figures; ``None``: it has not used a device."""
        raise NotImplementedError

    def reset_peaks(self, module: Any) -> None:
        """Let the peaks begin anew, where the framework can."""

    def release(self, module: Any) -> None:
        """Give back to the device what no tensor needs, where the framework can."""


def read_counters() -> dict[str, FrameworkMemory]:
    """Return the figures of each framework that uses a device in this process.

    Raises:
        ProbeError: A framework does not answer.
    """
    found = {name: _ask(name, counter.read) for name, counter in _in_use()}
    return {name: memory for name, memory in found.items() if memory is not None}


def reset_peaks() -> None:
    """Let all peaks begin anew. JAX has no way to: its peak is that of the process.

    Raises:
        ProbeError: A framework does not answer.
    """
    for name, counter in _in_use():
        _ask(name, counter.reset_peaks)


def release_unused() -> None:
    """Give back to the device what nothing in this process refers to any more.

    Raises:
        ProbeError: A framework does not answer.
    """
    holding = [(name, counter) for name, counter in _in_use() if _ask(name, counter.read) is not None]
    if not holding:
        return  # to collect takes long, for nothing where no framework uses a device
    gc.collect()
    for name, counter in holding:
        _ask(name, counter.release)


def _ask(name: str, question: Callable[[Any], _T]) -> _T:
    try:
        return question(sys.modules[name])
    except Exception as error:  # what frameworks raise has no common base, and after some errors a device only raises
        raise ProbeError(f"{name} cannot be asked about its GPU memory: {error}") from error


class _Torch(Counter):
    """PyTorch: CUDA and ROCm, and what has the same counters (XPU, NPU)."""

    def read(self, torch: Any) -> FrameworkMemory | None:
        stats = [api.memory_stats(device) for api, device in self._devices(torch)]
        if not stats:
            return None

        def total(key: str) -> int:
            return sum(int(each.get(key, 0)) for each in stats)

        return FrameworkMemory(
            allocated_bytes=total("allocated_bytes.all.current"),
            reserved_bytes=total("reserved_bytes.all.current"),
            peak_allocated_bytes=total("allocated_bytes.all.peak"),
            peak_reserved_bytes=total("reserved_bytes.all.peak"),
            num_ooms=total("num_ooms"),
            how="torch's allocator",
        )

    def reset_peaks(self, torch: Any) -> None:
        for api, device in self._devices(torch):
            api.reset_peak_memory_stats(device)

    def release(self, torch: Any) -> None:
        for api in {id(api): api for api, _ in self._devices(torch)}.values():
            api.empty_cache()

    @staticmethod
    def _devices(torch: Any) -> list[tuple[Any, int]]:
        apis = [getattr(torch, name) for name in ("cuda", "xpu", "npu") if hasattr(torch, name)]
        # Not is_available(): it counts the devices, after which CUDA_VISIBLE_DEVICES is read no more.
        in_use = [api for api in apis if api.is_initialized()]
        return [(api, device) for api in in_use for device in range(api.device_count())]


class _Tensorflow(Counter):
    """TensorFlow, whose allocator gives nothing back before the process ends; what is free serves the next trial."""

    def read(self, tensorflow: Any) -> FrameworkMemory | None:
        infos = [tensorflow.config.experimental.get_memory_info(name) for name in self._devices(tensorflow)]
        if not infos:
            return None
        return FrameworkMemory(
            allocated_bytes=sum(info["current"] for info in infos),
            # No reserved_bytes: its allocator takes the whole limit as it starts, which says nothing of the need.
            peak_allocated_bytes=sum(info["peak"] for info in infos),
            how="tensorflow's get_memory_info",
        )

    def reset_peaks(self, tensorflow: Any) -> None:
        for name in self._devices(tensorflow):
            tensorflow.config.experimental.reset_memory_stats(name)

    @staticmethod
    def _devices(tensorflow: Any) -> list[str]:
        # Every public question about devices in use starts the runtime, which then takes GPU memory and refuses
        # settings.
        eager = sys.modules.get("tensorflow.python.eager.context")
        context = eager.context_safe() if eager is not None else None
        if context is None or not context._initialized:
            return []
        return [device.name for device in tensorflow.config.list_logical_devices("GPU")]


class _Jax(Counter):
    """JAX, which has no way to let its peaks begin anew."""

    def read(self, jax: Any) -> FrameworkMemory | None:
        # jax.local_devices() starts the backend, which then takes its memory; no public name tells whether it is up.
        bridge = sys.modules.get("jax._src.xla_bridge")
        if bridge is None or not bridge.backends_are_initialized():
            return None
        stats = [found for found in (device.memory_stats() for device in jax.local_devices()) if found]
        if not stats:
            return None  # devices without counters: the CPU

        def total(key: str) -> int | None:
            return sum(int(each[key]) for each in stats) if all(key in each for each in stats) else None

        return FrameworkMemory(
            allocated_bytes=total("bytes_in_use") or 0,
            reserved_bytes=total("pool_bytes"),
            peak_allocated_bytes=total("peak_bytes_in_use"),
            peak_reserved_bytes=total("peak_pool_bytes"),
            how="jax's memory_stats, peaks of the whole process",
        )

    def release(self, jax: Any) -> None:
        jax.clear_caches()  # compiled functions hold their constants


class _Cupy(Counter):
    """CuPy, which keeps no peaks."""

    def read(self, cupy: Any) -> FrameworkMemory | None:
        # Of the current device: to ask for another one would open a context there, which takes memory.
        if not cupy.cuda.is_available():
            return None
        pool = cupy.get_default_memory_pool()
        held = int(pool.total_bytes())
        if not held:
            return None
        return FrameworkMemory(
            allocated_bytes=int(pool.used_bytes()),
            reserved_bytes=held,
            peak_reserved_bytes=held,  # the pool gives nothing back by itself
            how="cupy's memory pool as it was at each report",
        )

    def release(self, cupy: Any) -> None:
        if cupy.cuda.is_available():
            cupy.get_default_memory_pool().free_all_blocks()


_COUNTERS: Final[dict[str, Counter]] = {"torch": _Torch(), "tensorflow": _Tensorflow(), "jax": _Jax(), "cupy": _Cupy()}


def _in_use() -> list[tuple[str, Counter]]:
    """Return the counters of the frameworks that are there as a whole.

    While another thread imports a module, names in it are missing. Python's own import system waits by the same mark,
    which has no public name.
    """
    there = [(name, counter, sys.modules.get(name)) for name, counter in _COUNTERS.items()]
    return [
        (name, counter)
        for name, counter, module in there
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)
    ]
