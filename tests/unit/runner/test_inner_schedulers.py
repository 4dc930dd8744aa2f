"""Tests of what the scheduler inside a policy sees of a run, and of its choices, pauses and requests."""

import pytest
from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
    TrialScheduler,
)

from tests.clusters import gpu_node
from tests.unit.runner.small_runs import LastFirst, SmallRun, reading
from tune_policies import CpuPolicy, GpuPolicy, Resources, TrialPlan, TrialSlot

HALVES, CPUS = GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=2)
NODE = gpu_node("a", gpus=1, cpus=4, memory_gib=16)
ERROR = ValueError("a mistake")


@pytest.fixture
def run_of(monkeypatch):
    """A function that returns a run under a policy on nodes."""
    return lambda policy, *nodes, **options: SmallRun(monkeypatch, policy, *nodes or [NODE], **options)


# Inner schedulers


def test_the_inner_scheduler_chooses_among_the_trials_that_can_start(run_of):
    inner = LastFirst()
    run = run_of(HALVES, inner=inner)
    first, second, third = run.add(3)
    run.core.records[third].not_before_s = 10.0

    assert run.step() is second
    assert inner.seen == [(first, Trial.PENDING), (second, Trial.PENDING)]
    assert first.status == Trial.PAUSED


class NotesStatuses(FIFOScheduler):
    """Notes the statuses of all other trials at each event, and stops the pending trials after a result of 1."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def _note(self, tune_controller, trial):
        self.seen.append([other.status for other in tune_controller.get_trials() if other is not trial])

    def on_trial_result(self, tune_controller, trial, result):
        self._note(tune_controller, trial)
        for other in tune_controller.get_trials() if result.get("score") == 1 else []:
            if other.status == Trial.PENDING:
                tune_controller.stop_trial(other)
        return TrialScheduler.CONTINUE

    def on_trial_add(self, tune_controller, trial):
        self._note(tune_controller, trial)

    def on_trial_complete(self, tune_controller, trial, result):
        self._note(tune_controller, trial)


def test_the_inner_scheduler_sees_waiting_trials_as_pending_as_in_plain_tune(run_of):
    inner = NotesStatuses()
    run = run_of(HALVES, inner=inner)
    first, _, third, fourth = run.add(4)
    run.run_all()
    run.scheduler.on_trial_result(run.controller, first, {})
    run.complete(first)

    running, pending = Trial.RUNNING, Trial.PENDING
    assert inner.seen == [[], [pending], [pending] * 2, [pending] * 3, *[[running, pending, pending]] * 2]
    assert [trial.status for trial in (third, fourth)] == [Trial.PAUSED] * 2


def test_the_inner_scheduler_stops_all_waiting_trials(run_of):
    run = run_of(HALVES, inner=NotesStatuses())
    first, _, *waiting = run.add(5)
    run.run_all()

    run.scheduler.on_trial_result(run.controller, first, {"score": 1})

    assert [trial.status for trial in waiting] == [Trial.TERMINATED] * 3
    assert not run.core.waiting


class Forgetful(HyperBandScheduler):
    """Never resumes a paused trial, as ``HyperBandScheduler`` after the last trial of a bracket has failed."""

    def on_trial_add(self, tune_controller, trial):
        pass

    def on_trial_remove(self, tune_controller, trial):
        pass

    def choose_trial_to_run(self, tune_controller):
        return None


def test_paused_trials_that_hyperband_never_resumes_are_stopped_when_no_other_trial_runs(run_of):
    run = run_of(HALVES, inner=Forgetful())
    first, second = run.add(2)
    run.run_all()
    run.core.inner.note_pause(first)
    run.pause(first)
    run.step()
    status_beside_a_running_trial = first.status

    run.fail(second, ERROR)
    run.step()

    assert (status_beside_a_running_trial, first.status) == (Trial.PAUSED, Trial.TERMINATED)


def changes_to(run, *nodes):
    """Let the run follow a change of its nodes."""
    run.cluster.nodes = nodes
    run.cluster.clock.now_s += 60
    run.watch.latest = reading(nodes)
    run.slots.follow_nodes(run.core.records, nodes)
    run.slots.follow_nodes(run.core.records, nodes)


class Resuming(Forgetful):
    """Resumes paused trials, as ``HyperBandScheduler`` at the end of a round."""

    def choose_trial_to_run(self, tune_controller):
        return next((trial for trial in tune_controller.get_trials() if trial.status == Trial.PAUSED), None)


def test_paused_trials_that_hyperband_resumes_wait_for_nodes_if_all_nodes_are_lost(run_of):
    run = run_of(HALVES, inner=Resuming())
    (trial,) = run.add()
    run.run_all()
    run.core.inner.note_pause(trial)
    run.pause(trial)
    changes_to(run, gpu_node("b", gpus=0, cpus=1))
    run.step()
    status_without_nodes = trial.status

    changes_to(run, NODE)

    assert (status_without_nodes, run.step()) == (Trial.PAUSED, trial)


def test_a_scheduler_of_tune_that_looks_only_at_results_sees_the_controller_itself(run_of):
    run = run_of(HALVES, inner=FIFOScheduler())
    run.add(3)

    with run.core.as_in_tune(run.controller) as view:
        assert view is run.controller


def test_if_the_inner_scheduler_chooses_no_trial_the_first_one_starts(run_of):
    class Undecided(FIFOScheduler):
        def choose_trial_to_run(self, tune_controller):
            return None

    run = run_of(HALVES, inner=Undecided())
    first, _ = run.add(2)

    assert run.step() is first


class Grows(FIFOScheduler):
    """Gives each trial that has run before 2 CPUs, as a user's own scheduler may do."""

    def choose_trial_to_run(self, tune_controller):
        for trial in tune_controller.get_trials():
            if trial.status == Trial.PAUSED:
                trial.update_resources({"cpu": 2})
                return trial
        return super().choose_trial_to_run(tune_controller)


