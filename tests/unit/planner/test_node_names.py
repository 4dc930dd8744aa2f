"""Tests that plans depend on what nodes have, and never on their names or on their order."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clusters import gpu_node
from tests.unit.planner.test_policy_conformance import POLICIES
from tests.unit.strategies import growing, similar_clusters, with_kinds, without_named_nodes
from tune_policies import (
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    FreeCapacityPolicy,
    GpuMemoryPolicy,
    InfeasibleRequestError,
    MixedPolicy,
    ReservingPolicy,
    SelectingPolicy,
)
from tune_policies.testing.clusters import draw_cluster

T4 = {"gpus": 1, "cpus": 8, "gpu_memory_gib": 16, "accelerator_type": "T4"}
A100 = {"gpus": 1, "cpus": 8, "gpu_memory_gib": 80, "accelerator_type": "A100"}
LARGE = GpuMemoryPolicy(gpu_memory="30GiB")

any_policy = (with_kinds | growing).map(without_named_nodes)
any_policy |= any_policy.map(FreeCapacityPolicy)
any_cluster = similar_clusters | st.randoms(use_true_random=False).map(draw_cluster)


def in_names(names):
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "$^")


def renamed(value, names):
    """Return a policy or a capacity in which the nodes have other names."""
    text = in_names(names).sub(lambda found: names[found[0]], value.to_json())
    return type(value).from_json(text)


def answer(policy, capacity):
    """Return the plan or the error as text, without the names of nodes."""
    try:
        text = policy.plan(capacity).to_json()
    except InfeasibleRequestError as error:
        text = str(error)
    return in_names([node.node_id for node in (*capacity.nodes, *capacity.draining)]).sub("NODE", text)


def shuffled(capacity, seed):
    """Return the nodes in another order, and a permutation of their names."""
    rng = random.Random(seed)
    names = [node.node_id for node in (*capacity.nodes, *capacity.draining)]
    nodes = rng.sample(capacity.nodes, len(capacity.nodes))
    return capacity.with_nodes(nodes), dict(zip(names, rng.sample(names, len(names)), strict=True))


@given(any_policy, any_cluster, st.integers(0, 10**6))
def test_a_plan_does_not_depend_on_the_names_and_the_order_of_nodes(policy, capacity, seed):
    other, names = shuffled(capacity, seed)

    assert answer(policy, renamed(other, names)) == answer(policy, capacity)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@given(similar_clusters, st.integers(0, 10**6))
def test_a_plan_of_each_policy_depends_on_no_other_names_than_the_policy_contains(policy, capacity, seed):
    other, names = shuffled(capacity, seed)

    assert answer(renamed(policy, names), renamed(other, names)) == answer(policy, capacity)


@pytest.mark.parametrize("policy", [LARGE, LARGE | CpuPolicy()], ids=["GPUs", "GPUs or CPUs"])
@pytest.mark.parametrize(("t4", "a100"), [("a", "b"), ("b", "a")])
def test_the_reservation_of_a_gpu_leaves_the_gpu_that_the_trials_need(policy, t4, a100):
    capacity = ClusterCapacity.of(gpu_node(t4, **T4), gpu_node(a100, **A100))

    plan = ReservingPolicy(policy, gpus=1).plan(capacity)

    assert (plan.max_concurrent_trials, plan.worker.gpus) == (2, 0.5)


@pytest.mark.parametrize(("eu", "other"), [("a", "b"), ("b", "a")])
def test_the_slots_of_a_policy_use_nodes_in_an_order_that_does_not_depend_on_names(eu, other):
    capacity = ClusterCapacity.of(gpu_node(eu, gpus=0, cpus=4, labels={"zone": "eu"}), gpu_node(other, gpus=0, cpus=4))
    policy = MixedPolicy(CappedPolicy(CpuPolicy(cpus=3), 1), SelectingPolicy(CpuPolicy(cpus=2), {"zone": "eu"}))

    assert [slot.max_concurrent_trials for slot in policy.plan(capacity).slots] == [1, 2]
