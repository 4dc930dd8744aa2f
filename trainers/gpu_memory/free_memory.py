"""Free memory: a trial does not start on a device whose memory others hold, and leaves no process that holds some."""

import contextlib
import os
import time
import uuid
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tune_policies.probe.nvml import DeviceUse, NvmlError, bytes_of_process, read_device_use
from tune_policies.values.errors import MemoryLimitError, ProbeError
from tune_policies.values.units import MIB, format_bytes

from .counters import read_counters
from .enforcement import current_limit_report
from .share import GpuShare, LimitReport

FREE_MEMORY_TIMEOUT_S: Final = 30.0
"""How long a device may take to get back the memory of a process that has just ended."""

_POLL_S: Final = 0.5

_SHARE_FRACTION: Final = 0.96
"""The part of a share that must be free. An older driver does not tell what it keeps of the device, 451 of 15360 MiB on
a T4: plans divide that, too, and the last trial on a device finds a little less than its share."""

_WHOLE_FRACTION: Final = 0.8
"""The part of a whole device that must be free; the rest is for the driver and a desktop."""


def wait_for_free_memory(share: GpuShare | None, *, timeout_s: float = FREE_MEMORY_TIMEOUT_S) -> None:
    """Wait until the share of this process, or the whole devices, are free, as far as NVML can read them.

    Raises:
        MemoryLimitError: The memory is not free after ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            devices = read_device_use()
        except NvmlError:
            return
        for device in devices:
            if share is None:
                needed = _WHOLE_FRACTION * device.total_bytes
            else:
                needed = _SHARE_FRACTION * share.bytes_of(device.total_bytes)
            # What this process holds is asked for only where it matters: that takes a while.
            if device.free_bytes < needed and device.free_bytes + _own_bytes(device) < needed:
                break
        else:
            return
        if time.monotonic() >= deadline:
            raise _not_enough_free(device, share, timeout_s)
        time.sleep(min(_POLL_S, timeout_s))


def _own_bytes(device: DeviceUse) -> int:
    """Return what an earlier trial left to this process on a device, by the driver or by its frameworks.

    In a container the driver often does not list the process. Of several devices the frameworks' sum stands for each.
    """
    by_driver = device.bytes_by_process.get(os.getpid()) or 0
    report = current_limit_report() or LimitReport()  # of the trial before
    try:
        counters = read_counters()
    except ProbeError:
        return by_driver
    by_frameworks = 0
    for name, memory in counters.items():
        held = memory.held_bytes
        if name == "tensorflow":  # its allocator has taken its whole limit, or without one the device
            held = report.limit_bytes.get(name, device.total_bytes)
        by_frameworks += held
    return max(by_driver, by_frameworks + report.overhead_of(counters))


def _not_enough_free(device: DeviceUse, share: GpuShare | None, timeout_s: float) -> MemoryLimitError:
    holders = sorted(device.bytes_by_process.items(), key=lambda item: -(item[1] or 0))
    named = [
        f"process {pid} ({format_bytes(amount) if amount is not None else 'an unknown amount'})"
        for pid, amount in holders
        if pid != os.getpid()
    ]
    if share is None:
        needs = f"the {_WHOLE_FRACTION:.0%} that a trial with a whole GPU needs"
    else:
        needs = f"the share of {format_bytes(share.bytes_of(device.total_bytes))}"
    return MemoryLimitError(
        f"GPU {device.uuid} has {format_bytes(device.free_bytes)} of {format_bytes(device.total_bytes)} free, less "
        f"than {needs}, and had no more for {timeout_s:g} s. "
        f"The rest is held by {', '.join(named) or 'processes that the driver does not list'}. "
        "End those that are left from earlier runs, or plan for what is free"
    )


_MARK: Final = "TUNE_POLICIES_TRIAL"
"""The variable that marks the processes of a trial: they inherit it, and keep it when their parents have ended."""

_END_TIMEOUT_S: Final = 5.0
"""How long a process may take to end by itself once it is asked to."""

_HOST_PID_NAMESPACE: Final = 0xEFFFFFFC
"""Its inode on every Linux (PROC_PID_INIT_INO in include/linux/proc_ns.h)."""

_SMALLEST_LEAK_BYTES: Final = 64 * MIB
"""Below it, what is left are workspaces that libraries keep, such as cuBLAS's."""


def is_too_much_to_keep(left_over_bytes: int, share_bytes: int | None) -> bool:
    """Return whether an earlier trial left so much that the process should end: more than a 20th of the share."""
    return left_over_bytes > max(_SMALLEST_LEAK_BYTES, (share_bytes or 0) // 20)


def mark_processes() -> None:
    """Let each process that the trial starts from now on be known as its own, whoever its parent is."""
    os.environ[_MARK] = uuid.uuid4().hex


def end_gpu_processes() -> list[str]:
    """End the processes that the trial has started and that hold GPU memory.

    Those are this process's children, and those of this user that carry its mark.

    Returns:
        What was ended, a sentence each; each is a warning, too.
    """
    mark = os.environ.get(_MARK)
    if mark is None:
        return []  # no trial in this process had a device: what it started sees none either
    children = {child.pid: child for child in shipped_psutil().Process().children(recursive=True)}
    try:
        devices = read_device_use()
    except NvmlError:
        return []  # nobody can tell which of them hold memory
    listed = {pid for device in devices for pid in device.bytes_by_process}
    if not _names_processes_as_here(listed):
        return []  # a number in the list may be that of a process here which holds nothing
    others = sorted(listed - {os.getpid()})
    holding = [children[pid] if pid in children else _marked(pid, mark) for pid in others]
    outliving = [process for process in holding if process is not None]
    messages = []
    for process in outliving:
        amount = bytes_of_process(devices, process.pid)
        held = "an unknown amount" if amount is None else format_bytes(amount)
        messages.append(
            f"process {process.pid} outlived the trial that started it, with {held} of GPU memory, and is ended"
        )
        warnings.warn(messages[-1], stacklevel=2)
    _end(outliving)
    return messages


def _names_processes_as_here(listed: set[int]) -> bool:
    """Return whether the driver's numbers are those of this namespace: in a container they may be the host's."""
    if os.getpid() in listed:
        return True
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _HOST_PID_NAMESPACE
    except OSError:
        return False


def _marked(pid: int, mark: str) -> Any:
    """Return the process if it is this user's and carries the mark, else ``None``."""
    psutil = shipped_psutil()
    try:
        process = psutil.Process(pid)
        is_own = process.username() == psutil.Process().username()
        return process if is_own and process.environ().get(_MARK) == mark else None
    except psutil.Error:  # it has ended, or is of no concern to this user
        return None


def _end(processes: list[Any]) -> None:
    for ask in ("terminate", "kill"):
        asked = []
        for process in processes:
            # It has ended, even if its number is another's by now, or it has become another user's.
            with contextlib.suppress(shipped_psutil().NoSuchProcess, shipped_psutil().AccessDenied):
                getattr(process, ask)()
                asked.append(process)
        _, processes = shipped_psutil().wait_procs(asked, timeout=_END_TIMEOUT_S)


def shipped_psutil() -> Any:
    """Return the module psutil, which Ray ships."""
    import_module("ray")  # puts it on the path
    return import_module("psutil")