def test_a_request_that_a_users_scheduler_sets_is_kept(run_of):
    run = run_of(CpuPolicy(cpus=1), inner=Grows())
    (trial,) = run.add()
    run.run_all()
    run.core.inner.note_pause(trial)
    run.pause(trial)

    assert run.step() is trial
    assert trial.placement_group_factory.bundles == [{"CPU": 2}]


def test_a_paused_trial_that_the_inner_scheduler_chooses_resumes(run_of):
    run = run_of(HALVES)
    first, second = run.add(2)
    run.run_all()
    run.core.inner.note_pause(first)
    run.pause(first)
    run.step()

    assert run.slots.assignments.keys() == {first, second}


def test_the_results_of_a_waiting_trial_reach_the_inner_scheduler(run_of):
    class Pausing(FIFOScheduler):
        def on_trial_result(self, tune_controller, trial, result):
            return TrialScheduler.PAUSE

    run = run_of(HALVES, inner=Pausing())
    (trial,) = run.add()
    run.run_all()

    assert run.scheduler.on_trial_result(run.controller, trial, {}) == TrialScheduler.PAUSE
    assert run.core.has_waiting_trials


FAST_AND_SLOW = TrialPlan(
    slots=(
        TrialSlot(trial=Resources(cpus=1, gpus=1), max_concurrent_trials=1, speed=5),
        TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=1, speed=2),
    ),
    limited_by="CPU",
)


"""With one waiting trial, the slow slot stays idle. With two, it is used."""


@pytest.mark.parametrize(
    ("num_paused", "expected"),
    [
        pytest.param(0, 1, id="no further trial"),
        pytest.param(1, 2, id="a paused trial that may resume"),
    ],
)
def test_paused_trials_count_for_the_decision_to_leave_a_slow_slot_idle(run_of, num_paused, expected):
    run = run_of(FAST_AND_SLOW, inner=LastFirst())
    for trial in run.add(num_paused):
        run.begin(run.step())
        run.core.inner.note_pause(trial)
        run.pause(trial)
        run.step()
    run.add(2)

    assert len(run.request_all()) == expected


def test_a_paused_trial_that_has_ended_does_not_count(run_of):
    run = run_of(FAST_AND_SLOW, inner=LastFirst())
    (trial,) = run.add()
    run.run_all()
    run.core.inner.note_pause(trial)
    run.complete(trial)
    run.add(2)

    assert len(run.request_all()) == 1


