"""Tests of properties that the plans of some policies have on every cluster."""

import re
from collections import Counter

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from tests.clusters import gpu_node, nodes
from tests.unit.planner.test_common_plans import SMALL
from tests.unit.strategies import (
    clusters,
    even_splits,
    fixed_size,
    gpu_amounts,
    leaves,
    num_workers,
    plan_or_skip,
    sized_by_the_user,
    wrapped,
)
from tune_policies import (
    AcceleratorPolicy,
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    FreeCapacityPolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    NodeCapacity,
    NodeTypeCapacity,
    ReservingPolicy,
    Resources,
    TrialSlot,
)
from tune_policies.placement.count_trials import count_trials, with_rounded_memory
from tune_policies.placement.launch_forecast import has_choice
from tune_policies.placement.layout import with_places
from tune_policies.placement.request import Request
from tune_policies.policies.gpu_selection import off_small_gpus
from tune_policies.policies.policy import build_policy
from tune_policies.policies.reserving import rests
from tune_policies.testing.clusters import draw_nodes, with_node_types
from tune_policies.testing.placing import NodeState, place_trials
from tune_policies.values.resources import to_ticks


@given(clusters(), even_splits(num_workers))
def test_an_even_split_needs_the_minimum_number_of_rounds_and_leaves_no_slot_of_its_size_idle(capacity, policy):
    plan = plan_or_skip(policy, capacity)

    least = {"cpus": policy.min_cpus, "memory": policy.memory, "num_workers": policy.num_workers}
    plain = (GpuPolicy(gpus=policy.min_gpus, **least) if policy.min_gpus else CpuPolicy(**least)).plan(capacity)
    at_once = plan.max_concurrent_trials
    event(f"in rounds: {at_once < policy.num_trials}")
    assert plan.num_rounds(policy.num_trials) == plain.num_rounds(policy.num_trials)
    assert at_once == policy.num_trials or place_trials(capacity, plan, at_once + 1) == at_once


def test_drivers_are_verified_on_the_nodes_from_which_they_displace_workers():
    # Both drivers fit on the node without CPUs, but Ray may start each of them on a node that one worker fills.
    capacity = ClusterCapacity(
        nodes=(
            NodeCapacity(node_id="node-0", resources=Resources(memory_bytes="1GiB")),
            NodeCapacity(node_id="node-1", resources=Resources(cpus=0.5, memory_bytes="2GiB")),
            NodeCapacity(node_id="node-2", resources=Resources(cpus=0.5, memory_bytes="2GiB")),
        )
    )

    plan = CpuPolicy(cpus=0.5, memory="2GiB", num_workers=1).plan(capacity)

    assert (plan.max_concurrent_trials, place_trials(capacity, plan, 2)) == (1, 1)


def follow(policy, suggestion):
    """Return the policy with the suggested change, or ``None`` if the suggestion contains no value for a field."""
    if isinstance(policy, GpuMemoryPolicy):
        found = re.match(r"Request at most (\S+) of GPU memory, or add a larger GPU", suggestion)
        return build_policy({**policy.model_dump(), "gpu_memory": found[1]}) if found else None
    if found := re.match(r"Set num_workers=(\d+)", suggestion):
        return policy.model_copy(update={"num_workers": int(found[1])})
    if found := re.match(r"Request at most (\S+) (of host memory|\w+?)s? per (?:trial|worker)", suggestion):
        devices = "amount" if isinstance(policy, AcceleratorPolicy) else "gpus"
        field = {"CPU": "cpus", "of host memory": "memory"}.get(found[2], devices)
        amount = found[1] if field == "memory" else float(found[1])
        return build_policy({**policy.model_dump(), field: amount})
    return None


@given(clusters(), sized_by_the_user(num_workers))
def test_the_suggestion_of_an_error_resolves_the_error(capacity, policy):
    first = why_not(policy, capacity)
    smaller = None if first is None else follow(policy, first.suggestion)
    assume(smaller is not None)

    second = why_not(smaller, capacity)

    # Even if the GPU memory is large enough, the cluster may have too few CPUs or GPUs for the workers.
    was_memory, is_memory = (error.short_of.endswith("GPU memory") for error in (first, second or first))
    assert second is None or (was_memory and not is_memory)


