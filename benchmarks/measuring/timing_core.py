"""Times blocks of steps, synchronised with the device before and after.

The clocks and loops are not ours: where PyTorch does the work, ``torch.utils.benchmark``; else Python's ``timeit`` with
pyperf's clock. Only frameworks are asked that the process has imported: to import one would change what is measured.
"""

import sys
import timeit
from collections.abc import Callable
from typing import Any, Final

import pyperf

BLOCK_S: Final = 0.03
"""A block is long enough for the clock and the synchronisation not to count, and short enough to take many turns."""

_CALLED_BEFORE: Final = 2
"""Steps before a block that has several: since the last one, another arm has used the caches. As PyTorch's timer does,
for the hundredth part of the block where that is more."""


class BlockTimer:
    """Times blocks of one step.

    Args:
        step: What is timed.
        synchronize: Waits until the device has done what it was given; ``None``: as the framework does.
        num_threads: CPU threads of this process.
    """

    def __init__(self, step: Callable[[], Any], synchronize: Callable[[], None] | None, num_threads: int) -> None:
        self._step = step
        self._synchronize = synchronize
        self._num_threads = num_threads
        self._result: Any = None

    def seconds(self, num_steps: int) -> float:
        """Return how long so many steps took together."""
        if self._synchronize is None and num_steps > 1 and _only_torch_is_used():
            return self._seconds_by_torch(num_steps)
        if num_steps > 1:  # a step that fills a block by itself has warmed up when it begins to count
            for _ in range(max(_CALLED_BEFORE, num_steps // 100)):
                self._keep_result()
        return timeit.Timer(self._keep_result, timer=self._synchronized_clock).timeit(num_steps)

    def _seconds_by_torch(self, num_steps: int) -> float:
        from torch.utils.benchmark import Timer

        timer = Timer("step()", globals={"step": self._step}, num_threads=self._num_threads)
        return float(timer.timeit(num_steps).raw_times[0])

    def _keep_result(self) -> None:
        self._result = self._step()  # JAX is waited for by what it returned

    def _synchronized_clock(self) -> float:
        if self._synchronize is None:
            wait_for_devices(self._result)
        else:
            self._synchronize()
        return float(pyperf.perf_counter())


def steps_of_block(seconds: Callable[[int], float], *, step_s: float | None = None, most: int) -> int:
    """Return how many steps make a block.

    Args:
        seconds: Times so many steps.
        step_s: How long a step is known to take at the least; ``None``: not known.
        most: A block has no more steps, 1 or above.
    """
    if step_s is not None and step_s >= BLOCK_S:
        return 1
    number = 1
    while True:
        taken = max(seconds(number), 1e-9)
        fitting = max(1, min(most, round(number * BLOCK_S / taken)))
        # From a third of a block on, the clock and the first step after a pause do not count any more.
        if taken >= BLOCK_S / 3 or number >= most:
            return fitting
        number = min(fitting, number * 10) if fitting > number else min(most, number * 2)


def wait_for_devices(result: Any) -> None:
    """Wait until each framework that this process has imported has done what it was given.

    Args:
        result: What the last step returned.
    """
    for name, wait in _WAITS.items():
        if (module := sys.modules.get(name)) is not None:
            wait(module, result)


def _only_torch_is_used() -> bool:
    return "torch" in sys.modules and not any(name in sys.modules for name in _WAITS if name != "torch")


def _wait_for_torch(torch: Any, _: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif (accelerator := getattr(torch, "accelerator", None)) is not None and accelerator.is_available():
        accelerator.synchronize()
    elif torch.backends.mps.is_available():  # before PyTorch 2.6, which knows no accelerator in general
        torch.mps.synchronize()


def _wait_for_tensorflow(tensorflow: Any, _: Any) -> None:
    tensorflow.test.experimental.sync_devices()


def _wait_for_jax(jax: Any, result: Any) -> None:
    jax.block_until_ready(result)


def _wait_for_cupy(cupy: Any, _: Any) -> None:
    if cupy.cuda.is_available():
        cupy.cuda.Device().synchronize()


def _wait_for_numba(cuda: Any, _: Any) -> None:
    if cuda.is_available():
        cuda.synchronize()


_WAITS: Final[dict[str, Callable[[Any, Any], None]]] = {
    "torch": _wait_for_torch,
    "tensorflow": _wait_for_tensorflow,
    "jax": _wait_for_jax,
    "cupy": _wait_for_cupy,
    "numba.cuda": _wait_for_numba,
}
