"""Tests of the random clusters and policies that the evidence scripts draw."""

import random
from itertools import islice

import pytest

from tests.evidence.plans.random_clusters import MOST_GPUS, MOST_NODES, draw_cluster, draw_policies, leaves_room
from tests.evidence.plans.ray_agreement import draw_cases
from tune_policies import (
    CappedPolicy,
    CpuPolicy,
    EvenSplitPolicy,
    FirstFeasiblePolicy,
    GpuPolicy,
    ReservingPolicy,
    SelectingPolicy,
)
from tune_policies.placement.layout import place_slots


def drawn(seed, count=10):
    rng = random.Random(seed)
    capacity = draw_cluster(rng)
    return capacity, list(islice(draw_policies(rng, capacity), count))


def test_the_same_seed_gives_the_same_cluster_policies_and_plans():
    assert drawn(7) == drawn(7)
    assert draw_cases(7, 4) == draw_cases(7, 4)


def test_random_clusters_are_small_enough_to_start():
    capacities = [drawn(seed, 0)[0] for seed in range(200)]

    assert {len(capacity.nodes) for capacity in capacities} == set(range(1, MOST_NODES + 1))
    assert {node.resources.gpus for capacity in capacities for node in capacity.nodes} <= set(range(MOST_GPUS + 1))
    assert all(sum(node.is_head for node in capacity.nodes) == 1 for capacity in capacities)


def test_random_plans_include_several_slot_types_other_devices_and_added_nodes():
    plans = [case.plan for seed in range(20) for case in draw_cases(seed, 4, mixed=True)]

    assert any(len(plan.slots) > 1 for plan in plans)
    assert any({"HPU", "NPU"} & slot.worker.custom.keys() for plan in plans for slot in plan.slots)
    assert any(plan.nodes_to_add for plan in plans)


def test_nodes_to_add_exist_in_the_cluster_of_the_plan():
    cases = [case for seed in range(20) for case in draw_cases(seed, 4, mixed=True) if case.plan.nodes_to_add]

    for case in cases:
        assert place_slots(case.plan.slots, case.capacity).count(0) > 0
        assert not any(node.is_expected for node in case.capacity.nodes)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (CpuPolicy(), False),
        (SelectingPolicy(GpuPolicy(), label_selector={"zone": "eu"}), False),
        (FirstFeasiblePolicy(GpuPolicy(), CpuPolicy()), False),
        (FirstFeasiblePolicy(GpuPolicy(), CappedPolicy(CpuPolicy(), 2)), True),
        (SelectingPolicy(ReservingPolicy(CpuPolicy(), cpus=1)), True),
        (EvenSplitPolicy(num_trials=3), True),
    ],
    ids=str,
)
def test_a_policy_leaves_room_if_any_nested_policy_does(policy, expected):
    assert leaves_room(policy) is expected
