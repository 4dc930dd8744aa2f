"""Tests of the nodes among which a design chooses, which exist only in plans."""

import pytest

from tests.clusters import gpu_node
from tune_policies import ClusterCapacity, CpuPolicy, GpuMemoryPolicy, GpuPolicy, MixedPolicy, SelectingPolicy
from tune_policies.cluster.lazy_nodes import AlikeNodes
from tune_policies.kuberay.design.catalog_file import HEAD, NodeType
from tune_policies.kuberay.design.cheapest_nodes import NodePool
from tune_policies.kuberay.design.cluster_spec import head_of

TYPES = (
    NodeType(name="l4", cpus=8, memory="32GiB", gpus=1, accelerator_type="L4", labels={"zone": "eu"}),
    NodeType(name="l4-b", cpus=8, memory="32GiB", gpus=1, accelerator_type="L4"),
    NodeType(name="a100", cpus=48, memory="200GiB", gpus=4, accelerator_type="A100", labels={"zone": "eu"}),
    NodeType(name="cpu", cpus=16, memory="64GiB", labels={"zone": "us"}),
)
UNITS = {"l4": 3, "l4-b": 2, "a100": 2, "cpu": 5}


def a_pool(**least):
    return NodePool({node_type.name: node_type for node_type in TYPES}, head_of(HEAD), least)


@pytest.mark.parametrize("least", [{}, {"l4": 2, "cpu": 1}], ids=["from zero", "with nodes that always exist"])
@pytest.mark.parametrize(
    "policy",
    [
        GpuMemoryPolicy(gpu_memory="10GiB"),
        GpuPolicy(gpus=1, num_workers=2),
        GpuPolicy(gpus=0.25, memory="4GiB"),
        CpuPolicy(cpus=2),
        MixedPolicy(GpuPolicy(), CpuPolicy(cpus=2)),
        SelectingPolicy(GpuPolicy(), label_selector={"zone": "eu"}),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_a_plan_on_the_nodes_of_a_design_equals_the_plan_on_nodes_that_were_read(policy, least):
    designed = a_pool(**least).capacity(UNITS)
    read = ClusterCapacity(nodes=tuple(designed.nodes))

    assert policy.plan(designed) == policy.plan(read)


@pytest.mark.parametrize(
    ("policy", "num_trials"), [(GpuMemoryPolicy(gpu_memory="10GiB"), 8000), (GpuPolicy(num_workers=2), 1000)]
)
def test_a_plan_needs_only_the_first_of_nodes_that_differ_only_in_their_identifiers(policy, num_trials):
    def never_called():
        raise AssertionError

    node = gpu_node("a", gpus=2, gpu_memory_gib=40, accelerator_type="A100").model_copy(update={"is_expected": True})

    plan = policy.plan(ClusterCapacity.of_parts([AlikeNodes(node, 1000, never_called)]))

    assert plan.max_concurrent_trials == num_trials


def test_the_plan_of_a_policy_on_the_same_units_is_made_once():
    pool, policy = a_pool(), GpuPolicy()

    first = pool.plan(policy, UNITS)

    assert pool.plan(policy, {**UNITS}) is first
    assert pool.plan(policy, {"l4": 1}) != first


def test_a_design_from_scratch_makes_its_own_plans():
    """Otherwise, it would get plans for nodes that already exist."""
    pool, policy = a_pool(l4=2), GpuPolicy()

    before = pool.plan(policy, {"l4": 1})

    assert (before.max_concurrent_trials, pool.from_scratch().plan(policy, {"l4": 1}).max_concurrent_trials) == (2, 1)
