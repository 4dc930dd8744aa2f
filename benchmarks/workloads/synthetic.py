"""Work of known cost, for tests of what measures and decides. It computes nothing: it waits on a clock, busily."""

import time
from typing import Final

from ..measuring.workload import Steps

CPU_COST: Final = (0.05e-3, 1e-6)
"""Seconds of a step, and seconds more for each unit of its size."""

OTHER_COST: Final = (1e-3, 0.05e-6)
"""The same on any device that is not the CPU. The two cost the same at size 1,000."""


def affine(size: int, device: str) -> Steps:
    """Take ``a + b * size`` seconds, which depend on the name of the device only; no device needs to be there."""
    fixed_s, per_unit_s = CPU_COST if device == "cpu" else OTHER_COST
    seconds = fixed_s + per_unit_s * size

    def wait() -> float:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
        return float(size)

    return Steps(with_transfers=wait, compute=wait, steps_per_epoch=1)
