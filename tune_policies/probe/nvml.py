"""Reads the GPUs of the machine through NVML.

NVML creates no CUDA context, so reading uses no GPU memory. Ray sends this module to nodes without this package, so it
needs only Python's standard library and the NVML binding, and returns plain data.
"""

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

_SM_CLOCK: Final = 1  # NVML_CLOCK_SM
_MIG_IS_ON: Final = 1  # NVML_DEVICE_MIG_ENABLE

_THROTTLED_BY: Final = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "temperature, by software",
    0x40: "temperature, by hardware",
    0x80: "power brake",
}
"""NVML's reasons for a throttled clock, except user settings and idle GPUs."""


class NvmlError(Exception):
    """The NVML binding or the driver is missing or fails, or ``CUDA_VISIBLE_DEVICES`` selects none of the GPUs."""


@dataclass(frozen=True)
class DeviceUse:
    """The memory use of a device according to the driver.

    Attributes:
        uuid: The device's UUID in NVML.
        total_bytes: The total memory in bytes, without the part that the driver reserves if that part is known.
        free_bytes: The free memory, in bytes.
        bytes_by_process: The memory of each process in bytes, by process ID, or ``None`` if it is unknown. The dict is
            empty if the driver lists no processes. Older drivers use the process IDs of the host, so a process in a
            container may not find its own ID.
        utilization: The fraction of the last second, from 0 to 1, in which the device was busy, or ``None`` if it is
            unknown.
    """

    uuid: str
    total_bytes: int
    free_bytes: int
    bytes_by_process: dict[int, int | None]
    utilization: float | None = None

    @property
    def used_bytes(self) -> int:
        """The memory that all processes use, in bytes."""
        return self.total_bytes - self.free_bytes


def read_gpus() -> list[dict[str, Any]]:
    """Return the GPUs that Ray may assign on this machine, as the fields of a ``GpuDevice``.

    If MIG is on, the list contains the MIG devices instead of the GPU. As in Ray, the node's ``CUDA_VISIBLE_DEVICES``
    selects GPUs by the number of the physical GPU or by UUID. The memory is at most the part that HAMi or KAI Scheduler
    grants to the container.

    Raises:
        NvmlError: The GPUs cannot be read.
    """
    with _opened() as nvml:
        return [_planned(nvml, index, handle) for index, handle in _visible(nvml)]


def _planned(nvml: Any, index: int, handle: Any) -> dict[str, Any]:
    usable = _usable_bytes(nvml, handle)
    # A larger limit is no limit.
    parts = [limit for limit in _limits_of_container(index) if limit <= usable]
    # HAMi and KAI Scheduler divide the memory of a GPU among its pods, so the plan must not divide it again.
    uuid = None if parts else _text(nvml.nvmlDeviceGetUUID(handle))
    return {
        "index": index,
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "memory_bytes": min([usable, *parts]),
        "uuid": uuid,
    }


def read_driver() -> dict[str, Any]:
    """Return the fields ``driver_version``, ``cuda_version`` and ``gpus`` (all physical GPUs, including hidden GPUs).

    Unknown values are ``None``. The memory of a GPU includes the part that the driver reserves.

    Raises:
        NvmlError: The GPUs cannot be read.
    """
    with _opened() as nvml:
        cuda = _query(nvml, "nvmlSystemGetCudaDriverVersion_v2")
        if cuda is not None:  # such as 12040 for CUDA 12.4
            cuda = f"{cuda // 1000}.{cuda % 1000 // 10}"
        gpus = [_physical(nvml, index, handle) for index, handle in enumerate(_handles(nvml)) if handle is not None]
        return {
            "driver_version": _query(nvml, "nvmlSystemGetDriverVersion"),
            "cuda_version": cuda,
            "gpus": gpus,
        }


def read_device_use() -> list[DeviceUse]:
    """Return the memory use of the devices that are visible to this process.

    Raises:
        NvmlError: The devices cannot be read.
    """
    _keep_open()
    with _opened() as nvml:
        return [
            DeviceUse(
                uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
                total_bytes=_usable_bytes(nvml, handle),
                free_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).free),
                bytes_by_process={
                    int(process.pid): process.usedGpuMemory
                    # Some containers and drivers reject only this call.
                    for process in _query(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()
                },
                utilization=_utilization(nvml, handle),
            )
            for _, handle in _visible(nvml)
        ]


def _utilization(nvml: Any, handle: Any) -> float | None:
    rates = _query(nvml, "nvmlDeviceGetUtilizationRates", handle)
    if rates is None:
        return None
    percent: int = rates.gpu
    return percent / 100


