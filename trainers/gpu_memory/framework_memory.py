"""Reads the GPU memory that each framework of this process uses, and releases unused memory.

Reading does not initialize a framework. Imported frameworks that do not use a device yet are skipped.
"""

import gc
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from tune_policies.values.errors import ProbeError

MemoryKind = Literal["allocated", "reserved"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class FrameworkMemory:
    """The GPU memory of a framework in this process, as the sum over all devices. Unknown amounts are ``None``.

    Attributes:
        allocated_bytes: The memory of the framework's tensors, in bytes.
        reserved_bytes: The memory that the framework's allocator reserves, in bytes.
        num_ooms: The number of failed allocations since the process started.
        how: A description of how the amounts were measured.
    """

    allocated_bytes: int
    reserved_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    num_ooms: int | None = None
    how: str = ""

    def peak_bytes(self, kind: MemoryKind) -> int | None:
        """Return the peak of the allocated or the reserved memory in bytes, or ``None`` if it is unknown."""
        if kind == "allocated":
            return self.peak_allocated_bytes
        return self.peak_reserved_bytes

    @property
    def held_bytes(self) -> int:
        """The reserved memory in bytes, or the allocated memory if the reserved memory is unknown."""
        if self.reserved_bytes is None:
            return self.allocated_bytes
        return self.reserved_bytes


class Counter:
    """Reads and resets the memory counters of a framework. ``module`` is the imported module of the framework."""

    def read(self, module: Any) -> FrameworkMemory | None:
        """Return the memory of the framework, or ``None`` if the framework has not used a device."""
        raise NotImplementedError

    def reset_peaks(self, module: Any) -> None:
        """Reset the peaks, if the framework supports this."""

    def release(self, module: Any) -> None:
        """Release device memory that the framework reserves but does not use, if the framework supports this."""


def read_counters() -> dict[str, FrameworkMemory]:
    """Return the memory of each framework that uses a device in this process, keyed by framework name.

    Raises:
        ProbeError: The memory of a framework cannot be read. ``reset_peaks`` and ``release_unused`` also raise this
            error.
    """
    found = {name: _call_counter(name, counter.read) for name, counter in _in_use()}
    return {name: memory for name, memory in found.items() if memory is not None}


def held_bytes(counters: Mapping[str, FrameworkMemory]) -> int:
    """Return the current GPU memory of this process's frameworks in bytes."""
    return sum(memory.held_bytes for memory in counters.values())


def peak_gpu_memory_bytes() -> int | None:
    """Return the peak GPU memory of this process's frameworks in bytes, or ``None`` if no framework used a GPU.

    The peaks of all devices and frameworks are added up. The peak of a framework is the memory that its allocator
    reserved or, if the framework does not report this memory (such as TensorFlow), the memory of its tensors. Memory
    outside the allocators is not included.

    Raises:
        ProbeError: The memory of a framework cannot be read.
    """
    known = []
    for memory in read_counters().values():
        peak = memory.peak_reserved_bytes
        if peak is None:
            peak = memory.peak_allocated_bytes
        if peak is not None:
            known.append(peak)
    if known:
        return sum(known)
    return None


def reset_peaks() -> None:
    """Reset all peaks, except the peaks of JAX, which cannot be reset."""
    for name, counter in _in_use():
        _call_counter(name, counter.reset_peaks)


def release_workspaces() -> None:
    """Release the workspaces of cuBLAS, which PyTorch keeps for each handle (by default 32 MiB on Hopper).

    A CUDA graph may use them, so call this function only before a new trainable starts.
    """
    extension = getattr(sys.modules.get("torch"), "_C", None)
    clear = getattr(extension, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def release_unused() -> None:
    """Release the device memory that the frameworks of this process reserve but do not use."""
    holding = [(name, counter) for name, counter in _in_use() if _call_counter(name, counter.read) is not None]
    if holding:
        # Tensors in reference cycles, such as in the traceback of an error, keep their memory until a collection.
        gc.collect()  # garbage collection is slow, so skip it if no framework uses a device
    for name, counter in holding:
        _call_counter(name, counter.release)


def _call_counter(name: str, call: Callable[[Any], _T]) -> _T:
    try:
        return call(sys.modules[name])
    except Exception as error:  # errors of frameworks have no common base class
        raise ProbeError(f"the GPU memory of {name} cannot be read: {error}") from error


class _Torch(Counter):
    """Reads the counters of PyTorch, which have the same names on CUDA, ROCm, XPU and NPU."""

    def read(self, torch: Any) -> FrameworkMemory | None:
        stats = [api.memory_stats(device) for api, device in self._devices(torch)]
        if not stats:
            return None

        def total(key: str) -> int:
            return sum(int(of_device.get(key, 0)) for of_device in stats)

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
        # ``empty_cache`` takes no device, so one call for each back end is enough.
        for api in {id(api): api for api, _ in self._devices(torch)}.values():
            api.empty_cache()

    @staticmethod
    def _devices(torch: Any) -> list[tuple[Any, int]]:
        apis = [getattr(torch, name) for name in ("cuda", "xpu", "npu") if hasattr(torch, name)]
        # Do not call is_available(). It counts the devices, and later changes of CUDA_VISIBLE_DEVICES then have no
        # effect.
        in_use = [api for api in apis if api.is_initialized()]
        return [(api, device) for api in in_use for device in range(api.device_count())]


class _Tensorflow(Counter):
    """Reads the counters of TensorFlow, whose allocator releases no memory before the process ends."""

    def read(self, tensorflow: Any) -> FrameworkMemory | None:
        infos = [tensorflow.config.experimental.get_memory_info(name) for name in self._devices(tensorflow)]
        if not infos:
            return None
        return FrameworkMemory(
            allocated_bytes=sum(info["current"] for info in infos),
            # reserved_bytes is not set, because TensorFlow's allocator reserves the whole limit at the start.
            peak_allocated_bytes=sum(info["peak"] for info in infos),
            how="tensorflow's get_memory_info",
        )

    def reset_peaks(self, tensorflow: Any) -> None:
        for name in self._devices(tensorflow):
            tensorflow.config.experimental.reset_memory_stats(name)

    @staticmethod
    def _devices(tensorflow: Any) -> list[str]:
        # Every public function about devices starts the runtime, which reserves memory and rejects later settings.
        eager = sys.modules.get("tensorflow.python.eager.context")
        if eager is None:
            return []
        context = eager.context_safe()
        if context is None or not context._initialized:
            return []
        return [device.name for device in tensorflow.config.list_logical_devices("GPU")]


class _Jax(Counter):
    """Reads the counters of JAX, whose peaks cannot be reset."""

    def read(self, jax: Any) -> FrameworkMemory | None:
        # jax.local_devices() starts the back end, and no public function returns whether it has started.
        bridge = sys.modules.get("jax._src.xla_bridge")
        if bridge is None or not bridge.backends_are_initialized():
            return None
        stats = [device.memory_stats() for device in jax.local_devices()]
        stats = [of_device for of_device in stats if of_device]  # CPUs have no counters
        if not stats:
            return None

        def total(key: str) -> int | None:
            if all(key in of_device for of_device in stats):
                return sum(int(of_device[key]) for of_device in stats)
            return None

        return FrameworkMemory(
            allocated_bytes=total("bytes_in_use") or 0,
            reserved_bytes=total("pool_bytes"),
            peak_allocated_bytes=total("peak_bytes_in_use"),
            peak_reserved_bytes=total("peak_pool_bytes"),
            how="jax's memory_stats (peaks since the process started)",
        )

    def release(self, jax: Any) -> None:
        jax.clear_caches()  # compiled functions keep their constants on the device


class _Cupy(Counter):
    """Reads the counters of CuPy, which does not record peaks."""

    def read(self, cupy: Any) -> FrameworkMemory | None:
        # Reading a device other than the current device would create a context on it.
        if not cupy.cuda.is_available():
            return None
        pool = cupy.get_default_memory_pool()
        held = int(pool.total_bytes())
        if not held:
            return None
        return FrameworkMemory(
            allocated_bytes=int(pool.used_bytes()),
            reserved_bytes=held,
            peak_reserved_bytes=held,  # the pool releases no memory by itself
            how="cupy's memory pool at each report",
        )

    def release(self, cupy: Any) -> None:
        if cupy.cuda.is_available():
            cupy.get_default_memory_pool().free_all_blocks()


_COUNTERS: Final[dict[str, Counter]] = {"torch": _Torch(), "tensorflow": _Tensorflow(), "jax": _Jax(), "cupy": _Cupy()}


def _in_use() -> list[tuple[str, Counter]]:
    """Return the counters of the completely imported frameworks.

    A module that another thread is still importing lacks some names. Python's import system also uses ``_initializing``
    to detect this.
    """
    found = []
    for name, counter in _COUNTERS.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        spec = getattr(module, "__spec__", None)
        if not getattr(spec, "_initializing", False):
            found.append((name, counter))
    return found
