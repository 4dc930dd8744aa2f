"""Numba kernels for CUDA, and the same kernels for CPU threads.

``doubling`` does little work for each copied number, so the time of the copies dominates, as in the first example of
many GPU guides. ``branching`` runs small interpreters that take different branches. The threads of a GPU warp execute
different branches one after the other.
"""

import os
from typing import Any, Final

import numpy as np
from numba import config, cuda, get_num_threads, njit, prange, set_num_threads

from .steps import Steps, unseen

SEED: Final = 0
_THREADS_PER_BLOCK: Final = 256

# NumPy 2.5 removed this alias, but numba-cuda 0.30 and older use it when they compile a kernel.
if not hasattr(np, "row_stack"):
    np.row_stack = np.vstack

NUM_LANES: Final = 32
"""The number of interpreters in a step of ``branching``: one for each thread of a warp."""


def doubling(size: int, device: str) -> Steps:
    """Return steps that multiply ``size`` numbers by 2 and write the results to another array."""
    values = np.random.default_rng(SEED).random(size, dtype=np.float32)
    return _kernel_steps(values, _double, _double_on_gpu, device)


def branching(size: int, device: str) -> Steps:
    """Return steps that run 32 interpreters for ``size`` instructions each.

    An interpreter's number determines which of eight instructions is next, so branches are unpredictable. All devices
    compute exactly the same result, because the numbers are integers.
    """
    seeds = np.random.default_rng(SEED).integers(1, 2**32, NUM_LANES)
    return _kernel_steps(seeds, _branch, _branch_on_gpu, device, size)._replace(tolerance=0.0)


def _kernel_steps(values: Any, on_cpu: Any, on_gpu: Any, device: str, *arguments: int) -> Steps:
    """Return steps of a kernel that reads an array and writes an array of the same type and size."""
    if device == "cpu":
        return _on_cpu(values, on_cpu, arguments)
    if device.upper() == "GPU" and cuda.is_available():
        return _on_gpu(values, on_gpu, arguments)
    raise unseen("numba", device)


def _on_cpu(values: Any, kernel: Any, arguments: tuple[int, ...]) -> Steps:
    written = np.empty_like(values)
    num_threads = _num_threads()

    def step() -> float:
        set_num_threads(num_threads)  # numba stores the number for each calling thread
        kernel(values, written, *arguments)
        return float(written[-1])

    return Steps(with_transfers=step, compute=step, steps_per_epoch=1, dtype=str(values.dtype))


def _on_gpu(values: Any, kernel_of: Any, arguments: tuple[int, ...]) -> Steps:
    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # small sizes are intended
    there = cuda.to_device(values)
    written = cuda.device_array_like(there)
    num_blocks = -(-values.size // _THREADS_PER_BLOCK)
    kernel = kernel_of[num_blocks, min(values.size, _THREADS_PER_BLOCK)]

    def with_transfers() -> float:
        moved = cuda.to_device(values)
        result = cuda.device_array_like(moved)
        kernel(moved, result, *arguments)
        return float(result.copy_to_host()[-1])

    def compute() -> _LastElement:
        kernel(there, written, *arguments)
        return _LastElement(written)

    return Steps(with_transfers, compute, steps_per_epoch=1, synchronize=cuda.synchronize, dtype=str(values.dtype))


class _LastElement:
    """The last element of an array on the device. Only ``float()`` copies the array to the host."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __float__(self) -> float:
        return float(self._array.copy_to_host()[-1])


def _num_threads() -> int:
    """Return the number of threads from ``OMP_NUM_THREADS``, because numba's default is all CPUs."""
    stated = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # "4,2" also has the number of a nested level
    return min(int(stated or get_num_threads()), int(config.NUMBA_NUM_THREADS))


@njit(parallel=True)  # type: ignore[untyped-decorator]
def _double(values: Any, doubled: Any) -> None:
    for index in prange(values.size):
        doubled[index] = 2 * values[index]


@cuda.jit  # type: ignore[untyped-decorator]
def _double_on_gpu(values: Any, doubled: Any) -> None:
    index = cuda.grid(1)
    if index < values.size:
        doubled[index] = 2 * values[index]


def _interpreted(number: int, num_instructions: int) -> int:
    """Run ``num_instructions`` instructions on a 32-bit number, and return the resulting number."""
    for _ in range(num_instructions):
        instruction = (number >> 7) & 7
        if instruction == 0:
            number = 3 * number + 1
        elif instruction == 1:
            number = number >> 1 if number & 1 == 0 else number ^ 0x9E3779B9
        elif instruction == 2:
            number ^= number << 13
        elif instruction == 3:
            number ^= number >> 17
        elif instruction == 4:
            number += 0x7F4A7C15
        elif instruction == 5:
            number = 5 * number + 11 if number & 2 else 7 * number + 3
        elif instruction == 6:
            number = (number << 5) | (number >> 27)
        else:
            number = 0xFFFFFFFF - number
        number = (1664525 * (number & 0xFFFFFFFF) + 1013904223) & 0xFFFFFFFF
    return number


_interpreted_on_cpu = njit(_interpreted)
_interpreted_on_gpu = cuda.jit(device=True)(_interpreted)


@njit(parallel=True)  # type: ignore[untyped-decorator]
def _branch(seeds: Any, results: Any, num_instructions: int) -> None:
    for index in prange(seeds.size):
        results[index] = _interpreted_on_cpu(seeds[index], num_instructions)


@cuda.jit  # type: ignore[untyped-decorator]
def _branch_on_gpu(seeds: Any, results: Any, num_instructions: int) -> None:
    index = cuda.grid(1)
    if index < seeds.size:
        results[index] = _interpreted_on_gpu(seeds[index], num_instructions)