def bytes_of_process(devices: list[DeviceUse], pid: int | None = None) -> int | None:
    """Return the memory of a process on ``devices``, in bytes, or ``None`` if the driver does not report it.

    ``pid`` defaults to this process.
    """
    if pid is None:
        pid = os.getpid()
    found = [device.bytes_by_process[pid] for device in devices if pid in device.bytes_by_process]
    known = [amount for amount in found if amount is not None]
    if found and len(known) == len(found):
        return sum(known)
    return None


def is_nvml_installed() -> bool:
    """Return whether the driver's NVML library is installed, even if it fails."""
    try:
        with _opened():
            return True
    except NvmlError as error:
        # A missing binding has no cause, and says nothing about the driver.
        return error.__cause__ is not None and type(error.__cause__).__name__ != "NVMLError_LibraryNotFound"


def are_gpus_hidden() -> bool:
    """Return whether ``CUDA_VISIBLE_DEVICES`` hides all GPUs from this process."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")


class GpuCounters:
    """Reads the energy, clocks and utilization of the GPUs that are visible to this process.

    NVML is kept open, so that reading takes microseconds.

    Raises:
        NvmlError: The GPUs cannot be read.
    """

    def __init__(self) -> None:
        _keep_open()
        with _opened() as self._nvml:
            self._handles = [handle for _, handle in _visible(self._nvml)]

    @classmethod
    def visible(cls) -> "GpuCounters | None":
        """Return the counters, or ``None`` if no GPU is visible to this process, or NVML fails."""
        if not are_gpus_hidden():
            with contextlib.suppress(NvmlError):
                counters = cls()
                if counters._handles:
                    return counters
        return None

    def energy_j(self) -> float | None:
        """Return the energy that all GPUs used since the driver was loaded, in joules, or ``None`` if unknown."""
        used_mj = self._query("nvmlDeviceGetTotalEnergyConsumption")
        # The sum of some GPUs would look like the energy of all.
        if None in used_mj:
            return None
        total_mj: int = sum(used_mj)
        return total_mj / 1000

    def throttled(self) -> tuple[str, ...]:
        """Return the reasons for throttled clocks, or an empty tuple if a GPU does not report them."""
        masks = self._query("nvmlDeviceGetCurrentClocksThrottleReasons")
        return tuple(
            reason for bit, reason in _THROTTLED_BY.items() if None not in masks and any(mask & bit for mask in masks)
        )

    def utilization(self) -> float | None:
        """Return the mean utilization of the GPUs in the last second, from 0 to 1, or ``None`` if it is unknown."""
        rates = [_utilization(self._nvml, handle) for handle in self._handles]
        known = [rate for rate in rates if rate is not None]
        if known and len(known) == len(rates):
            return sum(known) / len(known)
        return None

    def _query(self, function: str) -> list[Any]:
        return [_query(self._nvml, function, handle) for handle in self._handles]


@contextlib.contextmanager
def _opened() -> Iterator[Any]:
    """Open NVML only during the block, because the MIG mode cannot be changed while NVML is open.

    Raises:
        NvmlError: The binding is missing or raises an error.
    """
    try:
        import pynvml  # package nvidia-ml-py
    except ImportError:
        try:
            # Every Ray wheel contains a copy, so the package need not be installed on nodes.
            from ray._private.thirdparty import pynvml
        except ImportError:
            raise NvmlError("the NVML binding is missing. Run pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError, AttributeError, OSError) as error:  # an older binding lacks functions
        raise NvmlError(str(error)) from error


@functools.cache  # once per process, because each call would open NVML again
def _keep_open() -> None:
    """Keep NVML open until the process ends, because opening it for each report would take milliseconds."""
    with _opened() as nvml:
        # NVML counts its initializations, so the shutdown at the end of this block does not close it.
        nvml.nvmlInit()


def _handles(nvml: Any) -> list[Any]:
    """Return the handles of all GPUs. The handle of a GPU that the driver cannot access is ``None``.

    A GPU that has failed, or that a container may not use, does not affect the other GPUs.
    """
    handles = []
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = _query(nvml, "nvmlDeviceGetHandleByIndex", number)
        # Some drivers return the handle of a lost GPU, but refuse all further queries.
        if handle is not None and not _query(nvml, "nvmlDeviceGetUUID", handle):
            handle = None
        handles.append(handle)
    if handles and all(handle is None for handle in handles):
        _raise_reason(nvml, 0)
    return handles


def _raise_reason(nvml: Any, number: int) -> None:
    """Raise the driver's error for a GPU that it cannot access."""
    nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(number))


