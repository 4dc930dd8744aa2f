"""Tests of the requests of trainables: which requests a policy replaces, and where trials with their own slots run."""

import pytest
from ray.tune import PlacementGroupFactory

from tests.clusters import GIB, gpu_node
from tests.unit.runner.small_runs import ONE_CPU, UNUSABLE, SmallSlots, new_trial
from tune_policies import (
    ByConfigPolicy,
    CappedPolicy,
    CpuPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MemoryLimitError,
)
from tune_policies.ray_compat.tune_request import bundles_of
from tune_policies.trainers.retries.memory_floor import MemoryFloor
from tune_policies.trainers.scheduling.own_requests import custom_amounts
from tune_policies.trainers.scheduling.slot_board import PATIENCE_S
from tune_policies.trainers.scheduling.trial_record import record_of

HALVES, CPUS = GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=2)
GPU_NODE, OTHER_GPU_NODE = gpu_node("a", gpus=1, cpus=2), gpu_node("b", gpus=1, cpus=2)
CPU_NODE = gpu_node("c", gpus=0, cpus=2)
BUNDLES = (ONE_CPU, ONE_CPU)
GPU, CPU = 0, 1


@pytest.fixture
def run_of(monkeypatch):
    """A function that returns the slots of a policy on nodes."""
    return lambda policy, *nodes, **options: SmallSlots(monkeypatch, policy, *nodes, **options)


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


def test_the_question_which_trials_may_start_prints_nothing(run_of, capsys):
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=5))
    run.add(4, bundles=BUNDLES)
    capsys.readouterr()

    run.startable()

    assert capsys.readouterr().out == ""


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


@pytest.fixture
def shrunk(run_of):
    """A run whose first trial no longer fits, because a node was lost."""
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=2), gpu_node("b", gpus=0, cpus=2))
    run.add(bundles=(ONE_CPU,) * 4)
    run.follow(gpu_node("a", gpus=0, cpus=2))
    return run


@pytest.mark.parametrize("bundles", [(ONE_CPU,), BUNDLES])
def test_other_trials_start_while_a_trial_waits_whose_bundles_no_longer_fit(shrunk, bundles, caplog):
    (large,) = shrunk.slots.waiting
    (other,) = shrunk.add(bundles=bundles)

    assert shrunk.run_all(now_s=10.0) == [other]
    assert shrunk.choose(now_s=11.0) is None
    assert list(shrunk.slots.waiting) == [large]
    assert shrunk.plan.is_feasible
    assert caplog.text.count("train_00000000 waits until nodes are added, and other trials continue") == 1


def test_the_run_waits_for_nodes_when_the_other_trials_have_ended(shrunk):
    (other,) = shrunk.add(bundles=BUNDLES)
    shrunk.run_all(now_s=10.0)
    shrunk.choose(now_s=11.0)

    shrunk.slots.release(other, 12.0)
    shrunk.choose(now_s=12.0)

    assert not shrunk.plan.is_feasible


@pytest.mark.parametrize("bundles", [(ONE_CPU,), BUNDLES])
def test_a_new_trial_ends_the_wait_of_the_run(shrunk, bundles):
    assert shrunk.choose(now_s=10.0) is None
    assert not shrunk.plan.is_feasible
    (other,) = shrunk.add(bundles=bundles)

    assert shrunk.run_all(now_s=11.0) == [other]
    assert shrunk.plan.is_feasible
    shrunk.cluster.clock.now_s += 100
    assert shrunk.plan.timeout_error is None


def test_a_trial_whose_bundles_fit_again_starts(shrunk):
    (large,) = shrunk.slots.waiting
    shrunk.choose(now_s=10.0)
    shrunk.cluster.clock.now_s += 10

    shrunk.follow(gpu_node("a", gpus=0, cpus=2), gpu_node("b", gpus=0, cpus=2))

    assert shrunk.request_all(now_s=11.0) == [large]
    assert shrunk.plan.is_feasible


def test_a_stopped_trial_ends_the_wait_of_the_run(shrunk):
    (large,) = shrunk.slots.waiting
    shrunk.choose(now_s=10.0)

    shrunk.slots.release(large, 11.0)
    shrunk.choose(now_s=11.0)

    assert shrunk.plan.is_feasible


def test_a_trial_whose_bundles_no_longer_fit_does_not_reduce_the_number_of_startable_trials(shrunk):
    before = shrunk.slots.num_startable(may_keep_bundles=False)

    shrunk.choose(now_s=10.0)

    assert shrunk.slots.num_startable(may_keep_bundles=False) == before + 1


def test_the_first_trial_whose_bundles_contradict_the_policy_ends_the_run(run_of):
    run = run_of(CPUS, CPU_NODE)
    run.add(bundles=[{"GPU": 1}, {"GPU": 1}])

    with pytest.raises(InvalidResourcesError, match="the policy plans trials without a GPU"):
        run.choose()


def test_after_trials_have_run_only_the_trial_fails_whose_bundles_contradict_the_policy(run_of):
    run = run_of(CPUS, gpu_node("a", gpus=0, cpus=4))
    run.add()
    run.run_all()
    (wrong,) = run.add(bundles=[{"GPU": 1}, {"GPU": 1}], may_refuse=False)
    (other,) = run.add(may_refuse=False)

    chosen, error = run.choose()
    run.slots.release(wrong, 1.0)

    assert chosen is wrong
    assert isinstance(error, InvalidResourcesError)
    assert run.choose().trial is other


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


@pytest.mark.parametrize(("falls_back", "expected"), [(True, {"CPU": 2}), (False, {"CPU": 1, "GPU": 0.5})])
def test_a_restored_trial_that_fell_back_uses_its_device_again_unless_the_new_run_falls_back(
    run_of, falls_back, expected
):
    run = run_of(HALVES | CPUS, GPU_NODE, falls_back=falls_back)
    trial = new_trial(0)
    trial.policy_record = '{"has_fallen_back": true}'
    run.records[trial] = record_of(trial)

    run.slots.own_requests.replace_or_keep(run.records[trial], may_refuse=True)
    run.slots.wait(trial)

    assert run.choose().request.required_resources == expected


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
    run.records[large].needed = MemoryFloor(gpu_ticks=5_000)
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

    slot = run.slots.own_requests.fall_back(run.records[trial], error)

    assert (slot and slot.trial.cpus) == expected


def test_a_trial_without_a_device_does_not_fall_back(run_of):
    run = run_of(CPUS | CpuPolicy(cpus=1), CPU_NODE, falls_back=True)
    (trial,) = run.add()
    run.run_all()

    assert run.slots.own_requests.fall_back(run.records[trial], UNUSABLE) is None
