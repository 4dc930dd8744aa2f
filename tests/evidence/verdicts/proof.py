"""How often verdicts are right where the truth is known, and what is to be reached."""

from collections.abc import Callable, Iterator, Sequence
from math import log, sqrt
from typing import Final, NamedTuple

import numpy as np

from tune_policies.benchmarks.compare.judge import (
    CONFIDENCE,
    Comparison,
    Interval,
    Outcome,
    outcome_of,
    paired_bounds,
    student_quantile,
)
from tune_policies.values.sanitize import Redacted
from tune_policies.values.value import Value

from .synthetic_runs import Noise, log_medians

ROUNDS: Final = (4, 5, 8, 15)
TRUE_RATIO: Final = 1.3
COVERED: Final = (0.93, 0.97)
"""Which part of the intervals of 95 % must hold the truth."""
SAME_WITHIN: Final = 0.02
LONGEST_RUN_S: Final = 60
"""Within which each run that looks for a change of 5 % must end."""


class ProofRun(Value):
    """One run with arms of which the truth is known.

    Attributes:
        truth: What a verdict should say.
        comparison: What it said.
        seconds: How long the run took.
    """

    truth: Outcome
    comparison: Comparison
    seconds: float

    @property
    def is_wrong(self) -> bool:
        """Whether the verdict says something that is not so; an ambiguous one says nothing."""
        found = self.comparison.outcome
        return found not in (self.truth, Outcome.AMBIGUOUS)

    @property
    def is_found(self) -> bool:
        """Whether the verdict says what is so."""
        return self.comparison.outcome is self.truth


class ProofRecord(Value):
    """All runs of a proof.

    Attributes:
        name: Of the proof.
        command: By which it was made.
        machine: On which.
        num_rounds: Processes of each arm in a run.
        num_blocks: Blocks of each process.
        runs: In turn.
    """

    name: str
    command: Redacted
    machine: str
    num_rounds: int
    num_blocks: int
    runs: tuple[ProofRun, ...] = ()


class Goal(NamedTuple):
    """What a proof must reach.

    Attributes:
        says: In words.
        is_met: Whether runs reach it.
    """

    says: str
    is_met: Callable[[Sequence[ProofRun]], bool]


def _share(counts: Iterator[bool], runs: Sequence[ProofRun]) -> float:
    return sum(counts) / max(1, len(runs))


GOALS: Final = {
    "aa": Goal(
        "equal arms pass for different in at most 1 % of the runs",
        lambda runs: _share((run.is_wrong for run in runs), runs) <= 0.01,
    ),
    "change": Goal(
        f"5 % are found in at least 95 % of the runs, each within {LONGEST_RUN_S} s",
        lambda runs: (
            _share((run.is_found for run in runs), runs) >= 0.95
            and max((run.seconds for run in runs), default=0) <= LONGEST_RUN_S
        ),
    ),
    "busy": Goal(
        "no verdict is wrong beside a busy process",
        lambda runs: not any(run.is_wrong for run in runs),
    ),
}


class Coverage(NamedTuple):
    """How synthetic runs with drift came out.

    Attributes:
        num_rounds: Of each run.
        num_draws: How many runs.
        covered: How many intervals held the truth.
        false_verdicts: How many equal arms passed for different, of as many runs on a machine with much noise.
    """

    num_rounds: int
    num_draws: int
    covered: int
    false_verdicts: int

    @property
    def is_met(self) -> bool:
        """Whether the intervals keep what they promise."""
        return COVERED[0] <= self.covered / self.num_draws <= COVERED[1]


def measure_coverage(num_draws: int, seed: int) -> tuple[Coverage, ...]:
    """Return how often intervals of synthetic runs hold the truth, by number of rounds."""
    return tuple(_coverage(num_rounds, num_draws, seed) for num_rounds in ROUNDS)


def wilson_interval(hits: int, number: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return between which bounds a part lies that was found ``hits`` times in ``number`` (Wilson, 1927)."""
    if number == 0:
        return 0.0, 1.0
    z = student_quantile(confidence)
    part = hits / number
    middle = (part + z**2 / (2 * number)) / (1 + z**2 / number)
    half = z / (1 + z**2 / number) * sqrt(part * (1 - part) / number + z**2 / (4 * number**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def _coverage(num_rounds: int, num_draws: int, seed: int) -> Coverage:
    first, second = log_medians(TRUE_RATIO, num_draws=num_draws, num_rounds=num_rounds, seed=seed)
    _, low, high = paired_bounds(first - second)
    covered = int(np.sum((low <= log(TRUE_RATIO)) & (log(TRUE_RATIO) <= high)))
    # Processes that differ by a fifth: the band hides nothing, and the interval alone must not lie.
    much = Noise(of_block=0.2, of_process=0.2)
    first, second = log_medians(1, num_draws=num_draws, num_rounds=num_rounds, noise=much, seed=seed + 1)
    bounds = np.exp(np.stack(paired_bounds(first - second), axis=1)).tolist()
    intervals = (Interval(ratio, low, high, num_rounds - 1, num_rounds, is_paired=True) for ratio, low, high in bounds)
    found = [outcome_of(each, SAME_WITHIN, is_doubtful=False) for each in intervals]
    return Coverage(num_rounds, num_draws, covered, sum(each in (Outcome.FIRST, Outcome.SECOND) for each in found))
