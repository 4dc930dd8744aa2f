"""Holds PyTorch to its share: on CUDA and ROCm, on Intel's XPU, Huawei's NPU and Apple's MPS."""

import os
from typing import Any, Final

from tune_policies.values.errors import MemoryLimitError
from tune_policies.values.units import MIB, format_bytes

from ..environment import torch_own_fraction
from ..share import LimiterContext

_BACK_ENDS: Final = ("cuda", "xpu", "npu")
"""Modules of ``torch`` that have ``set_per_process_memory_fraction`` alike; ROCm is ``cuda`` too."""

_ROUNDING_BYTES: Final = MIB
"""How far a fraction that is read back may be from the bytes that it was meant for."""


def limit_torch(torch: Any, context: LimiterContext) -> bool:
    """Hold PyTorch to its share; return whether it sees a GPU at all.

    Raises:
        MemoryLimitError: The share is too small, more is in use already, or the allocator in use knows no limit.
    """
    back_ends = {name: getattr(torch, name, None) for name in _BACK_ENDS}
    available = {name: module for name, module in back_ends.items() if module is not None and module.is_available()}
    for name, module in available.items():
        if not hasattr(module, "set_per_process_memory_fraction"):  # XPU before PyTorch 2.10
            context.report.not_enforceable.append(f"torch.{name}")
            continue
        if name == "cuda" and not _has_limited_allocator(torch, context):
            continue
        for device in range(module.device_count()):
            _limit_device(torch, module, device, context)
    if available:
        return True
    return _limit_apple(torch, context)


def _limit_device(torch: Any, module: Any, device: int, context: LimiterContext) -> None:
    properties = module.get_device_properties(device)
    total = int(properties.total_memory)
    limit = context.limit("torch", torch.__version__, total_bytes=total.__int__, gpu_model=properties.name)
    fraction = min(limit.torch_fraction(total), torch_own_fraction(torch.__version__, os.environ))
    budget = int(fraction * total)
    reserved = module.memory_reserved(device)
    if reserved > budget:
        raise MemoryLimitError(
            f"torch already holds {format_bytes(reserved)} of GPU {device}, more than its budget of "
            f"{format_bytes(budget)}: put nothing on the GPU before the trial starts"
        )
    module.set_per_process_memory_fraction(fraction, device)
    context.note_limit("torch", budget)


def _has_limited_allocator(torch: Any, context: LimiterContext) -> bool:
    match torch.cuda.get_allocator_backend():
        case "native":
            pass
        case "cudaMallocAsync" | "hipMallocAsync" as backend:
            # It refuses a request above the limit (CUDAMallocAsyncAllocator.cpp), but counts what is in use, while
            # the driver's pool keeps what was freed.
            context.report.warn(
                f"torch's allocator {backend} limits what tensors use; what the driver's pool keeps may be more"
            )
        case other:
            context.void(f"torch's allocator {other!r} knows no limit: use the native one")
            return False
    return True


def _limit_apple(torch: Any, context: LimiterContext) -> bool:
    back_end = getattr(torch.backends, "mps", None)
    if back_end is None or not back_end.is_available():
        return False
    total = int(torch.mps.recommended_max_memory())
    limit = context.limit("torch", torch.__version__, total_bytes=total.__int__, gpu_model=None)
    fraction = limit.torch_mps_fraction(total)
    torch.mps.set_per_process_memory_fraction(fraction)
    context.note_limit("torch", int(fraction * total))
    return True


def torch_still_holds(torch: Any, limit_bytes: int) -> bool:
    """Return whether PyTorch is still within the fraction that was set; ``True`` where it cannot be asked."""
    for module in (getattr(torch, name, None) for name in _BACK_ENDS):
        if module is None or not module.is_available():
            continue
        fraction_now = getattr(module, "get_per_process_memory_fraction", None)  # CUDA's, from PyTorch 2.8
        if fraction_now is None:
            continue
        for device in range(module.device_count()):
            total = int(module.get_device_properties(device).total_memory)
            if int(fraction_now(device) * total) > limit_bytes + _ROUNDING_BYTES:
                return False
    return True
