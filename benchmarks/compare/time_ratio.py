"""Decides which of two configurations is faster, from the 95 % confidence interval of the ratio of their times.

Fresh processes differ in memory layout and caches. More steps in one process would not reveal these differences, so
each process contributes one value, the median of its blocks. The processes of all configurations take turns within a
round, so the state of the machine affects them equally. Therefore, only ratios within a round are used. The interval is
Student's t interval of the mean logarithm of these ratios, so swapping the configurations inverts the ratio.

A configuration is faster if the 95 % interval lies outside the band that counts as the same, and the 99.5 % interval
excludes equality. With these rules, at most about one in 100 comparisons of equal configurations reports a
difference. Because a few rounds may agree by chance, the ratio must also differ from 1 by more than the scatter of the
blocks within processes can explain at 99.5 % confidence. Configurations count as equally fast if the interval lies
within the band. Otherwise, the outcome is ambiguous.

Doubts about the times, for example because of load from other processes, do not widen the interval. If there is a
doubt, the outcome is never "same", and a configuration counts as faster only if the interval lies outside the band
after the band is widened by ``FACTOR_IN_DOUBT``.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from itertools import chain
from math import exp, inf, log, pi, sqrt
from statistics import median
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy import stats

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Count
from tune_policies.values.value import Value

CONFIDENCE: Final = 0.95
"""The confidence level of the reported intervals."""
SURE: Final = 0.99
"""The confidence level at which a drift, or a difference between equal configurations, is significant."""
SURER: Final = 0.995
"""The confidence level that is required to call one configuration faster than another."""
FEWEST_ROUNDS: Final = 3
"""The minimum number of rounds for an estimate of the variation between processes."""
FACTOR_OF_PROCESSES: Final = 1.25
"""The assumed error factor of a ratio from one or two rounds. Processes on an idle machine differ by less."""
FACTOR_IN_DOUBT: Final = 2.0
"""The assumed error factor of a ratio of doubtful times. A process that shares its CPU takes twice as long."""

_NORMAL_SCALE: Final = 1.4826
"""The standard deviation of a normal distribution divided by its median absolute deviation."""

Times = Mapping[int, tuple[float, ...]]
"""The seconds per step in each block of a configuration's process, by round."""
Floats = npt.NDArray[np.float64]


class Interval(NamedTuple):
    """The first configuration's time divided by the second's (geometric mean over rounds), with confidence bounds."""

    ratio: float
    low: float
    high: float
    num_rounds: int

    def at_confidence(self, wanted: float) -> "Interval":
        """Return the interval at another confidence level, or unchanged if there are too few rounds."""
        # The interval of one or two rounds is an assumed factor, and no t interval that could be stretched.
        if self.num_rounds < FEWEST_ROUNDS:
            return self
        freedom = self.num_rounds - 1
        stretch = student_quantile(wanted, freedom) / student_quantile(CONFIDENCE, freedom)
        # The interval is symmetric around the logarithm of the ratio, so it is stretched there.
        low, high = (self.ratio * (bound / self.ratio) ** stretch for bound in (self.low, self.high))
        return self._replace(low=low, high=high)


def common_rounds(first: Times, second: Times) -> list[int]:
    """Return the rounds in which both configurations have times, ascending."""
    return sorted(number for number in first.keys() & second.keys() if first[number] and second[number])


def ratio_interval(first: Times, second: Times) -> Interval:
    """Return the ratio of the first configuration's time to the second's and its interval, over paired rounds.

    Raises:
        InvalidResourcesError: The configurations have no round in common, or a time is not above 0.
    """
    ratios = _log_ratios(first, second)
    ratio, low, high = (exp(bound[0]) for bound in paired_bounds(np.array([list(ratios.values())])))
    if len(ratios) < FEWEST_ROUNDS:
        low, high = min(low, ratio / FACTOR_OF_PROCESSES), max(high, ratio * FACTOR_OF_PROCESSES)
    return Interval(ratio, low, high, len(ratios))


