"""Measures the CPU time, host memory and GPU utilization of a trial in this process.

The kernel records CPU time and peak host memory. The first result of a trial contains them, and later results contain
them every two seconds or after the peak has grown by 5 %. Child processes are read every ten seconds and after a child
has ended, and the GPU is sampled every two seconds. All readings together take less than 0.5 % of a CPU.
"""

import contextlib
import os
import resource
import threading
import time
from pathlib import Path
from typing import Final

from tune_policies.probe.nvml import GpuCounters
from tune_policies.probe.process_facts import peak_bytes_of

from ..gpu_memory.free_memory import shipped_psutil
from .process_usage import ProcessUsage, mean_utilization

_READ_EVERY_S: Final = 2.0
_CHILDREN_EVERY_S: Final = 10.0
_SAMPLE_GPU_EVERY_S: Final = 2.0
NEW_PEAK: Final = 1.05
"""The ratio of a new peak to the last reported peak from which the new peak is reported without delay."""


class ProcessMeter:
    """Measures the resource usage of this process during one trial.

    Args:
        cpus: The number of CPUs that the process reserves.
        has_gpu: Whether to sample the GPUs of the process.

    Attributes:
        samples_gpu: Whether the GPUs are sampled. It is ``False`` if there are none, or if they are simulated.
    """

    def __init__(self, cpus: float, *, has_gpu: bool) -> None:
        self._cpus = cpus
        self._process = shipped_psutil().Process()
        self._children_read_s = -_CHILDREN_EVERY_S
        self._children_cpu_s = 0.0
        self._children_bytes = 0
        self._ended_children_s = 0.0
        self._has_peak = False
        self._peak_bytes = 0
        self._next_read_s = 0.0
        self._reported_rss = 0
        self._utilization: list[float] = []
        self._ended = threading.Event()
        with contextlib.suppress(OSError):
            # The value 5 resets the peak host memory that the kernel records, ``VmHWM`` (``man proc_pid_clear_refs``).
            Path("/proc/self/clear_refs").write_text("5")
            self._has_peak = True
        self._began_s = time.monotonic()
        self._cpu_s_before = self._cpu_s()
        counters = None
        if has_gpu:
            counters = GpuCounters.visible()
        self.samples_gpu = counters is not None
        if counters is not None:
            threading.Thread(target=self._sample, args=(counters,), daemon=True).start()

    def end(self) -> None:
        """Stop sampling."""
        self._ended.set()

    def is_due(self) -> bool:
        """Return whether the next result should contain the usage."""
        # This method runs for each result. Reading the usage takes about a hundred times as long.
        return time.monotonic() >= self._next_read_s or _peak_rss() > NEW_PEAK * self._reported_rss

    def read(self) -> ProcessUsage:
        """Return the usage since the trial began."""
        self._next_read_s = time.monotonic() + _READ_EVERY_S
        self._reported_rss = _peak_rss()
        cpu_s = self._cpu_s() - self._cpu_s_before
        self._peak_bytes = max(self._peak_bytes, self._own_bytes() + self._children_bytes)
        return ProcessUsage(
            elapsed_s=round(time.monotonic() - self._began_s, 3),
            cpus=self._cpus,
            cpu_s=round(max(0.0, cpu_s), 3),
            host_memory_bytes=self._peak_bytes,
            gpu_utilization=mean_utilization(self._utilization),
        )

    def _cpu_s(self) -> float:
        now_s, times = time.monotonic(), self._process.cpu_times()
        ended_children_s = times.children_user + times.children_system
        # When a child has ended, its CPU time is part of ``ended_children_s``, so read the other children again.
        if ended_children_s != self._ended_children_s or now_s - self._children_read_s >= _CHILDREN_EVERY_S:
            self._children_read_s, self._ended_children_s = now_s, ended_children_s
            self._read_children()
        return float(times.user + times.system + ended_children_s + self._children_cpu_s)

    def _read_children(self) -> None:
        self._children_cpu_s, self._children_bytes = 0.0, 0
        if not _has_children():  # searching for children reads every process of the machine
            return
        psutil = shipped_psutil()
        for child in self._process.children(recursive=True):
            with contextlib.suppress(psutil.Error):  # the child has ended
                self._children_cpu_s += sum(child.cpu_times()[:4])  # includes its own children that have ended
                self._children_bytes += child.memory_info().rss

    def _own_bytes(self) -> int:
        peak = None
        if self._has_peak:
            peak = peak_bytes_of(os.getpid())
        if peak is not None:
            return peak
        return int(self._process.memory_info().rss)

    def _sample(self, counters: GpuCounters) -> None:
        while not self._ended.wait(_SAMPLE_GPU_EVERY_S):
            utilization = counters.utilization()
            if utilization is None:
                return
            self._utilization.append(utilization)


def _has_children() -> bool:
    """Return whether this process has child processes, or whether that is not known."""
    if not hasattr(os, "waitid"):
        return True
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # leaves ended children to their owner
        return True
    return False


def _peak_rss() -> int:
    """Return the peak host memory of this process without its children, in the unit of the operating system."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
