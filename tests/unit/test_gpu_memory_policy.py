"""Shares by the GPU memory that a worker needs."""

import pytest

from tests.clusters import GIB, gpu_node
from tune_policies import ClusterCapacity, EvenSplitPolicy, GpuMemoryPolicy, GpuPolicy, ReservingPolicy

A100 = {"gpu_memory_gib": 80, "accelerator_type": "A100"}


def test_devices_of_unknown_memory_are_left_out_by_the_type_of_the_others():
    plan = GpuMemoryPolicy(gpu_memory="6GiB").plan(
        ClusterCapacity.of(gpu_node("a", **A100), gpu_node("b", accelerator_type="M3-Max"))
    )

    assert plan.accelerator_type == "A100"
    assert "left out as only A100 is used: 1 M3-Max (memory not read)" in plan.reasons


def test_trials_of_12_gib_are_as_many_by_the_type_as_on_devices_of_the_smallest_a100():
    listed = {"gpu_memory_gib": 40_536 / 1024, "accelerator_type": "A100"}
    clusters = [
        ClusterCapacity.of(*(gpu_node(f"node-{i}", gpus=8, **known) for i in range(8)))
        for known in (listed, {"accelerator_type": "A100"})
    ]

    plans = [GpuMemoryPolicy(gpu_memory="12GiB").plan(cluster) for cluster in clusters]

    assert [plan.max_concurrent_trials for plan in plans] == [192, 192]


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(GpuMemoryPolicy(gpu_memory="12GiB"), id="as much as a trial needs"),
        pytest.param(GpuPolicy(gpus=0.5), id="a share"),
        pytest.param(EvenSplitPolicy(num_trials=2, min_gpus=0.5), id="an even split"),
        pytest.param(ReservingPolicy(GpuPolicy(gpus=0.5), gpu_memory="2GiB"), id="memory is left free"),
    ],
)
def test_a_plan_says_which_size_it_assumes_of_an_ambiguous_type_and_how_to_specify_another(policy):
    """The nodes differ in their CPUs, so that policies give each its own slots."""
    nodes = [gpu_node("a", cpus=8, accelerator_type="A100"), gpu_node("b", cpus=64, accelerator_type="A100")]

    reasons = policy.plan(ClusterCapacity.of(*nodes)).reasons

    assert [reason for reason in reasons if "A100" in reason] == [
        "GPU memory was not read, so the plan assumes the smallest total that a driver has reported for the type: "
        "2 A100 (39.6 GiB)",
        "A100 also exists with 80 GB (type A100-80G): if yours are larger, list each device with its memory_bytes in "
        "the capacity",
    ]


def test_a_plan_shows_the_margin_of_a_type_without_a_published_total():
    plan = GpuPolicy(gpus=0.5).plan(ClusterCapacity.of(gpu_node("a", accelerator_type="AMD-Instinct-MI100")))

    assert "no driver's total is published for AMD-Instinct-MI100: 1% of its nominal size is left out" in plan.reasons


@pytest.mark.parametrize(
    ("total_gib", "asked", "at_most"), [(141, "1GiB", 141), (24, "200MiB", 122), (80, "744MiB", 110)]
)
def test_the_many_small_workers_of_a_device_fit_its_memory(total_gib, asked, at_most):
    """A share of 0.0070, for 141 workers, has room for 142 in Ray's count."""
    plan = GpuMemoryPolicy(gpu_memory=asked).plan(ClusterCapacity.of(gpu_node("a", gpu_memory_gib=total_gib)))

    assert plan.max_concurrent_trials <= at_most
    assert plan.max_concurrent_trials * plan.gpu_memory_bytes <= total_gib * GIB


@pytest.mark.parametrize(
    ("device_gib", "told"), [(21.234, "4 workers on a GPU of 21.2 GiB"), (19.999, "3 workers on a GPU of 19.999 GiB")]
)
def test_the_size_of_a_gpu_has_the_digits_that_show_why_no_more_workers_fit(device_gib, told):
    plan = GpuMemoryPolicy(gpu_memory="5GiB").plan(ClusterCapacity.of(gpu_node("a", gpu_memory_gib=device_gib)))

    assert plan.reasons[0] == f"5 GiB a worker: {told}"


def test_a_gpu_on_which_no_worker_fits_makes_no_share_smaller():
    """The second node has too few CPUs, so its 8 GiB mean nothing, and nor would memory that was not read."""
    small = gpu_node("b", cpus=2, gpu_memory_gib=8), gpu_node("c", cpus=2)

    plan = GpuMemoryPolicy(gpu_memory="6GiB", cpus=8).plan(ClusterCapacity.of(gpu_node("a", gpu_memory_gib=80), *small))
    shared = GpuPolicy(gpus=0.5, cpus=8).plan(ClusterCapacity.of(gpu_node("a", gpu_memory_gib=80), *small))

    assert plan.max_concurrent_trials == 8
    assert [reason for reason in plan.reasons if reason.startswith("left out")] == [
        "left out for want of CPUs: 1 unknown type (8 GiB), 1 unknown type (memory not read)"
    ]
    assert shared.gpu_memory_bytes == 40 * GIB


@pytest.mark.parametrize(
    ("most", "told"),
    [(2, "2 workers on a GPU of 80 GiB, with max_trials_per_gpu=2"), (4, "3 workers on a GPU of 80 GiB")],
)
def test_a_limit_is_named_where_it_leaves_fewer_on_a_gpu(most, told):
    policy = GpuMemoryPolicy(gpu_memory="24GiB", max_trials_per_gpu=most)

    assert policy.plan(ClusterCapacity.of(gpu_node("a", gpu_memory_gib=80))).reasons[0] == f"24 GiB a worker: {told}"


def test_a_worker_gets_at_least_the_gpu_memory_that_it_asked_for():
    """A third is 0.3333 to Ray, but three workers of 6 GiB fill an 18 GiB card."""
    plan = GpuMemoryPolicy(gpu_memory="6GiB").plan(ClusterCapacity.of(gpu_node("a", gpu_memory_gib=18)))

    assert plan.gpu_memory_bytes == 6 * GIB


def test_a_node_with_less_than_a_cpu_is_used_by_workers_with_a_part_of_it():
    plan = GpuMemoryPolicy(gpu_memory="8GiB").plan(ClusterCapacity.of(gpu_node("a", cpus=0.5, gpu_memory_gib=16)))

    assert (plan.max_concurrent_trials, plan.resources_per_trial) == (2, {"cpu": 0.25, "gpu": 0.5})


def test_a_gpu_share_states_its_gpu_memory_where_it_was_read():
    plan = GpuPolicy(gpus=0.25).plan(ClusterCapacity.of(gpu_node("a", gpu_memory_gib=80)))

    assert plan.gpu_memory_bytes == 20 * GIB
