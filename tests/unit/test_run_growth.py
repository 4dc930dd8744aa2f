"""Tests that the last trials of a run restart with more resources, and only if this is allowed and pays."""

import pytest

from tests.clusters import GIB
from tests.unit.small_runs import SmallRun, new_trial, reading
from tune_policies import CappedPolicy, CpuPolicy, GrowingPolicy, NodeCapacity, Resources
from tune_policies.ray_compat.tune_request import bundles_of
from tune_policies.trainers.scheduling import run_core

NODE = NodeCapacity(node_id="a", resources=Resources(cpus=4, memory_bytes=16 * GIB))
GROWING = GrowingPolicy(CpuPolicy(cpus=1), up_to=4)
STEP_S = 10.0


class Growing:
    """A run whose trials report every ten seconds."""

    def __init__(self, monkeypatch, policy, *, has_checkpoints=True):
        self.run = SmallRun(monkeypatch, policy, NODE)
        self.has_checkpoints = has_checkpoints
        monkeypatch.setattr(run_core, "actor_of", lambda trial: trial.trial_id)

    def add(self, number):
        for index in range(number):
            trial = new_trial(index, stopping_criterion={"training_iteration": 40})
            trial.has_checkpoint = lambda: self.has_checkpoints
            self.run.add_trial(trial)
        return self.run.run_all()

    def report(self, trial, iteration):
        """Let a trial report. Return what its scheduler decides."""
        self.run.cluster.clock.advance(STEP_S)
        return self.run.scheduler.on_trial_result(self.run.controller, trial, {"training_iteration": iteration})

    def let_grow(self, trial):
        """Let the run decide about a trial that has reported three results. Return the decision about the fourth."""
        for iteration in (1, 2, 3):
            self.report(trial, iteration)
        self.run.watch.next_reading = reading([NODE], node_of_actor={each.trial_id: "a" for each in self.run.trials})
        self.run.watch.latest = self.run.watch.next_reading
        self.run.step()
        return self.report(trial, 4)


@pytest.fixture
def growing(monkeypatch):
    """A function that returns a run under a policy."""
    return lambda policy=GROWING, **options: Growing(monkeypatch, policy, **options)


def cpus_of(trial):
    return bundles_of(trial.placement_group_factory)[0]["CPU"]


def test_the_last_trial_pauses_and_restarts_with_the_free_cpus(growing):
    run = growing()
    last, *others = run.add(4)
    for trial in others:
        run.run.complete(trial)

    decision = run.let_grow(last)
    run.run.pause(last)
    restarted = run.run.request_all()

    assert decision == "PAUSE"
    assert restarted == [last]
    assert cpus_of(last) == 4


def test_free_cpus_are_divided_among_the_last_trials(growing):
    run = growing()
    first, second, *others = run.add(4)
    for trial in others:
        run.run.complete(trial)
    for iteration in (1, 2, 3):
        run.report(second, iteration)

    decisions = run.let_grow(first), run.report(second, 4)
    for trial in (first, second):
        run.run.pause(trial)
    run.run.run_all()  # a trial that needs several slots starts alone
    run.run.run_all()

    assert decisions == ("PAUSE", "PAUSE")
    assert (cpus_of(first), cpus_of(second)) == (2, 2)


def test_no_trial_grows_while_another_one_waits(growing):
    run = growing(CappedPolicy(GROWING, 1))
    (first,) = run.add(2)

    assert run.let_grow(first) == "CONTINUE"


def test_a_trial_without_a_checkpoint_does_not_grow(growing):
    run = growing(has_checkpoints=False)
    last, *others = run.add(4)
    for trial in others:
        run.run.complete(trial)

    assert run.let_grow(last) == "CONTINUE"


def test_without_a_growing_policy_trials_keep_their_resources(growing):
    run = growing(CpuPolicy(cpus=1))
    last, *others = run.add(4)
    for trial in others:
        run.run.complete(trial)

    assert run.let_grow(last) == "CONTINUE"
