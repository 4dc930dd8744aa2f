"""How many times as long one arm takes as another, with a bootstrap interval over processes.

What differs between fresh processes (where their memory lies, what was warm) does not go away with more steps in one
of them, so a process counts once, by the median of its blocks, and processes are what is drawn again. Blocks within one
are not: how they vary is in the process's median already, and would count twice (Davison and Hinkley, Bootstrap Methods
and Their Application, 1997, section 3.8). Times are compared as logarithms, so that a ratio and its inverse are alike.

A round has a process of each arm, which take turns: what a machine does to a whole round is in both, and only their
ratio within the round counts. Arms of different runs have no common rounds; their processes are drawn independently.

A bootstrap over few draws is too narrow (Hesterberg, What Teachers Should Know About the Bootstrap, 2015). Its usual
mend takes percentiles further out, which 4 rounds do not have: 4 values can be drawn in 35 ways. So the percentiles of
the wanted confidence are taken, and stretched from the middle as much as a t interval is against a normal one.
"""

from collections.abc import Mapping
from functools import cache
from math import exp, floor, log, pi, sqrt, tan
from statistics import NormalDist, median
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tune_policies.values.errors import InvalidResourcesError

CONFIDENCE: Final = 0.95
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

    def at_confidence(self, wanted: float, given: float = CONFIDENCE) -> "Interval":
        """Return the interval that holds with another confidence, widened as a t interval would be."""
        if self.freedom == 0:
            return self
        stretch = student_quantile(wanted, self.freedom) / student_quantile(given, self.freedom)
        low, high = (self.ratio * (bound / self.ratio) ** stretch for bound in (self.low, self.high))
        return self._replace(low=low, high=high)


def ratio_interval(first: Times, second: Times, confidence: float = CONFIDENCE) -> Interval:
    """Return how many times as long the first takes, round by round where the arms have rounds in common.

    Raises:
        InvalidResourcesError: An arm has no times, or one that is not above 0.
    """
    ones, others = _log_medians(first), _log_medians(second)
    common = sorted(ones.keys() & others.keys())
    if len(common) < min(FEWEST_ROUNDS, len(ones), len(others)):
        return unpaired_interval(first, second, confidence)
    differences = np.array([[ones[number] - others[number] for number in common]])
    return _interval(*paired_bounds(differences, confidence), freedom=len(common) - 1, rounds=len(common), paired=True)


def unpaired_interval(first: Times, second: Times, confidence: float = CONFIDENCE) -> Interval:
    """Return how many times as long the first takes, where no process of one belongs to one of the other.

    Raises:
        InvalidResourcesError: An arm has no times, or one that is not above 0.
    """
    ones, others = (np.array([list(_log_medians(times).values())]) for times in (first, second))
    bounds = unpaired_bounds(ones, others, confidence)
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


def paired_bounds(differences: Floats, confidence: float = CONFIDENCE) -> tuple[Floats, Floats, Floats]:
    """Return the means, and their bounds, of each row: a draw of the differences of the arms' logarithms by round."""
    num_rounds = differences.shape[1]
    means = differences.mean(axis=1)
    if num_rounds == 1:
        return means, means, means
    stretch = student_quantile(confidence, num_rounds - 1) / student_quantile(confidence)
    return _bounds(means, _drawn_deviations(differences), stretch, confidence)


def unpaired_bounds(first: Floats, second: Floats, confidence: float = CONFIDENCE) -> tuple[Floats, Floats, Floats]:
    """Return the differences of means, and their bounds, of each row: a draw of the logarithms of both arms."""
    means = first.mean(axis=1) - second.mean(axis=1)
    if min(first.shape[1], second.shape[1]) == 1:
        return means, means, means
    # Each arm takes the draws of the other, too, so that the interval of the swapped arms is the inverse one.
    drawn = [_drawn_deviations(first, key) - _drawn_deviations(second, 1 - key) for key in (0, 1)]
    freedom = _welch_freedom(first, second)
    stretch = np.array([student_quantile(confidence, each) for each in freedom]) / student_quantile(confidence)
    return _bounds(means, np.concatenate(drawn, axis=1), stretch, confidence)


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


def _bounds(means: Floats, drawn: Floats, stretch: Any, confidence: float) -> tuple[Floats, Floats, Floats]:
    """Return the means, and the percentiles of what was drawn about 0, stretched and put about the means."""
    outside = (1 - confidence) / 2
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