def paired_bounds(differences: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the means, the lower bounds and the upper bounds of the rows of ``differences``.

    ``differences`` has the shape ``(runs, rounds)``. Its values are the logarithms of the first configuration's time
    divided by the second's.
    """
    num_rounds = differences.shape[1]
    means = differences.mean(axis=1)
    # One round shows no scatter. ``ratio_interval`` widens such an interval.
    if num_rounds == 1:
        return means, means, means
    half = student_quantile(CONFIDENCE, num_rounds - 1) * stats.sem(differences, axis=1)
    return means, means - half, means + half


@cache
def student_quantile(confidence: float, freedom: float = inf) -> float:
    """Return half the width of the central interval of Student's t distribution with probability ``confidence``.

    ``freedom`` is the number of degrees of freedom. The default gives the normal distribution.
    """
    return float(stats.t.ppf((1 + confidence) / 2, freedom))


def error_of_blocks(first: Times, second: Times) -> float:
    """Return the part of the standard error of the ratio's logarithm that is caused by scatter within processes.

    The true error is at least as large, because processes also differ from each other. The scatter is computed from the
    median absolute deviation, so a few disturbed blocks have little effect.
    """
    variance = 0.0
    for times in (first, second):
        logs = [np.log(blocks) for blocks in times.values() if blocks]
        scatters = [_NORMAL_SCALE * float(np.median(np.abs(blocks - np.median(blocks)))) for blocks in logs]
        # The variance of the median of n normal values is pi / 2 times the variance of their mean.
        of_medians = (pi / 2 * scatter**2 / len(blocks) for blocks, scatter in zip(logs, scatters, strict=True))
        variance += sum(of_medians) / len(logs) ** 2
    return sqrt(variance)


def _log_ratios(first: Times, second: Times) -> dict[int, float]:
    """Return the logarithm of the ratio of the processes' median times, by round."""
    medians = {number: (median(first[number]), median(second[number])) for number in common_rounds(first, second)}
    if not medians:
        raise InvalidResourcesError("no round has times of both configurations. Measure both configurations")
    for time in chain.from_iterable(medians.values()):
        if not time > 0:  # also raises for NaN
            raise InvalidResourcesError(
                f"a step must take more than 0 s, got {time} s. If the file was edited, measure again"
            )
    return {number: log(one) - log(other) for number, (one, other) in medians.items()}


class Outcome(StrEnum):
    """The faster configuration, ``SAME``, or ``AMBIGUOUS`` if the times are not conclusive."""

    FIRST = "first"
    SECOND = "second"
    SAME = "same"
    AMBIGUOUS = "ambiguous"


class Comparison(Value):
    """The result of comparing two configurations of the same workload and size.

    Attributes:
        ratio: The first configuration's time divided by the second's. If it is above 1, the second is faster.
        low: The lower end of the confidence interval of the ratio.
        high: The upper end of this interval.
        same_within: The maximum relative difference of configurations that count as the same.
        num_rounds: The number of pairs of processes that were compared.
        reasons: The reasons why the outcome is ambiguous or doubtful, as sentences.
    """

    ratio: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    outcome: Outcome
    same_within: float = 0.05
    confidence: float = CONFIDENCE
    num_rounds: Count
    reasons: tuple[str, ...] = ()


def compare_times(first: Times, second: Times, *, same_within: float = 0.05, doubts: Iterable[str] = ()) -> Comparison:
    """Compare the times of two configurations of one run. ``doubts`` contains sentences about unreliable times.

    Raises:
        InvalidResourcesError: The configurations have no round in common, or ``same_within`` is not valid.
    """
    if not 0 < same_within < 1:
        raise InvalidResourcesError(f"same_within must be between 0 and 1, such as 0.05 for 5 %, got {same_within}")
    interval = ratio_interval(first, second)
    # A drift is a doubt like those of the caller: it makes the interval unreliable without widening it.
    drift = drift_of_ratio(first, second, same_within)
    reasons = list(doubts)
    if drift:
        reasons.append(drift)
    # The reasons that are added below explain the outcome. They are no doubts about the times.
    outcome = outcome_of(interval, same_within, is_doubtful=bool(reasons))
    by_chance = student_quantile(SURER) * error_of_blocks(first, second)
    if outcome in (Outcome.FIRST, Outcome.SECOND) and abs(log(interval.ratio)) <= by_chance:
        outcome = Outcome.AMBIGUOUS
        reasons.append(
            f"the times within processes scatter so much that the ratio may be off by {exp(by_chance) - 1:.1%}. Run"
            " more rounds, or measure on an idle machine"
        )
    if interval.num_rounds < FEWEST_ROUNDS:
        count = "one round" if interval.num_rounds == 1 else "two rounds"
        reasons.append(
            f"{count} cannot show how much processes differ, so the interval allows for a factor of"
            f" {FACTOR_OF_PROCESSES:g}. Run {FEWEST_ROUNDS} or more rounds"
        )
    if outcome is Outcome.AMBIGUOUS and not reasons:
        reasons.append(_why_ambiguous(interval, same_within))
    return Comparison(**interval._asdict(), outcome=outcome, same_within=same_within, reasons=tuple(reasons))


def outcome_of(interval: Interval, same_within: float, *, is_doubtful: bool) -> Outcome:
    """Return the outcome for an interval. ``is_doubtful`` states whether there are doubts about the times."""
    band = log(1 + same_within)
    # Doubtful times never show that two devices are equally fast.
    if not is_doubtful and -band <= log(interval.low) and log(interval.high) <= band:
        return Outcome.SAME
    allowed = band
    if is_doubtful:
        allowed += log(FACTOR_IN_DOUBT)
    surer = interval.at_confidence(SURER)
    if log(interval.low) > allowed and surer.low > 1:
        return Outcome.SECOND
    if log(interval.high) < -allowed and surer.high < 1:
        return Outcome.FIRST
    return Outcome.AMBIGUOUS


def drift_of_ratio(first: Times, second: Times, same_within: float) -> str | None:
    """Return a sentence about the drift of the ratio over the rounds, or ``None`` if it is small or not significant.

    Both configurations may become slower together, but their ratio should stay constant.
    """
    ratios = _log_ratios(first, second)
    # A line through three points has only one degree of freedom, so a drift would hardly ever be significant.
    if len(ratios) < 4:
        return None
    line = stats.linregress([*ratios], [*ratios.values()])
    change = abs(line.slope) * (max(ratios) - min(ratios))
    # Even a significant drift does not matter if it is smaller than the difference that counts as the same.
    if line.pvalue >= 1 - SURE or change <= log(1 + same_within):
        return None
    return f"the ratio drifted by {exp(change) - 1:.1%} from the first to the last round. Measure more rounds"


def _why_ambiguous(interval: Interval, same_within: float) -> str:
    bounds = f"the interval from {interval.low:.3f} to {interval.high:.3f}"
    if log(interval.low) > log(1 + same_within) or log(interval.high) < -log(1 + same_within):
        return (
            f"{bounds} would include equal times at a confidence of {SURER:.1%}. Run more rounds to narrow the interval"
        )
    band = f"{1 / (1 + same_within):.3f} to {1 + same_within:.3f}"
    return (
        f"{bounds} lies only partly inside {band}, the range that counts as equal. Run more rounds to narrow the"
        " interval"
    )
