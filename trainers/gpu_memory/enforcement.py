"""Holds the frameworks of this process to its share of a GPU, as soon as each is there.

Nobody names the framework: one that is imported already is limited at once, one that the user's code imports later
at the end of that import.
"""

import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final, Literal

import wrapt

from tune_policies.errors import MemoryLimitError
from tune_policies.probing.devices import read_gpus
from tune_policies.resources import Bytes
from tune_policies.units import format_bytes
from tune_policies.values import Value

from .limit import GpuMemoryLimit
from .overhead import NOTHING_MEASURED, Overheads


class GpuShare(Value):
    """This process's share of the one GPU that Ray gave it.

    Attributes:
        fraction: The share as Ray has rounded it, above 0 and below 1.
        memory_bytes: The share as the plan states it; ``None``: ``fraction`` of the device decides.
    """

    fraction: float
    memory_bytes: Bytes | None = None

    def limit(self, total_bytes: Callable[[], int]) -> GpuMemoryLimit:
        """Return the limit on a device; its total memory is asked for only where the plan does not say."""
        return GpuMemoryLimit(self.memory_bytes or int(total_bytes() * self.fraction))


@dataclass
class Enforcement:
    """What holds this process to its share, as far as its frameworks have been imported so far.

    Attributes:
        share_bytes: The share; ``None`` until a device's size is known.
        limit_bytes: What each framework's allocator was limited to.
        overhead_bytes: What was left for each framework's use outside its allocator.
        overhead_sources: Where each overhead is from: measured, with on what and when, or the safe default.
        not_enforceable: Frameworks in use that know no limit.
        isolation: ``"mps"``, ``"mig"`` or ``"framework"``; ``None``: nothing holds the process yet.
        warnings: What voids a limit, where the user insisted.
    """

    share_bytes: int | None = None
    limit_bytes: dict[str, int] = field(default_factory=dict)
    overhead_bytes: dict[str, int] = field(default_factory=dict)
    overhead_sources: dict[str, str] = field(default_factory=dict)
    not_enforceable: list[str] = field(default_factory=list)
    isolation: str | None = None
    warnings: list[str] = field(default_factory=list)


_in_force: Enforcement | None = None


def current_enforcement() -> Enforcement | None:
    """Return what holds this process to its share now; ``None``: nothing was asked to."""
    return _in_force


def enforce(
    share: GpuShare,
    *,
    overheads: Overheads = NOTHING_MEASURED,
    isolation: Literal["mps"] | None = None,
    on_void_limit: Literal["raise", "warn"] = "raise",
) -> Enforcement:
    """Hold every framework of this process to ``share``, now or when it is imported.

    A framework that sees no GPU uses no GPU memory, so it is let be where another one is held already. Where none is,
    the GPU that Ray gave is out of everybody's reach: an error. Each framework is held to the share by itself.

    Args:
        share: What the process may use.
        overheads: What the frameworks use outside their allocators.
        isolation: ``"mps"``: also let NVIDIA's MPS daemon hold the process, where one answers.
        on_void_limit: What to do about a setting that turns a limit into none: an error, or a warning in the result.

    Returns:
        What holds, filled further as frameworks are imported.

    Raises:
        MemoryLimitError: The limit could not be applied. The import of a framework may raise it later.
    """
    global _in_force
    in_force = _in_force = Enforcement(share_bytes=share.memory_bytes)
    present = [name for name in _LIMITERS if name in sys.modules]
    held = {name for name in present if _LIMITERS[name](sys.modules[name], share)}
    if present and not held:
        raise _sees_no_gpu(present[0])

    def limit_late(module: ModuleType) -> None:
        name = module.__name__
        if _LIMITERS[name](module, share):
            held.add(name)
        elif not held:
            raise _sees_no_gpu(name)

    for name in _LIMITERS.keys() - set(present):
        wrapt.register_post_import_hook(limit_late, name)
    for name in _NOT_LIMITED:
        wrapt.register_post_import_hook(_warn_not_limited, name)
    return in_force


def _warn_not_limited(module: ModuleType) -> None:
    warnings.warn(
        f"{module.__name__} is not held to this process's share of the GPU: use its own settings for that",
        stacklevel=2,
    )


def _sees_no_gpu(framework: str) -> MemoryLimitError:
    return MemoryLimitError(
        f"Ray gave this process a share of a GPU, but {framework} sees no GPU, so nothing can hold it to its share: "
        f"install a {framework} that is built for the GPU and its driver, or plan with CpuPolicy"
    )


def limit_torch(torch: Any, share: GpuShare) -> bool:
    """Hold PyTorch (CUDA and ROCm) to ``share``; return whether it sees a GPU at all.

    Raises:
        MemoryLimitError: The share is too small, or more is in use already.
    """
    if not torch.cuda.is_available():
        return False
    for device in range(torch.cuda.device_count()):
        total = int(torch.cuda.get_device_properties(device).total_memory)
        fraction = share.limit(total.__int__).torch_fraction(total)
        reserved = torch.cuda.memory_reserved(device)
        if reserved > fraction * total:
            raise MemoryLimitError(
                f"torch already holds {format_bytes(reserved)} of GPU {device}, more than its budget of "
                f"{format_bytes(int(fraction * total))}: put nothing on the GPU before the trial starts"
            )
        torch.cuda.set_per_process_memory_fraction(fraction, device)
    return True


def limit_tensorflow(tensorflow: Any, share: GpuShare) -> bool:
    """Hold TensorFlow to ``share``; return whether it sees a GPU at all.

    Raises:
        MemoryLimitError: The share is too small, TensorFlow's runtime has started, or its allocator has no limit.
    """
    config = tensorflow.config
    devices = config.list_physical_devices("GPU")
    if devices and os.environ.get("TF_GPU_ALLOCATOR") == "cuda_malloc_async":
        raise MemoryLimitError("TF_GPU_ALLOCATOR=cuda_malloc_async turns the memory limit into none: unset it")
    for device in devices:
        capability = config.experimental.get_device_details(device).get("compute_capability")
        megabytes = share.limit(_read_total_bytes).tensorflow_memory_limit_mb(capability)
        now = config.get_logical_device_configuration(device) or []
        if [each.memory_limit for each in now] == [megabytes]:
            continue  # the trial before this one, in the same process, had the same share
        try:
            config.set_logical_device_configuration(device, [config.LogicalDeviceConfiguration(memory_limit=megabytes)])
        except RuntimeError as error:
            raise MemoryLimitError(
                "tensorflow's runtime has started, so its memory can no longer be limited: "
                "touch no GPU before the trial starts, and do not reuse actors"
            ) from error
    return bool(devices)


_LIMITERS: Final[dict[str, Callable[[Any, GpuShare], bool]]] = {
    "torch": limit_torch,
    "tensorflow": limit_tensorflow,
}


_NOT_LIMITED: Final = ("jax", "cupy")
"""Frameworks that use GPU memory and are not limited here."""


def _read_total_bytes() -> int:
    try:
        return min(int(str(gpu["memory_bytes"])) for gpu in read_gpus())
    except Exception as error:  # NVML's errors have no base that can be named without NVML
        raise MemoryLimitError(
            "the plan does not state a worker's GPU memory, and the device cannot be read here: "
            f"{error}. Install nvidia-ml-py on the node and plan again"
        ) from error
