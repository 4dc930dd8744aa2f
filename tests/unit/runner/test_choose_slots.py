"""Tests of the decisions which trial of a run starts where, and how many further trials can start."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clusters import gpu_node
from tests.unit.runner.small_runs import ONE_CPU, SmallSlots
from tune_policies import ByConfigPolicy, CpuPolicy, GpuPolicy, MixedPolicy, Resources, TrialPlan, TrialSlot
from tune_policies.trainers.retries.memory_floor import MemoryFloor

HALVES, CPUS = GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=2)
TWO_TYPES = MixedPolicy(HALVES, CPUS)
GPU_NODE, OTHER_GPU_NODE = gpu_node("a", gpus=1, cpus=2), gpu_node("b", gpus=1, cpus=2)
CPU_NODE = gpu_node("c", gpus=0, cpus=2)
BUNDLES = (ONE_CPU, ONE_CPU)
GPU, CPU = 0, 1
CPUS_SLOT = TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=1)


@pytest.fixture
def run_of(monkeypatch):
    """A function that returns the slots of a policy on nodes."""
    return lambda policy, *nodes, **options: SmallSlots(monkeypatch, policy, *nodes, **options)


def speeds(fast, slow):
    """Return a plan with one slot on a GPU and one on CPUs, of known speeds."""
    slots = (
        TrialSlot(trial=Resources(cpus=1, gpus=1), max_concurrent_trials=1, speed=fast),
        TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=1, speed=slow),
    )
    return TrialPlan(slots=slots, limited_by="CPU")


BY_CONFIG = ByConfigPolicy("algo", {"large": CpuPolicy(cpus=4), "small": CpuPolicy(cpus=1)})


# Free slots


def test_trials_start_in_order_until_no_slot_is_free(run_of):
    run = run_of(HALVES, GPU_NODE)
    trials = run.add(3)

    assert run.request_all() == trials[:2]
    assert list(run.slots.waiting) == trials[2:]


def test_a_trial_starts_with_the_request_of_its_slot(run_of):
    run = run_of(TWO_TYPES, GPU_NODE, CPU_NODE)
    run.add(3)

    requests = [run.choose().request for _ in range(3)]

    assert [request.required_resources for request in requests] == [
        {"CPU": 1, "GPU": 0.5},
        {"CPU": 1, "GPU": 0.5},
        {"CPU": 2},
    ]


def test_better_slots_are_used_first(run_of):
    run = run_of(TWO_TYPES, CPU_NODE, GPU_NODE)
    run.add(4)

    run.request_all()

    assert run.places() == [(GPU, "a"), (GPU, "a"), (CPU, "c")]


def test_a_released_slot_is_free(run_of):
    run = run_of(HALVES, GPU_NODE)
    first, _, third = run.add(3)
    run.run_all()

    run.slots.release(first, 1.0)

    assert run.request_all(1.0) == [third]


def test_a_released_trial_no_longer_waits(run_of):
    run = run_of(HALVES, GPU_NODE)
    first, second = run.add(2)

    run.slots.release(first, 0.0)

    assert list(run.slots.waiting) == [second]


def test_only_trials_without_a_slot_whose_pause_has_ended_can_start(run_of):
    run = run_of(HALVES, GPU_NODE)
    assigned, paused, ready = run.add(3)
    run.choose([assigned])
    run.records[paused].not_before_s = 10.0

    assert list(run.slots.startable(run.records, [assigned, paused, ready], 9.9)) == [ready]
    assert list(run.slots.startable(run.records, [assigned, paused, ready], 10.0)) == [paused, ready]


def test_without_a_free_slot_no_trial_can_start(run_of):
    run = run_of(HALVES, GPU_NODE)
    run.add(3)
    run.request_all()

    assert run.startable() == []


def test_a_running_trial_is_recorded_with_its_slot(run_of):
    run = run_of(HALVES, GPU_NODE)
    (trial,) = run.add()
    run.request_all()
    assert not run.slots.assignments[trial].is_granted
    assert not run.records[trial].has_run

    run.run(trial)

    assert run.slots.assignments[trial].is_granted
    assert run.records[trial].has_run
    assert run.records[trial].slot == run.plan.plan.slots[0]


def test_a_granted_request_is_recorded(run_of):
    run = run_of(HALVES, GPU_NODE)
    (trial,) = run.add()
    run.request_all()

    run.slots.grant(trial)

    assert run.slots.assignments[trial].is_granted


def test_a_trial_that_needs_more_memory_takes_several_slots(run_of):
    run = run_of(HALVES, GPU_NODE)
    large, _ = run.add(2)
    run.records[large].needed = MemoryFloor(gpu_ticks=10_000)

    start = run.choose()

    assert start.request.required_resources == {"CPU": 1, "GPU": 1}
    assert run.slots.assignments[large].num_slots == 2
    assert run.startable() == []


def test_a_trial_that_needs_several_slots_waits_until_they_are_free(run_of):
    run = run_of(HALVES, GPU_NODE)
    small, large = run.add(2)
    run.records[large].needed = MemoryFloor(gpu_ticks=10_000)
    run.run(run.choose([small]).trial)

    assert run.choose() is None
    run.slots.release(small, 1.0)
    assert run.choose().trial is large


def test_a_trial_that_needs_more_slots_than_a_node_has_takes_all_of_them(run_of):
    run = run_of(GpuPolicy(gpus=0.5, cpus=1), gpu_node("a", gpus=1, cpus=2))
    (trial,) = run.add()
    run.records[trial].needed = MemoryFloor(gpu_ticks=20_000)

    assert run.choose().trial is trial


# Slot types


@pytest.mark.parametrize(
    ("may_move", "expected"),
    [pytest.param(False, [], id="stays on its device"), pytest.param(True, [(CPU, "c")], id="may move")],
)
def test_a_trial_that_ran_on_a_gpu_resumes_on_a_cpu_only_if_it_may_move(run_of, may_move, expected):
    run = run_of(TWO_TYPES, GPU_NODE, CPU_NODE, may_move=may_move)
    paused, *_ = run.add(3)
    run.run(run.choose([paused]).trial)
    run.slots.release(paused, 1.0)
    run.run_all(1.0)

    run.slots.wait(paused)
    run.request_all(2.0)

    assert run.places()[2:] == expected


def test_a_trial_whose_devices_are_gone_resumes_in_any_slot(run_of):
    run = run_of(TWO_TYPES, GPU_NODE, CPU_NODE)
    (trial,) = run.add()
    run.run_all()
    run.slots.release(trial, 1.0)
    run.slots.wait(trial)

    run.follow(CPU_NODE)

    assert run.startable(10.0) == [trial]


def test_a_trial_that_ran_on_cpus_resumes_on_cpus_although_a_gpu_is_free(run_of):
    run = run_of(TWO_TYPES, GPU_NODE, CPU_NODE)
    (trial,) = run.add()
    run.records[trial].has_run = True
    run.records[trial].slot = CPUS_SLOT

    run.request_all()

    assert run.places() == [(CPU, "c")]


def test_other_trials_start_while_a_trial_waits_for_its_device(run_of):
    run = run_of(TWO_TYPES, GPU_NODE, CPU_NODE)
    paused, first, second, new = run.add(4)
    run.run(run.choose([paused]).trial)
    run.slots.release(paused, 1.0)
    run.choose([first])
    run.choose([second])
    run.slots.wait(paused)

    assert run.startable() == [new]
    assert run.choose([paused, new]).trial is new


# Idle slots


def test_a_slow_slot_stays_idle_if_the_fast_slot_finishes_all_trials_sooner(run_of):
    run = run_of(speeds(10, 1), gpu_node("a", gpus=1, cpus=3))
    run.add(2)

    assert len(run.request_all()) == 1
    assert run.slots.left_idle == {CPU: 1}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param({}, 1, id="none"),
        pytest.param({"num_future": 30}, 2, id="from the searcher"),
        pytest.param({"num_paused": 30}, 2, id="paused trials"),
    ],
)
def test_a_slow_slot_is_used_if_many_trials_are_still_to_run(run_of, more, expected):
    run = run_of(speeds(10, 1), gpu_node("a", gpus=1, cpus=3))
    run.add(2)

    assert len(run.request_all(**more)) == expected


def test_idle_slots_are_those_of_the_last_decision(run_of):
    run = run_of(speeds(10, 1), gpu_node("a", gpus=1, cpus=3))
    run.add(2)
    run.request_all()
    assert run.slots.left_idle

    run.choose(num_future=30)

    assert not run.slots.left_idle


@pytest.mark.parametrize("kind", ["num_paused", "num_future"])
@pytest.mark.parametrize(("number", "expected"), [(1, 1), (2, 2)])
def test_each_trial_that_is_still_to_run_counts(run_of, kind, number, expected):
    """A trial in the slow slot takes 3.5 times as long, so with two waiting trials the slot stays idle."""
    run = run_of(speeds(7, 2), gpu_node("a", gpus=1, cpus=3))
    run.add(2)

    assert len(run.request_all(**{kind: number})) == expected


def test_a_slow_slot_is_used_for_many_waiting_trials(run_of):
    run = run_of(speeds(10, 1), gpu_node("a", gpus=1, cpus=3))
    run.add(30)

    assert len(run.request_all()) == 2
    assert not run.slots.left_idle


def test_a_trial_that_may_use_only_the_slow_slot_starts_in_it(run_of):
    run = run_of(speeds(10, 1), gpu_node("a", gpus=1, cpus=3))
    _, slow = run.add(2)
    run.run(run.choose(num_future=30).trial, run.choose(num_future=30).trial)
    run.slots.release(slow, 1.0)

    run.slots.wait(slow)

    assert run.choose(now_s=1.0).trial is slow


def test_a_trial_that_may_move_waits_for_the_fast_slot(run_of):
    run = run_of(speeds(10, 1), gpu_node("a", gpus=1, cpus=3), may_move=True)
    _, slow = run.add(2)
    run.run(run.choose(num_future=30).trial, run.choose(num_future=30).trial)
    run.slots.release(slow, 1.0)

    run.slots.wait(slow)

    assert run.choose(now_s=1.0) is None


def test_the_durations_of_completed_trials_decide_whether_a_slot_stays_idle(run_of):
    """Both slot types have equal speeds in the plan, but trials take longer on CPUs."""
    run = run_of(speeds(None, None), gpu_node("a", gpus=1, cpus=3))
    fast, slow = run.add(2)
    run.run_all()
    run.slots.finish(fast, 1.0)
    run.slots.finish(slow, 100.0)
    run.slots.release(fast, 100.0)
    run.slots.release(slow, 100.0)
    run.add(2)

    assert len(run.request_all(100.0)) == 1


def test_the_duration_of_a_trial_excludes_its_pauses(run_of):
    run = run_of(speeds(None, None), gpu_node("a", gpus=1, cpus=3))
    fast, slow = run.add(2)
    run.run_all()
    run.slots.release(slow, 0.5)
    run.slots.wait(slow)
    run.run_all(100.0)
    run.slots.finish(fast, 1.0)
    run.slots.finish(slow, 100.5)
    run.slots.release(fast, 101.0)
    run.slots.release(slow, 101.0)
    run.add(2)

    assert len(run.request_all(101.0)) == 2


def test_a_trial_without_a_slot_has_no_duration(run_of):
    run = run_of(HALVES, GPU_NODE)
    (trial,) = run.add()

    assert run.slots.finish(trial, 1.0) is None


# The number of suggestions


def test_as_many_further_trials_can_start_as_slots_are_free_beyond_the_waiting_trials(run_of):
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=8))
    run.add(3)
    run.choose()

    assert run.slots.num_startable(may_keep_bundles=False) == 8 - 1 - 2


def test_trials_by_config_are_suggested_for_the_largest_number_of_trials(run_of):
    run = run_of(BY_CONFIG, gpu_node("a", gpus=0, cpus=8))
    run.add(3, config={"algo": "large"})
    run.choose()

    assert run.slots.num_startable(may_keep_bundles=False) == 8 - 1 - 2


def test_one_trial_with_unknown_bundles_is_suggested_at_first(run_of):
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=8))

    assert run.slots.num_startable(may_keep_bundles=True) == 1


def test_trials_with_several_bundles_are_suggested_for_the_free_part_of_the_nodes(run_of):
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=8))
    run.add(2, bundles=BUNDLES)
    run.choose()

    assert run.slots.num_startable(may_keep_bundles=True) == 4 - 1 - 1


def test_trials_with_several_bundles_are_suggested_as_if_they_were_small(run_of):
    """A trial with four bundles uses half of 8 CPUs, and a trial with two bundles a quarter."""
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=8))
    run.add(bundles=(ONE_CPU,) * 4)
    run.add(bundles=BUNDLES)
    run.request_all()

    assert run.slots.num_startable(may_keep_bundles=True) == 1


@given(num_running=st.integers(0, 10), num_waiting=st.integers(0, 4))
def test_all_suggested_trials_can_start(num_running, num_waiting):
    with pytest.MonkeyPatch.context() as patch:
        run = SmallSlots(patch, MixedPolicy(HALVES, CPUS), GPU_NODE, OTHER_GPU_NODE, gpu_node("c", gpus=0, cpus=8))
        run.add(num_running)
        run.run_all()
        run.add(num_waiting)
        suggested = max(0, run.slots.num_startable(may_keep_bundles=False))
        run.add(suggested)

        run.request_all()

    assert len(run.slots.assignments) == 8
    assert len(run.slots.waiting) == max(0, num_running + num_waiting - 8)


@given(st.lists(st.integers(2, 6), max_size=10))
def test_trials_with_any_bundles_never_exceed_the_nodes(numbers):
    """A trial with n bundles uses 1/k of the nodes if k such trials fit."""
    with pytest.MonkeyPatch.context() as patch:
        run = SmallSlots(patch, CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=12))
        for number in numbers:
            run.add(bundles=(ONE_CPU,) * number)

        started = [len(run.records[trial].own.bundles) for trial in run.request_all()]
        waiting = [len(run.records[trial].own.bundles) for trial in run.slots.waiting]

    used = sum(Fraction(1, 12 // number) for number in started)
    assert sum(started) <= 12
    assert used <= 1
    assert all(used + Fraction(1, 12 // number) > 1 for number in waiting)


# Explanations and kept processes


def test_the_reason_why_no_trial_starts_contains_the_used_slots(run_of):
    run = run_of(HALVES, GPU_NODE)
    run.add(3)
    run.request_all()

    assert run.slots.why_waiting() == (
        "2 of 2 slots are in use, and 2 trials in them must wait until Ray grants the resources"
    )
    run.run(*run.slots.assignments)
    assert run.slots.why_waiting() == "2 of 2 slots are in use"


def test_the_reason_why_no_trial_starts_contains_the_idle_slots(run_of):
    run = run_of(speeds(10, 1), gpu_node("a", gpus=1, cpus=3))
    run.add(2)
    run.run_all()

    assert run.slots.why_waiting() == (
        "1 of 2 slots are in use, and 1 slow slots stay idle because faster slots finish sooner"
    )


def kept_amounts(run):
    found = run.slots.kept_processes(run.records)
    return sorted((tuple(sorted(request.required_resources.items())), number) for request, number in found.items())


def test_a_process_is_kept_for_each_slot(run_of):
    run = run_of(TWO_TYPES, GPU_NODE, CPU_NODE)
    run.add(3)

    assert kept_amounts(run) == [((("CPU", 1.0), ("GPU", 0.5)), 2), ((("CPU", 2.0),), 1)]


def test_kept_processes_have_the_custom_resources_of_the_trials(run_of):
    run = run_of(HALVES, GPU_NODE)
    run.add(3, bundles=[{"CPU": 1, "license": 1}])

    assert kept_amounts(run) == [((("CPU", 1.0), ("GPU", 0.5), ("license", 1.0)), 2)]


def test_no_process_is_kept_where_a_trial_with_more_memory_must_start(run_of):
    run = run_of(TWO_TYPES, GPU_NODE, CPU_NODE)
    (trial,) = run.add()
    run.records[trial].needed = MemoryFloor(gpu_ticks=10_000)
    run.request_all()

    assert kept_amounts(run) == [((("CPU", 2.0),), 1)]
    run.run(trial)
    assert len(kept_amounts(run)) == 2


def test_processes_of_trials_with_equal_bundles_are_kept(run_of):
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=8))
    run.add(2, bundles=BUNDLES)
    run.request_all()

    assert kept_amounts(run) == [((("CPU", 2.0),), 4)]


def test_no_process_is_kept_if_trials_have_different_slots(run_of):
    run = run_of(BY_CONFIG, gpu_node("a", gpus=0, cpus=8))
    run.add(config={"algo": "large"})
    run.add(config={"algo": "small"})
    run.request_all()

    assert kept_amounts(run) == []


def test_trials_that_fell_back_do_not_change_the_kept_processes(run_of):
    run = run_of(HALVES | CPUS, GPU_NODE, falls_back=True)
    (trial,) = run.add()
    run.fall_back(trial)
    run.request_all()

    assert kept_amounts(run) == [((("CPU", 1.0), ("GPU", 0.5)), 2)]
