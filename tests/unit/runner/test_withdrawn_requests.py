"""Tests of the requests that are withdrawn, because the nodes have changed or because another slot is free."""

import pytest

from tests.clusters import gpu_node
from tests.unit.runner.small_runs import ONE_CPU, SmallRun, SmallSlots, reading
from tune_policies import CpuPolicy, GpuPolicy, MixedPolicy, Resources, TrialSlot
from tune_policies.trainers.retries.memory_floor import MemoryFloor
from tune_policies.trainers.scheduling.slot_board import PATIENCE_S

HALVES, CPUS = GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=2)
TWO_TYPES = MixedPolicy(HALVES, CPUS)
GPU_NODE, OTHER_GPU_NODE = gpu_node("a", gpus=1, cpus=2), gpu_node("b", gpus=1, cpus=2)
CPU_NODE = gpu_node("c", gpus=0, cpus=2)
NODES = GPU_NODE, OTHER_GPU_NODE, CPU_NODE
BUNDLES = (ONE_CPU, ONE_CPU)
GPU, CPU = 0, 1
CPUS_SLOT = TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=1)


@pytest.fixture
def run_of(monkeypatch):
    """A function that returns the slots of a policy on nodes."""
    return lambda policy, *nodes, **options: SmallSlots(monkeypatch, policy, *nodes, **options)


# Changed nodes


def test_requests_on_a_lost_node_are_withdrawn(run_of):
    run = run_of(TWO_TYPES, GPU_NODE, OTHER_GPU_NODE, CPU_NODE)
    trials = run.add(5)
    run.request_all()

    withdrawn = run.follow(GPU_NODE, CPU_NODE)

    assert run.places() == [(GPU, "a"), (GPU, "a"), (GPU, "b"), (GPU, "b"), (CPU, "c")]
    assert set(trials[2:4]) <= {withdrawal.trial for withdrawal in withdrawn}
    assert {withdrawal.reason for withdrawal in withdrawn} == {"the plan has changed"}


def test_a_trial_that_fell_back_keeps_its_request_while_others_are_withdrawn(run_of):
    run = run_of(MixedPolicy(HALVES, CPUS) | CPUS, GPU_NODE, OTHER_GPU_NODE, CPU_NODE, falls_back=True)
    fallen, other = run.add(2)
    run.fall_back(fallen)
    run.choose([fallen])
    run.choose([other])

    withdrawn = run.follow(OTHER_GPU_NODE, CPU_NODE)

    assert [withdrawal.trial for withdrawal in withdrawn] == [other]


def test_a_granted_request_on_a_lost_node_is_kept_until_its_process_fails(run_of):
    run = run_of(TWO_TYPES, GPU_NODE, OTHER_GPU_NODE, CPU_NODE)
    trials = run.add(4)
    run.request_all()
    run.slots.grant(trials[2])

    withdrawn = run.follow(GPU_NODE, CPU_NODE)

    assert trials[2] not in [withdrawal.trial for withdrawal in withdrawn]


def test_a_request_without_a_node_is_kept_if_the_plan_still_contains_its_slot(run_of):
    run = run_of(HALVES, gpu_node("a", gpus=2, cpus=8))
    run.add(4)
    trials = run.request_all()

    withdrawn = run.follow(gpu_node("a", gpus=1, cpus=8))

    assert [trial for trial, _ in withdrawn] == trials[2:]


def test_a_request_without_a_node_is_withdrawn_if_all_slots_are_assigned_to_nodes(run_of):
    run = run_of(TWO_TYPES, gpu_node("a", gpus=1, cpus=4))
    (trial,) = run.add()
    run.request_all()

    withdrawn = run.follow(gpu_node("a", gpus=1, cpus=4), CPU_NODE)

    assert [withdrawal.trial for withdrawal in withdrawn] == [trial]


def test_unchanged_nodes_withdraw_nothing(run_of):
    run = run_of(TWO_TYPES, GPU_NODE, OTHER_GPU_NODE, CPU_NODE)
    run.add(5)
    run.request_all()

    assert run.follow() == []