def test_the_durations_of_completed_trials_count(run_of):
    slots = [slot.model_copy(update={"speed": None}) for slot in FAST_AND_SLOW.slots]
    run = run_of(FAST_AND_SLOW.model_copy(update={"slots": tuple(slots)}))
    run.add(2)
    fast, slow = run.run_all()
    run.cluster.clock.now_s = 1.0
    run.complete(fast)
    run.cluster.clock.now_s = 100.0
    run.complete(slow)
    run.add(2)

    assert len(run.request_all()) == 1


@pytest.mark.parametrize(
    ("num_future", "expected"),
    [pytest.param(0, 1, id="none"), pytest.param(1, 2, id="one"), pytest.param(None, 2, id="an unknown number")],
)
def test_future_trials_count_for_the_decision_to_leave_a_slow_slot_idle(run_of, num_future, expected):
    run = run_of(FAST_AND_SLOW)
    run.add(2)
    search = run.controller.search_alg.__wrapped__
    search.has_ended = False
    search.total_samples = 0 if num_future is None else 2 + num_future
    if num_future == 0:
        search.has_ended = True

    assert len(run.request_all()) == expected


# Schedulers that change resources


class Changing(ResourceChangingScheduler):
    """Gives a paused trial the request ``wish``, and records the request that it sees for a running trial."""

    wish = None

    def on_trial_result(self, tune_controller, trial, result):
        self.seen = trial.placement_group_factory
        return TrialScheduler.CONTINUE

    def choose_trial_to_run(self, tune_controller):
        trial = super().choose_trial_to_run(tune_controller)
        if self.wish is not None:
            trial.update_resources(self.wish)
        return trial


def test_the_request_of_another_scheduler_is_used_and_rounded(run_of):
    inner = Changing(FIFOScheduler())
    run = run_of(GpuPolicy(gpus=0.25, cpus=1), inner=inner)
    (trial,) = run.add()
    run.run_all()
    run.core.inner.note_pause(trial)
    run.pause(trial)
    inner.wish = PlacementGroupFactory([{"CPU": 2, "GPU": 0.7}])

    assert run.step() is trial
    assert trial.placement_group_factory.bundles == [{"CPU": 2, "GPU": 0.5}]
    assert run.slots.assignments[trial].num_slots == 2


def test_a_request_that_the_scheduler_does_not_change_stays_as_planned(run_of):
    run = run_of(GpuPolicy(gpus=0.25, cpus=1), inner=Changing(FIFOScheduler()))
    (trial,) = run.add()
    run.run_all()
    run.core.inner.note_pause(trial)
    run.pause(trial)

    assert run.step() is trial
    assert run.core.records[trial].changed is None


def test_a_scheduler_that_changes_resources_sees_its_own_request(run_of):
    inner = Changing(FIFOScheduler())
    run = run_of(HALVES, inner=inner)
    (trial,) = run.add()
    run.run_all()
    used = trial.placement_group_factory
    wish = PlacementGroupFactory([{"CPU": 1, "GPU": 0.6}])
    run.core.records[trial].changed = wish

    run.scheduler.on_trial_result(run.controller, trial, {})

    assert inner.seen is wish
    assert trial.placement_group_factory is used


def test_the_shown_request_of_other_schedulers_is_the_real_one(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()
    used = trial.placement_group_factory
    run.core.records[trial].changed = PlacementGroupFactory([{"CPU": 1, "GPU": 0.6}])

    with run.core.inner.shown_request(run.core.records[trial]):
        assert trial.placement_group_factory is used


def test_a_request_that_is_set_while_another_is_shown_is_kept(run_of):
    run = run_of(HALVES, inner=Changing(FIFOScheduler()))
    (trial,) = run.add()
    run.run_all()
    wish = PlacementGroupFactory([{"CPU": 1, "GPU": 1}])

    with run.core.inner.shown_request(run.core.records[trial]):
        trial.placement_group_factory = wish

    assert trial.placement_group_factory is wish


def test_population_based_training_resumes_paused_trials(run_of):
    """PBT replaces FIFO's choice, so all waiting trials must be visible to it as pending trials."""
    inner = PopulationBasedTraining(metric="loss", mode="min", hyperparam_mutations={"lr": [1, 2]})
    run = run_of(HALVES, inner=inner)
    trials = run.add(3, config={"lr": 1})

    assert run.request_all() == trials[:2]
