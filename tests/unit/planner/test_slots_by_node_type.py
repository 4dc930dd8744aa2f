"""Tests that, on clusters with different nodes, each node type has its own slots, and all slots fit concurrently."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clusters import gpu_node
from tests.unit.strategies import clusters, cpu_amounts
from tune_policies import (
    AcceleratorPolicy,
    AutoscalingPolicy,
    ClusterCapacity,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    MixedPolicy,
    NodeTypeCapacity,
    Resources,
)
from tune_policies.placement.layout import place_slots
from tune_policies.values.units import GIB

LARGE_AND_SMALL = ClusterCapacity.of(
    *(gpu_node(f"a{i}", gpus=8, cpus=96, gpu_memory_gib=80, accelerator_type="A100") for i in range(4)),
    gpu_node("t", gpus=1, cpus=2, gpu_memory_gib=16, accelerator_type="T4"),
)


def amounts(plan):
    return [
        (slot.max_concurrent_trials, slot.worker.cpus, slot.worker.gpus, slot.accelerator_type) for slot in plan.slots
    ]


@pytest.mark.parametrize(
    ("policy", "slots"),
    [
        pytest.param(GpuPolicy(), [(32, 12, 1, None), (1, 2, 1, None)], id="whole GPUs: limited by CPUs"),
        pytest.param(
            GpuPolicy(gpus=0.5), [(64, 6, 0.5, "A100"), (2, 1, 0.5, "T4")], id="fractions: also limited by memory"
        ),
        pytest.param(
            GpuMemoryPolicy(gpu_memory="12GiB", cpus=1),
            [(192, 1, 0.1666, "A100"), (1, 1, 1, "T4")],
            id="memory: as many as fit each device",
        ),
        pytest.param(
            GpuMemoryPolicy(gpu_memory="12GiB", cpus=1, max_trials_per_gpu=2),
            [(64, 1, 0.5, "A100"), (1, 1, 1, "T4")],
            id="memory: at most the requested number per device",
        ),
        pytest.param(GpuPolicy(cpus=2), [(33, 2, 1, None)], id="CPUs as requested"),
        pytest.param(GpuPolicy(num_workers=2), [(16, 0, 0, None)], id="Train workers may be on any node"),
    ],
)
def test_each_node_type_has_suitable_slots(policy, slots):
    plan = policy.plan(LARGE_AND_SMALL)

    found = [
        (slot.max_concurrent_trials, slot.trial.cpus, slot.trial.gpus, slot.accelerator_type) for slot in plan.slots
    ]
    assert found == slots


def test_slots_with_other_cpus_name_their_own_device_type():
    def labeled(name, model, gpus, cpus, gib):
        node = gpu_node(name, gpus=gpus, cpus=cpus, gpu_memory_gib=gib, accelerator_type=model)
        return node.model_copy(update={"labels": {"ray.io/accelerator-type": model}})

    cluster = ClusterCapacity.of(
        labeled("a", "A100-80G", 8, 96, 80), labeled("h", "H100", 8, 192, 81), labeled("l", "L4", 2, 24, 23)
    )

    plan = GpuPolicy(gpus=0.25).plan(cluster)

    selectors = [slot.label_selector for slot in plan.slots]
    assert selectors == [{"ray.io/accelerator-type": "H100"}, {"ray.io/accelerator-type": "A100-80G"}, {}]


def test_no_two_rows_of_a_plan_read_the_same():
    slots = GpuPolicy(gpus=0.5).plan(LARGE_AND_SMALL).slots
    twice = GpuPolicy(gpus=0.5).plan(LARGE_AND_SMALL).model_copy(update={"slots": (*slots, slots[0])})

    assert [line for line in twice.explain().splitlines() if " with " in line and "A100" in line][:1] == [
        "  128 with 6 CPUs, 0.5 GPU on A100, 40 GiB of GPU memory"
    ]
    assert len(twice.rows) == len(slots)


@pytest.mark.parametrize("policy", [GpuPolicy(gpus=0.5), GpuMemoryPolicy(gpu_memory="30GiB")])
def test_the_explanation_contains_the_gpus_of_slots_that_select_nodes_by_id(policy):
    sizes = [40, 40, 80, 80]
    nodes = [gpu_node(f"n{i}", gpu_memory_gib=size, accelerator_type="A100") for i, size in enumerate(sizes)]

    text = policy.plan(ClusterCapacity.of(*nodes)).explain()

    assert "- nodes with ray.io/node-id=in(n2,n3): 2 A100 (80 GiB)" in text
    assert "- nodes with ray.io/node-id=in(n0,n1): 2 A100 (40 GiB)" in text


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({}, "12 GiB per trial: 6 on a GPU of 80 GiB, 1 on a GPU of 16 GiB"),
        (
            {"max_trials_per_gpu": 2},
            "12 GiB per trial: 2 on a GPU of 80 GiB, 1 on a GPU of 16 GiB, with max_trials_per_gpu=2",
        ),
    ],
)
def test_the_plan_explains_how_many_workers_share_each_device_and_why(limit, reason):
    plan = GpuMemoryPolicy(gpu_memory="12GiB", cpus=1, **limit).plan(LARGE_AND_SMALL)

    assert reason in plan.reasons


def test_without_cpus_on_gpu_nodes_the_gpu_memory_limits_the_workers():
    capacity = ClusterCapacity.of(
        gpu_node("a", gpus=1, cpus=0, gpu_memory_gib=80, accelerator_type="A100"),
        gpu_node("t", gpus=4, cpus=0, gpu_memory_gib=16, accelerator_type="T4"),
    )

    plan = GpuMemoryPolicy(gpu_memory="12GiB").plan(capacity)

    assert amounts(plan) == [(6, 0, 0.1666, "A100"), (4, 0, 1, "T4")]


def test_slots_on_npus_divide_the_cpus_of_their_node():
    capacity = ClusterCapacity.of(
        gpu_node("large", gpus=0, cpus=96, custom={"NPU": 8}), gpu_node("small", gpus=0, cpus=8, custom={"NPU": 8})
    )

    plan = AcceleratorPolicy(resource="NPU").plan(capacity)

    assert [(slot.max_concurrent_trials, slot.worker.cpus) for slot in plan.slots] == [(8, 12), (8, 1)]


def test_a_few_small_nodes_do_not_determine_the_slots_of_train_workers():
    plan = GpuPolicy(num_workers=2).plan(LARGE_AND_SMALL)

    assert plan.common_slot.per_worker.cpus == 12
    assert any(reason.startswith("1 node with GPU is not used, because it has too few CPUs") for reason in plan.reasons)


def test_small_nodes_determine_the_cpus_of_workers_if_a_trial_needs_them():
    assert GpuPolicy(num_workers=33).plan(LARGE_AND_SMALL).common_slot.per_worker.cpus == 2


def test_the_resources_of_a_run_without_the_scheduler_fit_every_node():
    plan = GpuPolicy().plan(ClusterCapacity.of(gpu_node("a", gpus=4, cpus=64), gpu_node("b", gpus=4, cpus=32)))

    assert amounts(plan) == [(4, 16, 1, None), (4, 8, 1, None)]
    assert plan.resources_per_trial == {"cpu": 8, "gpu": 1}


def test_fractions_keep_their_places_after_nodes_are_added():
    alive = ClusterCapacity.of(
        gpu_node("h", gpus=2, cpus=4, accelerator_type="H100"),
        gpu_node("a", gpus=2, cpus=6, accelerator_type="T4"),
        gpu_node("b", gpus=2, cpus=6, accelerator_type="T4"),
    )
    to_add = NodeTypeCapacity(name="c", resources=Resources(cpus=4, gpus=1), max_nodes_to_add=1, accelerator_type="T4")
    plan = AutoscalingPolicy(GpuPolicy(gpus=0.3, cpus=3)).plan(alive.model_copy(update={"node_types": (to_add,)}))

    layout = place_slots(
        plan.slots, alive.with_nodes([*alive.nodes, gpu_node("c", gpus=1, cpus=4, accelerator_type="T4")])
    )

    assert [layout.count(i) for i in range(len(plan.slots))] == [1, 5]


def test_devices_that_differ_by_a_few_mebibytes_count_as_one_size():
    capacity = ClusterCapacity.of(
        gpu_node("a", gpus=1, cpus=4, gpu_memory_gib=79.15), gpu_node("b", gpus=1, cpus=4, gpu_memory_gib=79.2)
    )

    assert len(GpuPolicy(gpus=0.5).plan(capacity).slots) == 1


def test_slots_of_a_mixed_policy_keep_their_device_types():
    plan = MixedPolicy(GpuMemoryPolicy(gpu_memory="12GiB", cpus=1), GpuPolicy(cpus=1)).plan(LARGE_AND_SMALL)

    assert amounts(plan) == [(192, 1, 0.1666, "A100"), (1, 1, 1, "T4")]


def test_an_explanation_of_many_slot_types_is_short():
    capacity = ClusterCapacity.of(*(gpu_node(f"n{i}", gpus=1, cpus=i + 1) for i in range(40)))

    lines = GpuPolicy().plan(capacity).explain().splitlines()

    assert len(lines) < 15
    assert "  32 in 32 further slot types" in lines


policies = (
    st.builds(GpuPolicy, gpus=st.sampled_from([0.1, 0.25, 0.5, 1, 2]), cpus=st.none() | cpu_amounts)
    | st.builds(
        GpuMemoryPolicy,
        gpu_memory=st.sampled_from(["1GiB", "5GiB", "12GiB", "40GiB"]),
        cpus=st.none() | cpu_amounts,
        max_trials_per_gpu=st.none() | st.integers(1, 4),
    )
    | st.builds(AcceleratorPolicy, resource=st.just("NPU"), amount=st.sampled_from([0.25, 1, 2]))
)


def planned(policy, capacity):
    try:
        return policy.plan(capacity)
    except InfeasibleRequestError:
        return None


@given(policies, clusters())
def test_slots_per_node_type_are_at_least_as_many_as_common_slots_and_fit_their_nodes(policy, capacity):
    plan = planned(policy, capacity)
    if plan is None:
        return
    same = policy.model_copy(update={"same_for_all": True}).plan(capacity)
    nodes = {node.node_id: node for node in capacity.nodes}

    layout = place_slots(plan.slots, capacity)

    assert [layout.count(i) for i in range(len(plan.slots))] == [slot.max_concurrent_trials for slot in plan.slots]
    assert plan.max_concurrent_trials >= same.max_concurrent_trials
    assert plan.resources_per_trial == same.resources_per_trial
    for place in layout.places:
        slot = plan.slots[place.slot_type]
        if slot.gpu_memory_bytes is not None and slot.has_gpu_fraction:
            per_device = int(1 / slot.worker.gpus)
            assert nodes[place.node_id].smallest_gpu_memory_bytes >= slot.gpu_memory_bytes * per_device
            assert isinstance(policy, GpuPolicy) or slot.gpu_memory_bytes >= min(GIB, policy.gpu_memory)


def test_nodes_with_the_most_gpu_memory_come_first_in_any_order():
    sizes = {"a": 16, "b": 80, "c": 15.9}
    cluster = ClusterCapacity.of(*(gpu_node(name, gpu_memory_gib=gib) for name, gib in sizes.items()))

    slots = GpuPolicy(gpus=0.5, cpus=1).plan(cluster).slots

    assert [slot.label_selector["ray.io/node-id"] for slot in slots] == ["b", "in(a,c)"]
