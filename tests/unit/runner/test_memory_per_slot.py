"""Tests of the slots of trials that need more memory after an out-of-memory error, on nodes with different memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clusters import GIB, gpu_node
from tests.unit.runner.small_runs import SmallRun, SmallSlots, reading
from tune_policies import CpuPolicy, GpuPolicy, MixedPolicy, Resources, TrialPlan, TrialSlot
from tune_policies.oom import OutOfMemory
from tune_policies.ray_compat.tune_request import bundles_of
from tune_policies.trainers.retries.memory_floor import MemoryFloor
from tune_policies.trainers.retries.oom_history import OomRecord, TrialOomHistory
from tune_policies.trainers.scheduling.run_failures import FailureCause
from tune_policies.trainers.scheduling.slot_board import PATIENCE_S
from tune_policies.trainers.scheduling.trial_record import request_of

ANY_NODES = MixedPolicy(GpuPolicy(gpus=1, cpus=1), CpuPolicy(cpus=1)) | CpuPolicy(cpus=1)
MIXED = MixedPolicy(GpuPolicy(gpus=1, cpus=1), CpuPolicy(cpus=2))
LARGE = gpu_node("a", gpus=1, cpus=2, memory_gib=64)
SMALL = gpu_node("b", gpus=1, cpus=2, memory_gib=16)
SMALL_CPU = gpu_node("c", gpus=0, cpus=2, memory_gib=16)
NODES = LARGE, SMALL, SMALL_CPU


@pytest.fixture
def run_of(monkeypatch):
    """A function that returns a run with memory retries on the three nodes."""
    return lambda policy=MIXED, nodes=NODES: run_on(monkeypatch, policy, nodes)


def run_on(monkeypatch, policy, nodes):
    run = SmallRun(monkeypatch, policy, *nodes, retries={})
    run.nodes = nodes
    return run


@pytest.fixture
def slots_of(monkeypatch):
    """A function that returns the slots of a policy on nodes."""
    return lambda policy, *nodes: SmallSlots(monkeypatch, policy, *nodes)


def add_after_error(run, *, needs_gib, number=1):
    """Add trials with the config of a trial that ran out of memory, and return them."""
    trials = run.add(number, config={"width": 8})
    run.watch.next_reading = reading(run.nodes)
    need(run, trials[0], needs_gib)
    return trials


def need(run, trial, gib):
    record = run.core.records[trial]
    floor = MemoryFloor(memory_bytes=gib * GIB)
    record.oom = TrialOomHistory(records=(OomRecord(settings={"width": 8}, floor=floor),))
    run.core.retries.remember(record)


def out_of_memory(gib):
    return FailureCause(out_of_memory=OutOfMemory(kind="host", used_bytes=gib * GIB))


def requested(run):
    """The node and the requested GiB of host memory of each trial with a slot."""
    found = []
    for trial, assignment in run.slots.assignments.items():
        memory = bundles_of(request_of(run.core.records[trial]))[0].get("memory", 0)
        found.append((assignment.node_id, memory / GIB))
    return found


def test_a_trial_requests_the_memory_that_it_needs_on_a_node_that_has_it(run_of):
    run = run_of()
    add_after_error(run, needs_gib=40)

    run.request_all()

    assert requested(run) == [("a", 40)]


def test_a_trial_waits_for_a_slot_with_enough_memory_while_others_start(run_of):
    run = run_of()
    run.add(3)
    run.watch.next_reading = reading(NODES)
    run.run_all()
    on_large = next(trial for trial, slot in run.slots.assignments.items() if slot.node_id == "a")
    others = [trial for trial in run.trials if trial is not on_large]
    (waiting,) = add_after_error(run, needs_gib=40)
    for trial in others:
        run.complete(trial)

    assert run.step() is None
    (other,) = run.add()
    assert run.step() is other
    run.complete(on_large)
    assert run.step() is waiting
    assert ("a", 40) in requested(run)


def test_if_no_node_has_enough_memory_a_trial_gets_the_most_and_then_fails(run_of, caplog):
    run = run_of()
    (trial,) = add_after_error(run, needs_gib=100)
    run.run_all()

    assert requested(run) == [("a", 64)]
    assert (
        "needs 100 GiB of host memory according to earlier out-of-memory errors, but gets 1 GPU, 64 GiB" in caplog.text
    )
    assert run.fail(trial, MemoryError()) == "failed"
    assert "the largest node has 64 GiB of host memory" in caplog.text


def test_a_retry_after_a_failure_on_a_small_node_gets_more_memory_on_a_large_one(run_of, caplog):
    run = run_of()
    (trial,) = run.add()
    run.watch.next_reading = reading(NODES)
    run.run_all()
    assert requested(run) == [("b", 0)]

    failures = []
    for _ in range(4):
        failures.append(run.fail(trial, MemoryError(), out_of_memory(12)))
        run.run_all()

    assert failures == ["requeued", "requeued", "requeued", "failed"]
    assert "is retried with 1 GPU, 24 GiB of host memory" in caplog.text
    assert "the largest node has 64 GiB of host memory" in caplog.text


def test_a_trial_that_may_not_use_the_large_node_fails_after_the_most_that_its_slots_have(run_of, caplog):
    """The trial has run on a CPU slot, so it may not move to the GPU slot of the large node."""
    run = run_of(MixedPolicy(GpuPolicy(gpus=1, cpus=2), CpuPolicy(cpus=2)), (LARGE, SMALL_CPU))
    run.add(2)
    run.watch.next_reading = reading((LARGE, SMALL_CPU))
    run.run_all()
    on_cpu = next(trial for trial, slot in run.slots.assignments.items() if not slot.slot.has_device)

    failures = []
    for _ in range(3):
        failures.append(run.fail(on_cpu, MemoryError(), out_of_memory(12)))
        run.run_all()
        if failures[-1] == "failed":
            break

    assert failures == ["requeued", "failed"]
    assert "the nodes on which it may run have at most 16 GiB of host memory" in caplog.text


def test_after_the_loss_of_the_only_large_node_a_trial_requests_what_the_others_have(run_of):
    run = run_of()
    add_after_error(run, needs_gib=40)
    run.request_all()
    run.cluster.nodes = SMALL, SMALL_CPU

    for _ in range(3):
        run.watch.next_reading = reading((SMALL, SMALL_CPU))
        run.step()

    assert requested(run) == [("b", 16)]


def test_a_request_on_a_small_node_is_withdrawn_if_the_trial_turns_out_to_need_more(run_of):
    run = run_of()
    (trial,) = add_after_error(run, needs_gib=16)
    run.step()
    assert requested(run) == [("b", 16)]
    need(run, trial, 40)

    run.request_all()

    assert run.controller.withdrawn == [trial]
    assert requested(run) == [("a", 40)]


def test_a_request_that_ray_does_not_grant_does_not_move_to_a_node_with_too_little_memory(slots_of):
    run = slots_of(MIXED, *NODES)
    (trial,) = run.add()
    run.records[trial].needed = MemoryFloor(memory_bytes=40 * GIB)
    run.request_all()

    assert run.slots.withdrawal(run.records, PATIENCE_S) is None


def test_a_late_request_moves_to_a_free_slot_with_enough_memory(slots_of):
    run = slots_of(MIXED, LARGE, gpu_node("b", gpus=1, cpus=2, memory_gib=64), SMALL_CPU)
    (trial,) = run.add()
    run.records[trial].needed = MemoryFloor(memory_bytes=40 * GIB)
    run.request_all()

    assert run.slots.withdrawal(run.records, PATIENCE_S).trial is trial


def test_the_only_slots_with_enough_memory_do_not_stay_idle_because_they_are_slow(slots_of):
    fast = TrialSlot(trial=Resources(cpus=1, gpus=1), max_concurrent_trials=1, speed=100)
    slow = TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=1, speed=1)
    plan = TrialPlan(slots=(fast, slow), limited_by="CPU")
    run = slots_of(plan, SMALL, gpu_node("c", gpus=0, cpus=2, memory_gib=64))
    light, heavy = run.add(2)
    run.records[heavy].needed = MemoryFloor(memory_bytes=40 * GIB)
    run.run(run.choose([light]).trial)

    assert run.choose([heavy]).trial is heavy


def test_a_trial_without_a_gpu_may_still_follow_an_error_of_gpu_memory(slots_of):
    run = slots_of(MIXED, *NODES)
    trials = run.add(3)
    for trial in trials:
        run.records[trial].needed = MemoryFloor(gpu_ticks=10_000)

    assert run.request_all() == trials


@given(
    memory_gib=st.lists(st.integers(1, 64), min_size=1, max_size=4),
    needs_gib=st.lists(st.integers(0, 80), min_size=1, max_size=6),
)
def test_no_request_has_more_memory_than_its_node_and_none_has_less_than_it_could_have(memory_gib, needs_gib):
    nodes = [gpu_node(f"n{i}", gpus=i % 2, cpus=2, memory_gib=gib) for i, gib in enumerate(memory_gib)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        run = SmallSlots(monkeypatch, ANY_NODES, *nodes)
        for trial, gib in zip(run.add(len(needs_gib)), needs_gib, strict=True):
            run.records[trial].needed = MemoryFloor(memory_bytes=gib * GIB)
        run.request_all()
        assignments = dict(run.slots.assignments)
        placed = [placement.node_id for placement in run.slots.board.placements]

    by_id = dict(zip((node.node_id for node in nodes), memory_gib, strict=True))
    usable = [by_id[node_id] for node_id in placed if node_id is not None] or memory_gib
    needs = dict(zip(run.records, needs_gib, strict=True))
    for trial, assignment in assignments.items():
        memory = bundles_of(request_of(run.records[trial]))[0].get("memory", 0) / GIB
        has_gib = max(memory_gib) if assignment.node_id is None else by_id[assignment.node_id]
        assert memory <= has_gib
        assert memory == min(needs[trial], max(usable))
