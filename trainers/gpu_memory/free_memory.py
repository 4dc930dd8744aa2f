"""Waits for free GPU memory before a trial starts, and terminates GPU processes that a trial leaves behind."""

import contextlib
import os
import time
import uuid
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tune_policies.probe.nvml import DeviceUse, NvmlError, bytes_of_process, read_device_use
from tune_policies.values.errors import MemoryLimitError, ProbeError
from tune_policies.values.units import MIB, format_bytes

from .fraction_limits import FractionLimits, GpuShare
from .framework_memory import read_counters

_POLL_S: Final = 0.5

_SHARE_FRACTION: Final = 0.96
"""The part of a GPU fraction that must be free when a trial starts. Older drivers reserve memory without reporting it,
such as 451 of 15360 MiB on a T4. Plans count this memory as available, so slightly less than a whole fraction is free
for the last trial on a device."""

_WHOLE_FRACTION: Final = 0.8
"""The part of a whole device that must be free when a trial starts. The driver and a desktop may use the rest."""


def wait_for_free_memory(share: GpuShare, earlier: FractionLimits | None = None, *, timeout_s: float = 30.0) -> None:
    """Wait until the memory of this process's GPU fraction or devices is free. Without NVML, return immediately.

    ``earlier`` contains the limits of an earlier trial in this process. Memory that this process still uses counts as
    free.

    Raises:
        MemoryLimitError: The memory is not free after ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            devices = read_device_use()
        except NvmlError:
            return
        lacking = next((device for device in devices if _lacks_memory(device, share, earlier)), None)
        if lacking is None:
            return
        if time.monotonic() >= deadline:
            raise _insufficient_free_memory(lacking, share, timeout_s)
        time.sleep(min(_POLL_S, timeout_s))


def _lacks_memory(device: DeviceUse, share: GpuShare, earlier: FractionLimits | None) -> bool:
    needed = _required_free_bytes(device, share)
    if device.free_bytes >= needed:
        return False  # reading this process's own memory is slow
    return device.free_bytes + _own_bytes(device, earlier) < needed


def _required_free_bytes(device: DeviceUse, share: GpuShare) -> float:
    if share.is_whole:
        return _WHOLE_FRACTION * device.total_bytes
    return _SHARE_FRACTION * share.bytes_of(device.total_bytes)


def _own_bytes(device: DeviceUse, earlier: FractionLimits | None) -> int:
    """Return the memory that an earlier trial left in this process, in bytes.

    This is the larger of the amounts that the driver and the frameworks report. In a container, the driver often does
    not list the process. The frameworks report only a sum over all devices, so this sum is used for each device.
    """
    # The driver may not list this process, or may list it without its memory (``None``).
    by_driver = device.bytes_by_process.get(os.getpid()) or 0
    try:
        held = {name: memory.held_bytes for name, memory in read_counters().items()}
    except ProbeError:
        return by_driver
    limits: Mapping[str, int] = {}
    overhead_bytes = 0
    if earlier is not None:
        limits = earlier.limit_bytes
        overhead_bytes = earlier.overhead_of(held)
    if "tensorflow" in held:  # TensorFlow reserves the whole limit, or the whole device
        held["tensorflow"] = limits.get("tensorflow", device.total_bytes)
    return max(by_driver, sum(held.values()) + overhead_bytes)


def _amount_text(amount: int | None) -> str:
    if amount is None:
        return "an unknown amount"
    return format_bytes(amount)


def _insufficient_free_memory(device: DeviceUse, share: GpuShare, timeout_s: float) -> MemoryLimitError:
    holders = sorted(device.bytes_by_process.items(), key=lambda item: -(item[1] or 0))
    named = [f"process {pid} ({_amount_text(amount)})" for pid, amount in holders if pid != os.getpid()]
    if share.is_whole:
        needs = f"the {_WHOLE_FRACTION:.0%} that a trial with a whole GPU requires"
    else:
        needs = f"the {format_bytes(share.bytes_of(device.total_bytes))} of this trial's GPU fraction"
    return MemoryLimitError(
        f"GPU {device.uuid} has {format_bytes(device.free_bytes)} of {format_bytes(device.total_bytes)} free after "
        f"{timeout_s:g} s, less than {needs}. The rest is used by "
        f"{', '.join(named) or 'processes that the driver does not list'}. Terminate processes of earlier runs, or "
        "leave memory for other programs with ReservingPolicy(policy, gpu_memory=…)"
    )


_MARK: Final = "TUNE_POLICIES_TRIAL"
"""The environment variable that marks the processes of a trial. Child processes inherit it."""

_END_TIMEOUT_S: Final = 5.0
"""The time to wait for the processes to exit after each signal (terminate, then kill), in seconds."""

_HOST_PID_NAMESPACE: Final = 0xEFFFFFFC
"""The inode of the host's PID namespace on every Linux system (PROC_PID_INIT_INO in include/linux/proc_ns.h)."""

