"""A short trial whose GPU memory is measured: it ends at a cap, and hands over what it used before it ends."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal

import ray
from ray import tune

from tune_policies.oom import classify_oom
from tune_policies.probe.nvml import NvmlError, bytes_of_process, read_device_use, read_gpus
from tune_policies.ray_compat.tune_trial import class_of_function, is_duplicate
from tune_policies.values.resources import Bytes, Count, UsedBytes
from tune_policies.values.sanitize import redacted
from tune_policies.values.value import Value

from ..limits.overhead import Overheads
from ..usage.counters import FrameworkMemory, read_counters

MEASURED: Final = "measured"
"""The one key of the config that Tune sees: the number of the config that is measured, and the config itself."""

_SAMPLE_S: Final = 0.25
"""How often a trial looks at its memory between its results, for frameworks that keep no peaks of their own."""

_HAND_OVER_S: Final = 10.0
"""Deadline for a reading to arrive."""

_TAKE_MORE_THAN_NEEDED: Final = ("tensorflow", "jax")
"""Frameworks that take most of a device as they start; what their tensors take is what they need."""

Ended = Literal["finished", "max_steps", "max_seconds", "out_of_memory", "failed"]


class Reading(Value):
    """What a trial has used up to now.

    Attributes:
        peak_bytes: By framework, the most that its allocator held; where it takes more than it needs, its tensors.
        total_bytes: Peaks and overhead, or what the driver counts for the process, if that is more.
        overhead_bytes: What the frameworks use outside their allocators, measured or a safe default.
        num_steps: Results so far.
        ended_by: Why the trial ends; ``None``: it does not yet.
        error: The error with which it ends.
        gpu_model: The GPU's name; ``None``: the driver does not say.
        device_bytes: The GPU's memory; ``None``: the driver does not say.
        versions: Those of the frameworks that use the GPU.
    """

    peak_bytes: dict[str, UsedBytes]
    total_bytes: UsedBytes
    overhead_bytes: UsedBytes
    num_steps: Count
    ended_by: Ended | None
    error: str | None
    gpu_model: str | None
    device_bytes: Bytes | None
    versions: dict[str, str]


class Recorder:
    """Keeps the last reading of each trial; an actor, as a trial that is ended at a cap reports no result."""

    def __init__(self) -> None:
        self._readings: dict[int, Reading] = {}

    def record(self, number: int, reading: Reading) -> None:
        """Keep a trial's reading, by the number of its config; what ended it first stays."""
        before = self._readings.get(number)
        if before is None or before.ended_by is None:
            self._readings[number] = reading

    def readings(self) -> dict[int, Reading]:
        """Return all readings by the numbers of the configs."""
        return self._readings


class Caps(Value):
    """When a measured trial ends: after so many results, or so many seconds of its own."""

    max_steps: int
    max_seconds: float


def measured_trial(
    trainable: Callable[..., Any] | type[tune.Trainable], recorder: Any, caps: Caps, overheads: Overheads
) -> type[tune.Trainable]:
    """Return a class of trials of ``trainable`` that measure themselves."""
    cls = trainable if isinstance(trainable, type) else class_of_function(trainable)
    fields = {"_recorder": recorder, "_caps": caps, "_overheads": overheads}
    return type(f"measured_{getattr(trainable, '__name__', cls.__name__)}", (_Measured, cls), fields)


