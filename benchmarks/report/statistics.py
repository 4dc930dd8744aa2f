"""What the figures show of raw times, and how times and ratios are written for people."""

import math
import statistics
from collections.abc import Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from ..record.run_set import Arm, Phase, ProcessRun, RunSet

_TIMES_SIGN: Final = "\N{MULTIPLICATION SIGN}"
_TIMES: Final = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def time_text(seconds: float) -> str:
    """Return ``"1.23 ms"``; from ten minutes on ``"12 min"``, from two hours on ``"3.5 h"``."""
    if seconds >= 7200:
        return f"{digits(seconds / 3600)} h"
    if seconds >= 600:
        return f"{digits(seconds / 60)} min"
    # 0.9999 ms is 1 ms, not 1000 µs: what counts is the number as it is written.
    factor, unit = next((each for each in _TIMES if float(f"{seconds:.3g}") >= each[0]), _TIMES[-1])
    return f"{digits(seconds / factor)} {unit}"


def ratio_text(ratio: float) -> str:
    """Return the ratio with the sign of multiplication behind it."""
    return f"{_ratio_digits(ratio)}{_TIMES_SIGN}"


def ratio_with_bounds(ratio: float, low: float, high: float) -> str:
    """Return the ratio as :func:`ratio_text` does, and its interval behind it."""
    return f"{ratio_text(ratio)} ({_ratio_digits(low)} to {_ratio_digits(high)})"


def multiple_text(ratio: float) -> str:
    """Return the ratio for an axis: without zeros behind it."""
    return f"{digits(ratio)}{_TIMES_SIGN}"


def _ratio_digits(ratio: float) -> str:
    if 0.1 <= ratio < 2:
        return f"{ratio:.2f}"
    return f"{ratio:.1f}" if 2 <= ratio < 100 else digits(ratio, 2)


def in_words(device: str) -> str:
    """Return ``"CPU"`` and ``"GPU"`` in capitals, and other devices as they are."""
    return device.upper() if device in {"cpu", "gpu"} else device


def digits(number: float, count: int = 3) -> str:
    """Return the number with so many digits, in full above them: ``"12,345"``."""
    if abs(number) >= 10 ** (count - 1):
        return f"{number:,.0f}"
    return f"{Decimal(f'{number:.{count}g}'):f}"


def sentence(text: str) -> str:
    """Return a reason or a message as a sentence of its own."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"


CONFIDENCE: Final = 0.95


class Middle(NamedTuple):
    """The median over processes, and the interval that holds the true one.

    Attributes:
        median: In the unit of the values.
        low: The lower end of the interval.
        high: Its upper end.
    """

    median: float
    low: float
    high: float


def middle(values: Sequence[float]) -> Middle:
    """Return the median with its distribution-free interval, from the sign test.

    The k-th lowest and k-th highest of n values hold the median with a probability of ``1 - 2 * B(k - 1; n, 1/2)``
    (Conover, Practical Nonparametric Statistics, 3.2). Below six values not even all of them give 95 %: five give 94.
    """
    ordered = sorted(values)
    count, cut = len(ordered), 0
    while 2 * _lowest_tail(count, cut + 1) <= 1 - CONFIDENCE:
        cut += 1
    return Middle(statistics.median(ordered), ordered[cut], ordered[-1 - cut])


def _lowest_tail(count: int, most: int) -> float:
    """How probable it is that at most ``most`` of so many values lie below their median."""
    return sum(math.comb(count, each) for each in range(most + 1)) / float(2**count)


def step_time(run_set: RunSet, arm: Arm, phase: Phase) -> Middle | None:
    """Return seconds of a step (of the first epoch: of all of it) over the arm's processes; ``None``: no times."""
    times = [statistics.median(each) for each in run_set.times_s(arm, phase).values()]
    return middle(times) if times else None


def by_workload(run_set: RunSet) -> dict[str, RunSet]:
    """Return the run of each workload by itself, by name: what is asked of it then takes no look at all the others."""
    runs: dict[str, list[ProcessRun]] = {}
    for run in run_set.runs:
        runs.setdefault(run.arm.workload, []).append(run)
    return {name: run_set.model_copy(update={"runs": tuple(runs[name])}) for name in sorted(runs)}


def ordered_devices(run_set: RunSet) -> tuple[str, ...]:
    """Return the devices that were asked for or measured: the CPU first, as others are compared with it."""
    measured = sorted({run.arm.device for run in run_set.runs})
    asked = [each.device for each in run_set.devices]
    return tuple(sorted(dict.fromkeys((*asked, *measured)), key=lambda each: each != "cpu"))


def measured_devices(run_set: RunSet) -> tuple[str, ...]:
    """Return the devices of which something was measured, in the same order."""
    measured = {run.arm.device for run in run_set.runs}
    return tuple(each for each in ordered_devices(run_set) if each in measured)
