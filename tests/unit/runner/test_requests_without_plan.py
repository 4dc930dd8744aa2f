"""Tests of the requests in a run without a policy, in which only memory retries change requests."""

import pytest

from tests.clusters import gpu_node
from tests.unit.runner.small_runs import SmallRun
from tune_policies.trainers.process.trial_process import SETUP_ARGUMENT

NODE = gpu_node("a", gpus=1, cpus=4, memory_gib=16)


@pytest.fixture
def without_policy(monkeypatch):
    """A run with memory retries, but without a policy."""
    return SmallRun(monkeypatch, None, NODE, retries={})


def test_without_a_policy_at_most_16_requests_wait_for_ray(without_policy):
    run = without_policy
    run.add(20)

    requested = run.request_all()
    assert len(requested) == 16
    assert run.core.num_suggestions(is_adaptive=True) < 1

    run.begin(requested[0])
    assert run.step() is run.trials[16]


def test_without_a_policy_an_adaptive_searcher_suggests_up_to_16_requests(without_policy):
    run = without_policy
    run.add(2)
    run.step()

    assert run.core.num_suggestions(is_adaptive=True) == 16 - 2
    assert run.core.starts_more


def test_without_a_policy_a_trial_that_ended_is_no_longer_requested(without_policy):
    run = without_policy
    run.add(17)
    requested = run.request_all()

    run.complete(requested[0])

    assert run.step() is run.trials[16]
    assert not run.core.starts_more


def test_without_a_policy_a_request_that_ray_has_granted_no_longer_waits(without_policy):
    run = without_policy
    run.add(17)
    requested = run.request_all()

    run.processes.started.add(requested[0].trial_id)

    assert run.step() is run.trials[16]


def test_without_a_policy_a_paused_retry_waits(without_policy):
    run = without_policy
    first, second = run.add(2)
    run.core.records[first].not_before_s = 5.0

    assert run.request_all() == [second]
    run.cluster.clock.now_s = 5.0
    assert run.step() is first


def test_without_a_policy_no_process_is_kept(without_policy):
    without_policy.add(3)
    without_policy.request_all()

    assert not without_policy.controller._actor_cache.most


def test_a_run_without_a_policy_does_not_set_up_processes(without_policy):
    (trial,) = without_policy.add()
    without_policy.step()

    assert without_policy.core.arguments_of(trial.trial_id) == {SETUP_ARGUMENT: None}
