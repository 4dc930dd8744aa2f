"""The GPU memory that this process's trial has used since it started.

It is part of each result, of the error of a trial that ran out of memory, and of a file in the run's folder. The file
is needed because Ray keeps only the report of the first Train worker, and only with a checkpoint.
"""

import contextlib
import copyreg
import functools
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tune_policies.files.writing import put_text
from tune_policies.oom import classify_oom
from tune_policies.probe.nvml import DeviceUse, NvmlError, bytes_of_process, read_device_use
from tune_policies.tune.usage.gpu_memory_usage import ASSUMED, GPU_MEMORY_KEY, USAGE_NOTE, GpuMemoryUsage, worker_file
from tune_policies.tune.usage.process_usage import USAGE_KEY
from tune_policies.values.errors import ProbeError

from ..usage_meter import process_usage
from .counters import FrameworkMemory, MemoryKind, read_counters, release_unused, reset_peaks
from .enforcement import rechecked_limit_report, require_limit
from .overhead import SAFE_DEFAULT
from .share import LimitReport, SharedDevice

_KINDS: Final[tuple[MemoryKind, MemoryKind]] = ("allocated", "reserved")


@dataclass
class TrialMemoryStats:
    """Counts of a trial in addition to the frameworks' own counters.

    Attributes:
        gpus: The amount of devices that Ray assigned to it.
        left_over_bytes: The memory that an earlier trial left in the process.
        seen_ooms: Failed allocations at the last reading, by framework.
        num_ooms: Failed allocations of this trial.
        peaks: The highest readings, by kind and framework.
        warnings: Warnings for its results, except those of its limits.
    """

    gpus: float
    device: SharedDevice = "GPU"
    left_over_bytes: int = 0
    seen_ooms: dict[str, int] = field(default_factory=dict)
    num_ooms: int = 0
    peaks: dict[MemoryKind, dict[str, int]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def count_ooms(self, counters: Mapping[str, FrameworkMemory]) -> None:
        """Add the failed allocations since the last reading."""
        for name, memory in counters.items():
            if memory.num_ooms is None:
                continue
            seen = self.seen_ooms.get(name, 0)
            # User code may reset torch's counter to 0.
            self.num_ooms += memory.num_ooms - seen if memory.num_ooms >= seen else memory.num_ooms
            self.seen_ooms[name] = memory.num_ooms


_stats: TrialMemoryStats | None = None
"""The counts of the current trial, or ``None`` if no plan was applied to it, or it has no GPU."""


def begin_stats(gpus: float, device: SharedDevice = "GPU") -> None:
    """Start the counts of a trial, and release the memory that an earlier trial left in this process.

    Memory with references cannot be released and counts as left over.
    """
    global _stats
    _stats = TrialMemoryStats(gpus=gpus, device=device)
    try:
        release_unused()
        reset_peaks()
        now = read_counters()
    except ProbeError as error:
        _warn_usage_unknown(error)
        return
    _stats.left_over_bytes = held_bytes(now)
    _stats.count_ooms(now)
    _stats.num_ooms = 0  # of earlier trials


def rebase_stats() -> None:
    """Reset the peaks after a trainable was reset. The memory that it keeps is its own."""
    if _stats is None:
        return
    try:
        release_unused()
        reset_peaks()
    except ProbeError as error:
        _warn_usage_unknown(error)
    _stats.left_over_bytes = 0
    _stats.peaks.clear()


def add_warnings(messages: Iterable[str]) -> None:
    """Add warnings to later results of the trial, each once."""
    if _stats is not None:
        _stats.warnings = list(dict.fromkeys([*_stats.warnings, *messages]))


def has_warnings() -> bool:
    """Return whether there are warnings, which results of the trial may not have yet."""
    return _stats is not None and bool(_stats.warnings)


def held_bytes(counters: Mapping[str, FrameworkMemory] | None = None) -> int:
    """Return the GPU memory that the frameworks of this process hold now, in bytes.

    Raises:
        ProbeError: A framework cannot be read.
    """
    return sum(memory.held_bytes for memory in (read_counters() if counters is None else counters).values())


def _warn_usage_unknown(error: ProbeError) -> None:
    warn_once(f"what the trial used is not known: {error}")


@functools.cache
def warn_once(message: str) -> None:
    """Warn once in a process."""
    warnings.warn(message, stacklevel=3)


def peak_gpu_memory_bytes() -> int | None:
    """Return the peak GPU memory of this process's frameworks on all devices in bytes, or ``None`` if none used a GPU.

    The figure counts the memory that the allocators reserved (PyTorch, CuPy) or the memory of tensors (TensorFlow,
    JAX). It does not include memory outside the allocators.

    Raises:
        ProbeError: A framework cannot be read.
    """
    peaks = [
        memory.peak_allocated_bytes if memory.peak_reserved_bytes is None else memory.peak_reserved_bytes
        for memory in read_counters().values()
    ]
    known = [peak for peak in peaks if peak is not None]
    return sum(known) if known else None


def gpu_memory_usage() -> GpuMemoryUsage | None:
    """Return the use of this process's share of GPU memory, or ``None`` without a GPU or a plan.

    Raises:
        ProbeError: A framework cannot be read.
    """
    stats = _stats
    if stats is None:
        return None
    counters = read_counters()
    peaks = _peaks(stats, counters)
    report = rechecked_limit_report() or LimitReport()
    sources = {f"peak_{kind}_bytes": _sources(counters, kind) for kind in _KINDS}
    devices, process_bytes, sources["process_bytes"] = _process_bytes(stats.device, report, held_bytes(counters))
    overhead_bytes, sources["overhead_bytes"] = _overhead(process_bytes, counters, report)
    share_bytes = report.share_bytes if stats.gpus < 1 else None
    peak_reserved = peaks.get("reserved")
    # The driver reports the current memory, and the allocators their peaks.
    most = [process_bytes] if process_bytes is not None else []
    if peak_reserved is not None and overhead_bytes is not None:
        most.append(peak_reserved + overhead_bytes)
    share_kept = max(most) <= share_bytes if most and share_bytes is not None else None
    if share_kept is not None:
        sources["share_kept"] = _what_share_kept_rests_on(most, process_bytes, report)
    stats.count_ooms(counters)
    return GpuMemoryUsage(
        pid=os.getpid(),
        gpus=stats.gpus,
        device_bytes=min((device.total_bytes for device in devices), default=None),
        share_bytes=share_bytes,
        limit_bytes=dict(report.limit_bytes),
        peak_allocated_bytes=peaks.get("allocated"),
        peak_reserved_bytes=peak_reserved,
        process_bytes=process_bytes,
        overhead_bytes=overhead_bytes,
        num_ooms=stats.num_ooms,
        share_kept=share_kept,
        left_over_bytes=stats.left_over_bytes,
        isolation=report.isolation,
        not_enforceable=tuple(report.not_enforceable),
        warnings=(*report.warnings, *stats.warnings),
        sources={name: text for name, text in sources.items() if text},
    )


def _usage_if_known() -> GpuMemoryUsage | None:
    """Return :func:`gpu_memory_usage`, or warn once if a framework cannot be read."""
    try:
        return gpu_memory_usage()
    except ProbeError as error:
        _warn_usage_unknown(error)
        return None


def with_usage(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return ``metrics`` with the process's use of resources as ``"usage"``, and of GPU memory as ``"gpu_memory"``.

    Existing values stay. If a framework cannot be read, there is only a warning. Ray rejects metrics that are no dict.

    Raises:
        MemoryLimitError: The process could not be limited to its share.
    """
    require_limit()
    if not isinstance(metrics, dict):
        return metrics
    if USAGE_KEY not in metrics and (used := process_usage()) is not None:
        metrics = {**metrics, USAGE_KEY: used.model_dump()}
    usage = _usage_if_known()
    if usage is None:
        return metrics
    if GPU_MEMORY_KEY in metrics:
        warn_once(
            f"the metrics have a {GPU_MEMORY_KEY!r} of their own, so what the trial used is not added to them: rename "
            "it, or report gpu_memory_usage() under another key"
        )
        return metrics
    return {**metrics, GPU_MEMORY_KEY: usage.to_result()}


@contextlib.contextmanager
def noted_on_oom() -> Iterator[None]:
    """Add a note with this process's use to an out-of-memory error of a GPU.

    A failed trial reports no result, but Tune writes the note into ``error.txt``.
    """
    try:
        yield
    except Exception as error:
        is_noted = any(note.startswith(USAGE_NOTE) for note in getattr(error, "__notes__", ()))  # by an inner call
        if _stats is not None and not is_noted and classify_oom(error).kind == "accelerator":
            _note(error, _stats)
        raise


class _NotesOfProcess(list[str]):
    """The notes of an error, which are pickled without the usage.

    Ray also sends the text of the traceback with the usage, so Python would print it twice.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ([note for note in self if not note.startswith(USAGE_NOTE)],)


def _note(error: Exception, stats: TrialMemoryStats) -> None:
    before = stats.num_ooms
    usage = _usage_if_known()
    if stats.num_ooms == before:  # most frameworks count none, and torch none of cuBLAS, cuDNN and MPS
        stats.num_ooms += 1
    if usage is not None:
        usage = usage.model_copy(update={"num_ooms": stats.num_ooms})
        error.add_note(USAGE_NOTE + json.dumps(usage.model_dump(mode="json")))
        error.__notes__ = _NotesOfProcess(error.__notes__)
        # Tune copies a function's error, and CuPy's errors are copied without their state.
        if len(error.__reduce_ex__(4)) == 2:
            copyreg.pickle(type(error), lambda each: (*each.__reduce_ex__(4)[:2], each.__dict__))


def _peaks(stats: TrialMemoryStats, counters: Mapping[str, FrameworkMemory]) -> dict[MemoryKind, int]:
    """Return the peaks over all frameworks, which are never below earlier readings.

    CuPy only reports current memory, and user code may reset a framework's peaks.
    """
    for kind in _KINDS:
        highest = stats.peaks.setdefault(kind, {})
        for name, memory in counters.items():
            peak = memory.peak_bytes(kind)
            if peak is not None:
                highest[name] = max(peak, highest.get(name, 0))
    allocated, reserved = (stats.peaks[kind] for kind in _KINDS)
    if reserved:
        reserved = {**allocated, **reserved}  # a framework that reports only tensors reserves at least their memory
    return {kind: sum(peaks.values()) for kind, peaks in zip(_KINDS, (allocated, reserved), strict=True) if peaks}


def _sources(counters: Mapping[str, FrameworkMemory], kind: MemoryKind) -> str:
    known = [memory.how for memory in counters.values() if memory.peak_bytes(kind) is not None]
    silent = [name for name, memory in counters.items() if memory.peak_bytes(kind) is None]
    instead = ", so what its tensors took counts" if kind == "reserved" and known else ""
    return "; ".join([*known, *(f"{name} does not tell{instead}" for name in silent)])


def _process_bytes(device: SharedDevice, report: LimitReport, held: int) -> tuple[list[DeviceUse], int | None, str]:
    """Return the devices, the driver's figure for this process, and its source or why it is not known."""
    if device != "GPU":
        return [], None, f"not known: only the driver of NVIDIA's GPUs is asked, not that of the {device}"
    try:
        devices = read_device_use()
    except NvmlError as error:
        return [], None, f"not known: the driver cannot be asked how full the GPU is: {error}"
    found = bytes_of_process(devices)
    if not devices:
        why = "the process sees no GPU"
    elif report.isolation in ("mps", "mig"):
        why = f"under {report.isolation.upper()} the driver does not count by process"
    elif found is None:
        why = "the driver does not list this process, as in a container or before it uses the GPU"
    elif found < held:  # the process ID is that of another process, on the host
        why = "the driver and this container number processes differently"
    else:
        return devices, found, "NVML, now"
    return devices, None, f"not known: {why}"


def _overhead(
    process_bytes: int | None, counters: Mapping[str, FrameworkMemory], report: LimitReport
) -> tuple[int | None, str]:
    reserved = [memory.reserved_bytes for memory in counters.values()]
    if process_bytes is not None and reserved and None not in reserved:
        return process_bytes - sum(each or 0 for each in reserved), "the process by NVML less what the allocators hold"
    if report.overhead_bytes:
        names = [f"{name}: {report.overhead_sources.get(name, SAFE_DEFAULT)}" for name in report.overhead_bytes]
        return report.overhead_of(report.overhead_bytes), "; ".join(names)
    return None, ""


def _what_share_kept_rests_on(most: list[int], process_bytes: int | None, report: LimitReport) -> str:
    if process_bytes is not None:
        beside = "the reserved peak and the overhead, and " if len(most) > 1 else ""
        return f"{beside}the process by NVML"
    sources = [report.overhead_sources.get(name, SAFE_DEFAULT) for name in report.overhead_bytes]
    return ASSUMED if SAFE_DEFAULT in sources else "the reserved peak and the overhead"


_WRITTEN: Final = ("peak_allocated_bytes", "peak_reserved_bytes", "num_ooms", "share_kept", "warnings")
"""The fields whose change is worth another write, because storage may be slow and reports frequent."""


@dataclass
class RunFolder:
    """The folder for this process's record, in a filesystem of pyarrow. ``rank`` is the worker's, or 0 in a trial."""

    filesystem: Any
    path: str
    rank: int
    _written: GpuMemoryUsage | None = None

    def keep(self) -> None:
        """Write this process's use if it has changed, or warn if this fails."""
        usage = _usage_if_known()
        if usage is None or _worth_writing(usage) == _worth_writing(self._written):
            return
        self._written = usage
        text = json.dumps({GPU_MEMORY_KEY: usage.model_dump(mode="json")})
        file = f"{self.path}/{worker_file(self.rank, os.getpid())}"
        try:
            # The trial's folder may not exist before its first result.
            put_text(self.filesystem, file, text)
        except Exception as error:  # noqa: BLE001  # filesystems have errors of their own, and none must end the run
            warnings.warn(f"what the worker used is not kept in {file}: {error}", stacklevel=2)


def _worth_writing(usage: GpuMemoryUsage | None) -> list[Any]:
    return [getattr(usage, name, None) for name in _WRITTEN] if usage else []