def test_a_trial_with_its_own_slot_keeps_its_request_when_nodes_change(run_of):
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=8), gpu_node("b", gpus=0, cpus=8))
    run.add(bundles=BUNDLES)
    run.request_all()

    assert run.follow(gpu_node("a", gpus=0, cpus=8)) == []


def test_running_trials_keep_the_slots_of_a_changed_plan(run_of):
    run = run_of(HALVES, GPU_NODE)
    run.add(6)
    run.run_all()

    run.follow(GPU_NODE, OTHER_GPU_NODE)

    assert len(run.request_all(10.0)) == 2


def test_trials_start_in_the_slots_of_a_changed_plan(run_of):
    run = run_of(HALVES | CpuPolicy(cpus=1), gpu_node("c", gpus=0, cpus=4))
    run.add(7)
    run.run_all()

    run.follow(gpu_node("c", gpus=0, cpus=4), GPU_NODE)
    run.run_all(10.0)

    assert run.places() == [(0, None)] * 4 + [(1, "a")] * 2


def test_durations_are_kept_when_the_plan_changes(run_of):
    run = run_of(MixedPolicy(GpuPolicy(gpus=1, cpus=1), CPUS), gpu_node("a", gpus=1, cpus=1), CPU_NODE)
    fast, slow = run.add(2)
    run.run_all()
    run.slots.finish(fast, 1.0)
    run.slots.finish(slow, 100.0)
    run.slots.release(fast, 100.0)
    run.slots.release(slow, 100.0)
    run.follow(gpu_node("a", gpus=1, cpus=1), CPU_NODE, gpu_node("d", gpus=0, cpus=2))
    run.add(2)

    assert len(run.request_all(100.0)) == 1


@pytest.mark.parametrize(
    ("nodes_after", "expected"),
    [
        pytest.param([GPU_NODE, CPU_NODE], "a", id="if slots are assigned to nodes"),
        pytest.param([GPU_NODE], None, id="not if no slot is assigned to a node"),
    ],
)
def test_the_node_of_a_trial_that_was_started_anywhere_is_recorded(run_of, nodes_after, expected):
    run = run_of(TWO_TYPES, GPU_NODE)
    (trial,) = run.add()
    run.run_all()
    run.follow(*nodes_after)

    run.slots.find_nodes({trial: "a"})

    assert run.slots.assignments[trial].node_id == expected


def test_the_node_of_an_assigned_slot_does_not_change(run_of):
    run = run_of(TWO_TYPES, GPU_NODE, CPU_NODE)
    (trial,) = run.add()
    run.run_all()

    run.slots.find_nodes({trial: "c"})

    assert run.slots.assignments[trial].node_id == "a"


def test_only_the_nodes_of_trials_with_a_planned_slot_are_recorded(run_of):
    run = run_of(TWO_TYPES | CPUS, GPU_NODE, CPU_NODE, falls_back=True)
    fallen, waiting = run.add(2)
    run.fall_back(fallen)
    run.run(run.choose([fallen]).trial)

    run.slots.find_nodes({fallen: "a", waiting: "a"})

    assert run.slots.assignments[fallen].node_id is None


# Withdrawals


def moving(run_of, **options):
    """Return a run in which a trial has a slot on the first of two GPU nodes that Ray does not grant."""
    run = run_of(TWO_TYPES, GPU_NODE, OTHER_GPU_NODE, CPU_NODE, **options)
    run.add()
    run.request_all()
    return run


def test_a_request_that_waits_too_long_is_withdrawn_if_another_slot_is_free(run_of):
    run = moving(run_of)
    (trial,) = run.slots.assignments

    assert run.slots.withdrawal(run.records, PATIENCE_S - 0.1) is None
    withdrawn = run.slots.withdrawal(run.records, PATIENCE_S)
    assert withdrawn.trial is trial
    assert withdrawn.reason == (
        "other programs use the resources of its slot, and a slot of 1 CPU, 0.5 GPU on node b is free"
    )


def waits_with(run, **changes):
    """Let another trial wait whose record has ``changes``."""
    (waiting,) = run.add()
    for name, value in changes.items():
        setattr(run.records[waiting], name, value)


