"""Compares two arms: the ratio of their times with a 95 % interval, and the outcome that follows from it.

The interval is a bootstrap over processes. Fresh processes differ (where their memory lies, what was warm), and more
steps in one of them do not show by how much. So a process counts once, by the median of its blocks (Davison and
Hinkley, Bootstrap Methods and Their Application, 1997, section 3.8). Times are compared as logarithms, so that swapped
arms give the inverse ratio.

In a round, the processes of all arms take turns. Whatever the machine does to a round is in both arms, so only their
ratio within the round counts. Arms of different runs have no rounds in common; their processes are drawn independently.

A percentile bootstrap over few values is too narrow (Hesterberg, What Teachers Should Know About the Bootstrap, 2015),
and percentiles further out do not help with 4 rounds, which can be drawn in 35 ways only. So the interval is stretched
as much as a t interval is wider than a normal one.

An arm is faster if the 95 % interval lies wholly beyond the band that counts as the same, and that of 99.5 % excludes
equality: then equal arms pass for different in less than one of 100 comparisons. Because a few rounds may agree by
chance, the ratio must also differ from 1 by more than the scatter of the blocks within processes explains at 99.5 %.
Arms are the same if the interval lies wholly within the band. Everything else is ambiguous.

Doubts about the times, such as other load, do not widen the interval. If there is a doubt, arms are never the same, and
an arm is faster only if it would still be so with the ratio wrong by ``FACTOR_IN_DOUBT``.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from math import exp, floor, inf, log, pi, sqrt
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy import stats

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Count
from tune_policies.values.value import Value

CONFIDENCE: Final = 0.95
"""Confidence of the intervals that are shown."""
SURE: Final = 0.99
"""Confidence at which a difference of equal arms, or a drift, counts as real."""
SURER: Final = 0.995
NUM_DRAWS: Final = 2000
FEWEST_ROUNDS: Final = 3
"""With fewer rounds, the run itself does not show how much processes differ."""
FACTOR_OF_PROCESSES: Final = 1.25
"""By how much fewer rounds may be wrong. On an idle machine, fresh processes differ by less."""
FACTOR_IN_DOUBT: Final = 2.0
"""By how much times in doubt may be wrong, at worst: one of two equal arms shares its CPU with another process."""

Times = Mapping[int, tuple[float, ...]]
"""By round, the seconds of a step in each block of the process."""
Floats = npt.NDArray[np.float64]


class Interval(NamedTuple):
    """The ratio of the first arm's time to the second's, as the geometric mean over processes, with its bounds.

    Attributes:
        freedom: Degrees of freedom of the t interval; 0 if there are too few processes and the bounds are assumed.
        num_rounds: Processes of the arm that has fewer.
        is_paired: Whether the arms were compared round by round.
    """

    ratio: float
    low: float
    high: float
    freedom: float
    num_rounds: int
    is_paired: bool

    def at_confidence(self, wanted: float) -> "Interval":
        """Return the interval at another confidence, widened as a t interval would be."""
        if self.freedom == 0:
            return self
        stretch = student_quantile(wanted, self.freedom) / student_quantile(CONFIDENCE, self.freedom)
        low, high = (self.ratio * (bound / self.ratio) ** stretch for bound in (self.low, self.high))
        return self._replace(low=low, high=high)


def ratio_interval(first: Times, second: Times) -> Interval:
    """Return the interval of the ratio, round by round if the arms have rounds in common.

    Raises:
        InvalidResourcesError: An arm has no times, or a time that is not above 0.
    """
    ones, others = _log_medians(first), _log_medians(second)
    common = sorted(ones.keys() & others.keys())
    if len(common) < min(FEWEST_ROUNDS, len(ones), len(others)):
        return unpaired_interval(first, second)
    differences = np.array([[ones[number] - others[number] for number in common]])
    return _interval(paired_bounds(differences), len(common) - 1, len(common), is_paired=True)


def unpaired_interval(first: Times, second: Times) -> Interval:
    """Return the interval of the ratio of two arms without common rounds; errors as in :func:`ratio_interval`."""
    ones, others = (np.array([list(_log_medians(times).values())]) for times in (first, second))
    rounds = min(ones.size, others.size)
    freedom = float(_welch_freedom(ones, others)[0]) if rounds > 1 else 0.0
    return _interval(unpaired_bounds(ones, others), freedom, rounds, is_paired=False)


def error_of_blocks(first: Times, second: Times) -> float:
    """Return the standard error of the ratio's logarithm, as far as the scatter of blocks within processes explains it.

    The true error is no smaller, because processes differ as well. The scatter is the median absolute deviation, so
    that a few disturbed blocks do not count.
    """
    variance = 0.0
    for times in (first, second):
        logs = [np.log(blocks) for blocks in times.values() if blocks]
        scatters = [float(stats.median_abs_deviation(each, scale="normal")) for each in logs]
        # The median of n normal values varies pi / 2 times as much as their mean.
        of_medians = (pi / 2 * scatter**2 / len(each) for each, scatter in zip(logs, scatters, strict=True))
        variance += sum(of_medians) / len(logs) ** 2
    return sqrt(variance)


def paired_bounds(differences: Floats) -> tuple[Floats, Floats, Floats]:
    """Return means, lower and upper bounds, one for each row of ``differences``.

    A row has the difference of the two arms' logarithms for each round: shape ``(runs, rounds)``.
    """
    num_rounds = differences.shape[1]
    means = differences.mean(axis=1)
    if num_rounds == 1:
        return means, means, means
    return _bounds(means, _drawn_deviations(differences), num_rounds - 1)


def unpaired_bounds(first: Floats, second: Floats) -> tuple[Floats, Floats, Floats]:
    """Return means, lower and upper bounds of the differences of two arms without common rounds.

    Each has the logarithms of one arm, a row for each run: shape ``(runs, processes)``.
    """
    means = first.mean(axis=1) - second.mean(axis=1)
    if min(first.shape[1], second.shape[1]) == 1:
        return means, means, means
    # Each arm also takes the draws of the other, so that swapped arms give the inverse interval.
    drawn = [_drawn_deviations(first, key) - _drawn_deviations(second, 1 - key) for key in (0, 1)]
    return _bounds(means, np.concatenate(drawn, axis=1), _welch_freedom(first, second))


def student_quantile(confidence: float, freedom: Any = inf) -> Any:
    """Return the half width of the middle part of Student's t distribution that has this probability.

    Without ``freedom``, that of the normal distribution. ``freedom`` may be an array.
    """
    return stats.t.ppf((1 + confidence) / 2, freedom)


def _interval(bounds: tuple[Floats, ...], freedom: float, rounds: int, *, is_paired: bool) -> Interval:
    ratio, low, high = (exp(each[0]) for each in bounds)
    if rounds < FEWEST_ROUNDS:
        low, high = min(low, ratio / FACTOR_OF_PROCESSES), max(high, ratio * FACTOR_OF_PROCESSES)
        freedom = 0
    return Interval(ratio, low, high, freedom, rounds, is_paired)


def _bounds(means: Floats, drawn: Floats, freedom: Any) -> tuple[Floats, Floats, Floats]:
    """Return the means, and the stretched percentiles of the drawn deviations around them."""
    stretch = student_quantile(CONFIDENCE, freedom) / student_quantile(CONFIDENCE)
    # The n-th smallest and the n-th largest: interpolation would treat the two ends slightly differently.
    place = floor((1 - CONFIDENCE) / 2 * drawn.shape[1])
    ends = np.partition(drawn, (place, drawn.shape[1] - 1 - place), axis=1)
    return means, means + stretch * ends[:, place], means + stretch * ends[:, -1 - place]


def _drawn_deviations(values: Floats, key: int = 0) -> Floats:
    """Return, by row, the distances of the means of drawn values from the mean of all."""
    num_values = values.shape[1]
    # The values scatter about their own mean, which understates the spread by this factor.
    unbiased = sqrt(num_values / (num_values - 1))
    drawn: Floats = (values - values.mean(axis=1, keepdims=True)) * unbiased @ _weights(num_values, key)
    return drawn


@cache
def _weights(num_values: int, key: int) -> Floats:
    """Return the weight of each value in the mean of each draw; seeded, so that equal times give equal intervals."""
    draws = np.random.default_rng([num_values, key]).multinomial(num_values, [1 / num_values] * num_values, NUM_DRAWS)
    return draws.T / num_values


def _welch_freedom(first: Floats, second: Floats) -> Floats:
    """Return, by row, the degrees of freedom of the difference of two means (Welch, 1947)."""
    fewer = [each.shape[1] - 1 for each in (first, second)]
    one, other = (each.var(axis=1, ddof=1) / each.shape[1] for each in (first, second))
    with np.errstate(invalid="ignore"):  # 0 / 0 if no value differs
        freedom = (one + other) ** 2 / (one**2 / fewer[0] + other**2 / fewer[1])
    known: Floats = np.fmax(freedom, min(fewer))
    return known


def _log_medians(times: Times) -> dict[int, float]:
    medians = {number: median(each) for number, each in times.items() if each}
    if not medians:
        raise InvalidResourcesError("nothing was measured of one arm: there is nothing to compare. Run it first")
    if wrong := [each for each in medians.values() if not each > 0]:
        raise InvalidResourcesError(f"a step must take more than 0 s, got {wrong[0]} s: the file was changed by hand?")
    return {number: log(each) for number, each in medians.items()}


class Outcome(StrEnum):
    """Which arm is faster by more than counts as the same; ``AMBIGUOUS`` if the times do not show it."""

    FIRST = "first"
    SECOND = "second"
    SAME = "same"
    AMBIGUOUS = "ambiguous"


class Comparison(Value):
    """Two arms of one workload and size, compared.

    Attributes:
        ratio: The first arm's time divided by the second's: above 1, the second is faster.
        low: The lower end of the interval that contains the ratio with ``confidence``; ``high`` is the upper end.
        same_within: Relative difference up to which the arms count as the same.
        num_rounds: How many pairs of processes were compared.
        reasons: Why the outcome is ambiguous, or what casts doubt on it, a sentence each.
    """

    ratio: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    outcome: Outcome
    same_within: float = 0.05
    confidence: float = 0.95
    num_rounds: Count
    reasons: tuple[str, ...] = ()


def compare_arms(first: Times, second: Times, *, same_within: float = 0.05, doubts: Iterable[str] = ()) -> Comparison:
    """Compare two arms of one run, round by round, given the ``doubts`` about their times, a sentence each.

    Raises:
        InvalidResourcesError: An arm has no times, or ``same_within`` is not valid.
    """
    return _judge(ratio_interval(first, second), first, second, same_within, doubts)


def compare_apart(first: Times, second: Times, *, same_within: float = 0.05, doubts: Iterable[str] = ()) -> Comparison:
    """Compare two arms of different runs like :func:`compare_arms`, without pairing their rounds."""
    return _judge(unpaired_interval(first, second), first, second, same_within, doubts)


def outcome_of(interval: Interval, same_within: float, *, is_doubtful: bool) -> Outcome:
    """Return the outcome that follows from an interval alone."""
    band = log(1 + same_within)
    if not is_doubtful and -band <= log(interval.low) and log(interval.high) <= band:
        return Outcome.SAME
    allowed = band + (log(FACTOR_IN_DOUBT) if is_doubtful else 0)
    surer = interval.at_confidence(SURER)
    if log(interval.low) > allowed and surer.low > 1:
        return Outcome.SECOND
    if log(interval.high) < -allowed and surer.high < 1:
        return Outcome.FIRST
    return Outcome.AMBIGUOUS


def drift_of_ratio(first: Times, second: Times, same_within: float) -> str | None:
    """Return how the arms' ratio changed from the first to the last common round, if the change is sure and matters.

    Both arms of a round may become slower together; their ratio should not.
    """
    common = sorted(number for number in first.keys() & second.keys() if first[number] and second[number])
    if len(common) < 4:
        return None
    line = stats.linregress(common, [log(median(first[number]) / median(second[number])) for number in common])
    change = abs(line.slope) * (common[-1] - common[0])
    if line.pvalue >= 1 - SURE or change <= log(1 + same_within):
        return None
    return f"the ratio drifted by {exp(change) - 1:.1%} from the first round to the last: run it again, for longer"


def _judge(interval: Interval, first: Times, second: Times, same_within: float, doubts: Iterable[str]) -> Comparison:
    if not 0 < same_within < 1:
        raise InvalidResourcesError(f"same_within must be between 0 and 1, such as 0.05 for 5 %, got {same_within}")
    drift = drift_of_ratio(first, second, same_within) if interval.is_paired else None
    reasons = [*doubts, *([drift] if drift else [])]
    outcome = outcome_of(interval, same_within, is_doubtful=bool(reasons))
    by_chance = student_quantile(SURER) * error_of_blocks(first, second)
    if outcome in (Outcome.FIRST, Outcome.SECOND) and abs(log(interval.ratio)) <= by_chance:
        outcome = Outcome.AMBIGUOUS
        reasons.append(
            f"the times within processes scatter so much that the ratio may be off by {exp(by_chance) - 1:.1%}: run"
            " more rounds, or wait until the machine is quiet"
        )
    if interval.num_rounds < FEWEST_ROUNDS:
        count = "one round" if interval.num_rounds == 1 else "two rounds"
        reasons.append(
            f"{count} cannot tell how much processes differ, so a factor of {FACTOR_OF_PROCESSES:g} is allowed for:"
            f" run {FEWEST_ROUNDS} or more"
        )
    if outcome is Outcome.AMBIGUOUS and not reasons:
        reasons.append(_why_ambiguous(interval, same_within))
    return Comparison(
        **{field: getattr(interval, field) for field in ("ratio", "low", "high", "num_rounds")},
        outcome=outcome,
        same_within=same_within,
        reasons=tuple(reasons),
    )


def _why_ambiguous(interval: Interval, same_within: float) -> str:
    bounds = f"the interval from {interval.low:.3f} to {interval.high:.3f}"
    if log(interval.low) > log(1 + same_within) or log(interval.high) < -log(1 + same_within):
        return f"{bounds} would include equal times at a confidence of {SURER:.1%}: more rounds make it narrower"
    band = f"{1 / (1 + same_within):.3f} to {1 + same_within:.3f}"
    return f"{bounds} is partly within {band}, which counts as the same, and partly not: more rounds make it narrower"
