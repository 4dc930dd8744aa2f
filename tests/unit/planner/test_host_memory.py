"""Tests of the host memory that policies reserve for each worker."""

import pytest

from tests.clusters import GIB, gpu_node
from tune_policies import (
    AcceleratorPolicy,
    AutoPolicy,
    ClusterCapacity,
    CpuPolicy,
    EvenSplitPolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
)

ROOMY, TIGHT, UNREAD = (
    gpu_node(name, gpus=4, cpus=16, memory_gib=gib, gpu_memory_gib=16, custom={"NPU": 4})
    for name, gib in (("roomy", 64), ("tight", 3), ("unread", None))
)


@pytest.mark.parametrize(
    ("policy", "at_once"),
    [
        pytest.param(GpuPolicy(memory="24GiB"), 2, id="whole GPUs"),
        pytest.param(GpuPolicy(gpus=0.5, memory="12GiB"), 5, id="fractions of a GPU"),
        pytest.param(GpuPolicy(memory="24GiB", num_workers=2), 1, id="Train workers"),
        pytest.param(GpuMemoryPolicy(gpu_memory="4GiB", memory="6GiB"), 10, id="GPU memory"),
        pytest.param(AcceleratorPolicy(resource="GPU", memory="24GiB"), 2, id="GPUs as accelerators"),
        pytest.param(AcceleratorPolicy(resource="NPU", memory="24GiB"), 2, id="other devices"),
        pytest.param(AutoPolicy(memory="24GiB"), 2, id="a GPU if available"),
        pytest.param(EvenSplitPolicy(num_trials=9, min_gpus=0.5, memory="20GiB"), 3, id="an even split"),
        pytest.param(CpuPolicy(memory="20GiB"), 3, id="CPUs"),
    ],
)
def test_the_host_memory_that_each_worker_reserves_limits_the_number_of_trials(policy, at_once):
    plan = policy.plan(ClusterCapacity.of(ROOMY, TIGHT))

    assert (plan.max_concurrent_trials, plan.limited_by) == (at_once, "memory")
    assert plan.worker.memory_bytes == policy.memory
    assert any("does not use" in reason and "host memory" in reason for reason in plan.reasons)


@pytest.mark.parametrize("policy", [GpuPolicy(memory="1GiB"), GpuMemoryPolicy(gpu_memory="4GiB", memory="1GiB")])
def test_unknown_host_memory_does_not_limit_trials_and_is_reported(policy):
    plan = policy.plan(ClusterCapacity.of(UNREAD))

    assert plan.limited_by == "GPU"
    assert (
        "the host memory of some nodes is unknown, so it does not limit the number of trials on these nodes"
        in plan.reasons
    )


@pytest.mark.parametrize(
    "policy",
    [
        GpuPolicy(memory="65GiB"),
        GpuMemoryPolicy(gpu_memory="4GiB", memory="65GiB"),
        AcceleratorPolicy(resource="NPU", memory="65GiB"),
        EvenSplitPolicy(num_trials=2, min_gpus=1, memory="65GiB"),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_a_request_for_too_much_host_memory_raises_an_error_with_the_available_amount(policy):
    with pytest.raises(
        InfeasibleRequestError, match=r"65 GiB .* short of memory. Request at most 64GiB of host memory"
    ):
        policy.plan(ClusterCapacity.of(ROOMY, TIGHT))


def test_gpus_on_nodes_without_enough_host_memory_do_not_affect_the_memory_of_a_gpu_fraction():
    small = gpu_node("small", gpu_memory_gib=8, memory_gib=1)

    plan = GpuPolicy(gpus=0.5, memory="2GiB").plan(ClusterCapacity.of(ROOMY, small))

    assert plan.gpu_memory_bytes == 8 * GIB