_SMALLEST_LEAK_BYTES: Final = 64 * MIB
"""The minimum memory that counts as a leak. A smaller amount is probably a workspace of a library such as cuBLAS."""


def exceeds_leak_limit(left_over_bytes: int, share_bytes: int | None) -> bool:
    """Return whether an earlier trial left so much GPU memory in use that this process should end."""
    return left_over_bytes > max(_SMALLEST_LEAK_BYTES, (share_bytes or 0) // 20)


def mark_processes() -> None:
    """Mark the processes that the trial will start."""
    os.environ[_MARK] = uuid.uuid4().hex


def end_gpu_processes() -> list[str]:
    """Terminate the processes of the trial that use GPU memory, and return a warning for each process.

    A process belongs to the trial if it is a child of this process, or runs as this user with the trial's mark.
    """
    mark = os.environ.get(_MARK)
    if mark is None:
        return []  # no trial in this process had a device
    # Some children have no mark: a process may start its own with another environment.
    children = {child.pid: child for child in shipped_psutil().Process().children(recursive=True)}
    try:
        devices = read_device_use()
    except NvmlError:
        return []
    listed = {pid for device in devices for pid in device.bytes_by_process}
    if not _has_pids_of_this_namespace(listed):
        return []  # a listed ID may belong to another process of this PID namespace
    outliving = []
    for pid in sorted(listed - {os.getpid()}):
        process = children[pid] if pid in children else _marked(pid, mark)
        if process is not None:
            outliving.append(process)
    messages = []
    for process in outliving:
        used = _amount_text(bytes_of_process(devices, process.pid))
        messages.append(
            f"process {process.pid} of the trial still used {used} of GPU memory after the end of the trial, and is "
            "terminated"
        )
        warnings.warn(messages[-1], stacklevel=2)
    _end(outliving)
    return messages


def _has_pids_of_this_namespace(listed: set[int]) -> bool:
    """Return whether the driver reports process IDs of this PID namespace, not IDs of a container's host."""
    if os.getpid() in listed:
        return True
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _HOST_PID_NAMESPACE
    except OSError:
        return False


def _marked(pid: int, mark: str) -> Any:
    """Return the process if it belongs to this user and has the mark, or ``None``."""
    psutil = shipped_psutil()
    try:
        process = psutil.Process(pid)
        is_own = process.username() == psutil.Process().username()
        if is_own and process.environ().get(_MARK) == mark:
            return process
        return None
    except psutil.Error:  # the process has ended, or belongs to another user
        return None


def _end(processes: list[Any]) -> None:
    psutil = shipped_psutil()
    # SIGTERM comes first, because a process may still write its files. Only the remaining processes are killed.
    for signal in ("terminate", "kill"):
        signaled = []
        for process in processes:
            # The process may have ended, or changed its user.
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                getattr(process, signal)()
                signaled.append(process)
        _, processes = psutil.wait_procs(signaled, timeout=_END_TIMEOUT_S)


def shipped_psutil() -> Any:
    """Return the ``psutil`` module that is bundled with Ray."""
    import_module("ray")  # importing Ray adds psutil to the path
    return import_module("psutil")
