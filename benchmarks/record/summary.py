"""Summarizes raw times by medians over processes with their spread, and formats such numbers for people."""

import statistics
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

from scipy import stats

from tune_policies.values.resources import PositiveCount, UsedBytes
from tune_policies.values.value import Value

from .run_set import Arm, Phase, RunSet

_TIMES_SIGN: Final = "\N{MULTIPLICATION SIGN}"
_LONG: Final = ((7200, 3600, "h"), (600, 60, "min"))
"""From how many seconds on a unit is used, the unit in seconds, and its name."""
_SHORT: Final = ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


class Spread(NamedTuple):
    """The median of several runs and their interquartile range, in the unit of the samples."""

    median: float
    iqr: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ±{self.iqr / 2:.2f}"


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the interquartile range of one value or more."""
    if len(values) < 2:
        return Spread(values[0], 0.0)
    quarters = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(quarters[1], quarters[2] - quarters[0])


class StepTime(Value):
    """A time over processes, in seconds.

    Attributes:
        median: The median of the processes' medians.
        half_iqr: Half their interquartile range; ``None`` if there is only one process.
        low: The lower end of the median's interval, with 95 % from six processes on; ``high`` is the upper end.
    """

    median: float
    half_iqr: float | None = None
    low: float
    high: float
    num_processes: PositiveCount


def step_time(values: Iterable[float]) -> StepTime | None:
    """Return the median of processes with its distribution-free interval from the sign test, or ``None`` without any.

    The k-th lowest and k-th highest of n values enclose the median with a probability of ``1 - 2 * B(k - 1; n, 1/2)``
    (Conover, Practical Nonparametric Statistics, 3.2). Five values enclose it with 94 %.
    """
    ordered = sorted(values)
    if not ordered:
        return None
    count = len(ordered)
    cut = max(0, int(stats.binom.ppf(0.025, count, 0.5)) - 1)
    median, iqr = spread(ordered)
    half = iqr / 2 if count > 1 else None
    return StepTime(median=median, half_iqr=half, low=ordered[cut], high=ordered[-1 - cut], num_processes=count)


def time_of(run_set: RunSet, arm: Arm, phase: Phase) -> StepTime | None:
    """Return the time of a step, or of the whole first epoch, over an arm's processes; ``None`` without times."""
    return step_time(statistics.median(each) for each in run_set.times_s(arm, phase).values())


class ArmSummary(Value):
    """The measurements of an arm, over its processes; ``None`` stands for what is unknown.

    Attributes:
        times_s: Times by phase; see :func:`time_of`.
        samples_per_s: With transfers.
        energy_j: The median energy that a process used, in joules.
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
    """Return ``"1.23 ms"`` or ``"1.23 ±0.14 ms"``, in minutes from ten minutes on, in hours from two hours on."""
    # The rounded number decides, so that 0.9999 ms is 1 ms and not 1000 µs.
    written = float(f"{seconds:.3g}")
    short = next((each for each in _SHORT if written >= each[0]), _SHORT[-1])
    factor, unit = next(((each, name) for least, each, name in _LONG if seconds >= least), short)
    apart = "" if half_iqr is None else f" ±{digits(half_iqr / factor, 2)}"
    return f"{digits(seconds / factor)}{apart} {unit}"


def ratio_text(ratio: float) -> str:
    """Return ``"1.23×"``."""
    return f"{_ratio_digits(ratio)}{_TIMES_SIGN}"


def ratio_with_bounds(ratio: float, low: float, high: float) -> str:
    """Return ``"1.23× (1.20 to 1.26)"``."""
    return f"{ratio_text(ratio)} ({_ratio_digits(low)} to {_ratio_digits(high)})"


def multiple_text(ratio: float) -> str:
    """Return the ratio for an axis, without trailing zeros."""
    return f"{digits(ratio)}{_TIMES_SIGN}"


def _ratio_digits(ratio: float) -> str:
    if 0.1 <= ratio < 2:
        return f"{ratio:.2f}"
    return f"{ratio:.1f}" if 2 <= ratio < 100 else digits(ratio, 2)


def digits(number: float, count: int = 3) -> str:
    """Return the number with ``count`` significant digits; larger numbers in full: ``"12,345"``."""
    if abs(number) >= 10 ** (count - 1):
        return f"{number:,.0f}"
    return f"{Decimal(f'{number:.{count}g}'):f}"


def in_words(device: str) -> str:
    """Return a device's name, with ``CPU`` and ``GPU`` in capitals."""
    name, control, _ = device.partition(" (control)")
    return name.upper() + control if name in {"cpu", "gpu"} else device


def sentence(text: str) -> str:
    """Return a text with a capital at its beginning and a full stop at its end."""
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"