class _Measured(tune.Trainable):  # type: ignore[misc]  # Ray is not followed
    _recorder: Any
    _caps: Caps
    _overheads: Overheads

    def __init__(self, config: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        config = dict(config)
        measured = config.pop(MEASURED)
        self._number: int = measured["number"]
        self._num_steps = 0
        self._peaks: dict[str, int] = {}
        self._most_of_process = 0
        self._lock = threading.Lock()
        self._ends_at = time.monotonic() + self._caps.max_seconds
        threading.Thread(target=self._watch, daemon=True).start()
        with self._failures_recorded():
            super().__init__({**measured["config"], **config}, *args, **kwargs)

    def step(self) -> dict[str, Any]:
        with self._failures_recorded():
            result: dict[str, Any] = super().step()
        is_last = is_duplicate(result)
        self._num_steps += not is_last
        if is_last or result.get("done"):
            self._record("finished")
        elif self._num_steps >= self._caps.max_steps:
            self._record("max_steps")
        elif time.monotonic() >= self._ends_at:
            self._record("max_seconds")
        else:
            self._record(None)
        return result

    @contextmanager
    def _failures_recorded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            ran_out = classify_oom(error).kind == "accelerator"
            self._record("out_of_memory" if ran_out else "failed", _said(error))
            raise

    def _watch(self) -> None:
        """Look at the memory from time to time; at the deadline record it, and end the process.

        Nothing else ends code that reports nothing: Tune waits for its next result.
        """
        while time.monotonic() < self._ends_at:
            time.sleep(max(0.0, min(_SAMPLE_S, self._ends_at - time.monotonic())))
            # A framework may be about to start, and what it raises then is its own; the trial must end all the same.
            with suppress(Exception):
                self._look()
        try:
            self._record("max_seconds")
        finally:  # or a trial whose reading does not arrive would run on
            os._exit(0)

    def _record(self, ended_by: Ended | None, error: str | None = None) -> None:
        reading = self._reading(ended_by, error)
        ray.get(self._recorder.record.remote(self._number, reading), timeout=_HAND_OVER_S)

    def _look(self) -> dict[str, FrameworkMemory]:
        with self._lock:
            counters = read_counters()
            for name, memory in counters.items():
                self._peaks[name] = max(_peak(name, memory), self._peaks.get(name, 0))
            return counters

    def _reading(self, ended_by: Ended | None, error: str | None) -> Reading:
        counters = self._look()
        gpu = _gpu()
        versions = {name: str(getattr(sys.modules[name], "__version__", "")) for name in self._peaks}
        overhead = sum(self._overheads.bytes_for(gpu.get("name"), name, versions[name])[0] for name in versions)
        held = sum(memory.held_bytes for memory in counters.values())
        process = _process_bytes(held) if counters and not counters.keys() & set(_TAKE_MORE_THAN_NEEDED) else None
        if process is not None:
            self._most_of_process = max(process, self._most_of_process)
            overhead = process - held
        return Reading(
            peak_bytes=dict(self._peaks),
            total_bytes=max(self._most_of_process, sum(self._peaks.values()) + overhead if self._peaks else 0),
            overhead_bytes=overhead,
            num_steps=self._num_steps,
            ended_by=ended_by,
            error=error,
            gpu_model=gpu.get("name"),
            device_bytes=gpu.get("memory_bytes"),
            versions=versions,
        )


def _said(error: BaseException) -> str:
    """Return the type and message of an error, or of its cause where it has no message, as Tune's own around it."""
    while not str(error) and error.__cause__ is not None:
        error = error.__cause__
    return redacted(f"{type(error).__name__}: {error}")


def _peak(name: str, memory: FrameworkMemory) -> int:
    known = memory.peak_allocated_bytes
    if memory.peak_reserved_bytes is not None and (known is None or name not in _TAKE_MORE_THAN_NEEDED):
        known = memory.peak_reserved_bytes
    return memory.held_bytes if known is None else known


def _process_bytes(held_bytes: int) -> int | None:
    """Return what the driver counts for this process; ``None``: it does not know it."""
    with suppress(NvmlError):
        found = bytes_of_process(read_device_use())
        # Less than its allocators hold is the count of another process, one that the host numbers so.
        return found if found is not None and found >= held_bytes else None
    return None


def _gpu() -> dict[str, Any]:
    """Return the name and memory of this process's GPU; nothing, where the driver cannot be asked."""
    with suppress(NvmlError, IndexError):
        return read_gpus()[0]
    return {}
