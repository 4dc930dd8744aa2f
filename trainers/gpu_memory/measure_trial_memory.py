"""Measures the GPU memory that a trial uses in this process.

The usage is added to results and written to a file in the run's folder. Ray stores only the reports of the first Train
worker, and only reports with a checkpoint, so the usage of the other workers is only in this file.
"""

import json
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tune_policies.plan.default_overhead import safe_overhead_bytes
from tune_policies.probe.nvml import DeviceUse, NvmlError, bytes_of_process, read_device_use

from ..usage.gpu_memory_records import ASSUMED, GPU_MEMORY_KEY, GpuMemoryUsage, worker_file
from ..usage.measure_process_usage import NEW_PEAK
from .enforcement import recheck
from .fraction_limits import FractionLimits
from .framework_memory import (
    FrameworkMemory,
    MemoryKind,
    held_bytes,
    read_counters,
    release_unused,
    release_workspaces,
    reset_peaks,
)
from .framework_overhead import Assumption

_KINDS: Final[tuple[MemoryKind, MemoryKind]] = ("allocated", "reserved")
_BY_ALLOCATOR: Final = "the reserved peak and the overhead"
_BY_DRIVER: Final = "the memory of the process (NVML)"


class TrialUsage:
    """Measures the memory usage of a trial with the frameworks' counters.

    Methods that read the memory of a framework raise a ``ProbeError`` if the memory cannot be read.

    Attributes:
        limits: The limits of the trial.
        left_over_bytes: The memory that an earlier trial left in the process, in bytes.
        num_ooms: The number of failed allocations of this trial.
        warnings: Warnings for the trial's results, except the warnings of its limits.
    """

    def __init__(self, limits: FractionLimits) -> None:
        self.limits = limits
        self.left_over_bytes = 0
        self.num_ooms = 0
        self.warnings: list[str] = []
        self._seen_ooms: dict[str, int] = {}
        self._peaks: dict[MemoryKind, dict[str, int]] = {kind: {} for kind in _KINDS}
        self._reported_peaks: dict[MemoryKind, int] = {}
        self._reported_notes: tuple[int, ...] = ()

    def begin(self) -> None:
        """Release the memory that an earlier trial left in this process, and start counting.

        Memory that is still referenced cannot be released, and counts as left over.
        """
        release_workspaces()
        release_unused()
        # After the release, because a reset sets the peaks to the memory that is in use.
        reset_peaks()
        now = read_counters()
        self.left_over_bytes = held_bytes(now)
        # The counters of the frameworks never restart with a trial, so their values now are the base.
        self._count_ooms(now)
        self.num_ooms = 0  # do not count earlier trials

    def rebase(self) -> None:
        """Reset the peaks after a trainable was reset. Memory that the trainable keeps counts toward the new trial."""
        self.left_over_bytes = 0
        for peaks in self._peaks.values():
            peaks.clear()
        release_unused()
        reset_peaks()

    def warn(self, messages: Iterable[str]) -> None:
        """Add warnings to later results of the trial, without duplicates."""
        self.warnings = list(dict.fromkeys([*self.warnings, *messages]))

    def has_news(self) -> bool:
        """Return whether a peak has grown by 5 %, or an allocation has failed or a note was added, since ``read``.

        This method does not call the driver, because it runs for each result.
        """
        counters = read_counters()
        self._count_ooms(counters)
        peaks = self._update_peaks(counters)
        if self._notes() != self._reported_notes:
            return True
        return any(peak > NEW_PEAK * self._reported_peaks.get(kind, 0) for kind, peak in peaks.items())

    def _notes(self) -> tuple[int, ...]:
        limits = self.limits
        notes = (limits.limit_bytes, limits.not_enforceable, limits.warnings, self.warnings)
        return (self.num_ooms, *map(len, notes))

    def read(self) -> GpuMemoryUsage:
        """Return the memory usage of the trial so far."""
        limits, counters = self.limits, read_counters()
        # User code may have removed a limit since the last reading.
        recheck(limits)
        self._count_ooms(counters)
        peaks = self._update_peaks(counters)
        self._reported_peaks, self._reported_notes = peaks, self._notes()
        sources = {f"peak_{kind}_bytes": _sources(counters, kind) for kind in _KINDS}
        devices, process_bytes, sources["process_bytes"] = _process_bytes(limits, held_bytes(counters))
        overhead_bytes, sources["overhead_bytes"] = _overhead(process_bytes, counters, limits)
        share_bytes = None if limits.share.is_whole else limits.share_bytes
        reserved = peaks.get("reserved")
        # The driver reports the current memory, and the allocators report their peaks. Each may miss memory that the
        # other counts, so the larger figure decides whether the process stayed within its fraction.
        by_allocator = None
        if reserved is not None and overhead_bytes is not None:
            by_allocator = reserved + overhead_bytes
        known = [amount for amount in (process_bytes, by_allocator) if amount is not None]
        share_kept = None
        if known and share_bytes is not None:
            share_kept = max(known) <= share_bytes
            sources["share_kept"] = _basis(process_bytes, by_allocator, limits)
        return GpuMemoryUsage(
            pid=os.getpid(),
            gpus=limits.share.fraction,
            device_bytes=min((device.total_bytes for device in devices), default=None),
            share_bytes=share_bytes,
            limit_bytes=dict(limits.limit_bytes),
            peak_allocated_bytes=peaks.get("allocated"),
            peak_reserved_bytes=reserved,
            process_bytes=process_bytes,
            overhead_bytes=overhead_bytes,
            num_ooms=self.num_ooms,
            share_kept=share_kept,
            left_over_bytes=self.left_over_bytes,
            isolation=limits.isolation,
            not_enforceable=tuple(limits.not_enforceable),
            warnings=(*limits.warnings, *self.warnings),
            sources={name: text for name, text in sources.items() if text},
        )

    def _count_ooms(self, counters: Mapping[str, FrameworkMemory]) -> None:
        """Add the failed allocations since the last reading to ``num_ooms``."""
        for name, memory in counters.items():
            if memory.num_ooms is None:
                continue
            seen = self._seen_ooms.get(name, 0)
            if memory.num_ooms < seen:  # user code may reset torch's counter to 0
                seen = 0
            self.num_ooms += memory.num_ooms - seen
            self._seen_ooms[name] = memory.num_ooms

    def _update_peaks(self, counters: Mapping[str, FrameworkMemory]) -> dict[MemoryKind, int]:
        """Return the sum of all frameworks' peaks in bytes, keyed by the kind of memory.

        The highest peaks of all readings are used, because CuPy only reports current memory, and user code may reset a
        framework's peaks.
        """
        for kind, highest in self._peaks.items():
            for name, memory in counters.items():
                peak = memory.peak_bytes(kind)
                if peak is not None:
                    highest[name] = max(peak, highest.get(name, 0))
        allocated, reserved = self._peaks["allocated"], self._peaks["reserved"]
        if reserved:
            # A framework that reports only the memory of its tensors reserves at least this memory.
            reserved = {**allocated, **reserved}
        by_kind: dict[MemoryKind, dict[str, int]] = {"allocated": allocated, "reserved": reserved}
        return {kind: sum(peaks.values()) for kind, peaks in by_kind.items() if peaks}


