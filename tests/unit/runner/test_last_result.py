"""Tests of the metrics of a trial that ended or failed, which Tune reads from its last result."""

import pytest

from tests.clusters import gpu_node
from tests.unit.runner.small_runs import SmallRun
from tune_policies import GpuPolicy

HALVES = GpuPolicy(gpus=0.5, cpus=1)
NODE = gpu_node("a", gpus=1, cpus=4, memory_gib=16)
USAGE = {"host_memory_bytes": 3}


@pytest.fixture
def run_of(monkeypatch):
    """A function that returns a run under a policy on nodes."""
    return lambda policy, *nodes, **options: SmallRun(monkeypatch, policy, *nodes or [NODE], **options)


def test_the_metrics_of_a_trial_that_ended_contain_its_latest_usage(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()
    trial.run_metadata.last_result = {"usage": USAGE}
    run.scheduler.on_trial_result(run.controller, trial, {})
    trial.run_metadata.last_result = {"loss": 1}

    run.complete(trial)

    assert trial.run_metadata.last_result == {"loss": 1, "usage": USAGE}


def test_the_metrics_of_a_trial_that_was_restored_from_a_checkpoint_and_failed_contain_its_slot(run_of):
    """Tune replaces the last result by what the trial reported with its checkpoint."""
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()
    trial.run_metadata.last_result = {"slot": "1 CPU, 0.5 GPU", "usage": USAGE}
    run.scheduler.on_trial_result(run.controller, trial, {})
    trial.run_metadata.last_result = {"slot": "1 CPU, 1 GPU"}
    run.scheduler.on_trial_result(run.controller, trial, {})
    trial.run_metadata.last_result = {"loss": 1}

    run.fail(trial, ValueError("no"))

    assert trial.run_metadata.last_result == {"loss": 1, "slot": "1 CPU, 1 GPU", "usage": USAGE}


def test_the_statistics_of_usage_are_removed_when_a_trial_ends(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()
    trial.run_metadata.last_result = {"usage": USAGE}
    trial.run_metadata.metric_analysis = {"usage/host_memory_bytes": {}, "loss": {}}

    run.complete(trial)

    assert trial.run_metadata.last_result == {"usage": USAGE}
    assert trial.run_metadata.metric_analysis == {"loss": {}}
