"""Tests of what a run's trials tell about its end."""

from types import SimpleNamespace

import pytest

from tune_policies.plan.end_forecast import EndForecast, RunningTrial, RunProgress
from tune_policies.trainers.usage.run_forecast import SlotTimes, deadline_warning, describe_forecast, progress_of_run


def trial(status, *, elapsed_s=0.0, iteration=0, stop=None, name="a"):
    result = {"time_total_s": elapsed_s, "training_iteration": iteration} if elapsed_s else {}
    return SimpleNamespace(
        trial_id=name,
        status=status,
        stopping_criterion=stop or {},
        run_metadata=SimpleNamespace(last_result=result),
        is_finished=lambda: status in ("TERMINATED", "ERROR"),
    )


REPORTED = SlotTimes(reported={"a"})


def forecast(trials, *, num_trials, at_once=2, ends=None, num_stopped=0, times=REPORTED):
    progress = progress_of_run(trials, num_trials=num_trials, ends=ends or {}, num_stopped=num_stopped, times=times)
    return progress and progress.forecast(at_once)


def test_the_remaining_trials_take_about_as_long_as_the_finished_ones():
    trials = [trial("TERMINATED", elapsed_s=60)] * 10 + [trial("RUNNING", elapsed_s=30)] * 2

    found = forecast(trials, num_trials=20)

    assert 240 < found.median_s < 360  # 8 waiting trials in 2 slots, and the rest of the running ones
    assert found.low_s < found.median_s < found.high_s


def test_the_progress_of_running_trials_is_enough():
    half_done = trial("RUNNING", elapsed_s=100, iteration=50, stop={"training_iteration": 100})

    found = forecast([half_done], num_trials=1, at_once=1)

    assert 80 < found.median_s < 120


def test_a_metric_in_stop_is_no_progress():
    """An accuracy of 0.85 is not 89 % of the way to 0.95."""
    running = trial("RUNNING", elapsed_s=100, iteration=5, stop={"training_iteration": 100, "mean_accuracy": 0.95})
    running.run_metadata.last_result["mean_accuracy"] = 0.85

    found = forecast([running], num_trials=1, at_once=1)

    assert found.median_s > 1_000


def test_the_end_that_a_scheduler_sets_counts_as_progress():
    running = trial("RUNNING", elapsed_s=100, iteration=50)

    found = forecast([running], num_trials=1, at_once=1, ends={"training_iteration": 100})

    assert 80 < found.median_s < 120


def test_without_any_duration_the_end_is_not_known():
    assert forecast([trial("RUNNING"), trial("PAUSED")], num_trials=2) is None


def test_a_run_without_running_trials_has_no_forecast():
    assert forecast([trial("TERMINATED", elapsed_s=60)], num_trials=1) is None


def test_a_run_with_an_unknown_number_of_trials_has_no_forecast():
    trials = [trial("TERMINATED", elapsed_s=60)] * 10 + [trial("RUNNING", elapsed_s=30)] * 2

    assert forecast(trials, num_trials=None) is None


def test_the_start_of_processes_delays_waiting_trials():
    """A process may take longer to start than a short trial takes to run."""
    trials = [trial("TERMINATED", elapsed_s=2)] * 10 + [trial("RUNNING", elapsed_s=1)] * 2

    found = forecast(trials, num_trials=20, times=SlotTimes(reported={"a"}, start_s=10))

    assert 40 < found.median_s < 60  # 8 waiting trials in 2 slots, each with 10 s for its start


def test_the_time_of_failed_attempts_counts():
    trials = [trial("TERMINATED", elapsed_s=10)] * 10 + [trial("RUNNING", elapsed_s=5)] * 2

    found = forecast(trials, num_trials=20, times=SlotTimes(total_s={"a": 60}, reported={"a"}))

    assert 200 < found.median_s < 360


def test_the_last_result_of_an_earlier_attempt_is_no_progress():
    """A trial without a checkpoint begins again after a failure."""
    ended = [trial("TERMINATED", elapsed_s=100, name=f"ended {number}") for number in range(10)]
    retried = trial("RUNNING", elapsed_s=90, iteration=90, stop={"training_iteration": 100})

    found = forecast([*ended, retried], num_trials=11, times=SlotTimes(current_s={"a": 10}))

    assert 70 < found.median_s < 120


def test_while_all_trials_wait_for_a_retry_the_end_is_known():
    found = forecast([trial("TERMINATED", elapsed_s=60)] * 10 + [trial("PAUSED")] * 2, num_trials=12)

    assert 40 < found.median_s < 90


def test_a_forecast_is_one_sentence():
    text = describe_forecast(EndForecast(low_s=90, median_s=120, high_s=7200))

    assert text == "ends in 2.0 min (1.5 min to 2.0 h with 90 % probability)"


def test_with_a_price_the_cost_includes_the_time_that_has_passed():
    text = describe_forecast(EndForecast(low_s=1800, median_s=3600, high_s=7200), 2.0, elapsed_s=3600)

    assert text.endswith(", and costs 4.00 (3.00 to 6.00)")


PROGRESS = RunProgress(finished_s=(100.0,) * 20, running=[RunningTrial(elapsed_s=50)] * 4, num_waiting=40)


def test_there_is_no_warning_before_a_deadline_that_is_met():
    assert deadline_warning(PROGRESS, 2000, at_once=4, num_nodes=2) == ""


def test_a_warning_contains_the_nodes_and_the_samples_with_which_the_deadline_is_met():
    warning = deadline_warning(PROGRESS, 600, at_once=4, num_nodes=2)

    needed, fewer = PROGRESS.at_once_before(600, 4), PROGRESS.fewer_before(600, 4)
    num_nodes = -(-(needed - 4) // 2)
    assert warning.partition("its deadline")[2] == (
        f" is in 10.0 min. Enough would be {needed} trials at once instead of 4 ({num_nodes} more nodes like the "
        f"present ones), or {fewer} samples fewer"
    )
    assert not PROGRESS.forecast(needed).exceeds(600)
    assert PROGRESS.forecast(needed - 1).exceeds(600)
    assert not PROGRESS.model_copy(update={"num_waiting": 40 - fewer}).forecast(4).exceeds(600)
    assert 4 < needed <= 9
    assert 15 <= fewer <= 25


@pytest.mark.parametrize(("deadline_s", "left"), [(10, "in 10.0 s"), (-5, "over")])
def test_if_running_trials_take_too_long_nothing_helps(deadline_s, left):
    warning = deadline_warning(PROGRESS, deadline_s, at_once=4, num_nodes=0)

    assert warning.endswith(
        f"but its deadline is {left}. Neither more nodes nor fewer samples are enough, because of the trials that are "
        "running"
    )
