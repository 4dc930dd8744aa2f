"""Tests of what a run does for each event of Tune: which trial starts, and what happens after each kind of failure."""

import logging

import pytest
from ray.exceptions import RayActorError, RayTaskError
from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import (
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
    TrialScheduler,
)

from tests.clusters import GIB, gpu_node
from tests.unit.small_runs import ONE_CPU, UNUSABLE, SmallRun, new_trial, reading
from tune_policies import (
    ByConfigPolicy,
    CpuPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MixedPolicy,
    Resources,
    TrialPlan,
    TrialSlot,
)
from tune_policies.oom import OutOfMemory
from tune_policies.ray_compat.tune_run import handler_of_trial
from tune_policies.trainers.process.process_setup import TrialSetup
from tune_policies.trainers.process.trial_process import SETUP_ARGUMENT
from tune_policies.trainers.scheduling import run_core, run_failures
from tune_policies.trainers.scheduling.run_failures import FailureCause
from tune_policies.trainers.scheduling.slot_board import PATIENCE_S
from tune_policies.values.errors import UnenforcedLimitError

HALVES, CPUS = GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=2)
MIXED = MixedPolicy(HALVES, CPUS)
NODE = gpu_node("a", gpus=1, cpus=4, memory_gib=16)
TWO_GPUS = gpu_node("a", gpus=2, cpus=4, memory_gib=16)
OUT_OF_MEMORY = RuntimeError("CUDA error: out of memory")
UNENFORCED = RayTaskError("train", "…", UnenforcedLimitError("torch detects no GPU"))
ERROR = ValueError("a mistake")
NO_ROOM = InfeasibleRequestError("more", "less", "CPU", "Add nodes.")


@pytest.fixture
def run_of(monkeypatch):
    """A function that returns a run under a policy on nodes."""
    return lambda policy, *nodes, **options: SmallRun(monkeypatch, policy, *nodes or [NODE], **options)


@pytest.fixture
def without_policy(monkeypatch):
    """A run with memory retries, but without a policy."""
    return SmallRun(monkeypatch, None, NODE, retries={})


# New trials


def test_a_new_trial_is_shown_as_paused_until_it_has_a_slot(run_of):
    run = run_of(HALVES)

    trials = run.add(3)

    assert [trial.status for trial in trials] == [Trial.PAUSED] * 3
    assert list(run.core.waiting) == trials


def test_a_trial_is_known_after_tune_added_it(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()

    assert run.core.knows(trial)
    assert not run.core.knows(new_trial(9))


def test_callbacks_of_tune_find_the_run_of_a_trial(run_of):
    run = run_of(HALVES)

    (trial,) = run.add()

    assert handler_of_trial(trial) is run.core


def test_a_new_trial_is_saved_with_its_own_request(run_of):
    run = run_of(HALVES)

    (trial,) = run.add(bundles=[{"CPU": 3}])

    assert trial.policy_record == '{"own":{"bundles":[{"CPU":3.0}]}}'
    assert trial.placement_group_factory.required_resources == {"CPU": 1, "GPU": 0.5}


def test_a_restored_trial_of_a_run_without_a_policy_gets_its_own_request_again(without_policy):
    trial = new_trial(0, bundles=[{"GPU": 0.5}])
    trial.policy_record = '{"own":{"bundles":[{"CPU":3.0}]}}'

    without_policy.add_trial(trial)

    assert trial.placement_group_factory.required_resources == {"CPU": 3}


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


# Steps


def test_trials_start_in_order_while_slots_are_free(run_of):
    run = run_of(HALVES)
    trials = run.add(3)

    assert run.request_all() == trials[:2]
    assert list(run.core.waiting) == trials[2:]


def test_a_chosen_trial_has_the_request_of_its_slot(run_of):
    run = run_of(HALVES | CPUS, TWO_GPUS)
    run.add()

    trial = run.step()

    assert trial.placement_group_factory.required_resources == {"CPU": 1, "GPU": 0.5}
    assert run.core.records[trial].requested is trial.placement_group_factory


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        pytest.param(1, [False], id="one trial"),
        pytest.param(2, [True, False], id="two trials"),
        pytest.param(3, [True, True, False], id="more than slots"),
    ],
)
def test_tune_does_not_wait_for_events_while_another_trial_can_start(run_of, number, expected):
    run = run_of(HALVES, TWO_GPUS)
    run.add(number)

    starts_more = [run.core.starts_more for _ in range(number) if run.step()]

    assert starts_more == expected
    assert run.step() is None
    assert not run.core.starts_more