def _sources(counters: Mapping[str, FrameworkMemory], kind: MemoryKind) -> str:
    known = [memory.how for memory in counters.values() if memory.peak_bytes(kind) is not None]
    silent = [name for name, memory in counters.items() if memory.peak_bytes(kind) is None]
    instead = ""
    if kind == "reserved" and known:
        instead = ", so the memory of its tensors is reported instead"
    return "; ".join([*known, *(f"{name} does not report this value{instead}" for name in silent)])


def _process_bytes(limits: FractionLimits, held: int) -> tuple[list[DeviceUse], int | None, str]:
    """Return the devices, this process's memory in bytes as reported by the driver, and a description of its source.

    If the memory is ``None``, the description contains the reason.
    """
    device = limits.share.device
    if device != "GPU":
        return [], None, f"unknown: only NVIDIA's driver is read, not the driver of the {device}"
    try:
        devices = read_device_use()
    except NvmlError as error:
        if limits.has_simulated_gpu:
            return [], None, "unknown, because the GPU is simulated"
        return [], None, f"unknown, because NVIDIA's driver cannot be queried: {error}"
    found = bytes_of_process(devices)
    if not devices:
        why = "the process detects no GPU"
    elif limits.by_driver:
        why = f"with {limits.by_driver.upper()}, the driver does not report the memory of each process"
    elif found is None:
        why = "the driver does not list this process, which is usual in a container or before the first use of the GPU"
    elif found < held:  # on the host, this process ID belongs to another process
        why = "the process IDs of the driver and of this container differ"
    else:
        return devices, found, "NVML, now"
    return devices, None, f"unknown: {why}"


