"""Tests of plans with several slot types: the nodes and the speeds of their slots."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.clusters import gpu_node, nodes
from tests.unit.planner.test_common_plans import GROWING_POOL, MIXED, ON_CPUS, POOL, QUARTERS
from tune_policies import (
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuPolicy,
    MixedPolicy,
    ReservingPolicy,
    Resources,
    SelectingPolicy,
    TrialPlan,
)
from tune_policies.placement.fill_nodes import Placement
from tune_policies.placement.layout import place_slots


@pytest.mark.parametrize(
    ("cluster", "policy", "speeds"),
    [
        pytest.param(POOL, MixedPolicy(QUARTERS, ON_CPUS, speeds=(10, 1)), [10, 1], id="the speeds of the policies"),
        pytest.param(
            nodes((8, 0)), MixedPolicy(QUARTERS, ON_CPUS, speeds=(10, 1)), [1], id="the speed of a single policy"
        ),
        pytest.param(
            POOL,
            MixedPolicy(
                CappedPolicy(MixedPolicy(QUARTERS, ON_CPUS, speeds=(2, 1)), 9), CpuPolicy(cpus=3), speeds=(10, 1)
            ),
            [10, 5, 1],
            id="the speed of the first type of a nested policy",
        ),
    ],
)
def test_each_slot_type_has_a_speed(cluster, policy, speeds):
    assert [slot.speed for slot in policy.plan(cluster).slots] == speeds


@pytest.mark.parametrize("outer", [(1e11, 1), (1e-300, 1), (5e-324, 1)])
@pytest.mark.parametrize("inner", [(1e-300, 1e11), (1e11, 1e-300), (5e-324, 1)])
def test_a_plan_with_nested_speeds_is_valid(inner, outer):
    mixed = MixedPolicy(CappedPolicy(QUARTERS, 1), CappedPolicy(ON_CPUS, 2), speeds=inner)

    plan = MixedPolicy(CappedPolicy(mixed, 9), CpuPolicy(cpus=3), speeds=outer).plan(nodes((16, 2)))

    assert TrialPlan.from_json(plan.to_json()) == plan


def places(policy, cluster):
    return place_slots(policy.plan(cluster).slots, cluster).places


def test_each_slot_is_placed_on_a_node():
    assert places(MIXED, nodes((16, 2), (8, 0))) == (
        Placement(slot_type=0, node_id="node-0", count=8),
        Placement(slot_type=1, node_id="node-0", count=4),
        Placement(slot_type=1, node_id="node-1", count=4),
    )


def test_slots_on_nodes_to_add_have_no_node_id():
    assert places(AutoscalingPolicy(MIXED, max_nodes_to_add=1), GROWING_POOL) == (
        Placement(slot_type=0, node_id="node-0", count=8),
        Placement(slot_type=0, node_id=None, count=8),
        Placement(slot_type=1, node_id="node-0", count=4),
        Placement(slot_type=1, node_id=None, count=4),
    )


def test_on_a_smaller_cluster_better_slot_types_keep_their_places():
    layout = place_slots(MIXED.plan(nodes((16, 2), (8, 0))).slots, nodes((12, 2)))

    assert [layout.count(slot_type) for slot_type in (0, 1)] == [8, 2]


def test_a_policy_without_slots_does_not_affect_the_places_of_other_slots():
    cluster = ClusterCapacity.of(
        gpu_node("a", gpus=0, cpus=4, memory_gib=2, labels={"zone": "eu"}),
        gpu_node("b", gpus=0, cpus=4, memory_gib=1),
    )
    in_eu = SelectingPolicy(CpuPolicy(cpus=4), label_selector={"zone": "eu"})
    policy = MixedPolicy(CpuPolicy(memory="64GiB"), CappedPolicy(CpuPolicy(cpus=4), 1), in_eu)

    assert [place.node_id for place in places(policy, cluster)] == ["b", "a"]


@pytest.mark.parametrize(
    ("policy", "cluster", "expected"),
    [
        pytest.param(
            MixedPolicy(GpuPolicy(cpus=1, num_workers=2), ON_CPUS),
            nodes((16, 4)),
            [("node-0", {"node-0": 2}, 2)],
            id="next to their driver",
        ),
        pytest.param(
            MixedPolicy(GpuPolicy(cpus=1), CpuPolicy(num_workers=2)),
            nodes((8, 4), (4, 4), (6, 0)),
            [("node-2", {"node-2": 2}, 3), ("node-0", {"node-0": 2}, 2)],
            id="on the remaining resources of each node",
        ),
        pytest.param(
            MixedPolicy(CappedPolicy(CpuPolicy(cpus=3), 1), CpuPolicy(num_workers=2)),
            nodes((8, 0), (5, 0), (1, 0)),
            [("node-0", {"node-0": 2}, 2), ("node-1", {"node-1": 2}, 2), ("node-0", {"node-0": 1, "node-1": 1}, 1)],
            id="on one node if they fit",
        ),
    ],
)
def test_train_workers_of_a_trial_are_placed_together(policy, cluster, expected):
    found = [(each.node_id, dict(each.worker_nodes), each.count) for each in places(policy, cluster)]

    assert [place for place in found if place[1]] == expected


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), min_size=1, max_size=6),
    st.sampled_from([GpuPolicy(cpus=1), CpuPolicy(cpus=3), CappedPolicy(CpuPolicy(cpus=2), 3)]),
    st.integers(1, 5),
    st.sampled_from([0.5, 1, 2]),
)
def test_train_trials_use_all_remaining_resources(shapes, first, num_workers, cpus):
    cluster = nodes(*shapes)
    train = CpuPolicy(cpus=cpus, num_workers=num_workers)
    assume(sum(int(each // cpus) for each, _ in shapes) >= num_workers)

    plan = MixedPolicy(first, train).plan(cluster)

    left = {node.node_id: node.resources.cpus for node in cluster.nodes}
    for place in place_slots(plan.slots, cluster).places:
        if not place.worker_nodes:
            left[place.node_id] -= place.count * plan.slots[0].worker.cpus
    at_once = sum(slot.max_concurrent_trials for slot in plan.slots if slot.num_workers)
    assert at_once == sum(int(each // cpus) for each in left.values()) // num_workers


_planned = []


class Noted(CpuPolicy):
    """A policy that records each call of ``plan``."""

    def plan(self, capacity):
        _planned.append(capacity)
        return super().plan(capacity)


def test_nested_mixed_policies_plan_the_innermost_policy_once():
    """If each level planned twice, there would be 65,536 plans."""
    _planned.clear()
    policy = Noted()
    for _ in range(16):
        policy = MixedPolicy(policy)

    policy.plan(nodes((8, 0)))

    assert len(_planned) == 1


def test_a_plan_states_that_later_policies_use_what_an_earlier_policy_leaves_free():
    cluster = ClusterCapacity.of(Resources(cpus=16, gpus=1))

    plan = MixedPolicy(ReservingPolicy(GpuPolicy(cpus=1), cpus=4), CpuPolicy()).plan(cluster)

    assert any("may use the 4 CPUs that ReservingPolicy leaves free" in reason for reason in plan.reasons)
    assert (plan.max_concurrent_trials, plan.left_free) == (16, Resources())


def test_what_the_last_policy_leaves_free_is_not_idle_for_another_reason():
    cluster = ClusterCapacity.of(Resources(cpus=16, gpus=1))

    plan = MixedPolicy(GpuPolicy(cpus=1), ReservingPolicy(CpuPolicy(), cpus=4)).plan(cluster)

    assert plan.left_free == Resources(cpus=4)
    assert "4 of 16 CPUs: reserved for others by the policy" in plan.explain(cluster)
