"""The amount of GPU memory to write in a policy, and how many trials then fit on a GPU.

An amount with the usual headroom may be slightly larger than an equal part of a GPU, so that one trial less fits. Then
the equal part is a second choice if it still contains the measured need and at least half of the usual headroom.
"""

import math
from typing import Final

from tune_policies.plan.headroom import HEADROOM, memory_to_write
from tune_policies.policies.fractions_and_cpus import equal_device_fraction
from tune_policies.values.resources import TICKS, format_amount, to_ticks
from tune_policies.values.units import GIB, format_bytes, format_request, parse_bytes
from tune_policies.values.value import counted

_LEAST_HEADROOM: Final = HEADROOM / 2

_MOST_NEAR_MISSES: Final = 8
"""The number of trials on a GPU from which one more trial is not worth less headroom."""


def gpu_memory_to_write(needed_bytes: int, device_bytes: int | None) -> list[str]:
    """Return one or two choices of what to write in a policy, each with the number of trials that then fit on a GPU.

    Args:
        needed_bytes: The memory that a trial needs, without headroom.
        device_bytes: The memory of a GPU, or ``None`` if it is not known.
    """
    usual = memory_to_write(needed_bytes)
    policy = f'GpuMemoryPolicy(gpu_memory="{usual}")'
    if device_bytes is None:
        return [f"{policy} (its plan shows how many trials fit on a GPU)"]
    gpu = f"a GPU of {format_bytes(device_bytes)}"
    if needed_bytes > device_bytes:
        return [f"{policy}, which needs a larger GPU than {gpu}"]
    fit = device_bytes // parse_bytes(usual)
    if not fit:
        return [f"GpuPolicy(), because 1 trial fits on {gpu}"]
    fit = TICKS // equal_device_fraction(fit, 1)  # fewer, because the plan rounds small fractions
    choices = [f"{policy}, with which {_trials_fit(fit)} on {gpu}"]
    if fit >= _MOST_NEAR_MISSES:
        return choices
    smaller = equal_part_to_write(device_bytes, fit + 1)
    headroom = parse_bytes(smaller) / needed_bytes - 1
    if headroom >= _LEAST_HEADROOM:
        choices.append(
            f'GpuMemoryPolicy(gpu_memory="{smaller}"), with which {_trials_fit(fit + 1)}, because it adds '
            f"{headroom:.0%} to what the trials needed instead of {HEADROOM:.0%}"
        )
    return choices


def gpus_to_write(gpus: float) -> str:
    """Return what to write so that a trial gets these GPUs, if the memory of a GPU is not known."""
    if gpus >= 1:
        return f"GpuPolicy(gpus={gpus:g})" if gpus > 1 else "GpuPolicy()"
    count = TICKS // to_ticks(gpus)
    return f"GpuPolicy(gpus={format_amount(gpus)}), with which {_trials_fit(count)} on a GPU"


def _trials_fit(count: int) -> str:
    verb = "fits" if count == 1 else "fit"
    return f"{counted(count, 'trial')} {verb}"


def equal_part_to_write(device_bytes: int, count: int) -> str:
    """Return an equal part of a GPU for the field of a policy, rounded down so that ``count`` trials fit."""
    part = device_bytes // count
    if part >= GIB:
        return f"{math.floor(part / GIB * 10) / 10:g}GiB"
    return format_request(part)