def _overhead(
    process_bytes: int | None, counters: Mapping[str, FrameworkMemory], limits: FractionLimits
) -> tuple[int | None, str]:
    reserved = [memory.reserved_bytes for memory in counters.values()]
    # A difference is known only if every allocator reports what it reserves.
    if process_bytes is not None and reserved and None not in reserved:
        return process_bytes - sum(
            amount or 0 for amount in reserved
        ), f"{_BY_DRIVER} minus the memory of the allocators"
    if limits.overheads:
        sources = "; ".join(f"{name}: {source}" for name, (_, source) in limits.overheads.items())
        return limits.overhead_of(limits.overheads), sources
    if not counters:
        return None, ""
    # Without a limit, no overhead was subtracted and stored.
    sources = "; ".join(f"{name}: {Assumption.SAFE_DEFAULT}" for name in counters)
    return sum(map(safe_overhead_bytes, counters)), sources


def _basis(process_bytes: int | None, by_allocator: int | None, limits: FractionLimits) -> str:
    """Return a string with the figures that determine whether the process stayed within its fraction."""
    if process_bytes is not None:
        if by_allocator is not None:
            return f"{_BY_ALLOCATOR}, and {_BY_DRIVER}"
        return _BY_DRIVER
    is_assumed = any(source is Assumption.SAFE_DEFAULT for _, source in limits.overheads.values())
    if is_assumed:
        return ASSUMED
    return _BY_ALLOCATOR


_WRITTEN: Final = ("peak_allocated_bytes", "peak_reserved_bytes", "num_ooms", "share_kept", "warnings")
"""The usage is written only if one of these fields has changed, because storage may be slow."""


@dataclass
class RunFolder:
    """The folder of this process's usage file, in a pyarrow filesystem. ``rank`` is the Train worker's rank, or 0."""

    filesystem: Any
    path: str
    rank: int
    _written: tuple[Any, ...] = ()

    def keep(self, usage: GpuMemoryUsage | None) -> None:
        """Write the usage of this process if it has changed. A failure causes only a warning."""
        if usage is None:
            return
        fields = tuple(getattr(usage, name) for name in _WRITTEN)
        if fields == self._written:
            return
        from tune_policies.files.writing import put_text

        # Set before the attempt, so that a broken storage is not tried again until the values change.
        self._written = fields
        text = json.dumps({GPU_MEMORY_KEY: usage.model_dump(mode="json")})
        file = f"{self.path}/{worker_file(self.rank, os.getpid())}"
        try:
            # The trial's folder may not exist before the trial's first result.
            put_text(self.filesystem, file, text)
        except Exception as error:  # noqa: BLE001  # filesystems raise their own errors, which must not end the run
            warnings.warn(f"the memory usage of the worker cannot be written to {file}: {error}", stacklevel=2)
