"""What this process's trial has used of its share of GPU memory.

Counted from the trial's start on; said in each result, in the error of a trial that ran out, and in the run's folder.

The file in the run's folder is needed beside results: Ray keeps only the first Train worker's report, only with a
checkpoint, and nobody knows beforehand which worker uses most. What comes up as a trial ends is too late for a result.
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
    """What is counted over one trial beside the frameworks' own counters.

    Attributes:
        gpus: The devices that Ray gave it.
        device: Ray's name of them.
        left_over_bytes: What an earlier trial had left in the process.
        seen_ooms: Allocations that were refused when each framework was last asked, by its own count.
        num_ooms: Those of this trial.
        peaks: The highest that was read, by kind and framework.
        warnings: What its results warn of, beside those of its limits.
    """

    gpus: float
    device: SharedDevice = "GPU"
    left_over_bytes: int = 0
    seen_ooms: dict[str, int] = field(default_factory=dict)
    num_ooms: int = 0
    peaks: dict[MemoryKind, dict[str, int]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def count_ooms(self, counters: Mapping[str, FrameworkMemory]) -> None:
        """Add what the frameworks have counted since they were last asked."""
        for name, memory in counters.items():
            if memory.num_ooms is None:
                continue
            seen = self.seen_ooms.get(name, 0)
            # The user's own code may reset torch's counter; then it began at 0 again.
            self.num_ooms += memory.num_ooms - seen if memory.num_ooms >= seen else memory.num_ooms
            self.seen_ooms[name] = memory.num_ooms


_stats: TrialMemoryStats | None = None
"""Of the trial that this process runs; ``None``: no plan was applied to it, or it has no GPU."""


def begin_stats(gpus: float, device: SharedDevice = "GPU") -> None:
    """Begin to count for a trial that Ray gave so many devices, and free what an earlier one left in this process.

    What something still refers to cannot be freed: it counts as left over.
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
    _stats.num_ooms = 0  # those were an earlier trial's


def rebase_stats() -> None:
    """Begin the peaks anew from what the process holds now: a class was reset, and what it keeps is its own."""
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
    """Add warnings to the trial's further results, each once."""
    if _stats is not None:
        _stats.warnings = list(dict.fromkeys([*_stats.warnings, *messages]))


def has_warnings() -> bool:
    """Return whether there is a warning that no result of the trial may have said."""
    return _stats is not None and bool(_stats.warnings)


def held_bytes(counters: Mapping[str, FrameworkMemory] | None = None) -> int:
    """Return what the frameworks of this process hold now, as far as they tell.

    Raises:
        ProbeError: A framework does not answer.
    """
    return sum(memory.held_bytes for memory in (read_counters() if counters is None else counters).values())


def _warn_usage_unknown(error: ProbeError) -> None:
    warn_once(f"what the trial used is not known: {error}")


@functools.cache  # once a process, not at each report
def warn_once(message: str) -> None:
    """Warn."""
    warnings.warn(message, stacklevel=3)


def peak_gpu_memory_bytes() -> int | None:
    """Return the most GPU memory that this process's frameworks have held, over all its devices.

    What a framework uses outside its allocator is not in it. The figure is what the allocator reserved where the
    framework tells (PyTorch, CuPy), else what its tensors took (TensorFlow, JAX). ``None``: none has used a GPU.

    Raises:
        ProbeError: A framework does not answer.
    """
    peaks = [
        memory.peak_allocated_bytes if memory.peak_reserved_bytes is None else memory.peak_reserved_bytes
        for memory in read_counters().values()
    ]
    known = [peak for peak in peaks if peak is not None]
    return sum(known) if known else None


def gpu_memory_usage() -> GpuMemoryUsage | None:
    """Return what this process has used of its share of GPU memory so far.

    ``None``: it has no GPU, or no plan was applied to it.

    Raises:
        ProbeError: A framework does not answer.
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
    # The driver counts what is held now, the allocators know their peak: the share was kept if neither is beyond it.
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
    """Return :func:`gpu_memory_usage`; where a framework does not answer, ``None`` and a warning, once."""
    try:
        return gpu_memory_usage()
    except ProbeError as error:
        _warn_usage_unknown(error)
        return None


def with_usage(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return ``metrics`` with what this process has used under ``"usage"``, and of GPU memory under ``"gpu_memory"``.

    The user's own values there stay. No trial fails because a framework does not answer: there is a warning, and
    ``metrics`` stay as they are. So does what is no dict, for Ray to refuse.

    Raises:
        MemoryLimitError: The process could not be held to its share.
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
    """Add what this process has used to an error that means that GPU memory ran out.

    A trial that fails reports no result; the note goes with its error into Tune's ``error.txt``.
    """
    try:
        yield
    except Exception as error:
        if _stats is not None and classify_oom(error).kind == "accelerator":
            _note(error, _stats)
        raise


class _NotesOfProcess(list[str]):
    """The notes to an error, of which the record of its usage stays in this process.

    Ray sends the text of the traceback too, which has the record. If it came with the error as well, Python would print
    it twice.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ([note for note in self if not note.startswith(USAGE_NOTE)],)