def why_not(policy, capacity):
    try:
        policy.plan(capacity)
    except InfeasibleRequestError as error:
        return error
    return None


@given(clusters(), st.sampled_from([0.5, 1, 2, 5]), st.integers(0, 2), leaves)
def test_reserved_resources_remain_free(capacity, cpus, gpus, policy):
    plan = plan_or_skip(ReservingPolicy(policy, cpus=cpus, gpus=gpus), capacity)

    for name, reserved in (("cpus", cpus), ("gpus", gpus)):
        taken = sum(
            slot.max_concurrent_trials * max(1, slot.num_workers) * getattr(slot.worker, name) for slot in plan.slots
        )
        assert taken <= sum(getattr(node.resources, name) for node in capacity.nodes) - reserved + 1e-6


@given(clusters(), st.sampled_from([0.5, 1, 2, 5]), st.integers(0, 2), leaves)
def test_a_reservation_leaves_room_for_at_least_as_many_trials_as_a_reservation_on_few_nodes(
    capacity, cpus, gpus, policy
):
    try:
        on_few_nodes = next(rests(capacity, Resources(cpus=cpus, gpus=gpus)))
    except InfeasibleRequestError:
        assume(False)
    few = plan_or_skip(policy, on_few_nodes)
    assume(len(few.slots) == 1)

    plan = ReservingPolicy(policy, cpus=cpus, gpus=gpus).plan(capacity)
    # A policy prefers its first device type, even if more trials fit on the second one.
    assume(plan.common_slot.accelerator_type == few.common_slot.accelerator_type)

    assert plan.max_concurrent_trials >= few.max_concurrent_trials


@pytest.mark.parametrize(
    ("shapes", "reserved", "left"),
    [
        pytest.param(
            [(4, 0), (8, 0)], {"cpus": 3}, [(4, 0), (5, 0)], id="on the node with the most remaining resources"
        ),
        pytest.param([(8, 2), (4, 0)], {"cpus": 3}, [(1, 0), (8, 2)], id="on CPUs without a GPU"),
        pytest.param([(8, 2), (2, 0)], {"cpus": 3}, [(2, 0), (5, 2)], id="on one node if it has enough"),
        pytest.param(
            [(2, 1), (3, 2)], {"cpus": 4, "gpus": 1}, [(0, 0), (1, 2)], id="each resource on the node that has it"
        ),
        pytest.param([(8, 2), (4, 1)], {"cpus": 2, "gpus": 1}, [(2, 0), (8, 2)], id="with few GPUs"),
        pytest.param([(2, 0), (2, 0)], {"cpus": 3}, [(0, 0), (1, 0)], id="otherwise on several nodes"),
        pytest.param([(2, 0), (5, 1)], {"cpus": 6}, [(0, 0), (1, 1)], id="on nodes of different shapes if necessary"),
        pytest.param(
            [(4, 0), (4, 0), (4, 1)], {"cpus": 6}, [(0, 0), (2, 0), (4, 1)], id="on nodes of one shape if sufficient"
        ),
    ],
)
def test_resources_are_reserved_on_the_expected_nodes(shapes, reserved, left):
    first = next(rests(nodes(*shapes), Resources(**reserved)))

    assert sorted((node.resources.cpus, node.resources.gpus) for node in first.nodes) == left


growing_clusters = st.randoms(use_true_random=False).map(
    lambda rng: with_node_types(rng, ClusterCapacity(nodes=tuple(draw_nodes(rng))))
)


@given(growing_clusters, fixed_size, st.integers(1, 12))
def test_with_one_node_fewer_than_the_plan_adds_not_all_trials_fit(capacity, policy, cap):
    plan = plan_or_skip(AutoscalingPolicy(CappedPolicy(policy, cap)), capacity)
    # With a choice of node types, Ray's autoscaler may fill a small node first, and then need a large one besides.
    assume(not has_choice(plan.slots, capacity))

    for name in plan.nodes_to_add:
        fewer = capacity.with_nodes_added(Counter(plan.nodes_to_add) - Counter([name]))
        if len(plan.slots) > 1:
            assert with_places(plan.slots, fewer) != plan.slots
        else:
            assert place_trials(fewer, plan, plan.max_concurrent_trials) < plan.max_concurrent_trials


