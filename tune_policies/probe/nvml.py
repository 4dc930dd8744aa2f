"""Reads the GPUs of the machine it runs on through NVML; no other module does.

NVML makes no CUDA context, so reading takes no GPU memory. The module travels by value to nodes where this package may
be missing: it needs nothing but Python, and returns plain data.
"""

import contextlib
import functools
import os
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
"""NVML's reasons for a clock that is held down, without those that are the user's own settings, or an idle GPU."""


class NvmlError(Exception):
    """There is no binding or driver, it does not answer, or ``CUDA_VISIBLE_DEVICES`` names none of its GPUs."""


@dataclass(frozen=True)
class DeviceUse:
    """One device as the driver counts it, whoever uses it.

    Attributes:
        uuid: The device's name for NVML.
        total_bytes: Its memory without what the driver keeps of it, where the driver tells: as plans count it.
        free_bytes: What nobody holds of it.
        bytes_by_process: What each process holds, by its number; ``None``: the driver does not say how much. Empty
            too where it lists no processes at all. A new driver numbers processes as the caller's own namespace does,
            an older one as the host does: in a container a process may not find itself.
    """

    uuid: str
    total_bytes: int
    free_bytes: int
    bytes_by_process: dict[int, int | None]

    @property
    def used_bytes(self) -> int:
        """What all processes hold of it."""
        return self.total_bytes - self.free_bytes


def read_gpus() -> list[dict[str, Any]]:
    """Return the GPUs that Ray may hand out here, as the fields of a ``GpuDevice``.

    Where MIG is on, each MIG device of a GPU is listed with its own size, name and UUID, and the GPU is not. The
    node's ``CUDA_VISIBLE_DEVICES`` selects, as it does for Ray; a number in it is that of a physical GPU.

    Raises:
        NvmlError: They cannot be read.
    """
    with _opened() as nvml:
        return [
            {
                "index": index,
                "name": _text(nvml.nvmlDeviceGetName(handle)),
                "memory_bytes": _usable_bytes(nvml, handle),
                "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
            }
            for index, handle in _visible(nvml)
        ]


def read_driver() -> dict[str, Any]:
    """Return ``driver_version``, ``cuda_version`` and ``gpus``: all physical GPUs, also those that are hidden.

    What the driver does not tell is ``None``. The memory of a GPU includes what the driver keeps of it.

    Raises:
        NvmlError: They cannot be read.
    """
    with _opened() as nvml:
        cuda = _told(nvml, "nvmlSystemGetCudaDriverVersion_v2")
        return {
            "driver_version": _told(nvml, "nvmlSystemGetDriverVersion"),
            "cuda_version": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            "gpus": [_physical(nvml, index, handle) for index, handle in enumerate(_handles(nvml))],
        }


def read_device_use() -> list[DeviceUse]:
    """Return how full the devices are that this process sees.

    Raises:
        NvmlError: They cannot be read.
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
                    # Some containers and drivers refuse this alone.
                    for process in _told(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()
                },
            )
            for _, handle in _visible(nvml)
        ]


def bytes_of_process(devices: list[DeviceUse], pid: int | None = None) -> int | None:
    """Return what a process (by default this one) holds on ``devices``; ``None``: the driver does not know it."""
    pid = os.getpid() if pid is None else pid
    found = [device.bytes_by_process[pid] for device in devices if pid in device.bytes_by_process]
    if not found or None in found:
        return None
    return sum(amount for amount in found if amount is not None)


def are_gpus_hidden() -> bool:
    """Return whether ``CUDA_VISIBLE_DEVICES`` shows this process no GPU at all."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")


class GpuCounters:
    """Energy and clocks of the GPUs that this process sees. NVML stays open, so that reading takes microseconds.

    Raises:
        NvmlError: They cannot be read.
    """

    def __init__(self) -> None:
        _keep_open()
        with _opened() as self._nvml:
            self._handles = [handle for _, handle in _visible(self._nvml)]

    @classmethod
    def visible(cls) -> "GpuCounters | None":
        """Return the counters; ``None``: this process sees no GPU, or nobody tells."""
        if are_gpus_hidden():
            return None
        try:
            counters = cls()
        except NvmlError:
            return None
        return counters if counters._handles else None

    def energy_j(self) -> float | None:
        """Return what the GPUs used since the driver was loaded; ``None``: one of them does not count it."""
        used_mj = self._told("nvmlDeviceGetTotalEnergyConsumption")
        return None if None in used_mj else sum(used_mj) / 1000

    def throttled(self) -> tuple[str, ...]:
        """Return why clocks are held down just now; empty: none is, or a GPU does not tell."""
        masks = self._told("nvmlDeviceGetCurrentClocksThrottleReasons")
        return tuple(
            reason for bit, reason in _THROTTLED_BY.items() if None not in masks and any(mask & bit for mask in masks)
        )

    def utilization(self) -> float | None:
        """Return the mean fraction of the last second in which they computed; ``None``: one does not count it."""
        rates = self._told("nvmlDeviceGetUtilizationRates")
        return None if None in rates else sum(rate.gpu for rate in rates) / len(rates) / 100

    def _told(self, function: str) -> list[Any]:
        return [_told(self._nvml, function, handle) for handle in self._handles]


