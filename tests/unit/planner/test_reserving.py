"""Tests that compare the plans of ``ReservingPolicy`` with a search over all nodes that could keep the reservation."""

import math
from itertools import permutations
from operator import itemgetter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.clusters import GIB, gpu_node
from tests.unit.strategies import clusters, leaves, similar_clusters, wrapped
from tune_policies import (
    AutoscalingPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    MixedPolicy,
    NodeTypeCapacity,
    ReservingPolicy,
    ResourcePolicy,
    Resources,
    TrialPlan,
    TrialSlot,
)
from tune_policies.cluster.labels import matcher
from tune_policies.placement.count_trials import subtract
from tune_policies.values.resources import TICKS

T4 = {"gpus": 1, "cpus": 8, "gpu_memory_gib": 16, "accelerator_type": "T4"}
A100 = {"gpus": 1, "cpus": 8, "gpu_memory_gib": 80, "accelerator_type": "A100"}


def size(plan):
    """Return the number of trials with devices and the number of all trials, or zeros without a plan."""
    if plan is None:
        return 0, 0
    with_devices = sum(slot.max_concurrent_trials for slot in plan.slots if slot.has_device)
    return with_devices, plan.max_concurrent_trials


def plan_or_none(policy, capacity):
    try:
        return policy.plan(capacity)
    except InfeasibleRequestError:
        return None


def without(nodes, wish):
    """Return the nodes after the reservation of as much as possible on each node in turn, or ``None`` if it fails."""
    left, after = dict(wish.ticks), []
    for node in nodes:
        has = dict(node.resources.ticks)
        has["GPU"] = has.get("GPU", 0) // TICKS * TICKS
        taken = {name: min(amount, has.get(name, 0)) for name, amount in left.items()}
        left = {name: amount - taken[name] for name, amount in left.items()}
        after.append(subtract(node, taken) if any(taken.values()) else node)
    return None if any(left.values()) else after


def largest_size(inner, capacity, wish):
    """Return the size of the best plan over all orders in which nodes keep the reservation."""
    rests = [without(nodes, wish) for nodes in permutations(capacity.nodes)]
    assume(None not in rests)
    for choice in inner.choices:
        plans = [(plan_or_none(choice, capacity.with_nodes(rest)), rest) for rest in rests]
        best, on = max(((size(plan), rest) for plan, rest in plans), key=itemgetter(0))
        if best > (0, 0):
            # An outer ``min_trials`` can refuse a plan although a later choice of an inner fallback policy would do.
            assume(plan_or_none(inner, capacity.with_nodes(on)))
            return best
    return 0, 0


@given(
    clusters() | similar_clusters.filter(lambda capacity: len(capacity.nodes) < 5),
    leaves | wrapped,
    st.sampled_from([0, 1, 4, 6]),
    st.integers(0, 2),
)
def test_no_other_nodes_for_the_reservation_would_leave_room_for_more_trials(capacity, inner, cpus, gpus):
    assume(cpus or gpus)
    best = largest_size(inner, capacity, Resources(cpus=cpus, gpus=gpus))
    plan = plan_or_none(ReservingPolicy(inner, cpus=cpus, gpus=gpus), capacity)

    # With slots of several types, the plan is checked again on the whole cluster, which the search does not do.
    assume(plan is None or len(plan.slots) == 1)
    assert size(plan) >= best


def of(*shapes):
    return ClusterCapacity.of(*(Resources(cpus=cpus, gpus=gpus) for cpus, gpus in shapes))


