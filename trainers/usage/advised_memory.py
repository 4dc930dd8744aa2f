"""The amount of GPU memory to write in a policy, and how many trials then fit on a GPU.

An amount with the usual headroom may be slightly larger than an equal part of a GPU, so that one trial less fits. Then
the equal part is a second choice if it still contains the measured need and at least half of the usual headroom.

Amounts are rounded, but never past an equal part of a GPU. So the plan of an advised policy has as many trials on a GPU
as the advice states.
"""

from typing import Final, NamedTuple

from tune_policies.plan.headroom import HEADROOM, memory_to_write, with_headroom
from tune_policies.policies.equal_fractions import equal_device_fraction
from tune_policies.values.resources import TICKS, format_amount, to_ticks
from tune_policies.values.units import GIB, format_bytes, format_request, parse_bytes
from tune_policies.values.wording import counted

_LEAST_HEADROOM: Final = HEADROOM / 2

_MOST_NEAR_MISSES: Final = 8
"""The number of trials on a GPU from which one more trial is not worth less headroom."""


def gpu_memory_to_write(
    needed_bytes: int, device_bytes: int | None, *, on_whole_gpu_bytes: int | None = None
) -> list[str]:
    """Return one or two choices of what to write in a policy, each with the number of trials that then fit on a GPU.

    Args:
        needed_bytes: The memory that a trial needs, without headroom.
        device_bytes: The memory of a GPU, or ``None`` if it is not known.
        on_whole_gpu_bytes: The memory that a trial needs on a whole GPU, or ``None`` for ``needed_bytes``. It may be
            less, because no overhead is subtracted from a whole GPU.
    """
    usual = amount_to_write(needed_bytes, device_bytes)
    policy = f'GpuMemoryPolicy(gpu_memory="{usual}")'
    if device_bytes is None:
        return [f"{policy} (its plan shows how many trials fit on a GPU)"]
    gpu = f"a GPU of {format_bytes(device_bytes)}"
    least_bytes = needed_bytes
    if on_whole_gpu_bytes is not None:
        least_bytes = on_whole_gpu_bytes
    if least_bytes > device_bytes:
        return [f"{policy}, which needs a larger GPU than {gpu}"]
    fit = trials_with(usual, device_bytes)
    if not fit:
        return [f"GpuPolicy(), because 1 trial fits on {gpu}"]
    choices = [f"{policy}, with which {_trials_fit(fit)} on {gpu}"]
    near_miss = amount_for_one_more(needed_bytes, device_bytes, fit)
    if near_miss is not None:
        choices.append(
            f'GpuMemoryPolicy(gpu_memory="{near_miss.amount}"), with which {_trials_fit(fit + 1)}, because it adds '
            f"{near_miss.added} to what the trials needed instead of {HEADROOM:.0%}"
        )
    return choices


class NearMiss(NamedTuple):
    """An amount with which one more trial fits on a GPU.

    Attributes:
        amount: The amount for the field of a policy.
        added: The headroom of this amount as text, such as ``"6%"``.
    """

    amount: str
    added: str


def amount_for_one_more(needed_bytes: int, device_bytes: int, count: int) -> NearMiss | None:
    """Return the amount with which ``count + 1`` trials fit on a GPU, or ``None`` if its headroom is too little.

    Args:
        needed_bytes: The memory that a trial needs, without headroom.
        device_bytes: The memory of a GPU.
        count: The number of trials that fit with the usual headroom.
    """
    if count >= _MOST_NEAR_MISSES:
        return None
    amount = equal_part_to_write(device_bytes, count + 1)
    headroom = parse_bytes(amount) / needed_bytes - 1
    if headroom < _LEAST_HEADROOM:
        return None
    added = f"{headroom:.0%}"
    # The headroom is less than the usual one, but is rounded to the same percentage.
    if added == f"{HEADROOM:.0%}":
        added = "slightly less"
    return NearMiss(amount, added)


def gpus_to_write(gpus: float) -> str:
    """Return what to write so that a trial gets these GPUs, if the memory of a GPU is not known."""
    if gpus >= 1:
        return f"GpuPolicy(gpus={gpus:g})" if gpus > 1 else "GpuPolicy()"
    count = TICKS // equal_device_fraction(TICKS // to_ticks(gpus), 1)
    return f"GpuPolicy(gpus={format_amount(gpus)}), with which {_trials_fit(count)} on a GPU"


def _trials_fit(count: int) -> str:
    verb = "fits" if count == 1 else "fit"
    return f"{counted(count, 'trial')} {verb}"


def amount_to_write(needed_bytes: int, device_bytes: int | None) -> str:
    """Return the amount for the field of a policy, with the usual headroom.

    The amount is rounded up to 0.1 GiB. If fewer trials fit on the GPU with the rounded amount than with the exact one,
    it is instead an equal part of the GPU, rounded down.

    Args:
        needed_bytes: The memory that a trial needs, without headroom.
        device_bytes: The memory of a GPU, or ``None`` if it is not known.
    """
    usual = memory_to_write(needed_bytes)
    if device_bytes is None:
        return usual
    wanted = with_headroom(needed_bytes, HEADROOM)
    fit = device_bytes // wanted
    if device_bytes // parse_bytes(usual) >= fit:
        return usual
    return equal_part_to_write(device_bytes, fit, at_least_bytes=wanted)


def trials_with(amount: str, device_bytes: int) -> int:
    """Return how many trials with this amount of GPU memory a plan runs on a GPU."""
    fit = device_bytes // parse_bytes(amount)
    if not fit:
        return 0
    return TICKS // equal_device_fraction(fit, 1)  # fewer than ``fit``, because the plan rounds small fractions


def equal_part_to_write(device_bytes: int, count: int, at_least_bytes: int = 0) -> str:
    """Return the largest amount for the field of a policy with which exactly ``count`` trials fit on a GPU.

    Args:
        device_bytes: The memory of the GPU.
        count: The number of trials.
        at_least_bytes: The memory that a trial needs. Whole GiB and tenths of a GiB are used only if they are enough.
    """
    part = device_bytes // count
    tenths = (10 * (part + 1) - 1) // GIB  # the most tenths of a GiB that are at most ``part``
    if tenths >= 10:
        amount = f"{tenths / 10:g}GiB"
        if device_bytes // parse_bytes(amount) == count and parse_bytes(amount) >= at_least_bytes:
            return amount
    amount = format_request(part)
    if device_bytes // parse_bytes(amount) == count:
        return amount
    return str(part)
