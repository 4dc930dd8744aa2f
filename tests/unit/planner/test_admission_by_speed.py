"""Tests that more trials run at once while all of them together become faster, and fewer if they become slower."""

import pytest

from tune_policies.plan.admission_by_speed import AdmissionControl, ProgressWindow, careful_limit

LEFT = 1000
"""The number of trials that run or wait, so that the first growth is not limited by it."""


def window(at_once, speed, *, trials=4, offset=0):
    """Return a window in which each trial has made ten steps at this speed."""
    steps = {f"t{i + offset}": (10, 10 / (speed * (1 + i))) for i in range(min(trials, at_once))}
    return ProgressWindow(at_once=at_once, steps=steps)


STARTED = AdmissionControl().after(window(4, 1.0), LEFT)


def numbers_at_once(total_speed, *, fit=1000):
    """Return the numbers of trials in the windows of a run, in which trials have this speed together."""
    control, at_once, numbers = AdmissionControl(), 4, []
    while len(numbers) < 20:
        numbers.append(at_once)
        after = control.after(window(at_once, total_speed(at_once) / at_once), LEFT)
        if after.limit == control.limit:
            break
        control, at_once = after, min(after.limit, fit)
    return numbers


def test_four_times_as_many_trials_may_run_when_the_progress_of_the_first_is_known():
    assert (AdmissionControl().limit, STARTED.limit) == (None, 16)


@pytest.mark.parametrize(
    ("at_once", "num_left", "limit"),
    [
        pytest.param(4, 1000, 16, id="four times as many at most"),
        pytest.param(4, 40, 9, id="an eighth of the remaining trials"),
        pytest.param(4, 8, 6, id="half as many more"),
        pytest.param(1, 2, 2, id="one more"),
    ],
)
def test_before_the_effect_is_known_a_part_of_the_remaining_trials_may_start(at_once, num_left, limit):
    assert careful_limit(at_once, num_left) == limit


def test_only_trials_whose_steps_took_time_have_a_speed():
    progress = ProgressWindow(
        at_once=3, steps={"new": (0, 1.0), "restored": (3, 0.0), "fast": (1, 0.5), "slow": (1, 2)}
    )

    assert progress.speeds == {"fast": 2.0, "slow": 0.5}


def test_another_window_with_the_same_number_keeps_the_limit():
    unimpeded = STARTED.after(window(16, 1.0), LEFT)

    assert unimpeded.after(window(16, 1.0), num_left=1).limit == unimpeded.limit == 64


@pytest.mark.parametrize(
    ("at_once", "limit"),
    [pytest.param(6, 9, id="a fifth more do not show it"), pytest.param(7, 28, id="1.4 times as many show it")],
)
def test_many_more_trials_must_run_to_show_that_trials_do_not_slow_down_each_other(at_once, limit):
    five = AdmissionControl().after(window(5, 1.0), LEFT)

    assert five.after(window(at_once, 1.0), num_left=16).limit == limit


def test_trials_that_slow_down_each_other_become_at_most_twice_as_many():
    assert STARTED.after(window(8, 0.7), LEFT).limit == 16


def test_trials_that_are_faster_together_go_on_although_fewer_were_slower():
    slower = STARTED.after(window(8, 0.1), LEFT)

    assert slower.after(window(10, 1.0), LEFT).limit == 10


def ratios(*speeds):
    """Return a window of eight trials at once in which each trial has this speed relative to ``STARTED``."""
    return ProgressWindow(at_once=8, steps={f"t{i}": (10, 10 / (speed * (1 + i))) for i, speed in enumerate(speeds)})


@pytest.mark.parametrize(
    ("progress", "limit"),
    [
        pytest.param(ratios(0.45, 0.45, 0.45, 0.45), 8, id="four trials: 0.9 times the speed is within the noise"),
        pytest.param(ratios(0.42, 0.42, 0.42, 0.42), 4, id="four trials: 0.84 times the speed is slower"),
        pytest.param(ratios(0.42), 8, id="one trial: 0.84 times the speed is within the noise"),
        pytest.param(ratios(0.4, 0.4), 4, id="two trials that agree: 0.8 times the speed is slower"),
        pytest.param(ratios(0.2, 0.6), 8, id="two trials that disagree"),
        pytest.param(ratios(0.1, 0.3, 0.4, 0.6), 8, id="four trials that disagree"),
    ],
)
def test_fewer_trials_run_only_if_the_slowdown_exceeds_the_noise(progress, limit):
    assert STARTED.after(progress, LEFT).limit == limit


