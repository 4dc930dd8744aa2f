"""Room on the device: a trial does not start where others hold the memory of its share."""

import os
import time
from typing import Final

from tune_policies.probe.nvml import DeviceUse, NvmlError, read_device_use
from tune_policies.values.errors import MemoryLimitError, ProbeError
from tune_policies.values.units import format_bytes

from ..limits.enforcement import current_enforcement
from ..limits.share import Enforcement, GpuShare
from .counters import read_counters

ROOM_TIMEOUT_S: Final = 30.0
"""How long a device may take to get back the memory of a process that has just ended."""

_POLL_S: Final = 0.5

_SHARE_FRACTION: Final = 0.96
"""What must be free of a share. An older driver does not tell what it keeps of the device, 451 of 15360 MiB on a T4, so
plans divide that, too, and the last trial on a device finds a little less than its share."""

_WHOLE_FRACTION: Final = 0.8
"""What must be free of a device that one trial has for itself; the rest is for the driver and a desktop."""


def wait_for_room(share: GpuShare | None, *, timeout_s: float = ROOM_TIMEOUT_S) -> None:
    """Wait until each device of this process has room for its share; a device that cannot be read is taken as it is.

    Args:
        share: What the process may use; ``None``: whole devices.
        timeout_s: How long to wait, in seconds.

    Raises:
        MemoryLimitError: There is still no room after ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            devices = read_device_use()
        except NvmlError:
            return
        full = next((device for device in devices if not _has_room(device, share)), None)
        if full is None:
            return
        if time.monotonic() >= deadline:
            raise _no_room(full, share, timeout_s)
        time.sleep(min(_POLL_S, timeout_s))


def _has_room(device: DeviceUse, share: GpuShare | None) -> bool:
    if share is None:
        needed = _WHOLE_FRACTION * device.total_bytes
    else:
        needed = _SHARE_FRACTION * share.bytes_of(device.total_bytes)
    return device.free_bytes >= needed or device.free_bytes + _own_bytes(device) >= needed


def _own_bytes(device: DeviceUse) -> int:
    """Return what this process holds on a device, being used again: by the driver, or as far as its frameworks tell.

    In a container the driver often does not list it. Of several devices the frameworks' sum stands for each.
    """
    by_driver = device.bytes_by_process.get(os.getpid()) or 0
    enforcement = current_enforcement() or Enforcement()  # of the trial before
    try:
        counters = read_counters()
    except ProbeError:
        return by_driver
    by_frameworks = 0
    for name, memory in counters.items():
        held = memory.held_bytes
        if name == "tensorflow":  # its allocator has taken its whole limit, or without one the device
            held = enforcement.limit_bytes.get(name, device.total_bytes)
        by_frameworks += held
    return max(by_driver, by_frameworks + enforcement.overhead_of(counters))


def _no_room(device: DeviceUse, share: GpuShare | None, timeout_s: float) -> MemoryLimitError:
    holders = sorted(device.bytes_by_process.items(), key=lambda item: -(item[1] or 0))
    named = [
        f"process {pid} ({format_bytes(amount) if amount is not None else 'an unknown amount'})"
        for pid, amount in holders
        if pid != os.getpid()
    ]
    if share is None:
        needs = f"the {_WHOLE_FRACTION:.0%} that a trial needs which has it for itself"
    else:
        needs = f"the share of {format_bytes(share.bytes_of(device.total_bytes))}"
    return MemoryLimitError(
        f"GPU {device.uuid} has {format_bytes(device.free_bytes)} free of {format_bytes(device.total_bytes)}, less "
        f"than {needs}, and so it was for {timeout_s:g} s. "
        f"Held by: {', '.join(named) or 'processes that the driver does not list'}. "
        "End those that are left from earlier runs, or plan for what is free"
    )
