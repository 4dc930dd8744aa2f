import pickle

import pytest

from tests.clusters import nodes
from tune_policies import (
    ClusterCapacity,
    CpuPolicy,
    GpuPolicy,
    InvalidResourcesError,
    MixedPolicy,
    NodeCapacity,
    Resources,
    TrialPlan,
    TrialSlot,
)

MIXED = TrialPlan(
    slots=(
        TrialSlot(trial=Resources(gpus=0.25), max_concurrent_trials=8),
        TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=4),
    ),
    limited_by="GPU",
)


def test_a_plan_round_trips_through_json_and_pickle():
    plan = GpuPolicy(gpus=0.3, num_workers=2).plan(nodes((8, 4)))

    assert TrialPlan.from_json(plan.to_json()) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_a_plan_with_the_removed_field_divides_cpus_can_be_loaded():
    plan = CpuPolicy().plan(nodes((2, 0)))
    older = plan.to_json().replace('"slots"', '"divides_cpus": true, "slots"', 1)

    assert TrialPlan.from_json(older) == plan


def test_the_resources_for_tune_have_lower_case_names_and_the_device_type():
    slot = TrialSlot(trial=Resources(cpus=2, gpus=0.5), max_concurrent_trials=1, accelerator_type="A100")
    plan = TrialPlan(slots=(slot,), limited_by="GPU")

    assert plan.resources_per_trial == {"cpu": 2, "gpu": 0.5, "accelerator_type:A100": 0.001}


def test_a_driver_reserves_a_little_host_memory_and_no_cpu():
    plan = CpuPolicy(num_workers=2).plan(nodes((4, 0)))

    assert plan.resources_per_trial == {"cpu": 0, "memory": 2**20}
    assert plan.resources_per_worker == {"CPU": 1}


@pytest.mark.parametrize(("trials", "rounds"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_the_number_of_rounds_is_rounded_up(trials, rounds):
    assert CpuPolicy().plan(nodes((4, 0))).num_rounds(trials) == rounds


def test_a_plan_with_two_slot_types_counts_the_trials_of_both_and_has_the_resources_of_the_first():
    assert (MIXED.max_concurrent_trials, MIXED.trial, MIXED.use_gpu) == (12, Resources(gpus=0.25), True)


@pytest.mark.parametrize(("cap", "kept"), [(3, [3]), (8, [8]), (10, [8, 2]), (12, [8, 4]), (99, [8, 4])])
def test_a_cap_keeps_the_better_slot_types(cap, kept):
    capped = MIXED.capped(cap, limited_by="cap")

    assert [slot.max_concurrent_trials for slot in capped.slots] == kept


def test_the_explanation_has_the_number_of_trials_their_resources_the_limit_and_the_reasons():
    text = GpuPolicy(gpus=0.4).plan(nodes((16, 3))).explain()

    assert text.splitlines() == [
        "6 trials at once, limited by GPU",
        "  each trial: 2 CPUs, 0.5 GPU",
        "  - 0.4 GPU is rounded up to 0.5, because a GPU has room for 2 workers of this size, and a trial can stay "
        "pending indefinitely if fractions are unequal",
        "  - 2 CPUs per trial: 16 CPUs ÷ 6 GPU slots, rounded down; set cpus= to change this number",
        "  - GPU memory was not read on every node, so the memory of a fraction is unknown",
    ]


@pytest.mark.parametrize(
    ("overhead_bytes", "expected"),
    [
        (
            None,
            "tensors can use 9.2 GiB of 10 GiB of GPU memory in PyTorch, JAX and CuPy, and 8.2 GiB in TensorFlow; "
            "the rest is overhead",
        ),
        (2**30, "tensors can use 9 GiB of 10 GiB of GPU memory; the overhead is 1 GiB"),
        (11 * 2**30, "tensors can use 0 B of 10 GiB of GPU memory; the overhead is 11 GiB"),
    ],
    ids=["safe figures", "as measured", "more than the fraction"],
)
def test_the_explanation_has_the_gpu_memory_for_tensors(overhead_bytes, expected):
    memory = {"gpu_memory_bytes": 10 * 2**30, "gpu_overhead_bytes": overhead_bytes}
    slot = TrialSlot(trial=Resources(gpus=0.25), max_concurrent_trials=4, **memory)

    assert TrialPlan(slots=(slot,), limited_by="GPU").explain().splitlines()[2:] == [f"  - {expected}"]


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        (nodes((8, 2), (0, 2)), ["stays idle:", "  2 of 4 GPUs: no CPU is left on their nodes"]),
        (nodes((8, 2)), ["nothing stays idle"]),
    ],
    ids=["idle GPUs", "a full cluster"],
)
def test_an_explanation_for_a_cluster_ends_with_the_idle_resources(capacity, expected):
    plan = GpuPolicy(cpus=4).plan(capacity)

    assert plan.explain(capacity).removeprefix(plan.explain()).strip("\n").splitlines() == expected


