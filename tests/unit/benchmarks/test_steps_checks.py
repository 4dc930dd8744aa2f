"""Tests of the checks of workload results."""

import numpy as np
import pytest

from tune_policies import InvalidResourcesError
from tune_policies.benchmarks.workloads.steps import Steps, checked_loss, checked_steps


def step():
    return 1.0


def test_the_fields_of_steps_are_converted_to_plain_values():
    steps = Steps(step, steps_per_epoch=np.int64(4), dtype=np.float32(0).dtype, samples_per_step=np.int32(8))

    assert checked_steps(steps, "mine:train") == Steps(step, steps_per_epoch=4, dtype="float32", samples_per_step=8)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (None, "mine:train returned None, but must return Steps"),
        (Steps(3.0), "but must return Steps"),
        (
            Steps(lambda model: 1.0),
            r"mine:train: with_transfers must be a function without arguments, .* takes \(model",
        ),
        (Steps(step, compute=lambda x: x), "compute must be a function without arguments"),
        (Steps(step, compute=3), "compute must be a function, got 3"),
        (Steps(step, synchronize="cuda"), "synchronize must be a function, got 'cuda'"),
        (Steps(step, steps_per_epoch=0), "steps_per_epoch must be a whole number, 1 or above, got 0"),
        (Steps(step, steps_per_epoch=None), "steps_per_epoch must be a whole number, 1 or above, got None"),
        (Steps(step, samples_per_step=0.5), "samples_per_step must be a whole number, 1 or above, got 0.5"),
        (Steps(step, tolerance=float("nan")), "tolerance must be a finite fraction of the loss, such as 0.02, got nan"),
        (Steps(step, tolerance=None), "tolerance must be a finite fraction of the loss, such as 0.02, got None"),
    ],
)
def test_invalid_steps_are_refused(steps, message):
    with pytest.raises(InvalidResourcesError, match=message):
        checked_steps(steps, "mine:train")


def test_a_loss_may_be_an_array_of_one_number():
    assert checked_loss(np.array(2.5), "mine:train", 1) == 2.5


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("much", "a step of mine:train returned str, but must return its loss"),
        (np.ones(2), "a step of mine:train returned ndarray"),
        (float("nan"), "step 7 of mine:train returned nan"),
    ],
)
def test_a_loss_must_be_a_finite_number(result, message):
    with pytest.raises(InvalidResourcesError, match=message):
        checked_loss(result, "mine:train", 7)
