"""Free memory: a trial does not start on a device whose memory others hold."""

import os
import time
from typing import Final

from tune_policies.probe.nvml import DeviceUse, NvmlError, read_device_use
from tune_policies.values.errors import MemoryLimitError, ProbeError
from tune_policies.values.units import format_bytes

from ..limits.enforcement import current_limit_report
from ..limits.share import GpuShare, LimitReport
from .counters import read_counters

FREE_MEMORY_TIMEOUT_S: Final = 30.0
"""How long a device may take to get back the memory of a process that has just ended."""

_POLL_S: Final = 0.5

_SHARE_FRACTION: Final = 0.96
"""The part of a share that must be free. An older driver does not tell what it keeps of the device, 451 of 15360 MiB on
a T4: plans divide that, too, and the last trial on a device finds a little less than its share."""

_WHOLE_FRACTION: Final = 0.8
"""The part of a whole device that must be free; the rest is for the driver and a desktop."""


def wait_for_free_memory(share: GpuShare | None, *, timeout_s: float = FREE_MEMORY_TIMEOUT_S) -> None:
    """Wait until the share of this process is free on each of its devices, as far as NVML can read them.

    Args:
        share: What the process may use; ``None``: whole devices.
        timeout_s: How long to wait, in seconds.

    Raises:
        MemoryLimitError: The memory is not free after ``timeout_s`` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            devices = read_device_use()
        except NvmlError:
            return
        full = next((device for device in devices if not _has_enough_free(device, share)), None)
        if full is None:
            return
        if time.monotonic() >= deadline:
            raise _not_enough_free(full, share, timeout_s)
        time.sleep(min(_POLL_S, timeout_s))


def _has_enough_free(device: DeviceUse, share: GpuShare | None) -> bool:
    if share is None:
        needed = _WHOLE_FRACTION * device.total_bytes
    else:
        needed = _SHARE_FRACTION * share.bytes_of(device.total_bytes)
    return device.free_bytes >= needed or device.free_bytes + _own_bytes(device) >= needed


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
        needs = f"the {_WHOLE_FRACTION:.0%} that a trial needs which has it for itself"
    else:
        needs = f"the share of {format_bytes(share.bytes_of(device.total_bytes))}"
    return MemoryLimitError(
        f"GPU {device.uuid} has {format_bytes(device.free_bytes)} free of {format_bytes(device.total_bytes)}, less "
        f"than {needs}, and so it was for {timeout_s:g} s. "
        f"Held by: {', '.join(named) or 'processes that the driver does not list'}. "
        "End those that are left from earlier runs, or plan for what is free"
    )