@contextlib.contextmanager
def _opened() -> Iterator[Any]:
    """Open NVML, and close it again: whoever holds it open keeps the administrator from switching MIG.

    Raises:
        NvmlError: In place of every error of the binding.
    """
    try:
        import pynvml  # package nvidia-ml-py
    except ImportError:
        try:
            # Every Ray wheel carries a copy; without it a node would have to install the package to be read.
            from ray._private.thirdparty import pynvml
        except ImportError:
            raise NvmlError("there is no NVML binding: pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
        try:
            yield pynvml
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError, AttributeError, OSError) as error:  # an older binding lacks functions
        raise NvmlError(str(error)) from error


@functools.cache  # once a process: NVML counts how often it was opened
def _keep_open() -> None:
    """Leave NVML open until the process ends, for what asks at each report: to open it takes milliseconds."""
    with _opened() as nvml:
        nvml.nvmlInit()


def _handles(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]


def _visible(nvml: Any) -> list[tuple[int, Any]]:
    """Return the devices that ``CUDA_VISIBLE_DEVICES`` selects, each with its number among all.

    Raises:
        NvmlError: It names none of them.
    """
    listed: list[tuple[str, Any]] = []  # the number of the physical GPU, and what stands for it
    for number, handle in enumerate(_handles(nvml)):
        parts = _mig_devices(nvml, handle)
        listed += [(str(number), part) for part in ([handle] if parts is None else parts)]
    # Empty is what Ray sets where it hides the GPUs from a task that asks for none: it selects nothing here.
    wanted = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    chosen = [
        (index, handle)
        for index, (number, handle) in enumerate(listed)
        # CUDA takes the beginning of a UUID, too.
        if not wanted or number in wanted or _text(nvml.nvmlDeviceGetUUID(handle)).startswith(tuple(wanted))
    ]
    if wanted and not chosen:
        raise NvmlError(f"CUDA_VISIBLE_DEVICES={','.join(wanted)} names none of the GPUs that NVML lists")
    return chosen


def _mig_devices(nvml: Any, handle: Any) -> list[Any] | None:
    """Return the MIG devices of a GPU; ``None``: MIG is off, or the GPU or its driver knows none."""
    if not _is_mig(nvml, handle):
        return None
    places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    found = [_told(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, place) for place in places]
    return [device for device in found if device is not None]  # they need not be numbered without gaps


def _is_mig(nvml: Any, handle: Any) -> bool:
    modes = _told(nvml, "nvmlDeviceGetMigMode", handle)  # now, and after the next reset
    return modes is not None and modes[0] == _MIG_IS_ON


def _usable_bytes(nvml: Any, handle: Any) -> int:
    """Return a GPU's memory without what the driver keeps of it, which no process can have."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        return int(memory.total - memory.reserved)
    except (nvml.NVMLError, AttributeError, TypeError):  # an older driver or binding does not tell
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)


def _physical(nvml: Any, index: int, handle: Any) -> dict[str, Any]:
    memory = _told(nvml, "nvmlDeviceGetMemoryInfo", handle)  # in some containers not of a GPU that is cut
    limit_mw = _told(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle)
    return {
        "index": index,
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "memory_bytes": None if memory is None else int(memory.total),
        "used_bytes": None if memory is None else int(memory.used),
        "is_mig": _is_mig(nvml, handle),
        "max_clock_mhz": _told(nvml, "nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK),
        "power_limit_w": None if limit_mw is None else limit_mw / 1000,
    }


def _told(nvml: Any, function: str, *arguments: Any) -> Any:
    """Return NVML's answer; ``None``: the device, the driver or the binding does not know."""
    try:
        answer = getattr(nvml, function)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None
    return _text(answer) if isinstance(answer, bytes) else answer


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)  # older bindings give bytes