@pytest.mark.parametrize(
    ("speed", "limit"),
    [
        pytest.param(1.0, 32, id="twice as many trials are twice as fast together"),
        pytest.param(0.7, 12, id="they slow down each other, but are faster together"),
        pytest.param(0.5, 8, id="they are as fast together as before"),
        pytest.param(0.1, 4, id="they are slower together"),
    ],
)
def test_the_number_of_trials_follows_their_total_speed(speed, limit):
    assert STARTED.after(window(8, speed), num_left=16).limit == limit


@pytest.mark.parametrize(
    ("total_speed", "numbers"),
    [
        pytest.param(lambda n: n, [4, 16, 50, 50], id="each trial adds its speed, and 50 fit"),
        pytest.param(lambda n: min(n, 12), [4, 16, 32], id="12 trials use everything"),
        pytest.param(lambda n: 4, [4, 16], id="4 trials use everything"),
        pytest.param(lambda n: n if n <= 4 else 2, [4, 16, 4, 10, 4, 7, 4, 5, 4], id="more than 4 are slower"),
        pytest.param(lambda n: n if n <= 12 else 5, [4, 16, 8, 12, 14, 12, 13, 12], id="12 are the best"),
    ],
)
def test_the_number_grows_while_trials_become_faster_together(total_speed, numbers):
    assert numbers_at_once(total_speed, fit=50) == numbers


@pytest.mark.parametrize(
    ("speed", "limit"),
    [
        pytest.param(1.0, 32, id="as fast as the trials before"),
        pytest.param(0.1, 4, id="far slower than the trials before"),
        pytest.param(0.21, 8, id="slower, but by less than two standard errors"),
        pytest.param(0.2, 4, id="slower by more than two standard errors"),
    ],
)
def test_without_a_trial_in_both_windows_different_trials_are_compared(speed, limit):
    assert STARTED.after(window(8, speed, offset=100), LEFT).limit == limit


@pytest.mark.parametrize(
    ("trials", "limit"),
    [
        pytest.param(2, 4, id="too few to compare, so a few more start"),
        pytest.param(3, 1, id="their differences count for the single trial before, too"),
    ],
)
def test_a_single_trial_is_compared_with_at_least_three(trials, limit):
    alone = AdmissionControl().after(window(1, 1.0), num_left=8)

    assert alone.after(window(3, 0.01, trials=trials, offset=100), num_left=8).limit == limit


@pytest.mark.parametrize(
    "nothing",
    [
        pytest.param(window(2, 0.1), id="the last trials of a run"),
        pytest.param(ProgressWindow(at_once=8, steps={}), id="no step"),
    ],
)
def test_a_window_that_cannot_be_compared_decides_nothing(nothing):
    assert STARTED.after(nothing, LEFT) == STARTED


@pytest.mark.parametrize(
    ("speed", "reason"),
    [
        pytest.param(1.0, "8 trials at once do not slow down each other", id="as fast each"),
        pytest.param(0.7, "8 trials at once are 1.40 times as fast together as 4", id="faster together"),
        pytest.param(0.5, "8 trials at once are not faster together than 4", id="as fast together"),
        pytest.param(0.1, "8 trials at once are 0.20 times as fast together as 4", id="slower together"),
    ],
)
def test_the_decision_states_both_numbers(speed, reason):
    assert STARTED.after(window(8, speed), LEFT).reason == reason


@pytest.mark.parametrize(("speed", "times"), [(0.4, "1.60"), (0.5, "2.00")])
def test_four_times_as_many_trials_that_keep_at_most_half_of_their_speed_are_too_many(speed, times):
    control = STARTED.after(window(16, speed), LEFT)

    assert (control.limit, control.reason) == (8, f"16 trials at once are only {times} times as fast together as 4")


def test_a_slowdown_that_the_plan_expects_does_not_limit_the_trials():
    crowded = window(16, 0.5).model_copy(update={"expected_speed": 0.5})

    assert STARTED.after(crowded, LEFT).limit == 64
