"""Tests of what a run does for each event of Tune: which trials wait, and which trial starts."""

import logging
import pickle

import pytest
from ray.tune.experiment import Trial

from tests.clusters import gpu_node
from tests.unit.runner.small_runs import SmallRun, new_trial, reading
from tune_policies import (
    ByConfigPolicy,
    CpuPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MixedPolicy,
)
from tune_policies.ray_compat.run_control import handler_of_trial
from tune_policies.trainers.process.process_setup import TrialSetup
from tune_policies.trainers.process.trial_process import SETUP_ARGUMENT
from tune_policies.trainers.scheduling import run_events
from tune_policies.trainers.scheduling.slot_board import PATIENCE_S

HALVES, CPUS = GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=2)
MIXED = MixedPolicy(HALVES, CPUS)
NODE = gpu_node("a", gpus=1, cpus=4, memory_gib=16)
TWO_GPUS = gpu_node("a", gpus=2, cpus=4, memory_gib=16)
OUT_OF_MEMORY = RuntimeError("CUDA error: out of memory")
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


def test_a_run_waits_for_the_first_trial_of_its_searcher(run_of):
    """Tune waits ten minutes for the first trial before it makes a step without trials."""
    run = run_of(HALVES)
    run.controller.search_alg.has_ended = False

    assert run.step() is None


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


def test_a_trial_for_which_a_process_is_reset_keeps_its_request_if_the_node_of_the_process_is_lost(run_of):
    """The reset fails. Tune does not start a trial again whose reset it has not seen to end."""
    run = run_of(HALVES)
    (trial,) = run.add()
    run.request_all()
    run.processes.groups = {trial.trial_id: "g1"}
    run.processes.started = {trial.trial_id}
    trial.temporary_state.ray_actor = object()
    run.watch.next_reading = reading(lost_groups={"g1"})

    run.step()

    assert not run.controller.withdrawn


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
    monkeypatch.setattr(run_events, "actor_of", lambda trial: {trials[0]: "actor-0"}.get(trial))
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
    monkeypatch.setattr(run_events, "actor_of", lambda trial: f"actor-{trials.index(trial)}")
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