@given(growing_clusters, wrapped)
def test_more_nodes_never_turn_a_plan_into_an_error(capacity, policy):
    plan_or_skip(policy, capacity)

    assert AutoscalingPolicy(policy).plan(capacity)


def test_an_added_node_never_gets_the_id_of_an_alive_node():
    alive = ClusterCapacity.of(gpu_node("small+1")).model_copy(update={"node_types": (SMALL,)})

    ids = [node.node_id for node in alive.with_nodes_added({"small": 2}).nodes]

    assert len(set(ids)) == 3


without_cpus = (
    st.builds(GpuPolicy, gpus=gpu_amounts, num_workers=num_workers, min_gpu_memory=st.none() | st.just("10GiB"))
    | st.builds(GpuMemoryPolicy, gpu_memory=st.sampled_from(["1GiB", "6GiB"]))
    | st.builds(AcceleratorPolicy, resource=st.just("NPU"), amount=gpu_amounts)
)


@given(clusters(), without_cpus)
def test_a_node_without_cpus_does_not_reduce_the_cpus_of_other_workers(capacity, policy):
    plan = plan_or_skip(policy, capacity)

    name, amount = ("NPU", plan.worker.custom["NPU"]) if plan.worker.custom else ("GPU", plan.worker.gpus)
    has_a_worker = [
        node.resources.cpus > 0
        for node in capacity.nodes
        if node.resources.ticks.get(name, 0) >= to_ticks(amount)
        if name == "NPU" or NodeState(node).is_selected(plan.common_slot)
        if plan.accelerator_type in (None, node.accelerator_type)
        if getattr(policy, "gpu_memory", None) is None or node.smallest_gpu_memory_bytes
    ]
    if any(has_a_worker) and plan.worker.cpus == 0:
        assert not fits(policy, capacity.where(lambda node: node.resources.cpus > 0))
    assert plan.worker.cpus == 0 or any(has_a_worker)


def fits(policy, capacity):
    return why_not(policy, capacity) is None


amounts_of_memory = st.sampled_from([1, 2**20 - 1, 2**20, 3 * 2**20 + 5, 2**30, 2**30 + 1, 10**9]) | st.integers(
    1, 2**31
)


@given(
    memories=st.lists(st.none() | amounts_of_memory, min_size=1, max_size=8),
    needed=st.none() | amounts_of_memory,
    num_workers=st.integers(0, 3),
)
def test_rounded_memory_does_not_change_the_number_of_trials(memories, needed, num_workers):
    capacity = ClusterCapacity.of(*(Resources(cpus=200, memory_bytes=memory) for memory in memories))
    request = Request(worker=Resources(cpus=1, memory_bytes=needed), num_workers=num_workers)

    seen = with_rounded_memory(capacity, memory=needed, num_workers=num_workers)

    assert count_trials(seen.groups, request) == count_trials(capacity.groups, request)


def test_nodes_that_differ_by_a_few_bytes_share_a_shape_only_for_requests_without_memory():
    capacity = ClusterCapacity.of(*(Resources(cpus=1, memory_bytes=2**30 + at) for at in range(9)))

    seen = with_rounded_memory(capacity, memory=None, num_workers=0)

    assert len(seen.groups) == 1
    assert len(seen.where(lambda node: True).groups) == len(seen.replacing({}).groups) == 9


@given(
    policy=st.sampled_from(
        (GpuPolicy(gpus=0.5), GpuPolicy(min_gpu_memory="20GiB"), GpuMemoryPolicy(gpu_memory="6GiB"))
    ),
    types=st.permutations(("T4", "A100", "L4")),
    gpus=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    limit=st.integers(1, 4),
)
def test_a_limit_on_nodes_to_add_does_not_let_ray_add_nodes_whose_gpus_are_too_small(policy, types, gpus, limit):
    node_types = [
        addable_gpus(f"type-{number}", accelerator_type, gpus[number]) for number, accelerator_type in enumerate(types)
    ]

    plan = AutoscalingPolicy(policy, max_nodes_to_add=limit).plan(ClusterCapacity(node_types=node_types))

    assert not smaller_gpus(plan, node_types)


