"""Tests that the timer measures the durations of trials without their pauses, and keeps them when the plan changes."""

import pytest

from tune_policies import Resources, TrialSlot
from tune_policies.trainers.scheduling.idle_slots import TrialTimer
from tune_policies.trainers.scheduling.slot_board import SlotAssignment, SlotTypes

GPU = TrialSlot(trial=Resources(cpus=1, gpus=1), max_concurrent_trials=1)
CPU = TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=1)
BOTH = SlotTypes((GPU, CPU))
ON_GPU, ON_CPU = 0, 1


def timer_with(*durations, slot_types=BOTH):
    """Return a timer after trials with these pairs of a slot and a duration."""
    timer = TrialTimer(slot_types)
    for number, (slot, seconds) in enumerate(durations):
        timer.start(number, 0.0)
        timer.finish(number, slot, seconds)
    return timer


def stays_idle(timer, running=(("running", ON_GPU),), *, slot_type=ON_CPU, slots=(1, 1), num_waiting=1, now_s=0.0):
    assignments = {
        trial: SlotAssignment(GPU if its_type == ON_GPU else CPU, its_type, None) for trial, its_type in running
    }
    return timer.should_idle(slot_type, slots, assignments, num_waiting, now_s)


def test_a_slot_stays_idle_if_its_trials_took_much_longer():
    assert stays_idle(timer_with((GPU, 1.0), (CPU, 100.0)))
    assert not stays_idle(timer_with((GPU, 100.0), (CPU, 100.0)))


def test_a_slot_type_without_a_finished_trial_and_without_a_speed_is_used():
    assert not stays_idle(timer_with((GPU, 1.0)))


def test_only_the_time_in_which_a_trial_ran_counts():
    """The trial on CPUs ran for 1 s in total, as long as the trial on the GPU."""
    timer = timer_with((GPU, 1.0))
    timer.start("slow", 0.0)
    timer.stop("slow", 0.5)
    timer.start("slow", 1000.0)
    timer.finish("slow", CPU, 1000.5)

    assert not stays_idle(timer)


def test_all_parts_of_a_duration_are_added():
    timer = timer_with((GPU, 10.0))
    for start_s in (0.0, 100.0, 200.0):
        timer.start("slow", start_s)
        timer.stop("slow", start_s + 50.0)
    timer.start("slow", 300.0)
    timer.finish("slow", CPU, 301.0)

    assert stays_idle(timer, num_waiting=2)


def test_a_second_start_does_not_restart_the_clock():
    timer = timer_with((GPU, 1.0))
    timer.start("slow", 0.0)
    timer.start("slow", 99.5)
    timer.finish("slow", CPU, 100.0)

    assert stays_idle(timer)


def test_a_trial_that_did_not_run_has_no_duration():
    timer = timer_with((GPU, 1.0))
    timer.stop("slow", 100.0)
    timer.finish("slow", CPU, 100.0)

    assert not stays_idle(timer)


@pytest.mark.parametrize(
    ("now_s", "expected"),
    [
        pytest.param(4.5, False, id="the fast slot becomes free too late"),
        pytest.param(5.0, True, id="the fast slot becomes free soon"),
    ],
)
def test_the_time_that_a_running_trial_has_run_counts(now_s, expected):
    timer = timer_with((GPU, 10.0), (CPU, 15.0))
    timer.start("running", 0.0)

    assert stays_idle(timer, now_s=now_s) is expected


def test_the_time_before_a_pause_of_a_running_trial_counts():
    timer = timer_with((GPU, 10.0), (CPU, 15.0))
    timer.start("running", 0.0)
    timer.stop("running", 8.5)
    timer.start("running", 100.0)

    assert stays_idle(timer, now_s=100.5)


def test_trials_in_slots_that_are_no_longer_in_the_plan_are_ignored():
    timer = timer_with((GPU, 10.0), (CPU, 15.0))

    assert stays_idle(timer, running=[("running", None)])
    assert not stays_idle(timer, running=[("running", ON_GPU)])


def test_durations_are_kept_for_the_slot_types_of_both_plans():
    timer = timer_with((GPU, 1.0), (CPU, 100.0))

    timer.change_types(SlotTypes((CPU, GPU)))

    assert stays_idle(timer, running=[("running", 1)], slot_type=0)
    assert not stays_idle(timer, running=[("running", 0)], slot_type=1)


def test_durations_of_a_slot_type_that_returns_are_used_again():
    timer = timer_with((GPU, 1.0), (CPU, 100.0))
    timer.change_types(SlotTypes((CPU,)))

    timer.change_types(BOTH)

    assert stays_idle(timer)


def test_speeds_of_the_plan_are_used_until_trials_have_finished():
    fast, slow = GPU.model_copy(update={"speed": 10.0}), CPU.model_copy(update={"speed": 1.0})

    assert stays_idle(TrialTimer(SlotTypes((fast, slow))))
