"""The current trial of this process: its slot, its memory limits, and its measured resource usage."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.values.errors import ProbeError

from ..gpu_memory.enforcement import enforce, limit_imported, require_limit
from ..gpu_memory.fraction_limits import FractionLimits, GpuShare, LimitOptions
from ..gpu_memory.framework_settings import OwnEnvironment
from ..gpu_memory.free_memory import end_gpu_processes, mark_processes, wait_for_free_memory
from ..gpu_memory.measure_trial_memory import RunFolder, TrialUsage
from ..usage.gpu_memory_records import GPU_MEMORY_KEY, GpuMemoryUsage
from ..usage.measure_process_usage import ProcessMeter
from ..usage.process_usage import USAGE_KEY


class CurrentTrial:
    """The current or last trial of this process.

    Attributes:
        slot: The slot of the trial of Tune, or ``None``.
        end_train_run: A function that ends the Train run of the trial, or ``None``.
        checks_workers: Whether the workers of a Train run must fit in the slot. Retries after out-of-memory errors
            exceed it on purpose.
    """

    def __init__(self) -> None:
        self.slot: TrialSlot | None = None
        self.end_train_run: Callable[[], None] | None = None
        self.checks_workers = True
        self._environment = OwnEnvironment()
        self._meter: ProcessMeter | None = None
        self._usage: TrialUsage | None = None
        self._note = ""
        self._warned: set[str] = set()

    def bind(self, cpus: float, share: GpuShare | None, options: LimitOptions, note: str) -> None:
        """Start measuring the usage of a trial, and limit the trial's memory if it has only a fraction of a device.

        Args:
            cpus: The CPUs that the process reserves.
            share: The fraction of a device that the process may use, or ``None`` without a device.
            options: The options of the memory limit.
            note: A note for the resource usage in the trial's results, or ``""``.

        Raises:
            MemoryLimitError: The trial's GPU memory cannot be limited, or other processes use this memory.
        """
        if self._meter is not None:
            # The meter of the earlier trial samples its GPU in a thread.
            self._meter.end()
        earlier = self.limits
        # If a step below fails, a later import must not apply the limits of the earlier trial.
        self._usage = None
        self._note = note
        self._meter = ProcessMeter(cpus, has_gpu=share is not None and share.device == "GPU")
        if share is None:
            return
        if share.device == "GPU":
            # Ray numbers GPUs in the order of the PCI bus, but CUDA's default order starts with the fastest GPU.
            os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        # The order matters: processes must be marked before they start, and the memory of an earlier trial must be
        # released before waiting for free memory.
        mark_processes()
        usage = TrialUsage(FractionLimits(share, options, self._environment))
        with self._warned_if_unknown():
            usage.begin()
        if share.device == "GPU":  # NVML does not support NPUs
            wait_for_free_memory(share, earlier)
        # Set before the limits, so that ``require_limit`` reports a failed limit even if the caller catches the error.
        self._usage = usage
        enforce(usage.limits)

    def limit_imported(self, module: str) -> None:
        """Limit the memory of a framework that was imported after the trial began."""
        if self._usage is not None:
            limit_imported(self._usage.limits, [module])

    @property
    def limits(self) -> FractionLimits | None:
        """The limits of the current trial, or ``None`` if this process has no plan or no device."""
        if self._usage is None:
            return None
        return self._usage.limits

    def require_limit(self) -> None:
        """Raise a ``MemoryLimitError`` if this process could not be limited to its GPU fraction."""
        if self._usage is not None:
            require_limit(self._usage.limits)

    def rebase(self) -> None:
        """Reset the peaks after a trainable was reset. Memory that the trainable keeps counts toward the new trial."""
        if self._usage is not None:
            with self._warned_if_unknown():
                self._usage.rebase()

    def end_gpu_processes(self) -> None:
        """Terminate the trial's processes that use GPU memory, and add warnings about them to the trial's results."""
        messages = end_gpu_processes()
        if self._usage is not None:
            self._usage.warn(messages)

    def gpu_memory_usage(self) -> GpuMemoryUsage | None:
        """Return the GPU memory usage of this process, or ``None`` if the process has no GPU or no plan.

        Raises:
            ProbeError: The memory of a framework cannot be read.
        """
        if self._usage is None:
            return None
        return self._usage.read()

    def keep_usage(self, folder: RunFolder) -> None:
        """Write the GPU memory usage to the folder of a run."""
        folder.keep(self._usage_if_known())

    def keep_warnings(self, storage: Any) -> None:
        """Write the warnings since the last result to the trial's folder, because no later result can include them."""
        if self._usage is not None and self._usage.warnings and storage:
            self.keep_usage(RunFolder(storage.storage_filesystem, storage.trial_fs_path, rank=0))

    def keep_news(self, storage: Any) -> None:
        """Write the GPU memory usage to the trial's folder if the last result does not contain its peaks."""
        if storage and self._has_news():
            self.keep_usage(RunFolder(storage.storage_filesystem, storage.trial_fs_path, rank=0))

    def is_usage_due(self) -> bool:
        """Return whether the next result should contain the usage.

        The first result of a trial contains it, and later results every two seconds, after a new peak, or after a
        failed allocation.
        """
        return (self._meter is not None and self._meter.is_due()) or self._has_news()

    def _has_news(self) -> bool:
        if self._usage is None:
            return False
        try:
            return self._usage.has_news()
        except ProbeError:
            return True  # the next reading adds a warning

    def with_usage(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return ``metrics`` with the resource usage as ``"usage"`` and the GPU memory usage as ``"gpu_memory"``.

        Existing values are not replaced. If the memory of a framework cannot be read, the method warns instead of
        raising an error. Metrics that are not a dict are returned unchanged, so that Ray reports the error.

        Raises:
            MemoryLimitError: The process could not be limited to its GPU fraction.
        """
        self.require_limit()
        if not isinstance(metrics, dict):
            return metrics
        if USAGE_KEY not in metrics and self._meter is not None:
            # Tune's tables show a row for each key, also if it has no value in any result of the trial.
            unknown = set()
            if not self._meter.samples_gpu:
                unknown.add("gpu_utilization")
            if not self._note:
                unknown.add("note")
            read = self._meter.read().model_copy(update={"note": self._note})
            metrics = {**metrics, USAGE_KEY: read.model_dump(exclude=unknown)}
        usage = self._usage_if_known()
        if usage is None:
            return metrics
        if GPU_MEMORY_KEY in metrics:
            self._warn_once(
                f"the metrics already have the key {GPU_MEMORY_KEY!r}, so the trial's GPU memory usage is not added. "
                "Rename the key in your metrics, or report gpu_memory_usage() under another key"
            )
            return metrics
        fields = usage.to_result()
        if self.limits is not None and self.limits.has_simulated_gpu:
            fields = {name: value for name, value in fields.items() if value not in (None, "")}
        return {**metrics, GPU_MEMORY_KEY: fields}

    @contextmanager
    def noted_on_oom(self) -> Iterator[None]:
        """Classify an out-of-memory error where it is raised, and add a report to it.

        A failed trial returns no result, so the report also contains the memory that it used.
        """
        try:
            yield
        except Exception as error:
            with suppress(MemoryError):  # too little memory is left for the report
                self._add_report(error)
            raise

    def _add_report(self, error: Exception) -> None:
        # Few trials need these modules.
        from tune_policies.oom import classify_oom

        from ..usage.oom_report import OomReport
        from .oom_note import add_report, has_report

        out_of_memory = classify_oom(error)
        # A nested context manager may have added the report, and a process without a policy has no meter.
        if out_of_memory.kind == "none" or self._meter is None or has_report(error):
            return
        gpu_memory = None
        if out_of_memory.kind == "accelerator":
            gpu_memory = self._usage_after_oom()
        elif out_of_memory.used_bytes is None:
            used_bytes = self._meter.read().host_memory_bytes
            out_of_memory = out_of_memory.model_copy(update={"used_bytes": used_bytes or None})
        add_report(error, OomReport(out_of_memory=out_of_memory, gpu_memory=gpu_memory))

    def _usage_after_oom(self) -> GpuMemoryUsage | None:
        """Return the GPU memory usage, in which the latest failed allocation counts."""
        if self._usage is None:
            return None
        before = self._usage.num_ooms
        usage = self._usage_if_known()
        # Most frameworks do not count failed allocations, and torch does not count failures in cuBLAS, cuDNN or MPS.
        self._usage.num_ooms = max(self._usage.num_ooms, before + 1)
        if usage is None:
            return None
        return usage.model_copy(update={"num_ooms": self._usage.num_ooms})

    def _usage_if_known(self) -> GpuMemoryUsage | None:
        with self._warned_if_unknown():
            return self.gpu_memory_usage()
        return None

    @contextmanager
    def _warned_if_unknown(self) -> Iterator[None]:
        try:
            yield
        except ProbeError as error:
            self._warn_once(f"the memory usage of the trial is unknown: {error}")

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, stacklevel=3)
