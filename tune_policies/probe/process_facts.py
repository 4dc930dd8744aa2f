"""Reads what processes of this machine use: CPU time, host memory, and GPU memory, each including child processes.

Ray sends this module to nodes without this package, so it needs only Python's standard library, Ray's copy of
``psutil`` and ``nvml``, and returns plain data.
"""

import contextlib
import os
import re
import time
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tune_policies.probe.node_facts import read_usable_cpus
from tune_policies.probe.nvml import DeviceUse, NvmlError, read_device_use

_PEAK: Final = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


def read_processes(process_ids: list[int]) -> dict[str, Any]:
    """Return the time of the reading, the usable CPUs, the load, and the use of each process that exists, by its ID.

    The load is the mean number of processes of the machine that used or waited for a CPU in the last minute, or 0 if
    this process may use only some of the CPUs. The fields of a process are ``cpu_s``, ``host_bytes`` (the peak of the
    process plus the current memory of its children), ``gpu_bytes``, ``device_bytes`` and ``gpu_utilization``, each
    ``None`` if it is not known.
    """
    import_module("ray")  # importing Ray adds psutil to the path
    psutil = import_module("psutil")
    children: dict[int, list[Any]] = defaultdict(list)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # the process has ended
            children[process.ppid()].append(process)
    devices: list[DeviceUse] = []
    with contextlib.suppress(NvmlError):
        devices = read_device_use()
    found: dict[int, dict[str, Any]] = {}
    for process_id in process_ids:
        with contextlib.suppress(psutil.Error):
            found[process_id] = _read(psutil, psutil.Process(process_id), children, devices)
    usable_cpus = read_usable_cpus() or os.cpu_count() or 1
    load = os.getloadavg()[0] if usable_cpus == os.cpu_count() else 0.0
    return {"at_s": time.monotonic(), "usable_cpus": usable_cpus, "load": load, "processes": found}


def peak_bytes_of(process_id: int) -> int | None:
    """Return the peak host memory of a process in bytes, or ``None`` if the kernel does not report it."""
    peak = None
    with contextlib.suppress(OSError):
        peak = _PEAK.search(Path(f"/proc/{process_id}/status").read_text())
    if peak is None:
        return None
    return int(peak[1]) * 1024


def _read(psutil: Any, process: Any, children: dict[int, list[Any]], devices: list[DeviceUse]) -> dict[str, Any]:
    # The first four times are those of the process and of its children that have ended. The loop adds the living ones.
    cpu_s = sum(process.cpu_times()[:4])
    host_bytes = process.memory_info().rss
    # The kernel's peak also includes memory that the process has released before this reading.
    host_bytes = peak_bytes_of(process.pid) or host_bytes
    family = {process.pid}
    waiting = list(children[process.pid])
    while waiting:
        child = waiting.pop()
        family.add(child.pid)
        waiting += children[child.pid]
        with contextlib.suppress(psutil.Error):
            cpu_s += sum(child.cpu_times()[:4])
            host_bytes += child.memory_info().rss
    used = [device for device in devices if family & device.bytes_by_process.keys()]
    amounts = [device.bytes_by_process[pid] for device in used for pid in family & device.bytes_by_process.keys()]
    rates = [device.utilization for device in used if device.utilization is not None]
    utilization = sum(rates) / len(rates) if rates else None
    return {
        "cpu_s": cpu_s,
        "host_bytes": host_bytes,
        "gpu_bytes": sum(filter(None, amounts)) or None,
        "device_bytes": min((device.total_bytes for device in used), default=None),
        "gpu_utilization": utilization,
    }


class ProcessReader:
    """Runs :func:`read_processes` in an actor on another node."""

    def read(self, process_ids: list[int]) -> dict[str, Any]:
        """Return the result of :func:`read_processes`."""
        return read_processes(process_ids)