@pytest.mark.parametrize(
    ("changes", "is_withdrawn"),
    [
        pytest.param({}, False, id="that can start"),
        pytest.param({"not_before_s": PATIENCE_S}, False, id="whose pause has just ended"),
        pytest.param({"not_before_s": 100.0}, True, id="that pauses"),
        pytest.param({"floor": MemoryFloor(gpu_ticks=10_000)}, False, id="that fits the free slots"),
        pytest.param({"has_run": True, "slot": CPUS_SLOT}, True, id="that needs another device"),
    ],
)
def test_a_trial_moves_unless_a_waiting_trial_needs_the_free_slot(run_of, changes, is_withdrawn):
    run = moving(run_of)
    waits_with(run, **changes)

    assert (run.slots.withdrawal(run.records, PATIENCE_S) is not None) == is_withdrawn


def test_the_question_whether_a_trial_moves_does_not_change_the_planned_request_of_a_waiting_trial(run_of):
    run = moving(run_of)
    (waiting,) = run.add()
    planned = run.records[waiting].planned

    assert run.slots.withdrawal(run.records, PATIENCE_S) is None
    assert run.records[waiting].planned is planned


def test_a_trial_moves_if_a_waiting_trial_needs_more_slots_than_are_free(run_of):
    run = moving(run_of)
    (other,) = run.add()
    run.records[other].has_run = True
    run.records[other].slot = run.plan.plan.slots[GPU]
    run.slots.withdrawal(run.records, PATIENCE_S)  # the first node counts as blocked
    run.choose(now_s=PATIENCE_S)
    waits_with(run, needed=MemoryFloor(gpu_ticks=10_000))

    assert run.slots.assignments[other].node_id == "b"
    assert run.slots.withdrawal(run.records, PATIENCE_S + 1) is not None


def test_a_slot_without_a_node_is_named_without_a_node(run_of):
    run = run_of(TWO_TYPES, gpu_node("a", gpus=1, cpus=4))
    run.add()
    run.request_all()

    withdrawn = run.slots.withdrawal(run.records, PATIENCE_S)

    assert withdrawn.reason.endswith("and a slot of 2 CPUs is free")


# The steps of a run


@pytest.fixture
def run(monkeypatch):
    """A run on two nodes with a GPU and a node without a GPU."""
    return SmallRun(monkeypatch, TWO_TYPES, *NODES)


def test_a_trial_whose_request_waits_too_long_moves_to_a_free_slot(run):
    (trial,) = run.add()
    run.step()
    first = run.slots.assignments[trial].node_id

    run.cluster.clock.now_s = PATIENCE_S
    again = run.step()

    assert run.controller.withdrawn == [trial]
    assert again is trial
    assert run.slots.assignments[trial].node_id != first


def test_a_request_that_ray_has_granted_is_not_withdrawn_although_tune_was_too_busy_to_start_its_process(run):
    (trial,) = run.add()
    run.step()
    run.granted.append(trial.placement_group_factory)

    run.cluster.clock.now_s = PATIENCE_S
    run.step()

    assert run.controller.withdrawn == []


@pytest.mark.parametrize("is_reset", [False, True], ids=["a process that starts", "a process that is reset"])
def test_the_request_of_a_trial_with_a_process_is_not_withdrawn(run, is_reset):
    (trial,) = run.add()
    run.step()
    if is_reset:
        trial.temporary_state.ray_actor = "an actor"
    else:
        run.processes.started.add(trial.trial_id)

    run.cluster.clock.now_s = PATIENCE_S
    run.step()

    assert not run.controller.withdrawn


def test_requests_on_lost_nodes_are_withdrawn_and_made_again(run):
    trials = run.add(5)
    run.request_all()

    run.cluster.nodes = NODES[:1]
    run.watch.next_reading = reading(run.cluster.nodes)
    run.request_all()
    run.request_all()

    assert set(trials[2:]) <= set(run.controller.withdrawn)
    assert len(run.slots.assignments) == 2
    assert len(run.core.waiting) == 3