def _visible(nvml: Any) -> list[tuple[int, Any]]:
    """Return the devices that ``CUDA_VISIBLE_DEVICES`` selects, each with its number among all devices.

    Raises:
        NvmlError: ``CUDA_VISIBLE_DEVICES`` selects none of the devices.
    """
    listed: list[tuple[str, Any]] = []  # the number of the physical GPU, and the GPU or one of its MIG devices
    for number, handle in enumerate(_handles(nvml)):
        parts = None if handle is None else _mig_devices(nvml, handle)
        # Without MIG, the device is the GPU itself.
        if parts is None:
            parts = [handle]
        listed += [(str(number), part) for part in parts]
    # Ray sets the variable to an empty value for a task without GPUs, so an empty value selects all GPUs here.
    wanted = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    chosen = []
    for index, (physical, handle) in enumerate(listed):
        if handle is None:
            continue
        is_chosen = not wanted or physical in wanted
        if not is_chosen:
            # CUDA also accepts the beginning of a UUID.
            is_chosen = _text(nvml.nvmlDeviceGetUUID(handle)).startswith(tuple(wanted))
        if is_chosen:
            chosen.append((index, handle))
    if wanted and not chosen:
        for physical, handle in listed:
            if handle is None and physical in wanted:
                _raise_reason(nvml, int(physical))
        raise NvmlError(f"CUDA_VISIBLE_DEVICES={','.join(wanted)} selects none of the GPUs that NVML lists")
    return chosen


def _mig_devices(nvml: Any, handle: Any) -> list[Any] | None:
    """Return the MIG devices of a GPU, or ``None`` if MIG is off or not supported."""
    if not _is_mig(nvml, handle):
        return None
    places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    found = [_query(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, place) for place in places]
    return [device for device in found if device is not None]  # some indices may be unused


def _is_mig(nvml: Any, handle: Any) -> bool:
    modes = _query(nvml, "nvmlDeviceGetMigMode", handle)  # the current mode, and the mode after the next reset
    return modes is not None and modes[0] == _MIG_IS_ON


def _usable_bytes(nvml: Any, handle: Any) -> int:
    """Return a GPU's memory in bytes, without the part that the driver reserves if that part is known."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        return int(memory.total - memory.reserved)
    except (nvml.NVMLError, AttributeError, TypeError):  # an older driver or binding does not report ``reserved``
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)


_LIMIT: Final = re.compile(r"\s*(\d{1,18})\s*([kmg]?)b?\s*", re.ASCII | re.IGNORECASE)
_LEAST_LIMIT: Final = 64 * 2**20  # a smaller value of GPU_MEMORY_LIMIT belongs to another program, with another unit


def _limits_of_container(index: int) -> Iterator[int]:
    """Yield the limits for the memory of a device that the environment of the container contains, in bytes.

    HAMi sets ``CUDA_DEVICE_MEMORY_LIMIT_<index>`` or ``CUDA_DEVICE_MEMORY_LIMIT`` with a unit, such as ``10240m``
    (https://github.com/Project-HAMi/HAMi-core). KAI Scheduler sets ``GPU_MEMORY_LIMIT`` in bytes.
    """
    for name in (f"CUDA_DEVICE_MEMORY_LIMIT_{index}", "CUDA_DEVICE_MEMORY_LIMIT", "GPU_MEMORY_LIMIT"):
        found = _LIMIT.fullmatch(os.environ.get(name, ""))
        if found is None:
            continue
        # The position of the unit is the power of 1024, and a missing unit (the blank) means bytes.
        limit = int(found[1]) * 1024 ** " kmg".index(found[2].lower() or " ")
        if limit >= _LEAST_LIMIT:
            yield limit


def _physical(nvml: Any, index: int, handle: Any) -> dict[str, Any]:
    memory = _query(nvml, "nvmlDeviceGetMemoryInfo", handle)  # fails in some containers for a GPU with MIG devices
    limit_mw = _query(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
    memory_bytes = used_bytes = power_limit_w = None
    if memory is not None:
        memory_bytes, used_bytes = int(memory.total), int(memory.used)
    if limit_mw is not None:
        power_limit_w = limit_mw / 1000
    return {
        "index": index,
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "memory_bytes": memory_bytes,
        "used_bytes": used_bytes,
        "is_mig": _is_mig(nvml, handle),
        "max_clock_mhz": _query(nvml, "nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK),
        "power_limit_w": power_limit_w,
    }


def _query(nvml: Any, function: str, *arguments: Any) -> Any:
    """Return the result of an NVML function, or ``None`` if the device, driver or binding does not support it."""
    try:
        answer = getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None
    if isinstance(answer, bytes):
        return _text(answer)
    return answer


def _text(value: Any) -> str:
    if isinstance(value, bytes):  # older bindings return bytes
        return value.decode()
    return str(value)
