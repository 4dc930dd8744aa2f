"""Tests of the decisions which trial of a run starts where, and which requests are withdrawn."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.tune import PlacementGroupFactory

from tests.clusters import GIB, gpu_node
from tests.unit.runner.small_runs import ONE_CPU, UNUSABLE, SmallSlots
from tune_policies import (
    ByConfigPolicy,
    CappedPolicy,
    CpuPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MemoryLimitError,
    MixedPolicy,
    Resources,
    TrialPlan,
    TrialSlot,
)
from tune_policies.ray_compat.tune_request import bundles_of
from tune_policies.trainers.retries.memory_floor import MemoryFloor
from tune_policies.trainers.scheduling.run_slots import custom_amounts
from tune_policies.trainers.scheduling.slot_board import PATIENCE_S

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


# The request of a new trial


def test_the_policy_replaces_a_request_of_one_bundle(run_of):
    run = run_of(HALVES, GPU_NODE)

    (trial,) = run.add()

    assert trial.placement_group_factory.required_resources == {"CPU": 1, "GPU": 0.5}
    assert run.records[trial].planned is trial.placement_group_factory


def test_trials_with_equal_requests_have_one_request_object(run_of):
    """Tune reuses the process of another trial only for an equal request, and comparing objects is fast."""
    run = run_of(HALVES, GPU_NODE)

    first, second = run.add(2, bundles=[{"CPU": 1, "license": 1}])

    assert first.placement_group_factory is second.placement_group_factory


@pytest.mark.parametrize(
    ("bundle", "printed"),
    [
        pytest.param(ONE_CPU, False, id="Tune's default is replaced without a message"),
        pytest.param({"CPU": 1, "GPU": 0.5}, False, id="nothing is replaced"),
        pytest.param({"CPU": 2}, True, id="another request"),
    ],
)
def test_a_replaced_request_is_printed_once(run_of, capsys, bundle, printed):
    run = run_of(HALVES, GPU_NODE)
    capsys.readouterr()

    run.add(3, bundles=[bundle])

    lines = capsys.readouterr().out.splitlines()
    text = "the trainable requests {'CPU': 2.0}, but the policy replaces this request with {'CPU': 1.0, 'GPU': 0.5}"
    assert lines == [text] * printed


def test_a_trial_with_several_bundles_keeps_them(run_of):
    run = run_of(CPUS, CPU_NODE)

    (trial,) = run.add(bundles=BUNDLES)

    assert list(bundles_of(trial.placement_group_factory)) == [ONE_CPU, ONE_CPU]


def test_a_custom_resource_of_the_trainable_is_kept_in_the_first_bundle(run_of):
    run = run_of(HALVES, GPU_NODE)

    (trial,) = run.add(bundles=[{"CPU": 2, "license": 2, "memory": GIB, "accelerator_type:T4": 0.001}])

    assert trial.placement_group_factory.bundles == [{"CPU": 1, "GPU": 0.5, "license": 2}]


def test_custom_resources_are_those_that_no_policy_plans():
    bundle = {"CPU": 1, "GPU": 1, "TPU": 1, "memory": 1, "accelerator_type:T4": 0.001, "license": 1, "disk": 2}
    request = PlacementGroupFactory([bundle, {"other": 1}])

    assert custom_amounts(request) == {"license": 1, "disk": 2}


def test_trials_with_different_requests_are_refused_with_the_policy_that_keeps_them(run_of):
    run = run_of(HALVES, GPU_NODE)
    run.add(config={"algo": "SAC"}, bundles=[{"CPU": 1, "GPU": 1}])

    with pytest.raises(InvalidResourcesError) as caught:
        run.add(config={"algo": "PPO"}, bundles=[{"CPU": 1, "GPU": 0.5}])

    assert str(caught.value) == (
        "the trials of this run request different resources, such as {'CPU': 1.0, 'GPU': 1.0} and {'CPU': 1.0, 'GPU': "
        "0.5}, but the policy would give all of them 1 CPU, 0.5 GPU. Use a policy by config, such as "
        "ByConfigPolicy('algo', {'SAC': GpuPolicy(gpus=1, cpus=1), 'PPO': GpuPolicy(gpus=0.5, cpus=1)})"
    )


def test_a_refused_request_is_not_compared_with_later_requests(run_of):
    run = run_of(HALVES, GPU_NODE)
    run.add(bundles=[{"CPU": 2}])
    with pytest.raises(InvalidResourcesError, match="Use a policy by config"):
        run.add(bundles=[{"CPU": 3}])

    assert run.add(bundles=[{"CPU": 2}])


def test_different_requests_without_an_equal_policy_should_be_the_same(run_of):
    run = run_of(CPUS, CPU_NODE)
    run.add(bundles=[{"license": 1}])

    with pytest.raises(InvalidResourcesError, match="Request the same resources for all trials"):
        run.add(bundles=[{"license": 2}])


def test_requests_are_also_compared_after_many_equal_requests(run_of):
    run = run_of(CPUS, CPU_NODE)
    run.add(300, bundles=[{"CPU": 2}])

    with pytest.raises(InvalidResourcesError, match="different resources"):
        run.add(bundles=[{"CPU": 3}])


def test_after_trials_have_run_a_trial_with_another_request_keeps_it(run_of, capsys):
    run = run_of(CPUS, CPU_NODE)
    run.add(bundles=[{"CPU": 4}])

    (other,) = run.add(bundles=[{"CPU": 3}], may_refuse=False)
    (third,) = run.add(bundles=[{"CPU": 4}], may_refuse=False)

    assert run.records[other].planned.bundles == [{"CPU": 3}]
    assert run.records[third].planned.bundles == [{"CPU": 2}]
    assert "Trials have run, so trials with other requests keep them" in capsys.readouterr().out


def test_a_trial_that_keeps_its_request_starts_when_the_nodes_have_room_for_it(run_of):
    run = run_of(CPUS, CPU_NODE)
    (first,) = run.add(bundles=[{"CPU": 2}])
    run.run_all()
    (other,) = run.add(bundles=[{"CPU": 1.5}], may_refuse=False)

    assert run.choose() is None
    run.slots.release(first, 0)
    assert run.choose().trial is other


def test_a_policy_by_config_accepts_different_requests(run_of):
    run = run_of(ByConfigPolicy("algo", {"SAC": CPUS}, default=CPUS), CPU_NODE)
    run.add(bundles=[{"CPU": 1}])

    assert run.add(bundles=[{"CPU": 2}])


SAC_OR_CPUS = ByConfigPolicy("algo", {"SAC": GpuPolicy(cpus=2)}, default=CpuPolicy(cpus=0.5))


def test_a_request_by_config_that_waits_too_long_uses_nothing(run_of):
    run = run_of(SAC_OR_CPUS, GPU_NODE)
    run.add(config={"algo": "SAC"})
    small, _ = run.add(2)
    run.choose()

    assert run.choose(now_s=PATIENCE_S - 0.1) is None
    assert run.choose(now_s=PATIENCE_S).trial is small


def test_a_request_equal_to_one_that_waits_too_long_is_not_sent(run_of):
    run = run_of(SAC_OR_CPUS, GPU_NODE)
    run.add(2, config={"algo": "SAC"})
    run.choose()

    assert run.choose(now_s=PATIENCE_S) is None


def test_no_other_fraction_is_requested_while_a_fraction_waits_for_its_device(run_of):
    shares = {"SAC": GpuPolicy(gpus=0.5, cpus=0.5), "PPO": GpuPolicy(gpus=0.25, cpus=0.5)}
    run = run_of(ByConfigPolicy("algo", shares), GPU_NODE)
    run.add(config={"algo": "SAC"})
    run.add(config={"algo": "PPO"})
    run.choose()

    assert run.choose(now_s=PATIENCE_S) is None


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
    run.records[large].floor = MemoryFloor(gpu_ticks=10_000)

    start = run.choose()

    assert start.request.required_resources == {"CPU": 1, "GPU": 1}
    assert run.slots.assignments[large].num_slots == 2
    assert run.startable() == []


def test_a_trial_that_needs_several_slots_waits_until_they_are_free(run_of):
    run = run_of(HALVES, GPU_NODE)
    small, large = run.add(2)
    run.records[large].floor = MemoryFloor(gpu_ticks=10_000)
    run.run(run.choose([small]).trial)

    assert run.choose() is None
    run.slots.release(small, 1.0)
    assert run.choose().trial is large


def test_a_trial_that_needs_more_slots_than_a_node_has_takes_all_of_them(run_of):
    run = run_of(GpuPolicy(gpus=0.5, cpus=1), gpu_node("a", gpus=1, cpus=2))
    (trial,) = run.add()
    run.records[trial].floor = MemoryFloor(gpu_ticks=20_000)

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


# Trials with their own slots


def test_trials_with_several_bundles_run_until_the_nodes_are_full(run_of):
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=5))
    trials = run.add(4, bundles=BUNDLES)

    assert run.startable() == trials
    assert run.request_all() == trials[:2]
    assert run.startable() == []


def test_the_kept_bundles_are_printed_once(run_of, capsys):
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=5))
    run.add(4, bundles=BUNDLES)
    capsys.readouterr()

    run.request_all()

    assert capsys.readouterr().out == (
        "each trial keeps the 2 bundles that its trainable requests ({'CPU': 2.0} in total), so at most 2 trials can "
        "run concurrently. Processes in all bundles except the first have no GPU memory limit\n"
    )


def test_trials_with_different_bundles_share_the_nodes(run_of):
    """A trial with four bundles of one CPU uses half of 8 CPUs, and a trial with two bundles a quarter."""
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=8))
    (large,) = run.add(bundles=(ONE_CPU,) * 4)
    small = run.add(4, bundles=BUNDLES)

    assert run.request_all() == [large, *small[:2]]


def test_more_small_trials_run_than_the_policy_plans_but_a_large_trial_does_not_start_next_to_them(run_of):
    """The policy plans two trials with 4 CPUs. Four trials with two CPUs fit, and two trials with four CPUs."""
    run = run_of(CpuPolicy(cpus=4), gpu_node("a", gpus=0, cpus=8))
    first = run.add(2, bundles=BUNDLES)
    (large,) = run.add(bundles=(ONE_CPU,) * 4)
    more = run.add(3, bundles=BUNDLES)

    assert run.request_all() == [*first, *more[:2]]
    assert list(run.slots.waiting) == [large, more[2]]


def test_the_request_of_a_trial_with_several_bundles_waits_for_ray(run_of):
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=8))
    (trial,) = run.add(bundles=BUNDLES)
    run.request_all()

    assert not run.slots.assignments[trial].is_granted


def test_a_policy_that_limits_the_trials_also_limits_trials_with_several_bundles(run_of):
    run = run_of(CappedPolicy(CpuPolicy(cpus=1), max_concurrent_trials=1), gpu_node("a", gpus=0, cpus=8))
    run.add(3, bundles=BUNDLES)

    assert len(run.request_all()) == 1


def test_a_trial_with_too_large_bundles_is_returned_with_the_reason(run_of):
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=2))
    (trial,) = run.add(bundles=(ONE_CPU,) * 3)

    assert run.startable() == [trial]
    chosen, error = run.choose()
    assert chosen is trial
    assert isinstance(error, InfeasibleRequestError)


def test_a_trial_whose_nodes_are_gone_waits_for_nodes(run_of):
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=2), gpu_node("b", gpus=0, cpus=2))
    (trial,) = run.add(bundles=(ONE_CPU,) * 4)
    run.follow(gpu_node("a", gpus=0, cpus=2))

    assert run.choose(now_s=10.0) is None
    assert not run.plan.is_feasible
    assert run.slots.why_waiting() == "no plan is feasible on the current nodes"
    assert list(run.slots.waiting) == [trial]


def test_while_no_plan_is_feasible_no_trial_with_its_own_slot_starts(run_of):
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=8))
    run.add(bundles=BUNDLES)
    run.plan.wait_for_nodes(InfeasibleRequestError("more", "less", "CPU", "Add nodes."), "a test")

    assert run.startable() == []


BY_CONFIG = ByConfigPolicy("algo", {"large": CpuPolicy(cpus=4), "small": CpuPolicy(cpus=1)})


def test_each_trial_gets_the_slot_of_its_config(run_of):
    run = run_of(BY_CONFIG, gpu_node("a", gpus=0, cpus=8))
    run.add(config={"algo": "large"})
    run.add(config={"algo": "small"})

    requests = [run.choose().request.required_resources for _ in range(2)]

    assert requests == [{"CPU": 4}, {"CPU": 1}]


def test_as_many_trials_run_as_the_slots_of_their_configs_allow(run_of):
    run = run_of(BY_CONFIG, gpu_node("a", gpus=0, cpus=8))
    large = run.add(3, config={"algo": "large"})

    assert run.request_all() == large[:2]


def test_a_config_without_a_policy_is_returned_with_the_reason_also_after_nodes_changed(run_of):
    run = run_of(BY_CONFIG, gpu_node("a", gpus=0, cpus=8))
    run.follow(gpu_node("a", gpus=0, cpus=8), gpu_node("b", gpus=0, cpus=8))
    (trial,) = run.add(config={"algo": "other"})

    chosen, _ = run.choose(now_s=10.0)

    assert chosen is trial


def test_a_trial_that_fell_back_runs_without_a_device(run_of):
    run = run_of(HALVES | CPUS, GPU_NODE, falls_back=True)
    (trial,) = run.add()
    run.fall_back(trial)

    assert run.choose().request.required_resources == {"CPU": 2}


def test_trials_with_and_without_a_device_share_the_nodes(run_of):
    """A trial on CPUs uses the whole node, so a trial on half of a GPU must not start next to it."""
    run = run_of(HALVES | CPUS, GPU_NODE, falls_back=True)
    fallen, other = run.add(2)
    run.run(run.choose([other]).trial)
    run.fall_back(fallen)

    assert run.startable() == []
    run.slots.release(other, 1.0)
    assert run.startable() == [fallen]


def test_a_trial_with_its_own_slot_waits_while_another_trial_waits_for_several_slots(run_of):
    run = run_of(GpuPolicy(gpus=0.25, cpus=1) | CpuPolicy(cpus=1), gpu_node("a", gpus=1, cpus=4), falls_back=True)
    large, fallen = run.add(2)
    run.records[large].floor = MemoryFloor(gpu_ticks=5_000)
    run.fall_back(fallen)
    run.choose([large])

    assert run.startable() == []
    run.slots.grant(large)
    assert run.startable() == [fallen]


@pytest.mark.parametrize(
    ("falls_back", "error", "has_slot", "bundles", "expected"),
    [
        pytest.param(True, UNUSABLE, True, [ONE_CPU], 2, id="the device is unusable"),
        pytest.param(True, MemoryLimitError("no"), True, [ONE_CPU], 2, id="the memory cannot be limited"),
        pytest.param(False, UNUSABLE, True, [ONE_CPU], None, id="the run does not fall back"),
        pytest.param(True, ValueError("a mistake"), True, [ONE_CPU], None, id="another error"),
        pytest.param(True, UNUSABLE, False, [ONE_CPU], None, id="the trial never had a slot"),
        pytest.param(True, UNUSABLE, True, [{"GPU": 0.5}, {"GPU": 0.5}], None, id="the trial keeps its bundles"),
    ],
)
def test_a_trial_falls_back_if_it_cannot_use_its_device(run_of, falls_back, error, has_slot, bundles, expected):
    run = run_of(HALVES | CPUS, GPU_NODE, falls_back=falls_back)
    (trial,) = run.add(bundles=bundles)
    if has_slot:
        run.run_all()

    slot = run.slots.fall_back(run.records[trial], error)

    assert (slot and slot.trial.cpus) == expected


def test_a_trial_without_a_device_does_not_fall_back(run_of):
    run = run_of(CPUS | CpuPolicy(cpus=1), CPU_NODE, falls_back=True)
    (trial,) = run.add()
    run.run_all()

    assert run.slots.fall_back(run.records[trial], UNUSABLE) is None


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


def test_a_trial_moves_if_a_waiting_trial_needs_more_slots_than_are_free(run_of):
    run = moving(run_of)
    (other,) = run.add()
    run.records[other].has_run = True
    run.records[other].slot = run.plan.plan.slots[GPU]
    run.slots.withdrawal(run.records, PATIENCE_S)  # the first node counts as blocked
    run.choose(now_s=PATIENCE_S)
    waits_with(run, floor=MemoryFloor(gpu_ticks=10_000))

    assert run.slots.assignments[other].node_id == "b"
    assert run.slots.withdrawal(run.records, PATIENCE_S + 1) is not None


def test_a_slot_without_a_node_is_named_without_a_node(run_of):
    run = run_of(TWO_TYPES, gpu_node("a", gpus=1, cpus=4))
    run.add()
    run.request_all()

    withdrawn = run.slots.withdrawal(run.records, PATIENCE_S)

    assert withdrawn.reason.endswith("and a slot of 2 CPUs is free")


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
    run.records[trial].floor = MemoryFloor(gpu_ticks=10_000)
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
