"""What follows from an interval: one arm is faster, both are the same, or what was measured does not tell.

An arm is the faster one if the 95 % interval lies wholly beyond the band that counts as the same, and that of 99.5 %
does not hold equality: whatever the noise, equal arms pass for different in less than one of 100 comparisons. The
interval goes by how much rounds differ, and a few may agree by chance; so the ratio must also be further from equality
than the blocks within processes, of which there are more, make it at 99.5 %. Arms are the same if the interval lies
wholly within the band. All else is ambiguous.

What is doubtful about the times themselves (other load, a control arm that differs from its twin) does not widen the
interval; with a doubt, arms are not called the same, and one of them is the faster only if it would still be so with
the ratio wrong by ``FACTOR_IN_DOUBT``. So a busy machine hides 5 %, and does not hide that a GPU is 10 times as fast.
"""

from collections.abc import Iterable
from enum import StrEnum
from math import exp, log
from typing import Final

from pydantic import Field

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Count
from tune_policies.values.value import Value

from .bootstrap import (
    CONFIDENCE,
    FACTOR_OF_PROCESSES,
    FEWEST_ROUNDS,
    Interval,
    Times,
    error_of_blocks,
    ratio_interval,
    student_quantile,
    unpaired_interval,
)
from .validity_checks import drift_of_ratio


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


SURER: Final = 0.995
FACTOR_IN_DOUBT: Final = 2.0
"""By how much times may be wrong at the worst: one of two equal arms shares its CPU with another process."""


def compare_arms(
    first: Times,
    second: Times,
    *,
    same_within: float = 0.05,
    confidence: float = CONFIDENCE,
    doubts: Iterable[str] = (),
) -> Comparison:
    """Compare two arms of one run, by the seconds of a step of each block of each round.

    Args:
        first: The first's times; rounds without any are left out.
        second: The second's.
        same_within: By how much they may differ and still count as the same: 0.05 for 5 %.
        confidence: Of the interval.
        doubts: What is known against the times, a sentence each.

    Raises:
        InvalidResourcesError: An arm has no times, or an option makes no sense.
    """
    _check(same_within, confidence)
    interval = ratio_interval(first, second, confidence)
    drift = drift_of_ratio(first, second, same_within) if interval.is_paired else None
    scatter = error_of_blocks(first, second)
    return _judge(interval, scatter, same_within, confidence, [*doubts, *([drift] if drift else [])])


def compare_apart(
    first: Times,
    second: Times,
    *,
    same_within: float = 0.05,
    confidence: float = CONFIDENCE,
    doubts: Iterable[str] = (),
) -> Comparison:
    """Compare two arms of different runs, as :func:`compare_arms`, of which no rounds belong together."""
    _check(same_within, confidence)
    interval, scatter = unpaired_interval(first, second, confidence), error_of_blocks(first, second)
    return _judge(interval, scatter, same_within, confidence, list(doubts))


def outcome_of(interval: Interval, same_within: float, confidence: float, *, is_doubtful: bool) -> Outcome:
    """Return what follows from an interval alone."""
    band = log(1 + same_within)
    if not is_doubtful and -band <= log(interval.low) and log(interval.high) <= band:
        return Outcome.SAME
    allowed = band + (log(FACTOR_IN_DOUBT) if is_doubtful else 0)
    surer = interval.at_confidence(max(SURER, confidence), confidence)
    if log(interval.low) > allowed and surer.low > 1:
        return Outcome.SECOND
    if log(interval.high) < -allowed and surer.high < 1:
        return Outcome.FIRST
    return Outcome.AMBIGUOUS


def _judge(interval: Interval, scatter: float, same_within: float, confidence: float, doubts: list[str]) -> Comparison:
    outcome = outcome_of(interval, same_within, confidence, is_doubtful=bool(doubts))
    reasons = list(doubts)
    by_chance = student_quantile(max(SURER, confidence)) * scatter
    if outcome in (Outcome.FIRST, Outcome.SECOND) and abs(log(interval.ratio)) <= by_chance:
        outcome = Outcome.AMBIGUOUS
        reasons.append(
            f"the times within processes scatter so much that the ratio may be off by {exp(by_chance) - 1:.1%}: run"
            " more rounds, or when the machine is quiet"
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
        confidence=confidence,
        num_rounds=interval.num_rounds,
        reasons=tuple(reasons),
    )


def _why_ambiguous(interval: Interval, same_within: float) -> str:
    bounds = f"the interval from {interval.low:.3f} to {interval.high:.3f}"
    if log(interval.low) > log(1 + same_within) or log(interval.high) < -log(1 + same_within):
        return f"{bounds} would hold equality at a confidence of {SURER:.1%}: more rounds make it narrower"
    band = f"{1 / (1 + same_within):.3f} to {1 + same_within:.3f}"
    return f"{bounds} is partly within {band}, which counts as the same, and partly not: more rounds make it narrower"


def _check(same_within: float, confidence: float) -> None:
    if not 0 < same_within < 1:
        raise InvalidResourcesError(f"same_within is a part between 0 and 1, such as 0.05 for 5 %, got {same_within}")
    if not 0.5 <= confidence < 1:
        raise InvalidResourcesError(f"confidence is a part from 0.5 to below 1, such as 0.95, got {confidence}")
