"""Tests that fewer trials run at once if more of them are slower together."""

import pytest

from tune_policies.plan.admission import AdmissionControl, ProgressWindow


def window(at_once, speed, *, trials=4, offset=0):
    """Return a window in which each trial has made ten steps at this speed."""
    steps = {f"t{i + offset}": (10, 10 / (speed * (1 + i))) for i in range(min(trials, at_once))}
    return ProgressWindow(at_once=at_once, steps=steps)


STARTED = AdmissionControl().after(window(4, 1.0))


def test_all_trials_that_fit_may_run_until_the_progress_is_known():
    assert (AdmissionControl().limit, STARTED.limit) == (None, None)


@pytest.mark.parametrize(
    ("speed", "limit"),
    [
        pytest.param(1.0, None, id="four times as many trials are four times as fast together"),
        pytest.param(0.25, None, id="they are as fast together as before"),
        pytest.param(0.1, 10, id="they are slower together"),
    ],
)
def test_fewer_trials_run_at_once_if_more_are_slower_together(speed, limit):
    assert STARTED.after(window(16, speed)).limit == limit


def test_the_number_falls_until_trials_are_not_slower_than_in_the_beginning():
    control, numbers = STARTED, []
    while True:
        at_once = control.limit or 16
        numbers.append(at_once)
        after = control.after(window(at_once, 1.0 if at_once <= 4 else 0.5 * 4 / at_once))
        if after == control:
            break
        control = after

    assert numbers == [16, 10, 7, 5, 4]


def test_trials_that_ran_in_one_window_only_teach_nothing():
    assert STARTED.after(window(16, 0.1, offset=100)) == STARTED


def test_the_decision_states_both_numbers_and_speeds():
    assert STARTED.after(window(16, 0.1)).reason == (
        "16 trials at once are 0.40 times as fast together as 4, so at most 10 run at once"
    )
