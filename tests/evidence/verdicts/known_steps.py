"""Workloads of which it is known how long a step takes on one device against another: what verdicts are tried on.

They do the same on every device, on a CPU: with logical GPUs, a Ray on any machine has "cpu" and "gpu" for them.
"""

import time
from functools import partial
from typing import Final

from tune_policies.benchmarks.compare.step_child import step
from tune_policies.benchmarks.workloads.steps import Steps

CHANGE: Final = 1.05
"""By how much a step of :func:`five_percent` takes longer on the CPU."""


def equal(size: int, device: str) -> Steps:
    """Hash so many blocks, on whatever device."""
    return Steps(with_transfers=partial(_work, size), steps_per_epoch=1)


def five_percent(size: int, device: str) -> Steps:
    """Hash 5 % more blocks on the CPU."""
    num_blocks = round(size * CHANGE) if device == "cpu" else size
    return Steps(with_transfers=partial(_work, num_blocks), steps_per_epoch=1)


def waiting(size: int, device: str) -> Steps:
    """Wait on the clock for so many microseconds: a step of which it is known how long it takes."""
    return Steps(with_transfers=partial(_wait, size / 1e6), steps_per_epoch=1)


def _work(num_blocks: int) -> None:
    step(num_blocks)


def _wait(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
