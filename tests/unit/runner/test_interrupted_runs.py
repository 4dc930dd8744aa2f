"""Whether an interrupted run has trials left follows from the saved experiment and the searcher."""

from types import SimpleNamespace

import pytest

from tests.unit.runner.small_runs import new_trial
from tune_policies.ray_compat.tune_interruption import has_ended


def results(*saved, num_future=0):
    """Return results in which all trials are terminated, and a saved experiment with other statuses."""
    trials, shown = [new_trial(n) for n in range(len(saved))], new_trial(99)
    for trial, status in zip(trials, saved, strict=True):
        trial.set_status(status)
    shown.set_status("TERMINATED")
    shown.temporary_state.policy_run = SimpleNamespace(tune=SimpleNamespace(num_future_trials=num_future))
    return SimpleNamespace(trials=[shown], _load_trials=lambda: trials)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(results("TERMINATED", "ERROR"), True, id="all trials have ended"),
        pytest.param(results("TERMINATED", "RUNNING"), False, id="a trial was running"),
        pytest.param(results("TERMINATED", "PAUSED"), False, id="a trial waits"),
        pytest.param(results("TERMINATED", num_future=2), False, id="the searcher has two more trials"),
        pytest.param(results("TERMINATED", num_future=None), False, id="the searcher has no limit"),
        pytest.param(results(), False, id="no trial"),
        pytest.param(SimpleNamespace(trials=[]), False, id="the saved experiment cannot be read"),
        pytest.param(SimpleNamespace(_experiment_analysis=results("TERMINATED")), True, id="the results of a Tuner"),
    ],
)
def test_a_run_has_ended_if_all_saved_trials_have_ended_and_no_trial_is_to_come(found, expected):
    assert has_ended(found) is expected
