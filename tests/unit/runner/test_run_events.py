"""Tests of the steps of a run: which trial starts with which request, and which trials wait."""

import logging

import pytest
from ray.tune.experiment import Trial

from tests.clusters import gpu_node
from tests.unit.runner.small_runs import SmallRun, reading
from tune_policies import ByConfigPolicy, CpuPolicy, GpuPolicy, InfeasibleRequestError, MixedPolicy
from tune_policies.trainers.process.process_setup import TrialSetup
from tune_policies.trainers.process.trial_process import SETUP_ARGUMENT

HALVES, CPUS = GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=2)
NODE = gpu_node("a", gpus=1, cpus=4, memory_gib=16)
TWO_GPUS = gpu_node("a", gpus=2, cpus=4, memory_gib=16)
OUT_OF_MEMORY = RuntimeError("CUDA error: out of memory")
NO_ROOM = InfeasibleRequestError("more", "less", "CPU", "Add nodes.")


@pytest.fixture
def run_of(monkeypatch):
    """A function that returns a run under a policy on nodes."""
    return lambda policy, *nodes, **options: SmallRun(monkeypatch, policy, *nodes or [NODE], **options)


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
    run = run_of(MixedPolicy(HALVES, CPUS), NODE, gpu_node("c", gpus=0, cpus=2))
    run.add()

    run.step()

    assert caplog.messages[-1] == "train_00000000 starts in a slot of 1 CPU, 0.5 GPU on node a"


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
