"""Tests of the confidence interval of a ratio of times, the outcome, and the reasons."""

from itertools import pairwise
from math import inf, log

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.benchmarks.synthetic_runs import Noise, log_medians
from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.compare.time_ratio import (
    Interval,
    Outcome,
    compare_times,
    outcome_of,
    paired_bounds,
    ratio_interval,
    student_quantile,
)

seconds = st.floats(1e-4, 1e2)
times = st.lists(st.lists(seconds, min_size=1, max_size=5).map(tuple), min_size=1, max_size=6).map(
    lambda rounds: dict(enumerate(rounds))
)
OPPOSITE = {
    Outcome.FIRST: Outcome.SECOND,
    Outcome.SECOND: Outcome.FIRST,
    Outcome.SAME: Outcome.SAME,
    Outcome.AMBIGUOUS: Outcome.AMBIGUOUS,
}


def rounds(*by_round):
    return {number: (each,) for number, each in enumerate(by_round)}


@pytest.mark.parametrize("num_rounds", [4, 5, 8, 15])
def test_the_interval_contains_the_true_ratio_in_95_of_100_runs_on_a_machine_that_drifts(num_rounds):
    first, second = log_medians(1.3, num_draws=1000, num_rounds=num_rounds)

    _, low, high = paired_bounds(first - second)
    assert 0.93 <= np.mean((low <= log(1.3)) & (log(1.3) <= high)) <= 0.97


@pytest.mark.parametrize(
    ("confidence", "freedom", "expected"),
    [(0.95, 1, 12.706), (0.95, 3, 3.1824), (0.99, 7, 3.4995), (0.95, 4.5, 2.6589), (0.95, inf, 1.95996)],
)
def test_quantiles_equal_the_values_in_published_tables(confidence, freedom, expected):
    assert student_quantile(confidence, freedom) == pytest.approx(expected, rel=1e-4)


def test_a_drift_of_whole_rounds_does_not_widen_the_interval():
    still = {number: (1.0 + number % 2 / 100,) for number in range(6)}
    drifting = {number: (each * 2**number,) for number, (each,) in still.items()}
    against = {number: (2.0**number,) for number in range(6)}

    found = ratio_interval(drifting, against)

    assert found == pytest.approx(ratio_interval(still, dict.fromkeys(range(6), (1.0,))))


def test_the_time_of_a_process_is_the_median_of_its_blocks():
    found = ratio_interval({1: (2.0, 2.0, 90.0), 2: (2.0,), 3: (2.0,)}, dict.fromkeys((1, 2, 3), (1.0,)))

    assert found[:3] == pytest.approx((2, 2, 2))


@pytest.mark.parametrize("number", [1, 2])
def test_with_fewer_than_three_processes_the_interval_allows_for_a_factor_of_1_25(number):
    found = ratio_interval(rounds(*[3.0] * number), rounds(*[1.0] * number))

    assert (found.ratio, found.low, found.high) == pytest.approx((3, 2.4, 3.75))


def test_a_round_without_times_of_both_configurations_is_omitted():
    first = {0: (9.0,), 1: (2.0,), 2: (2.0,), 3: (2.0,)}

    found = ratio_interval(first, {1: (1.0,), 2: (1.0,), 3: (1.0,), 4: (7.0,)})

    assert (found.ratio, found.num_rounds) == pytest.approx((2, 3))


@given(times, times, st.floats(0.01, 100))
def test_swapped_times_in_another_unit_give_the_inverse_ratio(first, second, unit):
    def scaled(all_times):
        return {number: tuple(each * unit for each in blocks) for number, blocks in all_times.items()}

    one, other = ratio_interval(first, second), ratio_interval(scaled(second), scaled(first))

    assert (other.ratio, other.low, other.high) == pytest.approx((1 / one.ratio, 1 / one.high, 1 / one.low))


@given(times, times)
def test_the_ratio_is_within_its_bounds_and_bounds_of_higher_confidence_are_wider(first, second):
    found = ratio_interval(first, second)
    surer = found.at_confidence(0.99)

    bounds = [surer.low, found.low, found.ratio, found.high, surer.high]
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(bounds))


@pytest.mark.parametrize(
    ("first", "message"),
    [({}, "no round has times of both"), ({0: ()}, "no round has times"), ({0: (0.0,)}, "more than 0 s")],
)
def test_a_comparison_without_times_raises_an_error(first, message):
    with pytest.raises(InvalidResourcesError, match=message):
        compare_times(first, {0: (1.0,)})


