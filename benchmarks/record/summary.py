"""What raw times come to: medians over processes with their spread, and how such numbers are written for people."""

import math
import statistics
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from tune_policies.values.resources import PositiveCount, UsedBytes
from tune_policies.values.value import Value

from .run_set import Arm, Phase, RunSet

_TIMES_SIGN: Final = "\N{MULTIPLICATION SIGN}"
_LONG: Final = ((7200, 3600, "h"), (600, 60, "min"))
"""From so many seconds on: the unit in seconds, and its name."""
_SHORT: Final = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


class Spread(NamedTuple):
    """The middle of several runs, and how far they lie apart.

    Attributes:
        median: In the unit of the samples.
        iqr: Interquartile range, in the same unit.
    """

    median: float
    iqr: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ±{self.iqr / 2:.2f}"


def spread(values: Sequence[float]) -> Spread:
    """Return median and interquartile range."""
    if len(values) < 2:
        return Spread(values[0], 0.0)
    quarters = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(quarters[1], quarters[2] - quarters[0])


class StepTime(Value):
    """A time over processes, in seconds.

    Attributes:
        median: The median of the processes' medians.
        half_iqr: Half their interquartile range; ``None``: there is one process only.
        low: The lower end of the interval that holds the true median, 95 % sure from six processes on.
        high: Its upper end.
        num_processes: How many.
    """

    median: float
    half_iqr: float | None = None
    low: float
    high: float
    num_processes: PositiveCount


def step_time(values: Iterable[float]) -> StepTime | None:
    """Return the median of processes with its distribution-free interval, from the sign test; ``None``: of none.

    The k-th lowest and k-th highest of n values hold the median with a probability of ``1 - 2 * B(k - 1; n, 1/2)``
    (Conover, Practical Nonparametric Statistics, 3.2). Below six values not even all of them give 95 %: five give 94.
    """
    ordered = sorted(values)
    count, cut = len(ordered), 0
    if not ordered:
        return None
    # 5 % are one part in 20: in whole numbers, as floats end at 2**1024.
    while 20 * 2 * sum(math.comb(count, each) for each in range(cut + 2)) <= 2**count:
        cut += 1
    median, iqr = spread(ordered)
    half = iqr / 2 if count > 1 else None
    return StepTime(median=median, half_iqr=half, low=ordered[cut], high=ordered[-1 - cut], num_processes=count)


def time_of(run_set: RunSet, arm: Arm, phase: Phase) -> StepTime | None:
    """Return the time of a step (of the first epoch: of all of it) over an arm's processes; ``None``: no times."""
    return step_time(statistics.median(each) for each in run_set.times_s(arm, phase).values())


class ArmSummary(Value):
    """What was measured of an arm.

    Attributes:
        arm: Which.
        times_s: Of a step by phase, of the first epoch as a whole; phases without a time are left out.
        samples_per_s: With transfers; ``None``: the workload has no samples, or no such time.
        peak_host_bytes: The most host memory of a process; ``None``: not known.
        peak_gpu_bytes: The most GPU memory of a process; ``None``: not known, or none.
        energy_j: What a process used over all that it ran, the median; ``None``: not known.
    """

    arm: Arm
    times_s: dict[Phase, StepTime]
    samples_per_s: float | None = None
    peak_host_bytes: UsedBytes | None = None
    peak_gpu_bytes: UsedBytes | None = None
    energy_j: float | None = None


def summarize(run_set: RunSet) -> tuple[ArmSummary, ...]:
    """Return a summary for each arm, by workload, size and device."""
    return tuple(_summarize(run_set, arm) for arm in run_set.sorted_arms)


def _summarize(run_set: RunSet, arm: Arm) -> ArmSummary:
    processes = run_set.of(arm)
    times = {phase: time for phase in Phase if (time := time_of(run_set, arm, phase))}
    samples = _most(run.samples_per_step for run in processes)
    with_transfers = times.get(Phase.TRANSFERS)
    energies = [run.energy_j for run in processes if run.energy_j is not None]
    return ArmSummary(
        arm=arm,
        times_s=times,
        samples_per_s=samples / with_transfers.median if samples and with_transfers else None,
        peak_host_bytes=_most(run.peak_host_bytes for run in processes),
        peak_gpu_bytes=_most(run.peak_gpu_bytes for run in processes),
        energy_j=statistics.median(energies) if energies else None,
    )


def _most(amounts: Iterable[int | None]) -> int | None:
    return max((amount for amount in amounts if amount is not None), default=None)


def time_text(seconds: float, half_iqr: float | None = None) -> str:
    """Return ``"1.23 ms"`` or ``"1.23 ±0.14 ms"``; from ten minutes on it is in minutes, from two hours in hours."""
    # 0.9999 ms is 1 ms, not 1000 µs: what counts is the number as it is written.
    written = float(f"{seconds:.3g}")
    short = next((each for each in _SHORT if written >= each[0]), _SHORT[-1])
    factor, unit = next(((each, name) for least, each, name in _LONG if seconds >= least), short)
    apart = "" if half_iqr is None else f" ±{digits(half_iqr / factor, 2)}"
    return f"{digits(seconds / factor)}{apart} {unit}"


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


def digits(number: float, count: int = 3) -> str:
    """Return the number with so many digits, in full above them: ``"12,345"``."""
    if abs(number) >= 10 ** (count - 1):
        return f"{number:,.0f}"
    return f"{Decimal(f'{number:.{count}g}'):f}"


def in_words(device: str) -> str:
    """Return ``"CPU"`` and ``"GPU"`` in capitals, also of a control, and other devices as they are."""
    name, control, _ = device.partition(" (control)")
    return name.upper() + control if name in {"cpu", "gpu"} else device


def sentence(text: str) -> str:
    """Return a reason or a message as a sentence of its own."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"
