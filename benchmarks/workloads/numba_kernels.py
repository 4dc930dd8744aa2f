"""The doubling of an array by numba: a kernel for CUDA, and its twin for the CPU's threads.

The least work for each number that is moved, so the copies decide, as in the first example of many guides to GPUs.
"""

import os
from typing import Any, Final

import numpy as np
from numba import config, cuda, get_num_threads, njit, prange, set_num_threads

from .steps import Steps, unseen

SEED: Final = 0
_THREADS_PER_BLOCK: Final = 256


def doubling(size: int, device: str) -> Steps:
    """Write ``size`` numbers times two into another array; the last of them compares."""
    values = np.random.default_rng(SEED).random(size, dtype=np.float32)
    if device == "cpu":
        return _on_cpu(values)
    if device.upper() == "GPU" and cuda.is_available():
        return _on_gpu(values)
    raise unseen("numba", device)


def _on_cpu(values: Any) -> Steps:
    doubled = np.empty_like(values)
    num_threads = _num_threads()

    def double() -> float:
        set_num_threads(num_threads)  # numba keeps it for each thread that calls
        _double(values, doubled)
        return float(doubled[-1])

    return Steps(with_transfers=double, compute=double, steps_per_epoch=1, dtype="float32")


def _on_gpu(values: Any) -> Steps:
    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # small sizes are the point
    there = cuda.to_device(values)
    doubled = cuda.device_array_like(there)
    num_blocks = -(-values.size // _THREADS_PER_BLOCK)
    kernel = _double_on_gpu[num_blocks, _THREADS_PER_BLOCK]

    def with_transfers() -> float:
        moved = cuda.to_device(values)
        result = cuda.device_array_like(moved)
        kernel(moved, result)
        return float(result.copy_to_host()[-1])

    def compute() -> _LastElement:
        kernel(there, doubled)
        return _LastElement(doubled)

    return Steps(with_transfers, compute, steps_per_epoch=1, synchronize=cuda.synchronize, dtype="float32")


class _LastElement:
    """The last element of an array on the device, which is copied and waited for only when it is asked for."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __float__(self) -> float:
        return float(self._array.copy_to_host()[-1])


def _num_threads() -> int:
    """Return the threads that the process was set to, as OpenMP has them: numba by itself takes all CPUs."""
    return min(int(os.environ.get("OMP_NUM_THREADS") or get_num_threads()), int(config.NUMBA_NUM_THREADS))


@njit(parallel=True)  # type: ignore[untyped-decorator]
def _double(values: Any, doubled: Any) -> None:
    for index in prange(values.size):
        doubled[index] = 2 * values[index]


@cuda.jit  # type: ignore[untyped-decorator]
def _double_on_gpu(values: Any, doubled: Any) -> None:
    index = cuda.grid(1)
    if index < values.size:
        doubled[index] = 2 * values[index]