def slot_on(accelerator_type, gpus=0.5):
    return TrialSlot(trial=Resources(cpus=2, gpus=gpus), max_concurrent_trials=1, accelerator_type=accelerator_type)


def test_remote_options_prefer_the_first_device_type_and_fall_back_to_the_others():
    plan = TrialPlan(slots=(slot_on("H100"), slot_on("A100"), slot_on("L4", gpus=1)), limited_by="GPU")

    assert plan.remote_options() == {
        "num_cpus": 2,
        "num_gpus": 0.5,
        "label_selector": {"ray.io/accelerator-type": "H100"},
        "fallback_strategy": [{"label_selector": {"ray.io/accelerator-type": "A100"}}],
    }


def test_remote_options_request_the_resources_of_a_worker():
    plan = TrialPlan(
        slots=(
            TrialSlot(
                trial=Resources(cpus=2, gpus=0.5, memory_bytes=2**30, custom={"license": 1}),
                max_concurrent_trials=1,
                accelerator_type="A100",
                label_selector={"zone": "eu"},
            ),
        ),
        limited_by="GPU",
    )
    options = {
        "num_cpus": 2,
        "num_gpus": 0.5,
        "memory": 2**30,
        "resources": {"license": 1},
        "accelerator_type": "A100",
        "label_selector": {"zone": "eu"},
    }

    assert plan.remote_options() == options
    assert plan.remote_options(reuse="release") == {**options, "max_calls": 1}
    assert plan.remote_options(reuse="keep") == {**options, "max_calls": 0}
    assert plan.reuse == "release"
    with pytest.raises(InvalidResourcesError, match="reuse must be 'process', 'release' or 'keep', got 'never'"):
        plan.remote_options(reuse="never")


@pytest.mark.parametrize(
    ("policy", "times"),
    [
        (GpuPolicy(gpus=0.5), 1),
        (GpuPolicy(num_workers=2), 1),
        (MixedPolicy(GpuPolicy(gpus=0.5), CpuPolicy()), 1),
        (CpuPolicy(), 0),
    ],
    ids=["fractions", "whole GPUs", "mixed", "CPUs"],
)
def test_a_plan_on_simulated_gpus_states_once_that_no_limit_is_enforced(policy, times):
    node = NodeCapacity(node_id="a", resources=Resources(cpus=4, gpus=2), has_simulated_gpus=True)

    text = policy.plan(ClusterCapacity(nodes=(node,))).explain()

    assert text.count("simulated GPUs: memory limits are not enforced") == times


def test_a_plan_that_may_use_real_gpus_does_not_call_them_simulated():
    simulated = NodeCapacity(node_id="a", resources=Resources(cpus=4, gpus=2), has_simulated_gpus=True)
    real = NodeCapacity(node_id="b", resources=Resources(cpus=4, gpus=2))

    plan = GpuPolicy().plan(ClusterCapacity(nodes=(simulated, real)))

    assert not plan.common_slot.has_simulated_gpus
