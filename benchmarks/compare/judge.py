"""How many times as long one arm takes as another, and whether that tells which is faster.

The ratio has a bootstrap interval over processes.

What differs between fresh processes (where their memory lies, what was warm) does not go away with more steps in one
of them, so a process counts once, by the median of its blocks, and processes are what is drawn again. Blocks within one
are not: how they vary is in the process's median already, and would count twice (Davison and Hinkley, Bootstrap Methods
and Their Application, 1997, section 3.8). Times are compared as logarithms, so that a ratio and its inverse are alike.

A round has a process of each arm, which take turns: what a machine does to a whole round is in both, and only their
ratio within the round counts. Arms of different runs have no common rounds; their processes are drawn independently.

A bootstrap over few draws is too narrow (Hesterberg, What Teachers Should Know About the Bootstrap, 2015). Its usual
mend takes percentiles further out, which 4 rounds do not have: 4 values can be drawn in 35 ways. So the percentiles of
the wanted confidence are taken, and stretched from the middle as much as a t interval is against a normal one.

An arm is the faster one if the 95 % interval lies wholly beyond the band that counts as the same, and that of 99.5 %
does not hold equality: whatever the noise, equal arms pass for different in less than one of 100 comparisons. The
interval goes by how much rounds differ, and a few may agree by chance; so the ratio must also be further from equality
than the blocks within processes, of which there are more, make it at 99.5 %. Arms are the same if the interval lies
wholly within the band. All else is ambiguous.

What is doubtful about the times themselves (other load, a control arm that differs from its twin) does not widen the
interval; with a doubt, arms are not called the same, and one of them is the faster only if it would still be so with
the ratio wrong by ``FACTOR_IN_DOUBT``. So a busy machine hides 5 %, and does not hide that a GPU is 10 times as fast.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from math import exp, floor, log, pi, sqrt, tan
from statistics import NormalDist, median
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Count
from tune_policies.values.value import Value

CONFIDENCE: Final = 0.95
"""Of an interval."""
NUM_DRAWS: Final = 2000
FEWEST_ROUNDS: Final = 3
"""With fewer, the spread between processes is not known from the run itself."""
FACTOR_OF_PROCESSES: Final = 1.25
"""By how much fewer rounds may be wrong on a machine that does nothing else: fresh processes differ by less."""

Times = Mapping[int, tuple[float, ...]]
"""Seconds of a step by round: of each block of the round's process."""
Floats = npt.NDArray[np.float64]


class Interval(NamedTuple):
    """A ratio of times, and the bounds between which it lies.

    Attributes:
        ratio: The first's time divided by the second's: the geometric mean over processes.
        low: The lower end.
        high: The upper end.
        freedom: Degrees of freedom, as of a t interval; 0: of too few processes, so the bounds are an assumption.
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
        """Return the interval that holds with another confidence, widened as a t interval would be."""
        if self.freedom == 0:
            return self
        stretch = student_quantile(wanted, self.freedom) / student_quantile(CONFIDENCE, self.freedom)
        low, high = (self.ratio * (bound / self.ratio) ** stretch for bound in (self.low, self.high))
        return self._replace(low=low, high=high)


def ratio_interval(first: Times, second: Times) -> Interval:
    """Return how many times as long the first takes, round by round where the arms have rounds in common.

    Raises:
        InvalidResourcesError: An arm has no times, or one that is not above 0.
    """
    ones, others = _log_medians(first), _log_medians(second)
    common = sorted(ones.keys() & others.keys())
    if len(common) < min(FEWEST_ROUNDS, len(ones), len(others)):
        return unpaired_interval(first, second)
    differences = np.array([[ones[number] - others[number] for number in common]])
    return _interval(*paired_bounds(differences), freedom=len(common) - 1, rounds=len(common), paired=True)


def unpaired_interval(first: Times, second: Times) -> Interval:
    """Return how many times as long the first takes, where no process of one belongs to one of the other.

    Raises:
        InvalidResourcesError: An arm has no times, or one that is not above 0.
    """
    ones, others = (np.array([list(_log_medians(times).values())]) for times in (first, second))
    bounds = unpaired_bounds(ones, others)
    rounds = min(ones.size, others.size)
    freedom = _welch_freedom(ones, others)[0] if rounds > 1 else 0.0
    return _interval(*bounds, freedom=freedom, rounds=rounds, paired=False)


def error_of_blocks(first: Times, second: Times) -> float:
    """Return the standard error of the ratio's logarithm, as far as it is known from the blocks within processes.

    The true one is no smaller, whatever processes do beside it. The scatter of a process is taken from the median
    deviation of its blocks from their median, so that a few disturbed ones do not count, and the error of its median
    from that, as of a normal distribution.
    """
    return sqrt(sum(_error_of_medians(arm) ** 2 for arm in (first, second)))


def _error_of_medians(times: Times) -> float:
    """Return the standard error of the mean of the logarithms of the processes' medians, as far as blocks tell."""
    logs = [np.log(each) for each in times.values() if each]
    of_normal = 1 / NormalDist().inv_cdf(0.75)
    scatters = [of_normal * float(np.median(np.abs(each - np.median(each)))) for each in logs]
    errors = [sqrt(pi / 2) * scatter / sqrt(len(each)) for each, scatter in zip(logs, scatters, strict=True)]
    return sqrt(sum(error**2 for error in errors)) / len(errors)


