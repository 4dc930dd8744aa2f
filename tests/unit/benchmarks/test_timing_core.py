"""Tests of the timing of steps in blocks, without a framework."""

import pytest

from tune_policies.benchmarks.measuring.timed_workload import BLOCK_S, BlockTimer, steps_of_block


def steps_of(step_s, *, known=None):
    """Return the number of steps of a block, and the number of steps that ran to determine it."""
    run = []

    def seconds(number):
        run.append(number)
        return number * step_s

    return steps_of_block(seconds, step_s=known), sum(run)


@pytest.mark.parametrize("step_s", [1e-6, 3e-4, 2e-3, 0.02])
def test_a_block_of_short_steps_takes_the_intended_time(step_s):
    number, _ = steps_of(step_s)

    assert number * step_s == pytest.approx(BLOCK_S, rel=0.5)


def test_determining_the_number_of_steps_takes_no_longer_than_a_few_blocks():
    _, run = steps_of(1e-6)

    assert run * 1e-6 < 3 * BLOCK_S


def test_a_long_step_is_a_block_by_itself():
    assert steps_of(2.0) == (1, 1)


def test_a_long_step_with_a_known_duration_does_not_run_to_determine_the_number_of_steps():
    assert steps_of(2.0, known=2.0) == (1, 0)


def test_the_device_is_synchronized_before_and_after_a_block():
    done = []
    timer = BlockTimer(lambda: done.append("step"), lambda: done.append("wait"))

    timer.seconds(3)

    assert done == ["step", "step", "wait", "step", "step", "step", "wait"]


def test_a_step_that_is_a_block_by_itself_runs_once():
    done = []
    timer = BlockTimer(lambda: done.append("step"), lambda: done.append("wait"))

    timer.seconds(1)

    assert done == ["wait", "step", "wait"]


def test_the_measured_time_is_the_time_of_the_steps():
    clock = iter([10.0, 10.5])
    timer = BlockTimer(lambda: None, lambda: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.perf_counter", lambda: next(clock))

        assert timer.seconds(4) == 0.5