@pytest.mark.parametrize(
    ("low", "high", "expected", "in_doubt"),
    [
        pytest.param(0.98, 1.03, Outcome.SAME, Outcome.AMBIGUOUS, id="within the band"),
        pytest.param(1.06, 1.09, Outcome.SECOND, Outcome.AMBIGUOUS, id="beyond it: the second takes less time"),
        pytest.param(0.90, 0.94, Outcome.FIRST, Outcome.AMBIGUOUS, id="below it: the first does"),
        pytest.param(1.01, 1.04, Outcome.SAME, Outcome.AMBIGUOUS, id="significant, but within the band"),
        pytest.param(1.04, 1.20, Outcome.AMBIGUOUS, Outcome.AMBIGUOUS, id="across the edge of the band"),
        pytest.param(0.90, 0.97, Outcome.AMBIGUOUS, Outcome.AMBIGUOUS, id="across its other edge"),
        pytest.param(1.25, 2.00, Outcome.SECOND, Outcome.AMBIGUOUS, id="wide, and beyond the band"),
        pytest.param(1.06, 2.50, Outcome.AMBIGUOUS, Outcome.AMBIGUOUS, id="the 99.5 % interval contains equality"),
        pytest.param(2.00, 2.30, Outcome.SECOND, Outcome.AMBIGUOUS, id="nearly twice as fast"),
        pytest.param(2.20, 2.30, Outcome.SECOND, Outcome.SECOND, id="more than twice as fast"),
        pytest.param(0.30, 0.40, Outcome.FIRST, Outcome.FIRST, id="less than half as fast"),
    ],
)
def test_the_outcome_follows_from_the_position_of_the_interval(low, high, expected, in_doubt):
    interval = Interval((low * high) ** 0.5, low, high, num_rounds=31)

    assert outcome_of(interval, 0.05, is_doubtful=False) is expected
    assert outcome_of(interval, 0.05, is_doubtful=True) is in_doubt


def test_rounds_that_agree_by_chance_do_not_hide_the_scatter_of_the_blocks():
    scattered = np.array([0.90, 0.94, 0.98, 0.99, 1.01, 1.02, 1.06, 1.10])
    first = {number: tuple(1.04 * scattered) for number in range(5)}
    second = {number: tuple(scattered) for number in range(5)}

    found = compare_times(first, second, same_within=0.02)

    assert found.outcome is Outcome.AMBIGUOUS
    assert found.reasons[0].startswith("the times within processes scatter so much that the ratio may be off by ")


def test_at_most_one_of_100_pairs_of_equal_times_counts_as_different_on_a_noisy_machine():
    wrong = 0
    for noise in (Noise(0.02, 0.01), Noise(0.1, 0.05), Noise(1.0, 0.5)):
        first, second = log_medians(1, num_draws=200, num_rounds=5, noise=noise)
        wrong += sum(
            compare_times(rounds(*np.exp(one)), rounds(*np.exp(other))).outcome in (Outcome.FIRST, Outcome.SECOND)
            for one, other in zip(first, second, strict=True)
        )

    assert wrong <= 6


def test_a_difference_of_5_percent_is_found_if_the_times_of_processes_vary_by_1_percent():
    first, second = log_medians(1.05, num_draws=1000, num_rounds=8, noise=Noise(0.01, 0.01))
    _, low, _ = paired_bounds(first - second)

    assert np.mean(low > log(1.02)) >= 0.95


DRIFTING = [1.04**number for number in range(8)]


@pytest.mark.parametrize(
    ("first", "second", "outcome", "reason"),
    [
        ([1.0, 1.1, 1.0, 1.1], [1.0] * 4, Outcome.AMBIGUOUS, "lies only partly inside 0.952 to 1.050"),
        ([1.0], [1.0], Outcome.AMBIGUOUS, "one round cannot show"),
        ([1.3], [1.0], Outcome.AMBIGUOUS, "one round cannot show"),
        ([1.4], [1.0], Outcome.SECOND, "one round cannot show"),
        ([0.7], [1.0], Outcome.FIRST, "one round cannot show"),
        ([1.5 * each for each in DRIFTING], [1.0] * 8, Outcome.AMBIGUOUS, "drifted by 31.6%"),
        ([1.5 * each for each in DRIFTING], DRIFTING, Outcome.SECOND, None),
    ],
    ids=[
        *("the interval reaches into the band", "one round", "one round, by a quarter", "one round, by more"),
        *("one round, the other way", "the ratio drifts", "both drift"),
    ],
)
def test_a_verdict_has_the_expected_reason(first, second, outcome, reason):
    found = compare_times(rounds(*first), rounds(*second))

    assert found.outcome is outcome
    assert reason in found.reasons[0] if reason else not found.reasons


@pytest.mark.parametrize(("ratio", "outcome"), [(2, Outcome.AMBIGUOUS), (9, Outcome.SECOND)])
def test_a_doubt_is_reported_and_makes_a_factor_of_two_ambiguous(ratio, outcome):
    found = compare_times(rounds(*[ratio] * 4), rounds(1, 1, 1, 1), doubts=["other processes used 1.00 CPUs"])

    assert (found.outcome, found.reasons) == (outcome, ("other processes used 1.00 CPUs",))


@given(times, times, st.sampled_from([0.02, 0.05, 0.5]))
def test_a_verdict_agrees_with_its_interval_and_swapped_times_give_the_opposite_verdict(first, second, same_within):
    found = compare_times(first, second, same_within=same_within)

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
    edges = (1, 1 + same_within, 1 / (1 + same_within), 2 * (1 + same_within), 0.5 / (1 + same_within))
    assume(all(abs(log(bound / edge)) > 1e-9 for bound in (found.low, found.high) for edge in edges))
    assert compare_times(second, first, same_within=same_within).outcome is OPPOSITE[found.outcome]


def test_same_within_must_be_a_fraction():
    with pytest.raises(InvalidResourcesError, match="same_within must be between 0 and 1"):
        compare_times(rounds(1), rounds(1), same_within=5)
