"""Tests of what a run does with a trial that Tune adds: a new trial, a restarted trial, or one of a restored run."""

import pickle

import pytest
from ray.tune.experiment import Trial

from tests.clusters import gpu_node
from tests.unit.runner.small_runs import SmallRun, new_trial
from tune_policies import CpuPolicy, GpuPolicy, InvalidResourcesError
from tune_policies.ray_compat.run_control import handler_of_trial

HALVES, CPUS = GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=2)
NODE = gpu_node("a", gpus=1, cpus=4, memory_gib=16)


@pytest.fixture
def run_of(monkeypatch):
    """A function that returns a run under a policy on nodes."""
    return lambda policy, *nodes, **options: SmallRun(monkeypatch, policy, *nodes or [NODE], **options)


@pytest.fixture
def without_policy(monkeypatch):
    """A run with memory retries, but without a policy."""
    return SmallRun(monkeypatch, None, NODE, retries={})


def test_a_new_trial_is_shown_as_paused_until_it_has_a_slot(run_of):
    run = run_of(HALVES)

    trials = run.add(3)

    assert [trial.status for trial in trials] == [Trial.PAUSED] * 3
    assert list(run.core.waiting) == trials


def restarted(trial):
    """Return the trial that restarts a failed trial: ``Trial.reset`` copies only the request, as Tune has saved it."""
    again = new_trial(9, trial.config)
    again.placement_group_factory = pickle.loads(pickle.dumps(trial.placement_group_factory))
    return again


@pytest.mark.parametrize("has_run", [True, False])
def test_a_restarted_trial_gets_the_resources_of_the_new_policy_like_other_trials(run_of, has_run):
    earlier = run_of(HALVES)
    (failed,) = earlier.add(bundles=[{"CPU": 3}])
    if has_run:
        earlier.run_all()
    run = run_of(CPUS)
    again = restarted(failed)

    run.add(bundles=[{"CPU": 3}])
    run.add_trial(again)
    run.run_all()

    assert again.placement_group_factory.required_resources == {"CPU": 2}


def test_a_restarted_trial_that_could_never_run_has_its_own_request_again(run_of):
    earlier = run_of(CpuPolicy(cpus=1))
    (failed,) = earlier.add(bundles=[{"CPU": 3}, {"CPU": 3}])
    earlier.run_all()
    assert failed.placement_group_factory.required_resources == {"memory": 1}

    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=8))
    run.add_trial(restarted(failed))

    (again,) = run.run_all()
    assert again.placement_group_factory.bundles == [{"CPU": 3}, {"CPU": 3}]


def test_without_a_policy_a_restarted_trial_gets_its_own_request(run_of, without_policy):
    earlier = run_of(HALVES)
    (failed,) = earlier.add(bundles=[{"CPU": 3}])
    earlier.run_all()
    again = restarted(failed)

    without_policy.add_trial(again)
    without_policy.run_all()

    assert again.placement_group_factory.required_resources == {"CPU": 3}


def test_a_trial_is_known_after_tune_added_it(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()

    assert run.core.knows(trial)
    assert not run.core.knows(new_trial(9))


def test_callbacks_of_tune_find_the_run_of_a_trial(run_of):
    run = run_of(HALVES)

    (trial,) = run.add()

    assert handler_of_trial(trial) is run.core


def test_a_new_trial_has_the_request_of_the_policy(run_of):
    run = run_of(HALVES)

    (trial,) = run.add(bundles=[{"CPU": 3}])

    assert trial.placement_group_factory.required_resources == {"CPU": 1, "GPU": 0.5}


def test_a_trial_of_a_resumed_run_without_a_policy_gets_new_resources_per_trial(without_policy):
    """``tune.run`` sets them for pending trials before the first step."""
    (trial,) = without_policy.add(bundles=[{"CPU": 3}])
    assert trial.status == Trial.PENDING
    trial.update_resources({"cpu": 2})

    assert without_policy.step() is trial
    assert trial.placement_group_factory.required_resources == {"CPU": 2}
    assert without_policy.core.records[trial].own.required_resources == {"CPU": 2}


def test_a_restored_trial_that_ended_keeps_its_request_and_does_not_wait(run_of):
    run = run_of(HALVES)
    trial = new_trial(0, bundles=[{"CPU": 3}])
    trial.set_status(Trial.TERMINATED)

    run.add_trial(trial)

    assert trial.placement_group_factory.required_resources == {"CPU": 3}
    assert not run.core.waiting


def test_a_paused_trial_of_a_restored_run_waits_for_its_scheduler(run_of):
    run = run_of(HALVES)
    trial = new_trial(0)
    trial.set_status(Trial.PAUSED)

    run.add_trial(trial)

    assert not run.core.waiting


def test_a_trial_with_another_request_ends_the_run_if_no_trial_has_run(run_of):
    run = run_of(HALVES)
    run.add(bundles=[{"CPU": 2}])
    run.add(bundles=[{"CPU": 3}])

    with pytest.raises(InvalidResourcesError, match="different resources"):
        run.step()


def test_a_trial_with_another_request_keeps_it_if_other_trials_have_run(run_of):
    run = run_of(HALVES)
    run.add(bundles=[{"CPU": 1, "GPU": 0.5}])
    run.run_all()

    (other,) = run.add(bundles=[{"CPU": 1, "GPU": 0.25}])

    assert run.step() is other
    assert other.placement_group_factory.bundles == [{"CPU": 1, "GPU": 0.25}]
