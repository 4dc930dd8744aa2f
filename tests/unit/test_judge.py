"""What follows from an interval, and what is said against it."""

from math import log

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.evidence.verdicts.synthetic_runs import Noise, log_medians
from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.compare.judge import (
    Interval,
    Outcome,
    compare_apart,
    compare_arms,
    outcome_of,
    paired_bounds,
)

seconds = st.floats(1e-4, 1e2)
times = st.lists(st.lists(seconds, min_size=1, max_size=4).map(tuple), min_size=1, max_size=5).map(
    lambda rounds: dict(enumerate(rounds))
)
OPPOSITE = {
    Outcome.FIRST: Outcome.SECOND,
    Outcome.SECOND: Outcome.FIRST,
    Outcome.SAME: Outcome.SAME,
    Outcome.AMBIGUOUS: Outcome.AMBIGUOUS,
}


def arm(*by_round):
    return {number: (each,) for number, each in enumerate(by_round)}


def interval(low, high):
    return Interval((low * high) ** 0.5, low, high, freedom=30, num_rounds=31, is_paired=True)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.98, 1.03, Outcome.SAME),
        (1.06, 1.09, Outcome.SECOND),
        (0.90, 0.94, Outcome.FIRST),
        (1.01, 1.04, Outcome.SAME),
        (1.04, 1.20, Outcome.AMBIGUOUS),
        (0.90, 0.97, Outcome.AMBIGUOUS),
        (0.70, 1.40, Outcome.AMBIGUOUS),
        (1.25, 2.00, Outcome.SECOND),
        (1.06, 2.50, Outcome.AMBIGUOUS),
    ],
    ids=[
        "about one, within the band",
        "beyond the band: the second takes less time",
        "below it: the first does",
        "surely different, but by less than counts",
        "across the edge of the band",
        "across its other edge",
        "about all of the band",
        "wide, and beyond the band",
        "so wide that a confidence of 99.5 % holds equality",
    ],
)
def test_the_place_of_the_interval_decides(low, high, expected):
    assert outcome_of(interval(low, high), 0.05, is_doubtful=False) is expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.98, 1.03, Outcome.AMBIGUOUS),
        (1.06, 1.09, Outcome.AMBIGUOUS),
        (2.00, 2.30, Outcome.AMBIGUOUS),
        (2.20, 2.30, Outcome.SECOND),
        (0.30, 0.40, Outcome.FIRST),
    ],
)
def test_with_a_doubt_only_what_a_factor_of_two_leaves_is_decided(low, high, expected):
    assert outcome_of(interval(low, high), 0.05, is_doubtful=True) is expected


def test_rounds_that_agree_by_chance_say_less_than_the_blocks_that_scatter_within_them():
    scattered = np.array([0.90, 0.94, 0.98, 0.99, 1.01, 1.02, 1.06, 1.10])
    first = {number: tuple(1.04 * scattered) for number in range(5)}
    second = {number: tuple(scattered) for number in range(5)}

    found = compare_arms(first, second, same_within=0.02)

    assert found.outcome is Outcome.AMBIGUOUS
    assert found.reasons[0].startswith("the times within processes scatter so much that the ratio may be off by ")


def test_of_equal_arms_at_most_one_in_100_pairs_passes_for_different_however_noisy_the_machine():
    wrong = 0
    for noise in (Noise(0.02, 0.01), Noise(0.1, 0.05), Noise(1.0, 0.5)):
        first, second = log_medians(1, num_draws=200, num_rounds=5, noise=noise)
        wrong += sum(
            compare_arms(arm(*np.exp(one)), arm(*np.exp(other))).outcome in (Outcome.FIRST, Outcome.SECOND)
            for one, other in zip(first, second, strict=True)
        )

    assert wrong <= 4


def test_five_percent_are_found_where_processes_differ_by_one_and_a_half():
    first, second = log_medians(1.05, num_draws=1000, num_rounds=8, noise=Noise(0.01, 0.01))
    _, low, _ = paired_bounds(first - second)

    assert np.mean(low > log(1.02)) >= 0.95


def test_the_reason_of_an_ambiguous_verdict_is_where_the_interval_lies():
    found = compare_arms(arm(1.0, 1.1, 1.0, 1.1), arm(1.0, 1.0, 1.0, 1.0))

    assert found.outcome is Outcome.AMBIGUOUS
    assert "partly within 0.952 to 1.050" in found.reasons[0]


def test_a_doubt_is_the_reason_of_an_ambiguous_verdict():
    found = compare_arms(arm(2, 2, 2, 2), arm(1, 1, 1, 1), doubts=["other processes used 1.00 CPUs"])

    assert (found.outcome, found.reasons) == (Outcome.AMBIGUOUS, ("other processes used 1.00 CPUs",))


def test_a_doubt_stands_beside_a_verdict_that_it_does_not_touch():
    found = compare_arms(arm(9, 9, 9, 9), arm(1, 1, 1, 1), doubts=["other processes used 1.00 CPUs"])

    assert (found.outcome, found.reasons) == (Outcome.SECOND, ("other processes used 1.00 CPUs",))


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(1, Outcome.AMBIGUOUS), (1.3, Outcome.AMBIGUOUS), (1.4, Outcome.SECOND), (0.7, Outcome.FIRST)],
)
def test_one_round_decides_what_a_quarter_more_does_not_touch(ratio, expected):
    found = compare_arms(arm(ratio), arm(1))

    assert found.outcome is expected
    assert "one round cannot tell" in found.reasons[0]


def test_a_ratio_that_drifts_is_ambiguous():
    drifting = [1.5 * 1.04**number for number in range(8)]

    found = compare_arms(arm(*drifting), arm(*[1.0] * 8))

    assert found.outcome is Outcome.AMBIGUOUS
    assert "drifted by 31.6%" in found.reasons[0]


def test_a_drift_of_both_arms_is_none_of_their_ratio():
    drifting = [1.04**number for number in range(8)]

    found = compare_arms(arm(*(1.5 * each for each in drifting)), arm(*drifting))

    assert found.outcome is Outcome.SECOND


@given(times, times, st.sampled_from([0.02, 0.05, 0.5]))
def test_swapped_arms_give_the_opposite_verdict(first, second, same_within):
    for compare in (compare_arms, compare_apart):
        found = compare(first, second, same_within=same_within)
        edges = (1, 1 + same_within, 1 / (1 + same_within), 2 * (1 + same_within), 0.5 / (1 + same_within))
        assume(all(abs(log(bound / edge)) > 1e-9 for bound in (found.low, found.high) for edge in edges))

        assert compare(second, first, same_within=same_within).outcome is OPPOSITE[found.outcome]


@given(times, times, st.sampled_from([0.02, 0.05, 0.5]))
def test_a_verdict_agrees_with_its_interval(first, second, same_within):
    found = compare_arms(first, second, same_within=same_within)

    match found.outcome:
        case Outcome.FIRST:
            assert found.high < 1 / (1 + same_within)
        case Outcome.SECOND:
            assert found.low > 1 + same_within
        case Outcome.SAME:
            assert found.high <= (1 + same_within) * (1 + 1e-9)
            assert found.low >= 1 / (1 + same_within) / (1 + 1e-9)
        case Outcome.AMBIGUOUS:
            assert found.reasons


def test_a_percentage_is_no_part():
    with pytest.raises(InvalidResourcesError, match="same_within must be between 0 and 1"):
        compare_arms(arm(1), arm(1), same_within=5)
