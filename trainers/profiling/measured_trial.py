"""Measures the memory of a config in a trial, and ends the trial after some steps or at a deadline.

The trial sends its readings to an actor, because a trial that ends at a deadline reports no result.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, NamedTuple

import ray
from ray import tune

from tune_policies.oom import classify_oom
from tune_policies.probe.nvml import NvmlError, bytes_of_process, read_device_use, read_gpus
from tune_policies.ray_compat.tune_trial import class_of_function, is_duplicate
from tune_policies.values.resources import Bytes, Count, UsedBytes
from tune_policies.values.sanitize import without_secrets
from tune_policies.values.value import Value

from ..gpu_memory.framework_memory import FrameworkMemory, held_bytes, read_counters
from ..gpu_memory.framework_overhead import Overheads
from ..gpu_memory.free_memory import shipped_psutil

MEASURED: Final = "measured"
"""The only key of Tune's config. Its value contains the measured config and the number of that config."""

_SAMPLE_S: Final = 0.25
"""The interval between memory readings, in seconds. Frameworks that do not record peaks require regular readings."""

_SEND_S: Final = 10.0
"""The timeout for sending a reading, in seconds."""

_PREALLOCATING: Final = ("tensorflow", "jax")
"""Frameworks that reserve most of a device's memory at the start, so only the memory of their tensors counts."""

Ended = Literal["finished", "max_steps", "timeout", "out_of_memory", "failed"]


class Reading(Value):
    """The memory usage of a trial.

    Attributes:
        peak_bytes: The peak memory of each framework's allocator in bytes, or of the framework's tensors if the
            framework preallocates memory.
        total_bytes: The larger of two amounts in bytes: the sum of peaks and overhead, and the memory that the driver
            reports for the process.
        overhead_bytes: The memory outside the allocators in bytes, either measured or a safe default.
        host_memory_bytes: The peak host memory of the process and its children, in bytes.
        num_steps: The number of results so far.
        ended_by: The reason why the trial ended, or ``None`` if it is still running.
        device_bytes: The total memory of the GPU, in bytes.
        versions: The versions of the frameworks that use the GPU.
    """

    peak_bytes: dict[str, UsedBytes]
    total_bytes: UsedBytes
    overhead_bytes: UsedBytes
    host_memory_bytes: Bytes
    num_steps: Count
    ended_by: Ended | None
    error: str | None
    gpu_model: str | None
    device_bytes: Bytes | None
    versions: dict[str, str]


class Recorder:
    """An actor that stores the last reading of each trial."""

    def __init__(self) -> None:
        self._readings: dict[int, Reading] = {}

    def record(self, number: int, reading: Reading) -> None:
        """Store a reading under the number of its config, unless the end of the trial was already recorded."""
        before = self._readings.get(number)
        if before is None or before.ended_by is None:
            self._readings[number] = reading

    def readings(self) -> dict[int, Reading]:
        """Return all readings, keyed by the number of the config."""
        return self._readings


class Caps(NamedTuple):
    """The maximum number of steps and the timeout of a measured trial."""

    max_steps: int
    timeout_s: float


DEFAULT_CAPS: Final = Caps(max_steps=5, timeout_s=60.0)
"""The caps if the user sets none."""


def measured_trial(
    trainable: Callable[..., Any] | type[tune.Trainable], recorder: Any, caps: Caps, overheads: Overheads
) -> type[tune.Trainable]:
    """Return a subclass of the trainable that measures the memory of the trial."""
    cls = trainable
    if not isinstance(cls, type):
        cls = class_of_function(trainable)
    fields = {"_recorder": recorder, "_caps": caps, "_overheads": overheads}
    return type(f"measured_{getattr(trainable, '__name__', cls.__name__)}", (_Measured, cls), fields)


