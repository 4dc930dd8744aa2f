"""What the driver says of this process's devices: how full they are, and which process holds how much.

NVML names processes by their numbers in the caller's own namespace where the driver is new enough, else by the host's,
so in a container a process may not find itself: then nothing is known of it.
"""

import functools
import os
from dataclasses import dataclass
from typing import Any

from tune_policies.probe.nvml import read_gpus
from tune_policies.values.errors import ProbeError


@dataclass(frozen=True)
class DeviceUse:
    """One device as the driver counts it, whoever uses it.

    Attributes:
        uuid: The device's name for NVML.
        total_bytes: Its memory without what the driver keeps of it, where the driver tells: as plans count it.
        free_bytes: What nobody holds of it.
        bytes_by_process: What each process holds, by its number; ``None``: the driver does not say how much. Empty
            too where it lists no processes at all.
    """

    uuid: str
    total_bytes: int
    free_bytes: int
    bytes_by_process: dict[int, int | None]


def read_device_use() -> list[DeviceUse]:
    """Return the devices that this process sees.

    Raises:
        ProbeError: There is no NVML, or it does not answer.
    """
    try:
        nvml = _nvml()
        return [_read(nvml, str(gpu["uuid"]), int(str(gpu["memory_bytes"]))) for gpu in read_gpus()]
    except Exception as error:  # NVML's errors have no base that can be named without NVML
        raise ProbeError(f"the driver cannot be asked how full the GPU is: {error}") from error


def bytes_of_process(devices: list[DeviceUse], pid: int | None = None) -> int | None:
    """Return what a process (by default this one) holds on ``devices``; ``None``: the driver does not know it."""
    pid = os.getpid() if pid is None else pid
    found = [device.bytes_by_process[pid] for device in devices if pid in device.bytes_by_process]
    if not found or None in found:
        return None
    return sum(amount for amount in found if amount is not None)


@functools.cache  # kept open: a process asks at each report
def _nvml() -> Any:
    try:
        import pynvml  # package nvidia-ml-py
    except ImportError:
        from ray._private.thirdparty import pynvml  # every Ray wheel carries a copy
    pynvml.nvmlInit()
    return pynvml


def _read(nvml: Any, uuid: str, total_bytes: int) -> DeviceUse:
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    return DeviceUse(
        uuid=uuid,
        total_bytes=total_bytes,
        free_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).free),
        bytes_by_process={
            int(process.pid): None if process.usedGpuMemory is None else int(process.usedGpuMemory)
            for process in _processes(nvml, handle)
        },
    )


def _processes(nvml: Any, handle: Any) -> list[Any]:
    try:
        return list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except nvml.NVMLError:  # some containers and drivers refuse this alone
        return []
