"""Tests of how many trials run at once, as decided by their progress."""

import random

import pytest

from tune_policies.plan.admission import AdmissionControl, ProgressWindow


def window(at_once, speed, rng, *, noise=0.05, names=None, seconds=60):
    """Return the progress of trials whose own step sizes differ by a factor of up to 5."""
    steps = {}
    for i in names or range(at_once):
        own = 1 + 4 * random.Random(i).random()
        steps[f"trial {i}"] = (max(0, round(speed * own * seconds * rng.lognormvariate(0, noise))), seconds)
    return ProgressWindow(at_once=at_once, steps=steps)


def settled(start, most, total_speed, *, seed=0, noise=0.05, windows=40):
    """Return the limit after many windows, if ``total_speed(n)`` is the total speed of n concurrent trials."""
    rng, control = random.Random(seed), AdmissionControl(limit=start, most=most)
    for _ in range(windows):
        n = control.limit
        control = control.after(window(n, total_speed(n) / n, rng, noise=noise))
    return control


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("total_speed", "fewest", "most"),
    [
        pytest.param(lambda n: n, 32, 32, id="trials that mostly wait: all that fit"),
        pytest.param(lambda n: min(n, 8), 7, 16, id="a device that eight trials fill: about eight"),
        pytest.param(lambda n: 2.0, 2, 4, id="a device that the first trials fill: few more"),
        pytest.param(lambda n: n if n <= 6 else 36 / n, 4, 8, id="trials that disturb each other: before the peak"),
    ],
)
def test_trials_are_admitted_while_their_total_speed_rises(total_speed, fewest, most, seed):
    assert fewest <= settled(2, 32, total_speed, seed=seed).limit <= most


def test_a_trial_with_few_steps_decides_nothing():
    control = AdmissionControl(limit=2, most=8)

    assert control.after(ProgressWindow(at_once=2, steps={"a": (2, 1.0), "b": (1, 1.0)})).limit == 2


def test_windows_with_another_number_of_trials_are_ignored():
    control = AdmissionControl(limit=4, most=8)

    assert control.after(window(3, 1, random.Random(0))) == control


def test_noise_delays_a_decision():
    rng = random.Random(0)
    control = AdmissionControl(limit=2, most=32).after(window(2, 1, rng))

    after = control.after(window(4, 0.53, rng, noise=0.4))

    assert (after.limit, after.num_windows) == (4, 1)


def test_if_no_trial_is_left_to_compare_the_best_known_number_is_restored():
    rng = random.Random(0)
    control = AdmissionControl(limit=2, most=4).after(window(2, 1, rng))

    for _ in range(4):
        control = control.after(window(4, 0, rng))

    assert (control.limit, control.kept.at_once) == (2, 2)


def test_more_trials_are_tried_after_a_plan_in_which_more_fit():
    control = settled(2, 4, lambda n: n).with_most(16)

    for _ in range(5):
        control = control.after(window(control.limit, 1, random.Random(1)))

    assert control.limit == 16


def test_the_reason_states_the_measured_gain():
    control = settled(2, 4, lambda n: min(n, 2), windows=9)

    assert "3 trials at once are 1.00 times as fast together as 2, so fewer run at once" in control.reason