@pytest.mark.parametrize(
    ("inner", "reserved", "capacity", "expected"),
    [
        pytest.param(
            GpuMemoryPolicy(gpu_memory="30GiB"),
            {"gpus": 1},
            ClusterCapacity.of(gpu_node("b", **T4), gpu_node("a", **A100)),
            2,
            id="a GPU that is too small",
        ),
        pytest.param(GpuPolicy(gpus=2), {"gpus": 1}, of((8, 2), (8, 1)), 1, id="a GPU without a second one"),
        pytest.param(GpuPolicy(cpus=4), {"gpus": 1}, of((4, 1), (1, 1)), 1, id="a GPU with too few CPUs"),
        pytest.param(
            CpuPolicy(cpus=3), {"cpus": 4}, of((8, 0), (8, 0)), 4, id="CPUs that the trials leave on two nodes"
        ),
        pytest.param(CpuPolicy(cpus=8), {"cpus": 4}, of((8, 0), (4, 0)), 1, id="CPUs of a small node"),
        pytest.param(
            MixedPolicy(GpuPolicy(cpus=4), CpuPolicy(cpus=4)),
            {"cpus": 4},
            of((4, 1), (4, 0)),
            1,
            id="trials on GPUs first",
        ),
    ],
)
def test_resources_are_reserved_where_they_displace_the_fewest_trials(inner, reserved, capacity, expected):
    plan = ReservingPolicy(inner, **reserved).plan(capacity)

    assert plan.max_concurrent_trials == expected


def a_type(name, accelerator_type, gpu_memory_gib=None, label=None):
    node = gpu_node(name, cpus=8, gpu_memory_gib=gpu_memory_gib, accelerator_type=accelerator_type)
    labels = {} if label is None else {"ray.io/accelerator-type": label}
    return NodeTypeCapacity(
        name=name,
        resources=node.resources,
        accelerator_type=accelerator_type,
        devices=node.devices,
        labels=labels,
        max_nodes_to_add=2,
    )


def growing_cluster(*types, alive=()):
    return ClusterCapacity.of(gpu_node("cpu", gpus=0), *alive).model_copy(update={"node_types": types})


def reserving_and_growing(inner, gpu_memory):
    """Return both orders of the two policies around ``inner``."""
    return (
        AutoscalingPolicy(ReservingPolicy(inner, gpu_memory=gpu_memory)),
        ReservingPolicy(AutoscalingPolicy(inner), gpu_memory=gpu_memory),
    )


@pytest.mark.parametrize("order", [0, 1], ids=["autoscaling outside", "reserving outside"])
@pytest.mark.parametrize(
    "alive", [(), (gpu_node("a", **T4), gpu_node("b", **A100))], ids=["no alive GPU", "alive GPUs of both types"]
)
def test_nodes_whose_gpu_memory_is_reserved_completely_are_not_added(alive, order):
    capacity = growing_cluster(a_type("a-t4", "T4"), a_type("z-a100", "A100"), alive=alive)

    plan = reserving_and_growing(GpuPolicy(), "20GiB")[order].plan(capacity)

    assert plan.nodes_to_add == {"z-a100": 2}
    assert {(slot.accelerator_type, str(slot.label_selector)) for slot in plan.slots} == {("A100", "{}")}


@pytest.mark.parametrize("order", [0, 1], ids=["autoscaling outside", "reserving outside"])
def test_addable_gpus_that_ray_cannot_distinguish_from_fully_reserved_gpus_are_not_used(order):
    types = (a_type("small", "A100", 10), a_type("large", "A100", 80))
    policy = reserving_and_growing(GpuPolicy(gpus=0.5), "20GiB")[order]

    with pytest.raises(InfeasibleRequestError, match="Ray cannot distinguish A100 with 80 GiB from these GPUs"):
        policy.plan(growing_cluster(*types))
    plan = policy.plan(growing_cluster(*types, alive=(gpu_node("alive", **A100),)))

    assert (plan.max_concurrent_trials, plan.nodes_to_add) == (2, {})
    assert plan.label_selector == {"ray.io/node-id": "alive"}
    assert any(reason.startswith("the plan adds no nodes for A100 with 80 GiB") for reason in plan.reasons)