def paired_bounds(differences: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the means, and their bounds, of each row: a draw of the differences of the arms' logarithms by round."""
    num_rounds = differences.shape[1]
    means = differences.mean(axis=1)
    if num_rounds == 1:
        return means, means, means
    stretch = student_quantile(CONFIDENCE, num_rounds - 1) / student_quantile(CONFIDENCE)
    return _bounds(means, _drawn_deviations(differences), stretch)


def unpaired_bounds(first: Floats, second: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the differences of means, and their bounds, of each row: a draw of the logarithms of both arms."""
    means = first.mean(axis=1) - second.mean(axis=1)
    if min(first.shape[1], second.shape[1]) == 1:
        return means, means, means
    # Each arm takes the draws of the other, too, so that the interval of the swapped arms is the inverse one.
    drawn = [_drawn_deviations(first, key) - _drawn_deviations(second, 1 - key) for key in (0, 1)]
    freedom = _welch_freedom(first, second)
    stretch = np.array([student_quantile(CONFIDENCE, each) for each in freedom]) / student_quantile(CONFIDENCE)
    return _bounds(means, np.concatenate(drawn, axis=1), stretch)


@cache
def student_quantile(confidence: float, freedom: float | None = None) -> float:
    """Return within what of its middle Student's t distribution has ``confidence``; without ``freedom``, the normal.

    With t = sqrt(freedom) tan(angle), its density is proportional to cos(angle) ** (freedom - 1).
    """
    if freedom is None:
        return NormalDist().inv_cdf((1 + confidence) / 2)
    step = pi / 2 / 20_000
    middles = np.arange(20_000) * step + step / 2
    weights = np.cos(middles) ** (freedom - 1)
    within = np.concatenate([[0.0], np.cumsum(weights)]) / weights.sum()
    angle = float(np.interp(confidence, within, np.arange(20_001) * step))
    return sqrt(freedom) * tan(angle)


def _interval(means: Floats, lows: Floats, highs: Floats, *, freedom: float, rounds: int, paired: bool) -> Interval:
    ratio, low, high = (exp(bounds[0]) for bounds in (means, lows, highs))
    if rounds < FEWEST_ROUNDS:
        low, high = min(low, ratio / FACTOR_OF_PROCESSES), max(high, ratio * FACTOR_OF_PROCESSES)
        freedom = 0
    return Interval(ratio, low, high, freedom, rounds, paired)


def _bounds(means: Floats, drawn: Floats, stretch: Any) -> tuple[Floats, Floats, Floats]:
    """Return the means, and the percentiles of what was drawn about 0, stretched and put about the means."""
    outside = (1 - CONFIDENCE) / 2
    # The n-th smallest and the n-th largest: to interpolate would treat both ends a little differently.
    place = floor(outside * drawn.shape[1])
    ends = np.partition(drawn, (place, drawn.shape[1] - 1 - place), axis=1)
    return means, means + stretch * ends[:, place], means + stretch * ends[:, -1 - place]


def _drawn_deviations(values: Floats, key: int = 0) -> Floats:
    """Return, by row, how far the means of drawn values lie from the mean of all."""
    num_values = values.shape[1]
    # The spread of a few values is that about their own mean, which is too small by this.
    unbiased = sqrt(num_values / (num_values - 1))
    centred = (values - values.mean(axis=1, keepdims=True)) * unbiased
    drawn: Floats = centred @ _weights(num_values, key)
    return drawn


@cache
def _weights(num_values: int, key: int) -> Floats:
    """Return the part of each value in the mean of each draw; seeded, so that the same times give the same interval."""
    draws = np.random.default_rng([num_values, key]).multinomial(num_values, [1 / num_values] * num_values, NUM_DRAWS)
    return draws.T / num_values


def _welch_freedom(first: Floats, second: Floats) -> list[float]:
    """Return the degrees of freedom of the difference of two means, by row, rounded down to tenths (Welch, 1947)."""
    one, other = (each.var(axis=1, ddof=1) / each.shape[1] for each in (first, second))
    smallest = min(first.shape[1], second.shape[1]) - 1
    below = one**2 / (first.shape[1] - 1) + other**2 / (second.shape[1] - 1)
    freedom = np.divide((one + other) ** 2, below, out=np.full_like(below, smallest), where=below > 0)
    return [floor(each * 10) / 10 for each in np.maximum(freedom, smallest).tolist()]


def _log_medians(times: Times) -> dict[int, float]:
    medians = {number: median(each) for number, each in times.items() if each}
    if not medians:
        raise InvalidResourcesError("nothing was measured of one arm: there is nothing to compare. Run it first")
    if wrong := [each for each in medians.values() if not each > 0]:
        raise InvalidResourcesError(f"a step must take more than 0 s, got {wrong[0]} s: the file was changed by hand?")
    return {number: log(each) for number, each in medians.items()}


class Outcome(StrEnum):
    """What a comparison of two arms found."""

    FIRST = "first"
    """The first is faster, by more than counts as the same."""

    SECOND = "second"
    """The second is faster, by more than counts as the same."""

    SAME = "same"
    """They differ by no more than counts as the same."""

    AMBIGUOUS = "ambiguous"
    """What was measured does not tell."""


class Comparison(Value):
    """Two arms of one workload and size, compared.

    Attributes:
        ratio: The first's time divided by the second's: above 1, the second is faster.
        low: The lower end of the interval that holds the ratio with ``confidence``.
        high: Its upper end.
        outcome: What follows.
        same_within: By how much the arms may differ and still count as the same, as a part.
        confidence: Of the interval.
        num_rounds: Over how many pairs of processes.
        reasons: Why it is ambiguous, or what else is to be known, a sentence each.
    """

    ratio: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    outcome: Outcome
    same_within: float = 0.05
    confidence: float = 0.95
    num_rounds: Count
    reasons: tuple[str, ...] = ()


SURE: Final = 0.99
"""Confidence at which a difference of equal arms, or a drift, is believed."""
SURER: Final = 0.995
FACTOR_IN_DOUBT: Final = 2.0
"""By how much times may be wrong at the worst: one of two equal arms shares its CPU with another process."""


def compare_arms(first: Times, second: Times, *, same_within: float = 0.05, doubts: Iterable[str] = ()) -> Comparison:
    """Compare two arms of one run, by the seconds of a step of each block of each round.

    Args:
        first: The first's times; rounds without any are left out.
        second: The second's.
        same_within: By how much they may differ and still count as the same: 0.05 for 5 %.
        doubts: What is known against the times, a sentence each.

    Raises:
        InvalidResourcesError: An arm has no times, or ``same_within`` makes no sense.
    """
    return _judge(ratio_interval(first, second), first, second, same_within, doubts)


def compare_apart(first: Times, second: Times, *, same_within: float = 0.05, doubts: Iterable[str] = ()) -> Comparison:
    """Compare two arms of different runs, as :func:`compare_arms`, of which no rounds belong together."""
    return _judge(unpaired_interval(first, second), first, second, same_within, doubts)


def outcome_of(interval: Interval, same_within: float, *, is_doubtful: bool) -> Outcome:
    """Return what follows from an interval alone."""
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
    """Return how the arms' ratio changed from the first to the last common round, if that is sure and matters.

    Both arms of a round may become slower together; their ratio should not. It is a line's slope by least squares, with
    its t interval.
    """
    common = sorted(number for number in first.keys() & second.keys() if first[number] and second[number])
    if len(common) < 4:
        return None
    rounds = np.array(common, dtype=float)
    logs = np.array([log(median(first[number]) / median(second[number])) for number in common])
    centred = rounds - rounds.mean()
    slope = float(centred @ logs / (centred @ centred))
    rest = logs - logs.mean() - slope * centred
    error = float(np.sqrt(rest @ rest / (len(common) - 2) / (centred @ centred)))
    change = slope * (common[-1] - common[0])
    is_sure = abs(slope) > student_quantile(SURE, len(common) - 2) * error
    if not is_sure or abs(change) <= log(1 + same_within):
        return None
    return f"the ratio drifted by {exp(abs(change)) - 1:.1%} from the first round to the last: run it again, for longer"


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
        ratio=interval.ratio,
        low=interval.low,
        high=interval.high,
        outcome=outcome,
        same_within=same_within,
        num_rounds=interval.num_rounds,
        reasons=tuple(reasons),
    )


def _why_ambiguous(interval: Interval, same_within: float) -> str:
    bounds = f"the interval from {interval.low:.3f} to {interval.high:.3f}"
    if log(interval.low) > log(1 + same_within) or log(interval.high) < -log(1 + same_within):
        return f"{bounds} would include equal times at a confidence of {SURER:.1%}: more rounds make it narrower"
    band = f"{1 / (1 + same_within):.3f} to {1 + same_within:.3f}"
    return f"{bounds} is partly within {band}, which counts as the same, and partly not: more rounds make it narrower"
