"""Tests that a node that joins a cluster never makes a plan infeasible, and does not reduce the number of trials."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clusters import gpu_node
from tests.unit.strategies import (
    clusters,
    cpu_amounts,
    gpu_amounts,
    growing,
    plan_or_skip,
    similar_clusters,
    with_kinds,
)
from tune_policies import (
    AcceleratorPolicy,
    AutoPolicy,
    AutoscalingPolicy,
    ClusterCapacity,
    CpuPolicy,
    FreeCapacityPolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    ReservingPolicy,
)
from tune_policies.policies.policy import with_inner
from tune_policies.testing.clusters import draw_node

some_clusters = clusters() | similar_clusters
joining = st.randoms(use_true_random=False).map(lambda rng: draw_node(rng, 99)) | similar_clusters.map(
    lambda capacity: capacity.nodes[0].model_copy(update={"node_id": "node-99"})
)
any_policy = with_kinds | growing
any_policy |= any_policy.map(FreeCapacityPolicy) | st.builds(
    AutoPolicy, gpu_memory=st.none() | st.just("6GiB"), num_workers=st.integers(0, 2)
)


def requires_several_trials(policy):
    """Whether a policy is skipped if fewer trials run, although each of them may get more resources."""
    return any(getattr(each, "min_trials", 1) > 1 for each in with_inner([policy]))


def joined(capacity, node):
    return capacity.with_nodes((*capacity.nodes, node))


@given(any_policy.filter(lambda policy: not requires_several_trials(policy)), some_clusters, joining)
def test_a_node_that_joins_never_makes_a_plan_infeasible(policy, capacity, node):
    plan_or_skip(policy, capacity)

    assert policy.plan(joined(capacity, node))


sized = (
    st.builds(CpuPolicy, cpus=cpu_amounts, memory=st.none() | st.just("4GiB"), num_workers=st.integers(0, 2))
    | st.builds(GpuPolicy, gpus=gpu_amounts, cpus=st.none() | cpu_amounts)
    | st.builds(GpuPolicy, min_gpu_memory=st.just("17GiB"))
    | st.builds(GpuMemoryPolicy, gpu_memory=st.sampled_from(["1GiB", "6GiB", "30GiB"]), cpus=st.none() | cpu_amounts)
    | st.builds(AcceleratorPolicy, resource=st.just("NPU"), amount=gpu_amounts, cpus=st.none() | cpu_amounts)
)


@given(sized | sized.map(FreeCapacityPolicy) | sized.map(AutoscalingPolicy), some_clusters, joining)
def test_a_node_that_joins_never_reduces_the_number_of_trials(policy, capacity, node):
    plan = plan_or_skip(policy, capacity)

    assert policy.plan(joined(capacity, node)).max_concurrent_trials >= plan.max_concurrent_trials


NO_CPUS = gpu_node("a", gpus=4, cpus=0, gpu_memory_gib=80, accelerator_type="A100")
SMALL = gpu_node("t", gpus=1, cpus=8, gpu_memory_gib=16, accelerator_type="T4")


@pytest.mark.parametrize(
    "policy",
    [
        GpuPolicy(),
        GpuPolicy(min_gpu_memory="30GiB"),
        GpuPolicy(num_workers=4),
        GpuMemoryPolicy(gpu_memory="30GiB"),
        GpuMemoryPolicy(gpu_memory="30GiB", num_workers=4),
        AutoPolicy(gpu_memory="30GiB"),
        ReservingPolicy(GpuPolicy(), gpu_memory="20GiB"),
    ],
    ids=repr,
)
def test_a_small_node_with_cpus_leaves_the_trials_on_gpus_without_cpus(policy):
    alone = policy.plan(ClusterCapacity.of(NO_CPUS)).max_concurrent_trials

    assert policy.plan(ClusterCapacity.of(NO_CPUS, SMALL)).max_concurrent_trials >= alone