def test_a_trial_that_ended_frees_its_slot(run_of):
    run = run_of(HALVES)
    first, _, third = run.add(3)
    run.run_all()

    run.complete(first)

    assert run.step() is third


def test_a_trial_that_pauses_frees_its_slot(run_of):
    run = run_of(HALVES)
    first, _, third = run.add(3)
    run.run_all()

    run.pause(first)

    assert run.step() is third


def test_a_trial_that_tune_stopped_while_it_waited_no_longer_waits(run_of):
    run = run_of(HALVES)
    *_, third = run.add(3)
    run.run_all()

    third.set_status(Trial.TERMINATED)
    run.watch.next_reading = reading()
    run.step()

    assert not run.core.waiting


def test_a_running_trial_is_saved_with_its_slot(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()

    run.run_all()

    assert run.core.records[trial].has_run
    assert '"slot":' in trial.policy_record


def test_a_started_process_counts_as_granted_before_the_trial_runs(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.step()
    assert not run.slots.assignments[trial].is_granted

    run.processes.started.add(trial.trial_id)
    run.step()

    assert run.slots.assignments[trial].is_granted


def test_a_trial_whose_process_started_before_it_ran_is_recorded_when_it_runs(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.step()
    run.processes.started.add(trial.trial_id)
    run.step()
    assert not run.core.records[trial].has_run

    run.begin(trial)
    run.step()

    assert run.core.records[trial].has_run


def test_the_start_of_a_trial_is_logged_with_its_slot(run_of, caplog):
    caplog.set_level(logging.DEBUG, logger="tune_policies")
    run = run_of(MIXED, *two_nodes())
    run.add()

    run.step()

    assert caplog.messages[-1] == "train_00000000 starts in a slot of 1 CPU, 0.5 GPU on node a"


def two_nodes():
    return gpu_node("a", gpus=1, cpus=2), gpu_node("b", gpus=1, cpus=2), gpu_node("c", gpus=0, cpus=2)


def test_a_trial_whose_request_waits_too_long_moves_to_a_free_slot(run_of):
    run = run_of(MIXED, *two_nodes())
    (trial,) = run.add()
    run.step()
    first = run.slots.assignments[trial].node_id

    run.cluster.clock.now_s = PATIENCE_S
    again = run.step()

    assert run.controller.withdrawn == [trial]
    assert again is trial
    assert run.slots.assignments[trial].node_id != first


def test_a_request_that_ray_has_granted_is_not_withdrawn_although_tune_was_too_busy_to_start_its_process(run_of):
    run = run_of(MIXED, *two_nodes())
    (trial,) = run.add()
    run.step()
    run.granted.append(trial.placement_group_factory)

    run.cluster.clock.now_s = PATIENCE_S
    run.step()

    assert run.controller.withdrawn == []


@pytest.mark.parametrize("is_reset", [False, True], ids=["a process that starts", "a process that is reset"])
def test_the_request_of_a_trial_with_a_process_is_not_withdrawn(run_of, is_reset):
    run = run_of(MIXED, *two_nodes())
    (trial,) = run.add()
    run.step()
    if is_reset:
        trial.temporary_state.ray_actor = "an actor"
    else:
        run.processes.started.add(trial.trial_id)

    run.cluster.clock.now_s = PATIENCE_S
    run.step()

    assert not run.controller.withdrawn


def test_requests_on_lost_nodes_are_withdrawn_and_made_again(run_of):
    run = run_of(MIXED, *two_nodes())
    trials = run.add(5)
    run.request_all()

    run.cluster.nodes = two_nodes()[:1]
    run.watch.next_reading = reading(run.cluster.nodes)
    run.request_all()
    run.request_all()

    assert set(trials[2:]) <= set(run.controller.withdrawn)
    assert len(run.slots.assignments) == 2
    assert len(run.core.waiting) == 3


def test_a_step_raises_the_error_if_no_plan_is_feasible_for_too_long(run_of):
    run = run_of(HALVES, wait_for_nodes_s=60.0)
    run.add()
    run.slots.run_plan.wait_for_nodes(NO_ROOM, "a test")
    run.cluster.clock.now_s = 60.0
    assert run.step() is None
    assert not run.controller.saves

    run.cluster.clock.now_s = 60.1
    with pytest.raises(InfeasibleRequestError):
        run.step()
    assert run.controller.saves == [True]


def test_an_infeasible_trial_fails_instead_of_being_started(run_of):
    run = run_of(ByConfigPolicy("algo", {"PPO": CPUS}))
    (trial,) = run.add(config={"algo": "SAC"})

    assert run.step() is trial
    assert isinstance(run.core.start_error(trial.trial_id), InfeasibleRequestError)
    assert not run.core.waiting
    assert trial.placement_group_factory.bundles == [{"memory": 1}]


def test_the_set_up_of_a_process_contains_its_slot_and_the_raised_memory(run_of):
    run = run_of(HALVES, retries={})
    first, second = run.add(2, max_failures=0)
    run.run_all()
    run.fail(first, OUT_OF_MEMORY)
    run.complete(second)
    run.step()

    text = run.core.arguments_of(first.trial_id)[SETUP_ARGUMENT]

    assert TrialSetup.from_json(text).slot.trial.gpus == 1


def test_a_run_without_a_policy_does_not_set_up_processes(without_policy):
    (trial,) = without_policy.add()
    without_policy.step()

    assert without_policy.core.arguments_of(trial.trial_id) == {SETUP_ARGUMENT: None}


def test_only_running_trials_are_reported_as_running(run_of):
    run = run_of(HALVES)
    first, second, _ = run.add(3)
    run.begin(run.step())
    run.step()

    assert [run.core.is_running(trial.trial_id) for trial in (first, second)] == [True, False]


def test_the_reason_why_no_trial_starts_is_logged_once(run_of, caplog):
    caplog.set_level(logging.DEBUG, logger="tune_policies")
    run = run_of(HALVES)
    run.add(3)
    run.run_all()

    run.step()
    run.step()

    waits = [record.getMessage() for record in caplog.records if "waits:" in record.getMessage()]
    assert waits[-1] == "train_00000002 waits: 2 of 2 slots are in use"
    assert len(waits) == len(set(waits))


def test_nothing_is_logged_if_no_trial_waits(run_of, caplog):
    run = run_of(HALVES)
    run.add()
    run.run_all()
    caplog.set_level(logging.DEBUG, logger="tune_policies")

    assert run.step() is None
    assert caplog.messages == []


def test_the_nodes_of_train_workers_are_in_the_set_up_of_the_process(run_of):
    policy = MixedPolicy(GpuPolicy(gpus=1, cpus=1, num_workers=1), CpuPolicy(cpus=1, num_workers=1))
    nodes = gpu_node("a", gpus=1, cpus=2, memory_gib=8), gpu_node("c", gpus=0, cpus=2, memory_gib=8)
    run = run_of(policy, *nodes)
    (trial,) = run.add()
    run.step()

    text = run.core.arguments_of(trial.trial_id)[SETUP_ARGUMENT]

    assert TrialSetup.from_json(text).slot.worker_nodes == run.slots.assignments[trial].worker_nodes == (("a", 1),)


# Inner schedulers


class LastFirst(FIFOScheduler):
    """Chooses the last trial that waits."""

    def choose_trial_to_run(self, tune_controller):
        self.seen = [(trial, trial.status) for trial in tune_controller.get_trials()]
        pending = [trial for trial in tune_controller.get_trials() if trial.status == Trial.PENDING]
        return pending[-1] if pending else None


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


# Kept processes and suggestions


def test_processes_are_kept_while_trials_wait(run_of):
    run = run_of(HALVES)
    trials = run.add(3)
    run.run_all()
    assert sum(run.controller._actor_cache.most.values()) == 2

    run.complete(trials[0])
    run.run_all()

    assert sum(run.controller._actor_cache.most.values()) == 0


def test_processes_are_kept_while_the_searcher_has_more_trials(run_of):
    run = run_of(HALVES)
    run.add()
    run.controller.search_alg.__wrapped__.has_ended = False
    run.run_all()

    assert sum(run.controller._actor_cache.most.values()) == 2


def test_a_run_waits_for_trials_that_wait_or_that_may_resume(run_of):
    run = run_of(HALVES)
    assert run.add()
    assert run.core.has_waiting_trials

    (trial,) = run.run_all()
    assert not run.core.has_waiting_trials

    run.core.inner.note_pause(trial)
    assert run.core.has_waiting_trials

    run.complete(trial)
    run.step()
    assert not run.core.has_waiting_trials
    run.processes.is_handling_event = True
    assert not run.core.has_waiting_trials


def test_a_run_waits_while_one_of_several_trials_may_resume(run_of):
    run = run_of(HALVES)
    run.add(2)
    first, second = run.run_all()
    run.core.inner.note_pause(second)
    run.pause(second)
    run.complete(first)
    run.step()

    assert run.core.has_waiting_trials


def test_a_trial_that_paused_without_a_decision_of_the_scheduler_may_resume(run_of):
    run = run_of(HALVES, inner=LastFirst())
    run.add()
    (trial,) = run.run_all()
    assert not run.core.has_waiting_trials

    run.pause(trial)
    run.step()

    assert run.core.has_waiting_trials


def test_a_trial_that_is_just_being_paused_may_resume(run_of):
    """While Tune pauses a trial, it counts the trial as finished for a moment."""
    run = run_of(HALVES)
    run.add()
    (trial,) = run.run_all()
    run.core.inner.note_pause(trial)
    trial.set_status(Trial.TERMINATED)

    assert not run.core.has_waiting_trials
    run.processes.is_handling_event = True
    assert run.core.has_waiting_trials


@pytest.mark.parametrize(
    ("waiting", "expected"), [pytest.param(0, 2, id="free slots"), pytest.param(1, 1, id="fewer by waiting trials")]
)
def test_an_adaptive_searcher_suggests_as_many_trials_as_slots_are_free(run_of, waiting, expected):
    run = run_of(HALVES, TWO_GPUS)
    run.add(2)
    run.run_all()
    run.add(waiting)

    assert run.core.num_suggestions(is_adaptive=True) == expected


def test_an_adaptive_searcher_suggests_a_trial_for_each_slot_if_all_trials_have_ended(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()
    run.complete(trial)
    run.step()

    assert run.core.num_suggestions(is_adaptive=True) == 2


def test_an_adaptive_searcher_suggests_no_trial_if_no_slot_is_free(run_of):
    run = run_of(HALVES)
    run.add(4)
    run.run_all()

    assert run.core.num_suggestions(is_adaptive=True) < 1


def test_an_adaptive_searcher_suggests_a_trial_if_all_trials_have_ended(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()
    run.slots.run_plan.wait_for_nodes(NO_ROOM, "a test")
    run.complete(trial)

    assert run.core.num_suggestions(is_adaptive=True) >= 1


def test_other_searchers_suggest_200_waiting_trials(run_of):
    run = run_of(HALVES)
    run.add(5)
    run.run_all()

    assert run.core.num_suggestions(is_adaptive=False) == 200 - 3


def test_trials_with_several_bundles_are_suggested_one_by_one_at_first(run_of):
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=8))
    (trial,) = run.add(bundles=[ONE_CPU, ONE_CPU])
    run.run_all()

    assert run.core.num_suggestions(is_adaptive=True) == 3
    run.complete(trial)
    assert run.core.num_suggestions(is_adaptive=True) == 1


# Failures


def test_an_error_of_the_trial_is_left_to_tune(run_of):
    run = run_of(HALVES, retries={})
    (trial,) = run.add(max_failures=1)
    run.run_all()

    assert run.fail(trial, ERROR) == "requeued"
    assert trial.run_metadata.num_failures == 1
    assert list(run.core.waiting) == [trial]


def test_a_failure_beyond_the_maximum_fails_the_trial(run_of):
    run = run_of(HALVES, retries={})
    (trial,) = run.add(max_failures=0)
    run.run_all()

    assert run.fail(trial, ERROR) == "failed"
    assert not run.core.waiting
    assert not run.slots.assignments


def test_a_trial_of_a_lost_node_is_requeued_without_counting_the_failure(run_of, caplog):
    run = run_of(HALVES)
    (trial,) = run.add(max_failures=0)
    run.run_all()

    ended = run.fail(trial, RayActorError(), FailureCause(lost_node_id="0123456789"))

    assert ended == "requeued"
    assert trial.run_metadata.num_failures == 0
    assert not run.controller._has_errored
    assert run.controller.saves == [False]
    assert caplog.messages[-1] == (
        "train_00000000 was lost with node 01234567 and is requeued. This does not count as a failure"
    )


def test_a_node_that_lost_a_trial_is_avoided(run_of):
    run = run_of(MIXED, *two_nodes())
    (trial,) = run.add(max_failures=0)
    run.run_all()
    lost = run.slots.assignments[trial].node_id

    run.fail(trial, RayActorError(), FailureCause(lost_node_id=lost))
    run.step()

    assert lost not in [placement.node_id for placement in run.slots.run_plan.placements]


def test_a_trial_of_a_lost_node_starts_again_on_another_node(run_of):
    run = run_of(MIXED, *two_nodes())
    (trial,) = run.add(max_failures=0)
    run.run_all()
    lost = run.slots.assignments[trial].node_id
    run.fail(trial, RayActorError(), FailureCause(lost_node_id=lost))

    restarted = run.step()

    assert restarted is trial
    assert run.slots.assignments[trial].node_id != lost


def test_a_request_on_a_node_that_stays_is_kept_when_another_node_leaves(run_of):
    run = run_of(MIXED, *two_nodes())
    run.add(3)
    requested = {trial: run.slots.assignments[trial].node_id for trial in run.request_all()}
    stays, leaves, *_ = sorted(set(requested.values()))
    kept = [trial for trial, node_id in requested.items() if node_id == stays]

    run.cluster.nodes = tuple(node for node in run.cluster.nodes if node.node_id != leaves)
    run.watch.next_reading = reading(run.cluster.nodes)
    run.watch.latest = run.watch.next_reading
    run.step()
    run.step()

    assert {trial: run.slots.assignments[trial].node_id for trial in kept} == dict.fromkeys(kept, stays)


def test_a_lost_node_counts_as_a_failure_without_a_policy(without_policy):
    (trial,) = without_policy.add(max_failures=0)
    without_policy.run_all()

    assert without_policy.fail(trial, RayActorError(), FailureCause(lost_node_id="a")) == "failed"


def test_a_trial_that_cannot_use_its_device_falls_back(run_of):
    run = run_of(HALVES | CPUS, falls_back=True)
    (trial,) = run.add(max_failures=0)
    run.run_all()

    assert run.fail(trial, UNUSABLE) == "requeued"
    assert run.step() is trial
    assert trial.placement_group_factory.required_resources == {"CPU": 2}
    assert '"has_fallen_back":true' in trial.policy_record


def test_a_run_whose_first_trials_cannot_enforce_their_limit_ends_once_and_starts_no_further_trial(run_of):
    run = run_of(HALVES)
    first, second, *_ = run.add(6, max_failures=3)
    run.run_all()

    assert run.fail(first, UNENFORCED) == "failed"
    assert run.step() is None  # the second trial may still succeed
    assert run.fail(second, UNENFORCED) == "failed"
    with pytest.raises(UnenforcedLimitError, match=r"torch detects no GPU\. 4 waiting trials did not start"):
        run.step()


def test_a_run_continues_if_other_trials_can_enforce_their_limit(run_of):
    """One of several nodes may have a broken driver."""
    run = run_of(HALVES)
    first, second, third, *_ = run.add(6, max_failures=0)
    run.run_all()
    run.fail(first, UNENFORCED)

    run.core.note_result(second, {"loss": 1})

    assert run.step() is third


def test_a_trial_that_ran_out_of_memory_is_retried_with_more(run_of, caplog):
    run = run_of(HALVES, retries={})
    (trial,) = run.add(max_failures=0)
    run.run_all()

    assert run.fail(trial, OUT_OF_MEMORY) == "requeued"
    assert trial.run_metadata.num_failures == 0
    assert run.step() is trial
    assert trial.placement_group_factory.required_resources == {"CPU": 1, "GPU": 1}
    assert "ran out of GPU memory and is retried with 1 GPU instead of 0.5 GPU" in caplog.text


def test_without_a_policy_a_trial_that_ran_out_of_memory_is_retried_with_more(without_policy):
    run = without_policy
    run.add(bundles=[{"CPU": 1, "GPU": 0.25}], max_failures=0)
    (trial,) = run.request_all()
    run.begin(trial)
    run.watch.latest = reading([NODE])

    assert run.fail(trial, OUT_OF_MEMORY) == "requeued"
    assert run.step() is trial
    assert trial.placement_group_factory.required_resources == {"CPU": 1, "GPU": 0.5}


def test_a_trial_that_cannot_get_more_memory_fails_with_the_reason(run_of, caplog, tmp_path):
    run = run_of(GpuPolicy(gpus=1, cpus=1), retries={})
    (trial,) = run.add(max_failures=3)
    run.run_all()
    trial.local_path = str(tmp_path)
    trial.run_metadata.error_filename = "error.txt"
    error = RuntimeError("CUDA error: out of memory")

    assert run.fail(trial, error) == "failed"
    assert trial.max_failures == 3
    assert "more than 1 GPU" in caplog.text
    assert "more than 1 GPU" in error.__notes__[0]
    assert "more than 1 GPU" in (tmp_path / "error.txt").read_text()


def test_the_reason_is_added_to_the_error_inside_an_error_of_ray(run_of):
    run = run_of(GpuPolicy(gpus=1, cpus=1), retries={})
    (trial,) = run.add()
    run.run_all()
    cause = RuntimeError("CUDA error: out of memory")
    error = RayTaskError("train", "Traceback", cause)

    run.fail(trial, error)

    assert "more than 1 GPU" in cause.__notes__[0]


def test_an_error_in_a_decision_leaves_the_failure_to_tune(run_of, monkeypatch, caplog):
    run = run_of(HALVES, retries={})
    (trial,) = run.add(max_failures=1)
    run.run_all()

    def fails(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(run.core.retries, "decide", fails)

    assert run.fail(trial, OUT_OF_MEMORY) == "requeued"
    assert trial.run_metadata.num_failures == 1
    assert "the decision whether to retry train_00000000 failed" in caplog.text


def test_a_failure_of_a_trial_that_was_stopped_meanwhile_is_ignored(run_of):
    run = run_of(HALVES)
    (trial,) = run.add(max_failures=0)
    run.run_all()
    trial.set_status(Trial.TERMINATED)

    assert run.fail(trial, ERROR) is None


@pytest.mark.parametrize(
    ("inner", "is_saving", "reaches_inner"),
    [
        pytest.param(None, False, False, id="an error in a step is hidden"),
        pytest.param(None, True, True, id="an error while a checkpoint is saved is not"),
        pytest.param(HyperBandScheduler(metric="loss", mode="min"), False, True, id="HyperBand sees all errors"),
    ],
)
def test_the_inner_scheduler_does_not_see_a_retry_unless_it_must(run_of, inner, is_saving, reaches_inner):
    run = run_of(HALVES, inner=inner)
    (trial,) = run.add(max_failures=0)
    run.run_all()
    if is_saving:
        trial.temporary_state.saving_to = "a checkpoint"
    seen = []
    innermost = run.scheduler.inner
    innermost.on_trial_error = lambda _, failed: seen.append(failed)
    innermost.on_trial_add = lambda _, added: None

    run.fail(trial, RayActorError(), FailureCause(lost_node_id="a"))

    assert seen == [trial] * reaches_inner
    assert list(run.core.waiting) == [trial]


def test_a_retried_trial_waits_until_its_pause_has_ended(run_of):
    run = run_of(CpuPolicy(cpus=2, memory="4GiB"), retries={})
    (trial,) = run.add(max_failures=0)
    run.run_all()
    killed = OutOfMemory(kind="host", used_bytes=GIB, requested_bytes=GIB)

    assert run.fail(trial, MemoryError(), FailureCause(out_of_memory=killed)) == "requeued"
    assert run.step() is None
    run.cluster.clock.now_s = 9.9
    assert run.step() is None
    run.cluster.clock.now_s = 10.0
    assert run.step() is trial


def test_the_cause_of_a_failure_is_looked_up_only_for_dead_processes(run_of, monkeypatch):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()
    monkeypatch.setattr(run_failures, "lost_node", lambda error: "a")
    dead = RayActorError(actor_id="0" * 32)

    assert run.core.look_up(trial.trial_id, ERROR) is None
    assert run.core.look_up(trial.trial_id, dead)() == FailureCause(lost_node_id="a")


def test_if_no_node_was_lost_the_error_is_classified(run_of, monkeypatch):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()
    monkeypatch.setattr(run_failures, "lost_node", lambda error: None)
    found = OutOfMemory(kind="host")
    monkeypatch.setattr(run_failures, "classify_failure", lambda error, actor_id: (found, actor_id))
    monkeypatch.setattr(run_core, "actor_of", lambda trial: "the actor")
    run.core.note_death(trial.trial_id)

    cause = run.core.look_up(trial.trial_id, RayActorError(actor_id="0" * 32))()

    assert cause == FailureCause(None, (found, "the actor"))


def test_the_classified_error_of_a_failure_is_recorded(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()

    run.fail(trial, OUT_OF_MEMORY)

    assert run.core.records[trial].failure.kind == "accelerator"


# Memory of similar trials


def test_a_waiting_trial_with_a_similar_config_starts_with_the_memory_of_the_retry(run_of):
    run = run_of(HALVES, TWO_GPUS, retries={})
    first, *_ = run.add(4, config={"width": 8})
    run.run_all()
    similar, other = run.add(config={"width": 9})[0], run.add(config={"width": 7})[0]
    run.fail(first, OUT_OF_MEMORY)
    for trial in run.trials[:4]:
        if trial.status == Trial.RUNNING:
            run.complete(trial)
    run.request_all()

    gpus = [run.core.records[trial].floor.gpu_ticks for trial in (similar, other)]

    assert gpus == [10_000, 0]


def test_a_request_that_ray_has_not_granted_is_raised_after_an_error_of_a_similar_trial(run_of):
    run = run_of(HALVES, TWO_GPUS, retries={})
    first, second, third = run.add(3, config={"width": 8})
    run.begin(run.step())
    run.begin(run.step())
    run.step()
    run.fail(first, OUT_OF_MEMORY)

    run.step()

    assert run.controller.withdrawn == [third]
    assert run.core.records[third].floor.gpu_ticks == 10_000
    assert run.core.records[second].floor.gpu_ticks == 0


def test_a_request_with_a_process_keeps_its_memory_after_an_error_of_a_similar_trial(run_of):
    run = run_of(HALVES, TWO_GPUS, retries={})
    first, second = run.add(2, config={"width": 8})
    run.begin(run.step())
    run.step()
    run.processes.started.add(second.trial_id)
    run.fail(first, OUT_OF_MEMORY)

    run.step()

    assert not run.controller.withdrawn


def test_the_retries_of_a_restored_trial_apply_to_other_trials(run_of):
    run = run_of(HALVES, retries={})
    trial = new_trial(0, {"width": 8})
    trial.policy_record = (
        '{"own":{"bundles":[{"CPU":1.0}]},"oom":{"records":[{"settings":{"width":8},"floor":{"gpu_ticks":10000}}]}}'
    )
    run.add_trial(trial)

    assert run.core.retries.num_records == 1
    assert run.step().placement_group_factory.required_resources == {"CPU": 1, "GPU": 1}


def test_memory_keys_that_no_config_contains_are_reported_at_the_first_step(run_of, caplog):
    run = run_of(HALVES, retries={"memory_keys": ["seed"]})
    run.add(config={"width": 8})

    run.step()

    assert caplog.messages == ["no config of the first trials contains the key 'seed' of memory_keys"]


# Usage


USAGE = {"host_memory_bytes": 3}


def test_the_metrics_of_a_trial_that_ended_contain_its_latest_usage(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()
    trial.run_metadata.last_result = {"usage": USAGE}
    run.scheduler.on_trial_result(run.controller, trial, {})
    trial.run_metadata.last_result = {"loss": 1}

    run.complete(trial)

    assert trial.run_metadata.last_result == {"loss": 1, "usage": USAGE}


def test_the_statistics_of_usage_are_removed_when_a_trial_ends(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()
    trial.run_metadata.last_result = {"usage": USAGE}
    trial.run_metadata.metric_analysis = {"usage/host_memory_bytes": {}, "loss": {}}

    run.complete(trial)

    assert trial.run_metadata.last_result == {"usage": USAGE}
    assert trial.run_metadata.metric_analysis == {"loss": {}}


# Readings of the cluster


def test_a_run_in_a_trial_that_can_never_start_raises_the_error(run_of):
    run = run_of(HALVES)
    run.add()
    run.watch.next_reading = reading(never=NO_ROOM)

    with pytest.raises(InfeasibleRequestError):
        run.step()
    assert run.controller.saves == [True]


def test_busy_devices_are_reported(run_of):
    run = run_of(HALVES)
    run.add()
    run.watch.next_reading = reading(busy="another program uses the GPU")

    run.step()

    assert run.watch.warnings == ["another program uses the GPU"]


def test_a_trial_whose_placement_group_was_lost_is_requested_again(run_of, caplog):
    run = run_of(HALVES)
    first, second = run.add(2)
    run.request_all()
    run.processes.groups = {first.trial_id: "g1", second.trial_id: "g2"}
    run.processes.started = {first.trial_id, second.trial_id}
    run.watch.next_reading = reading(lost_groups={"g1"})

    again = run.step()

    assert run.controller.withdrawn == [first]
    assert again is first
    assert caplog.messages == ["the placement group of train_00000000 was lost and is requested again"]


def test_lost_groups_without_a_process_are_requested_again(run_of, caplog):
    run = run_of(HALVES)
    run.add()
    asked = []
    run.core.tune.groups.replace_lost = lambda lost: asked.append(lost) or [{"CPU": 1}]
    run.watch.next_reading = reading(lost_groups={"g1"})

    run.step()

    assert asked == [{"g1"}]
    assert "a placement group for {'CPU': 1} was lost and is requested again" in caplog.text


def test_the_watch_reads_the_groups_in_which_no_process_has_started(run_of):
    run = run_of(HALVES, TWO_GPUS)
    first, second, third = run.add(3)
    run.run_all()
    second.set_status(Trial.PENDING)
    third.set_status(Trial.PENDING)
    run.processes.groups = {first.trial_id: "g1", second.trial_id: "g2"}
    run.core.tune.groups.ids_without_process = frozenset({"g0"})
    run.core.tune.groups.own_ids = frozenset({"g0", "g1", "g2"})

    run.step()

    assert run.watch.asked_groups == ({"g0", "g2"}, {"g0", "g1", "g2"})


def test_the_nodes_of_running_trials_are_recorded(run_of, monkeypatch):
    run = run_of(MIXED, *two_nodes()[:1])
    trials = run.add(2)
    run.run_all()
    monkeypatch.setattr(run_core, "actor_of", lambda trial: {trials[0]: "actor-0"}.get(trial))
    run.cluster.nodes = two_nodes()
    run.watch.next_reading = reading(two_nodes(), node_of_actor={"actor-0": "a", "actor-1": "b"})
    run.step()

    run.watch.next_reading = reading(two_nodes(), node_of_actor={"actor-0": "a", "actor-1": "b"})
    run.step()

    assert run.slots.assignments[trials[0]].node_id == "a"


@pytest.mark.parametrize(
    ("stuck", "ends"), [pytest.param(2, True, id="all of them"), pytest.param(1, False, id="one of two")]
)
def test_a_run_ends_if_all_of_its_trials_wait_for_workers_that_cannot_start(run_of, monkeypatch, stuck, ends):
    run = run_of(HALVES)
    trials = run.add(2)
    run.run_all()
    monkeypatch.setattr(run_core, "actor_of", lambda trial: f"actor-{trials.index(trial)}")
    run.watch.next_reading = reading(stuck={f"actor-{i}": NO_ROOM for i in range(stuck)} | {"unknown": NO_ROOM})

    if ends:
        with pytest.raises(InfeasibleRequestError):
            run.step()
    else:
        run.step()

    assert run.controller.saves == [True] * ends
    assert run.watch.warnings[0].startswith("train_00000000 waits for workers that cannot start: ")


# Without a policy


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
