"""Tests of what a run's trials tell about its end."""

from types import SimpleNamespace

from tune_policies.plan.end_forecast import EndForecast
from tune_policies.trainers.usage.run_forecast import describe_forecast, forecast_of_run


def trial(status, *, elapsed_s=0.0, iteration=0, stop=None):
    result = {"time_total_s": elapsed_s, "training_iteration": iteration} if elapsed_s else {}
    return SimpleNamespace(
        status=status,
        stopping_criterion=stop or {},
        run_metadata=SimpleNamespace(last_result=result),
        is_finished=lambda: status in ("TERMINATED", "ERROR"),
    )


def forecast(trials, *, num_trials=None, at_once=2, ends=None, num_stopped=0):
    return forecast_of_run(trials, num_trials=num_trials, at_once=at_once, ends=ends or {}, num_stopped=num_stopped)


def test_the_remaining_trials_take_about_as_long_as_the_finished_ones():
    trials = [trial("TERMINATED", elapsed_s=60)] * 10 + [trial("RUNNING", elapsed_s=30)] * 2

    found = forecast(trials, num_trials=20)

    assert 240 < found.median_s < 360  # 8 waiting trials in 2 slots, and the rest of the running ones
    assert found.low_s < found.median_s < found.high_s


def test_the_progress_of_running_trials_is_enough():
    half_done = trial("RUNNING", elapsed_s=100, iteration=50, stop={"training_iteration": 100})

    found = forecast([half_done], num_trials=1, at_once=1)

    assert 80 < found.median_s < 120


def test_the_end_that_a_scheduler_sets_counts_as_progress():
    running = trial("RUNNING", elapsed_s=100, iteration=50)

    found = forecast([running], num_trials=1, at_once=1, ends={"training_iteration": 100})

    assert 80 < found.median_s < 120


def test_without_any_duration_the_end_is_not_known():
    assert forecast([trial("RUNNING"), trial("PAUSED")], num_trials=2) is None


def test_a_run_without_running_trials_has_no_forecast():
    assert forecast([trial("TERMINATED", elapsed_s=60)], num_trials=1) is None


def test_a_forecast_is_one_sentence():
    text = describe_forecast(EndForecast(low_s=90, median_s=120, high_s=7200))

    assert text == "ends in 2.0 min (1.5 min to 2.0 h with 90 % probability)"
