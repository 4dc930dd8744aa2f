"""GPU memory that outlives its trial: of this process, of its children, and of others on the device of the next one."""

import contextlib
import os
import time
import warnings
from importlib import import_module
from typing import Any, Final

from tune_policies.errors import MemoryLimitError, ProbeError
from tune_policies.units import MIB, format_bytes

from ..limits.share import GpuShare
from .nvml import DeviceUse, bytes_of_process, read_device_use

ROOM_TIMEOUT_S: Final = 30.0
"""How long a device may take to get back the memory of a process that has just ended."""

_END_TIMEOUT_S: Final = 5.0
"""How long a child may take to end by itself once it is asked to."""

_POLL_S: Final = 0.5

_DRIVER_FRACTION: Final = 0.04
"""What the driver keeps of a device for itself, at most: 451 of 15360 MiB on a T4, less on larger ones.

Plans divide the whole, so without it the last trial on a device would find a little less than its share.
"""

_SMALLEST_LEAK_BYTES: Final = 64 * MIB
"""Below it, what is left are workspaces that libraries keep, such as cuBLAS's."""


def is_too_much_to_keep(left_over_bytes: int, share_bytes: int | None) -> bool:
    """Return whether an earlier trial left so much that the process should end: more than a 20th of the share."""
    return left_over_bytes > max(_SMALLEST_LEAK_BYTES, (share_bytes or 0) // 20)


def end_gpu_children() -> None:
    """End the children of this process that hold GPU memory, with a warning; those of other processes are let be."""
    children = _children()
    if not children:
        return
    try:
        devices = read_device_use()
    except ProbeError:
        return  # nobody can tell which of them hold memory
    holding = [(child, bytes_of_process(devices, child.pid)) for child in children if _is_listed(devices, child.pid)]
    if not holding:
        return
    for child, amount in holding:
        text = format_bytes(amount) if amount is not None else "an unknown amount"
        warnings.warn(
            f"process {child.pid}, started by the trial, outlived it with {text} of GPU memory, and is ended",
            stacklevel=2,
        )
    _end([child for child, _ in holding])


def wait_for_room(share: GpuShare, *, timeout_s: float = ROOM_TIMEOUT_S) -> None:
    """Wait until each device of this process has room for its share; a device that cannot be read is taken as it is.

    Raises:
        MemoryLimitError: There is still no room after ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            devices = read_device_use()
        except ProbeError:
            return
        full = next((device for device in devices if not _has_room(device, share)), None)
        if full is None:
            return
        if time.monotonic() >= deadline:
            raise _no_room(full, share, timeout_s)
        time.sleep(min(_POLL_S, timeout_s))


def _share_bytes(device: DeviceUse, share: GpuShare) -> int:
    return share.bytes_of(lambda: device.total_bytes)


def _has_room(device: DeviceUse, share: GpuShare) -> bool:
    own = device.bytes_by_process.get(os.getpid()) or 0  # in a process that is used again
    return device.free_bytes + own + _DRIVER_FRACTION * device.total_bytes >= _share_bytes(device, share)


def _no_room(device: DeviceUse, share: GpuShare, timeout_s: float) -> MemoryLimitError:
    holders = sorted(device.bytes_by_process.items(), key=lambda item: -(item[1] or 0))
    named = [
        f"process {pid} ({format_bytes(amount) if amount is not None else 'an unknown amount'})"
        for pid, amount in holders
        if pid != os.getpid()
    ]
    return MemoryLimitError(
        f"GPU {device.uuid} has {format_bytes(device.free_bytes)} free of {format_bytes(device.total_bytes)}, less "
        f"than the share of {format_bytes(_share_bytes(device, share))}, and so it was for {timeout_s:g} s. "
        f"Held by: {', '.join(named) or 'processes that the driver does not list'}. "
        "End those that are left from earlier runs, or plan for what is free"
    )


def _is_listed(devices: list[DeviceUse], pid: int) -> bool:
    return any(pid in device.bytes_by_process for device in devices)


def _children() -> list[Any]:
    return list(_psutil().Process().children(recursive=True))


def _end(processes: list[Any]) -> None:
    for ask in ("terminate", "kill"):
        for process in processes:
            with contextlib.suppress(_psutil().NoSuchProcess):  # it has ended
                getattr(process, ask)()
        _, processes = _psutil().wait_procs(processes, timeout=_END_TIMEOUT_S)


def _psutil() -> Any:
    import_module("ray")  # puts the psutil that it ships on the path
    return import_module("psutil")