@pytest.mark.parametrize("order", [0, 1], ids=["autoscaling outside", "reserving outside"])
def test_the_type_with_room_for_the_most_trials_is_used_if_a_request_cannot_name_all_large_types(order):
    types = (a_type("t4", "T4"), a_type("a100", "A100"), a_type("l4", "L4", 24), a_type("h100", "H100", 80))
    more = types[-1].model_copy(update={"max_nodes_to_add": 3})

    plan = reserving_and_growing(GpuPolicy(), "20GiB")[order].plan(growing_cluster(*types[:-1], more))

    assert (plan.accelerator_type, plan.nodes_to_add) == ("H100", {"h100": 3})


@given(
    policy=st.sampled_from((GpuPolicy(), GpuPolicy(gpus=0.5), GpuMemoryPolicy(gpu_memory="4GiB"))),
    order=st.integers(0, 1),
    kinds=st.lists(
        st.tuples(st.sampled_from((None, "T4", "A100")), st.sampled_from((None, 8, 80)), st.sampled_from((None, "x"))),
        min_size=1,
        max_size=4,
    ),
    num_alive=st.integers(0, 2),
)
def test_no_request_for_a_gpu_fits_a_gpu_whose_memory_is_reserved_completely(policy, order, kinds, num_alive):
    types = [a_type(f"type-{number}", *kind) for number, kind in enumerate(kinds)]
    nodes = [node_type.as_node() for node_type in types]
    alive = [node.model_copy(update={"is_expected": False}) for node in nodes[:num_alive]]
    capacity = growing_cluster(*types[num_alive:], alive=alive)

    plan = plan_or_none(reserving_and_growing(policy, "16GiB")[order], capacity)

    slots = plan.slots if plan else ()
    assert not [
        (slot, node)
        for slot in slots
        for node in [*alive, *nodes[num_alive:]]
        if (node.smallest_gpu_memory_bytes or math.inf) <= 16 * GIB
        and slot.accelerator_type in (None, node.accelerator_type)
        and matcher(slot.label_selector)(node.ray_labels)
    ]


def test_nodes_that_would_be_added_are_excluded_by_their_device_type_if_their_gpus_are_too_small():
    types = (a_type("a-t4", "T4"), a_type("z-a100", "A100"))
    capacity = ClusterCapacity.of(gpu_node("cpu", gpus=0)).model_copy(update={"node_types": types})

    # Both T4 are reserved, so they are still added, but not for the trials.
    plan = AutoscalingPolicy(ReservingPolicy(GpuMemoryPolicy(gpu_memory="10GiB"), gpus=2)).plan(capacity)

    assert plan.nodes_to_add == {"a-t4": 2, "z-a100": 2}
    assert (plan.accelerator_type, plan.label_selector) == ("A100", {})


class TooManySlotsPolicy(ResourcePolicy):
    """Returns more slots than fit a cluster with 8 CPUs."""

    def plan(self, capacity):
        large, small = TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=2), CpuPolicy().plan(capacity).slots[0]
        small = small.model_copy(update={"max_concurrent_trials": 9})
        return TrialPlan(slots=(large, small), common=small, limited_by="CPU")


def test_the_common_slot_is_for_no_more_trials_than_the_slots_that_fit():
    plan = ReservingPolicy(TooManySlotsPolicy(), cpus=1).plan(ClusterCapacity.of(Resources(cpus=8)))

    assert (plan.max_concurrent_trials, plan.common_slot.max_concurrent_trials) == (6, 6)


def test_one_of_hundreds_of_nodes_that_the_trials_cannot_use_keeps_the_reservation():
    small = [gpu_node(f"s{number}", **T4) for number in range(200)]
    large = [gpu_node(f"l{number}", **A100) for number in range(200)]
    policy = ReservingPolicy(GpuMemoryPolicy(gpu_memory="30GiB"), gpus=100)

    assert policy.plan(ClusterCapacity.of(*large, *small)).max_concurrent_trials == 400
