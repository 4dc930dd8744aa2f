"""How much longer one arm takes than another, between which bounds, and what follows."""

from enum import StrEnum

from pydantic import Field

from tune_policies.resources import Count
from tune_policies.values import Value


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
