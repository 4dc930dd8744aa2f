"""The interval of a ratio of times: how often it holds the truth, and what it does not depend on."""

from math import inf, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evidence.verdicts.synthetic_runs import Noise, log_medians
from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.compare.judge import (
    paired_bounds,
    ratio_interval,
    student_quantile,
    unpaired_bounds,
    unpaired_interval,
)

seconds = st.floats(1e-4, 1e2)
times = st.lists(st.lists(seconds, min_size=1, max_size=5).map(tuple), min_size=1, max_size=6).map(
    lambda rounds: dict(enumerate(rounds))
)


def coverage(bounds, truth):
    _, low, high = bounds
    return np.mean((low <= log(truth)) & (log(truth) <= high))


@pytest.mark.parametrize("num_rounds", [4, 5, 8, 15])
def test_the_interval_holds_the_truth_in_95_of_100_runs_on_a_machine_that_drifts(num_rounds):
    first, second = log_medians(1.3, num_draws=1000, num_rounds=num_rounds)

    assert 0.93 <= coverage(paired_bounds(first - second), 1.3) <= 0.97


@pytest.mark.parametrize(("walk", "expected"), [(0, (0.93, 0.97)), (0.03, (0.2, 0.8))], ids=["still", "drifting"])
def test_arms_of_two_runs_are_told_apart_only_on_a_machine_that_stays_the_same(walk, expected):
    noise = Noise(linear_drift=0, walk=walk)
    first, _ = log_medians(1.3, num_draws=1000, num_rounds=8, noise=noise)
    _, second = log_medians(1.3, num_draws=1000, num_rounds=8, noise=noise, seed=1)

    low, high = expected
    assert low <= coverage(unpaired_bounds(first, second), 1.3) <= high


def test_a_percentile_bootstrap_without_the_stretch_would_be_too_narrow():
    first, second = log_medians(1.3, num_draws=1000, num_rounds=4)
    mean, low, high = paired_bounds(first - second)
    stretch = student_quantile(0.95, 3) / student_quantile(0.95)

    assert coverage((mean, mean + (low - mean) / stretch, mean + (high - mean) / stretch), 1.3) < 0.9


@pytest.mark.parametrize(
    ("confidence", "freedom", "expected"),
    [(0.95, 1, 12.706), (0.95, 3, 3.1824), (0.99, 7, 3.4995), (0.95, 4.5, 2.6589), (0.95, inf, 1.95996)],
)
def test_quantiles_are_those_of_the_tables(confidence, freedom, expected):
    assert student_quantile(confidence, freedom) == pytest.approx(expected, rel=1e-4)


def test_a_drift_of_whole_rounds_does_not_widen_the_interval():
    still = {number: (1.0 + number % 2 / 100,) for number in range(6)}
    drifting = {number: (each * 2**number,) for number, (each,) in still.items()}
    against = {number: (2.0**number,) for number in range(6)}

    found = ratio_interval(drifting, against)

    assert found == pytest.approx(ratio_interval(still, dict.fromkeys(range(6), (1.0,))))


def test_a_process_counts_by_the_median_of_its_blocks():
    found = ratio_interval({1: (2.0, 2.0, 90.0), 2: (2.0,), 3: (2.0,)}, dict.fromkeys((1, 2, 3), (1.0,)))

    assert found[:3] == pytest.approx((2, 2, 2))


def test_one_process_tells_no_more_than_that_processes_differ_by_a_quarter():
    found = ratio_interval({0: (3.0, 3.1, 2.9)}, {0: (1.0,)})

    assert (found.ratio, found.low, found.high) == pytest.approx((3, 2.4, 3.75))


def test_two_processes_that_agree_tell_no_more_than_one():
    found = ratio_interval({0: (3.0,), 1: (3.0,)}, {0: (1.0,), 1: (1.0,)})

    assert (found.low, found.high) == pytest.approx((2.4, 3.75))


def test_arms_whose_rounds_differ_are_compared_as_two_groups():
    found = ratio_interval({0: (1.0,), 1: (1.1,), 2: (1.0,)}, {3: (2.0,), 4: (2.1,), 5: (2.0,)})

    assert not found.is_paired
    assert found.low < 0.5 < found.high


def test_a_round_that_one_arm_lacks_is_left_out():
    first = {0: (9.0,), 1: (2.0,), 2: (2.0,), 3: (2.0,)}

    found = ratio_interval(first, {1: (1.0,), 2: (1.0,), 3: (1.0,), 4: (7.0,)})

    assert (found.ratio, found.num_rounds) == pytest.approx((2, 3))


@given(times, times)
def test_swapped_arms_give_the_inverse_ratio_and_bounds(first, second):
    for interval in (ratio_interval, unpaired_interval):
        one, other = interval(first, second), interval(second, first)

        assert (other.ratio, other.low, other.high) == pytest.approx((1 / one.ratio, 1 / one.high, 1 / one.low))


@given(times, times, st.floats(0.01, 100))
def test_another_unit_of_time_changes_nothing(first, second, unit):
    def scaled(arm):
        return {number: tuple(each * unit for each in blocks) for number, blocks in arm.items()}

    one, other = ratio_interval(first, second), ratio_interval(scaled(first), scaled(second))

    assert other[:3] == pytest.approx(one[:3])


@given(times, times)
def test_the_ratio_is_within_its_bounds_and_the_surer_bounds_are_wider(first, second):
    found = ratio_interval(first, second)
    surer = found.at_confidence(0.99)

    assert found.low <= found.ratio * (1 + 1e-9)
    assert found.ratio <= found.high * (1 + 1e-9)
    assert surer.low <= found.low * (1 + 1e-9)
    assert found.high <= surer.high * (1 + 1e-9)


@pytest.mark.parametrize(
    ("first", "message"),
    [({}, "nothing was measured"), ({0: ()}, "nothing was measured"), ({0: (0.0,)}, "more than 0 s")],
)
def test_an_arm_without_times_is_named(first, message):
    with pytest.raises(InvalidResourcesError, match=message):
        ratio_interval(first, {0: (1.0,)})
