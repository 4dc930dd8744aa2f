"""A policy on free capacity plans beside what others use when the cluster is read."""

import pytest

from tests.clusters import nodes
from tune_policies import ClusterCapacity, CpuPolicy, FreeCapacityPolicy, GpuPolicy, InfeasibleRequestError, Resources


def cluster(*in_use):
    """Nodes with 8 CPUs and 2 GPUs each, of which so much is in use."""
    capacity = nodes(*[(8, 2)] * len(in_use))
    changed = zip(capacity.nodes, in_use, strict=True)
    return capacity.with_nodes(node.model_copy(update={"in_use": used}) for node, used in changed)


@pytest.mark.parametrize(
    ("policy", "in_use", "at_once"),
    [
        pytest.param(GpuPolicy(), [None, None], 4, id="nothing is known to be in use"),
        pytest.param(GpuPolicy(), [Resources(), Resources()], 4, id="nothing is in use"),
        pytest.param(GpuPolicy(), [Resources(gpus=1), None], 3, id="a GPU is in use"),
        pytest.param(GpuPolicy(), [Resources(gpus=0.25), None], 3, id="a part of a GPU counts as the whole"),
        pytest.param(GpuPolicy(gpus=0.5), [Resources(gpus=1), Resources(gpus=2)], 2, id="shares of what is left"),
        pytest.param(CpuPolicy(cpus=2), [Resources(cpus=3), Resources(cpus=8)], 2, id="CPUs are in use"),
        pytest.param(GpuPolicy(gpus=2) | CpuPolicy(cpus=8), [Resources(gpus=1)], 1, id="a fallback"),
    ],
)
def test_as_many_run_as_fit_beside_what_is_in_use(policy, in_use, at_once):
    plan = FreeCapacityPolicy(policy).plan(cluster(*in_use))

    assert plan.max_concurrent_trials == at_once


def test_what_is_in_use_is_a_reason_of_the_plan_and_of_its_idle_devices():
    capacity = cluster(Resources(cpus=2, gpus=1))

    text = FreeCapacityPolicy(GpuPolicy(cpus=1)).plan(capacity).explain(capacity)

    assert "- 2 CPUs, 1 GPU in use by others" in text
    assert "1 of 2 GPUs: left free by the policy" in text


def test_a_cluster_that_is_in_use_is_refused_with_what_is_in_use():
    with pytest.raises(
        InfeasibleRequestError, match=r"with 2 GPUs in use, .* Or wait until others release what they use"
    ):
        FreeCapacityPolicy(GpuPolicy()).plan(cluster(Resources(gpus=2)))


def test_without_nodes_the_inner_policy_says_so():
    with pytest.raises(InfeasibleRequestError):
        FreeCapacityPolicy(CpuPolicy()).plan(ClusterCapacity())