def _note(error: Exception, stats: TrialMemoryStats) -> None:
    before = stats.num_ooms
    usage = _usage_if_known()
    if stats.num_ooms == before:  # not by the framework: most count none, torch not those of cuBLAS, cuDNN and MPS
        stats.num_ooms += 1
    if usage is not None:
        usage = usage.model_copy(update={"num_ooms": stats.num_ooms})
        error.add_note(USAGE_NOTE + json.dumps(usage.model_dump(mode="json")))
        error.__notes__ = _NotesOfProcess(error.__notes__)
        # Tune copies a function's error. CuPy's are copied without their state: give them theirs.
        if len(error.__reduce_ex__(4)) == 2:
            copyreg.pickle(type(error), lambda each: (*each.__reduce_ex__(4)[:2], each.__dict__))


def _peaks(stats: TrialMemoryStats, counters: Mapping[str, FrameworkMemory]) -> dict[MemoryKind, int]:
    """Return the peaks over all frameworks, never below those of an earlier report.

    CuPy only tells what it holds now, and the user's own code may reset a framework's peaks.
    """
    for kind in _KINDS:
        highest = stats.peaks.setdefault(kind, {})
        for name, memory in counters.items():
            peak = memory.peak_bytes(kind)
            if peak is not None:
                highest[name] = max(peak, highest.get(name, 0))
    allocated, reserved = (stats.peaks[kind] for kind in _KINDS)
    if reserved:
        reserved = {**allocated, **reserved}  # of a framework that does not tell, at least what its tensors took
    return {kind: sum(peaks.values()) for kind, peaks in zip(_KINDS, (allocated, reserved), strict=True) if peaks}


def _sources(counters: Mapping[str, FrameworkMemory], kind: MemoryKind) -> str:
    known = [memory.how for memory in counters.values() if memory.peak_bytes(kind) is not None]
    silent = [name for name, memory in counters.items() if memory.peak_bytes(kind) is None]
    instead = ", so what its tensors took counts" if kind == "reserved" and known else ""
    return "; ".join([*known, *(f"{name} does not tell{instead}" for name in silent)])


def _process_bytes(device: SharedDevice, report: LimitReport, held: int) -> tuple[list[DeviceUse], int | None, str]:
    """Return the devices, what the driver counts for this process, and how that is known, or why not."""
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
    elif found < held:  # the number is that of another process, one of the host's
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
"""What is worth another write: storage may be far away, and a report a second is nothing unusual."""


@dataclass
class RunFolder:
    """Where this process's record is: a filesystem of pyarrow, as Ray writes the run's results, and a folder in it.

    The rank is the worker's; 0 in a trial.
    """

    filesystem: Any
    path: str
    rank: int
    _written: GpuMemoryUsage | None = None

    def keep(self) -> None:
        """Write down what this process has used so far, if there is news; what cannot be written is a warning."""
        usage = _usage_if_known()
        if usage is None or _worth_writing(usage) == _worth_writing(self._written):
            return
        self._written = usage
        text = json.dumps({GPU_MEMORY_KEY: usage.model_dump(mode="json")})
        file = f"{self.path}/{worker_file(self.rank, os.getpid())}"
        try:
            # Tune makes a trial's folder with its first result, which may not be there yet.
            put_text(self.filesystem, file, text)
        except Exception as error:  # noqa: BLE001  # each filesystem has errors of its own, and none is worth the run
            warnings.warn(f"what the worker used is not kept in {file}: {error}", stacklevel=2)


def _worth_writing(usage: GpuMemoryUsage | None) -> list[Any]:
    return [getattr(usage, name, None) for name in _WRITTEN] if usage else []