class _Measured(tune.Trainable):  # type: ignore[misc]  # Ray's classes are untyped
    _recorder: Any
    _caps: Caps
    _overheads: Overheads

    def __init__(self, config: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        config = dict(config)  # Tune still uses the original config
        measured = config.pop(MEASURED)
        self._number: int = measured["number"]
        self._num_steps = 0
        self._peaks: dict[str, int] = {}
        self._most_of_process = 0
        self._host_memory_bytes = 0
        self._lock = threading.Lock()
        self._ends_at = time.monotonic() + self._caps.timeout_s
        # Start this thread before the user's constructor, which may use all memory or hang.
        threading.Thread(target=self._watch, daemon=True).start()
        with self._failures_recorded():
            # The rest of Tune's config consists of Tune's own entries, such as ``TRIAL_INFO``.
            super().__init__({**measured["config"], **config}, *args, **kwargs)

    def step(self) -> dict[str, Any]:
        with self._failures_recorded():
            result: dict[str, Any] = super().step()
        is_last = is_duplicate(result)
        # The last result of a function repeats the one before.
        self._num_steps += not is_last
        ended_by: Ended | None = None
        if is_last or result.get("done"):
            ended_by = "finished"
        elif self._num_steps >= self._caps.max_steps:
            ended_by = "max_steps"
        elif time.monotonic() >= self._ends_at:
            ended_by = "timeout"
        self._record(ended_by)
        return result

    @contextmanager
    def _failures_recorded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            ended_by: Ended = "failed"
            if classify_oom(error).kind == "accelerator":
                ended_by = "out_of_memory"
            cause: BaseException = error
            while not str(cause) and cause.__cause__ is not None:  # Tune has wrapped the error
                cause = cause.__cause__
            self._record(ended_by, without_secrets(f"{type(cause).__name__}: {cause}"))
            raise

    def _watch(self) -> None:
        """Read the memory regularly, and end the process at the deadline. Tune checks deadlines only after results."""
        while time.monotonic() < self._ends_at:
            time.sleep(max(0.0, min(_SAMPLE_S, self._ends_at - time.monotonic())))
            # Reading a framework while it starts may fail, but the trial must still end.
            with suppress(Exception):
                self._update_peaks()
        try:
            self._record("timeout")
        finally:  # end the process even if the reading cannot be sent
            # Not ``sys.exit``, which would end only this thread.
            os._exit(0)

    def _record(self, ended_by: Ended | None, error: str | None = None) -> None:
        reading = self._reading(ended_by, error)
        ray.get(self._recorder.record.remote(self._number, reading), timeout=_SEND_S)

    def _update_peaks(self) -> dict[str, FrameworkMemory]:
        with self._lock:
            self._host_memory_bytes = max(host_memory_in_use(), self._host_memory_bytes)
            counters = read_counters()
            for name, memory in counters.items():
                self._peaks[name] = max(_peak(name, memory), self._peaks.get(name, 0))
            return counters

    def _reading(self, ended_by: Ended | None, error: str | None) -> Reading:
        counters = self._update_peaks()
        gpu: dict[str, Any] = {}
        with suppress(NvmlError, IndexError):
            gpu = read_gpus()[0]
        versions = {name: str(getattr(sys.modules[name], "__version__", "")) for name in self._peaks}
        overhead = sum(self._overheads.bytes_for(gpu.get("name"), name, versions[name])[0] for name in versions)
        held = held_bytes(counters)
        process = None
        if counters and counters.keys().isdisjoint(_PREALLOCATING):  # otherwise, the process holds more than it uses
            process = _listed_process_bytes(held)
        if process is not None:
            self._most_of_process = max(process, self._most_of_process)
            # The driver's figure is a measurement of this process, and better than a default.
            overhead = process - held
        total = self._most_of_process
        if self._peaks:
            total = max(total, sum(self._peaks.values()) + overhead)
        return Reading(
            peak_bytes=dict(self._peaks),
            total_bytes=total,
            overhead_bytes=overhead,
            host_memory_bytes=self._host_memory_bytes,
            num_steps=self._num_steps,
            ended_by=ended_by,
            error=error,
            gpu_model=gpu.get("name"),
            device_bytes=gpu.get("memory_bytes"),
            versions=versions,
        )


def _peak(name: str, memory: FrameworkMemory) -> int:
    known = memory.peak_allocated_bytes
    if memory.peak_reserved_bytes is not None and (known is None or name not in _PREALLOCATING):
        known = memory.peak_reserved_bytes
    if known is None:
        return memory.held_bytes
    return known


def _listed_process_bytes(held: int) -> int | None:
    """Return this process's memory in bytes as reported by the driver, or ``None`` if the driver does not list it."""
    with suppress(NvmlError):
        found = bytes_of_process(read_device_use())
        # A smaller amount is from another process that has the same ID on the host.
        if found is not None and found >= held:
            return found
        return None
    return None


def host_memory_in_use() -> int:
    """Return the host memory of this process and its children in bytes.

    If there are children, shared memory is divided among the processes that use it, because forked children share
    memory with their parent.
    """
    psutil = shipped_psutil()
    process = psutil.Process()
    children = process.children(recursive=True)
    if not children:
        return int(process.memory_info().rss)
    total = 0
    for member in (process, *children):
        with suppress(psutil.Error):  # the process has ended
            memory = member.memory_full_info()
            total += getattr(memory, "pss", memory.rss)  # only Linux has pss
    return total