def test_a_limit_on_nodes_to_add_does_not_let_ray_add_nodes_with_less_than_the_minimum_gpu_memory():
    node_types = [addable_gpus("a", "T4", 1), addable_gpus("b", "L4", 2), addable_gpus("c", "A100", 1)]
    policy = AutoscalingPolicy(GpuPolicy(min_gpu_memory="20GiB"), max_nodes_to_add=1)

    plan = policy.plan(ClusterCapacity(node_types=node_types))

    assert (plan.accelerator_type, plan.nodes_to_add) == ("L4", {"b": 1})


def addable_gpus(name, accelerator_type, gpus):
    has = Resources(cpus=8, gpus=gpus)
    return NodeTypeCapacity(name=name, resources=has, max_nodes_to_add=2, accelerator_type=accelerator_type)


def smaller_gpus(plan, node_types):
    """Return the pairs of a slot and a node type on which Ray may place its trials, although its GPUs are too small."""
    found = []
    for slot in plan.slots:
        per_gpu = slot.gpu_memory_bytes * int(1 / slot.worker.gpus)
        for node in (node_type.as_node() for node_type in node_types):
            if slot.accelerator_type in (None, node.accelerator_type) and node.smallest_gpu_memory_bytes < per_gpu:
                found.append((slot, node))
    return found


def test_a_slot_is_not_restricted_to_one_of_several_types_with_large_gpus():
    alive = gpu_node("alive", gpu_memory_gib=17.5, accelerator_type="A100")
    t4, unknown = (addable_gpus(name, name, 4).as_node() for name in ("T4", "M3-Max"))
    slot = TrialSlot(trial=Resources(cpus=1, gpus=0.5), max_concurrent_trials=10, gpu_memory_bytes=6 * 2**30)

    restricted = off_small_gpus(slot, ClusterCapacity.of(alive, t4, unknown), {unknown.shape})

    # A request names at most one device type, and nodes that have to be added have no ID.
    assert restricted == slot


def test_a_node_without_room_does_not_prevent_the_restriction_to_a_type_with_large_gpus():
    alive = gpu_node("alive", cpus=0, gpu_memory_gib=16)
    t4, unknown = (addable_gpus(name, name, 4).as_node() for name in ("T4", "M3-Max"))
    slot = TrialSlot(trial=Resources(cpus=1, gpus=0.5), max_concurrent_trials=8, gpu_memory_bytes=6 * 2**30)

    restricted = off_small_gpus(slot, ClusterCapacity.of(alive, t4, unknown), {unknown.shape})

    assert restricted.accelerator_type == "T4"


def test_ray_may_launch_node_types_that_a_limit_leaves_out_of_the_plan():
    in_use = Resources(cpus=8)
    nodes_in_use = [
        NodeCapacity(node_id=name, resources=Resources(cpus=cpus), in_use=in_use) for name, cpus in (("a", 3), ("b", 6))
    ]
    node_types = [
        NodeTypeCapacity(name="large", resources=Resources(cpus=16, gpus=4), max_nodes_to_add=3),
        NodeTypeCapacity(name="small", resources=Resources(cpus=3, gpus=1), max_nodes_to_add=1),
    ]
    capacity = ClusterCapacity.of(*nodes_in_use).model_copy(update={"node_types": node_types})
    # Both policies leave the used CPUs free.
    policy = FreeCapacityPolicy(FreeCapacityPolicy(CpuPolicy(cpus=3, num_workers=2)))

    plan = AutoscalingPolicy(policy, max_nodes_to_add=3).plan(capacity)

    assert (plan.max_concurrent_trials, plan.nodes_to_add) == (7, {"large": 3})


def test_a_cap_that_leaves_one_slot_type_accounts_for_the_smaller_gpus_of_the_others():
    capacity = ClusterCapacity.of(
        gpu_node("small", cpus=2, gpus=4, gpu_memory_gib=14, accelerator_type="T4"),
        gpu_node("large", cpus=4, gpus=4, gpu_memory_gib=16),
        gpu_node("unknown", cpus=0),  # excluded by node IDs from the slots, but not from the common slot
    )
    policy = GpuMemoryPolicy(gpu_memory="6GiB")
    assert [slot.gpu_memory_bytes for slot in policy.plan(capacity).slots] == [8 * 2**30, 7 * 2**30]

    plan = CappedPolicy(policy, 5).plan(capacity)

    # Ray may place two trials on a GPU with 14 GiB.
    assert [slot.gpu_memory_bytes for slot in plan.slots] == [7 * 2**30]
