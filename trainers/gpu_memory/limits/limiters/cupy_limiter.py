"""Holds CuPy to its share, by the limit of its default memory pool."""

import os
from typing import Any

from tune_policies.values.errors import MemoryLimitError
from tune_policies.values.units import format_bytes

from ..environment import CUPY_VARIABLE, cupy_own_limit
from ..share import LimiterContext


def limit_cupy(cupy: Any, context: LimiterContext) -> bool:
    """Hold CuPy to its share; return whether it sees a GPU at all.

    Raises:
        MemoryLimitError: The share is too small, more is in use already, or the allocator in use knows no limit.
    """
    if not cupy.cuda.is_available():
        return False
    if cupy.cuda.get_allocator() != cupy.get_default_memory_pool().malloc:
        context.void("CuPy's default memory pool was replaced, and with it its limit: keep the default allocator")
        return True
    for device in range(cupy.cuda.runtime.getDeviceCount()):
        _limit_device(cupy, device, context)
    return True


def _limit_device(cupy: Any, device: int, context: LimiterContext) -> None:
    properties = cupy.cuda.runtime.getDeviceProperties(device)
    total = int(properties["totalGlobalMem"])
    limit = context.limit("cupy", cupy.__version__, total_bytes=lambda: total, gpu_model=properties["name"].decode())
    budget = limit.cupy_limit_bytes()
    # The call below would lift what the user's own variable says.
    budget = min(budget, cupy_own_limit(total, os.environ) or budget)
    pool = cupy.get_default_memory_pool()
    with cupy.cuda.Device(device):
        try:
            held = pool.total_bytes()  # a device's first use of its pool, which reads the variable
        except ValueError as error:
            raise MemoryLimitError(
                f"CuPy cannot read {CUPY_VARIABLE}={os.environ.get(CUPY_VARIABLE)}: "
                "unset it, or give a number of bytes or a percentage up to 100%"
            ) from error
        if held > budget:
            raise MemoryLimitError(
                f"cupy already holds {format_bytes(held)} of GPU {device}, more than its budget of "
                f"{format_bytes(budget)}: put nothing on the GPU before the trial starts"
            )
        pool.set_limit(size=budget)
    context.note_limit("cupy", budget)


def cupy_still_holds(cupy: Any, limit_bytes: int) -> bool:
    """Return whether CuPy still takes its memory from its default pool, within the limit that was set."""
    pool = cupy.get_default_memory_pool()
    if cupy.cuda.get_allocator() != pool.malloc:
        return False
    for device in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(device):
            if not 0 < pool.get_limit() <= limit_bytes:  # 0: no limit
                return False
    return True
