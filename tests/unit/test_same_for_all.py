"""Policies that give every trial the same, on nodes that differ."""

import pytest

from tests.clusters import GIB, gpu_node, nodes
from tune_policies import (
    AcceleratorPolicy,
    ClusterCapacity,
    GpuMemoryPolicy,
    GpuPolicy,
)
from tune_policies.placement.packing import device_slots
from tune_policies.values.resources import TICKS

T4 = {"gpu_memory_gib": 16, "accelerator_type": "T4"}
A100 = {"gpu_memory_gib": 80, "accelerator_type": "A100"}


def test_where_all_get_the_same_the_share_fits_the_smallest_if_that_runs_more_trials():
    plan = GpuMemoryPolicy(gpu_memory="6GiB", same_for_all=True).plan(
        ClusterCapacity.of(gpu_node("a", **A100), gpu_node("b", gpus=8, **T4))
    )

    assert (plan.max_concurrent_trials, plan.accelerator_type, plan.gpu_memory_bytes) == (18, None, 8 * GIB)


def test_where_all_get_the_same_the_smaller_ones_are_left_out_if_that_runs_more_trials():
    plan = GpuMemoryPolicy(gpu_memory="6GiB", same_for_all=True).plan(
        ClusterCapacity.of(gpu_node("a", **A100), gpu_node("b", gpus=2, **T4))
    )

    assert (plan.max_concurrent_trials, plan.accelerator_type) == (13, "A100")
    assert "left out as only A100 is used: 2 T4 (16 GiB)" in plan.reasons


def test_where_all_get_the_same_as_many_trials_get_the_larger_share():
    """Eight trials at once have a whole GPU each, or share the larger one."""
    cluster = ClusterCapacity.of(gpu_node("a", **A100), gpu_node("b", gpus=7, **T4))

    plan = GpuMemoryPolicy(gpu_memory="10GiB", same_for_all=True).plan(cluster)

    assert (plan.max_concurrent_trials, plan.worker.gpus, plan.accelerator_type) == (8, 1, None)


def test_where_all_get_the_same_the_cpus_that_are_asked_for_count_too():
    few_cpus, many = gpu_node("a", gpus=8, cpus=8, **T4), gpu_node("b", gpus=2, cpus=64, **A100)

    plan = GpuMemoryPolicy(gpu_memory="8GiB", cpus=4, same_for_all=True).plan(ClusterCapacity.of(few_cpus, many))

    # On all GPUs 6 would run, 4 of them on the larger ones.
    assert plan.max_concurrent_trials == 16


@pytest.mark.parametrize(
    ("policy", "resource"),
    [
        pytest.param(GpuPolicy(gpus=1 / 60), "GPU", id="by share"),
        pytest.param(GpuMemoryPolicy(gpu_memory="1GiB", same_for_all=True), "GPU", id="by GPU memory"),
        pytest.param(AcceleratorPolicy(resource="NPU", amount=1 / 60, same_for_all=True), "NPU", id="of an NPU"),
    ],
)
def test_on_no_node_does_the_sum_of_its_devices_admit_more_shares_than_fit_one_by_one(policy, resource):
    cluster = ClusterCapacity.of(*(gpu_node(f"{n}", gpus=n, gpu_memory_gib=60, custom={"NPU": n}) for n in (1, 8)))

    share = policy.plan(cluster).worker.ticks[resource]

    assert [8 * TICKS // share, TICKS // share] == [device_slots(8 * TICKS, share), device_slots(TICKS, share)]


@pytest.mark.parametrize(
    ("poor", "cpus"),
    [
        pytest.param([4], 8, id="one of twenty-one with half the CPUs is left out"),
        pytest.param([5], 5, id="with more than half it decides"),
        pytest.param([4, 4], 4, id="and so do two of twenty-two"),
    ],
)
def test_a_few_poor_nodes_do_not_decide_on_the_cpus_of_all(poor, cpus):
    cluster = nodes(*[(8, 1)] * 20, *((each, 1) for each in poor))

    assert GpuPolicy(same_for_all=True).plan(cluster).worker.cpus == cpus


def test_the_plan_says_that_the_node_with_the_fewest_cpus_decided():
    plan = GpuPolicy(same_for_all=True).plan(nodes((8, 4), (4, 4)))

    assert plan.reasons[0] == (
        "1 CPU per worker: 4 CPUs ÷ 4 GPU slots, on the node with the fewest for each; set cpus= to change"
    )
