"""Tests of the forecast of the end of a run, and of how often its interval contains the true end."""

import pytest

from tests.evidence.sizing.forecasts import LENGTHS, coverage
from tune_policies.plan.end_forecast import RunningTrial, RunProgress, forecast_end


def test_without_a_known_duration_there_is_no_forecast():
    assert forecast_end([], [RunningTrial(elapsed_s=5)], num_waiting=3, at_once=1) is None


def test_equal_trials_end_after_the_rounds_that_are_left():
    forecast = forecast_end([100.0] * 20, [], num_waiting=8, at_once=4)

    assert forecast.low_s < 200 < forecast.high_s
    assert forecast.median_s == pytest.approx(200, rel=0.15)


def test_a_run_with_millions_of_waiting_trials_has_a_forecast_at_once():
    """The forecast runs in Tune's loop, and must not need an amount of memory that grows with the number of trials."""
    progress = RunProgress(finished_s=(60.0,) * 20, num_waiting=10_000_000)

    forecast = progress.forecast(4)

    assert forecast.median_s == pytest.approx(60 * 10_000_000 / 4, rel=0.05)
    assert progress.at_once_before(3600, 4) == pytest.approx(10_000_000 * 60 / 3600, rel=0.1)


def test_the_progress_of_the_first_trial_is_enough_for_a_forecast():
    forecast = forecast_end([], [RunningTrial(elapsed_s=50, progress=0.5)], num_waiting=0, at_once=1)

    assert forecast.low_s < 50 < forecast.high_s


def test_a_trial_that_runs_longer_than_all_others_is_not_about_to_end():
    forecast = forecast_end([10.0] * 9, [RunningTrial(elapsed_s=100)], num_waiting=0, at_once=1)

    assert forecast.median_s > 20


def test_a_trial_that_has_just_started_takes_as_long_as_one_that_starts_now():
    finished = [float(50 + i * 100 // 29) for i in range(30)]

    running = forecast_end(finished, [RunningTrial(elapsed_s=1)], num_waiting=0, at_once=1)
    waiting = forecast_end(finished, [], num_waiting=1, at_once=1)

    assert running.median_s == pytest.approx(waiting.median_s, rel=0.1)


def test_early_stopping_brings_the_end_forward():
    trials = [RunningTrial(elapsed_s=10, progress=0.1)] * 4
    waits = {"num_waiting": 0, "at_once": 4}

    stopped = forecast_end([20.0] * 8, trials, **waits, stopped_fraction=0.9)

    assert stopped.median_s < forecast_end([20.0] * 8, trials, **waits).median_s


def test_the_same_trials_give_the_same_forecast():
    arguments = {"finished_s": [5.0, 8.0, 9.0], "running": [RunningTrial(elapsed_s=4)], "num_waiting": 9, "at_once": 2}

    assert forecast_end(**arguments) == forecast_end(**arguments)


def test_the_interval_warns_of_a_deadline_that_may_be_missed():
    forecast = forecast_end([100.0] * 20, [], num_waiting=8, at_once=4)

    assert (forecast.exceeds(150), forecast.exceeds(1000)) == (True, False)


@pytest.mark.rest
def test_the_interval_of_90_percent_contains_the_end_of_87_to_93_percent_of_simulated_runs():
    found = [coverage(name, range(30), knows_progress=known) for name in LENGTHS for known in (True, False)]

    inside, total = map(sum, zip(*found, strict=True))

    assert 0.87 <= inside / total <= 0.93
