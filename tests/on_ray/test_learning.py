"""A run under a ``LearningPolicy`` learns from its first trials, and what it has learned is a policy for later runs."""

import time

import pytest
from ray import tune

from tune_policies import ClusterCapacity, CpuPolicy, LearningPolicy, Resources, load_policy, run

RAY = {"num_cpus": 4}
START = CpuPolicy(cpus=2)


class MostAtOnce(tune.Callback):
    """Counts the trials that run at the same time."""

    most = 0

    def on_step_end(self, iteration, trials, **info):
        self.most = max(self.most, sum(trial.status == "RUNNING" for trial in trials))


def mostly_wait(config):
    for step in range(5):
        time.sleep(0.6)
        tune.report({"step": step})


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Run trials that use hardly any CPU. Return the callback and the file with what the run has learned."""
    folder = tmp_path_factory.mktemp("results")
    callback = MostAtOnce()
    options = {"num_samples": 14, "reuse_actors": True, "verbose": 0, "callbacks": [callback]}
    run(mostly_wait, LearningPolicy(START), storage_path=str(folder), name="run", **options)
    return callback, folder / "run" / "learned_policy.json"


def test_more_trials_run_at_once_after_the_pilots(learned):
    callback, _ = learned

    assert callback.most > 2


@pytest.mark.rest
def test_what_a_run_has_learned_is_a_policy_file(learned):
    _, file = learned
    capacity = ClusterCapacity.of(Resources(cpus=4))

    plan = load_policy(file).plan(capacity)

    assert plan.max_concurrent_trials > START.plan(capacity).max_concurrent_trials
