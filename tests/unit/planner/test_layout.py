"""Tests that every slot of a plan has a node on which its trial fits, in any order of starts and ends."""

import pickle
import random

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from tests.clusters import nodes
from tests.evidence.faults.simulated_ray import SimulatedNode
from tests.unit.strategies import clusters, leaves, with_kinds, wrapped
from tune_policies import (
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    MixedPolicy,
    NodeCapacity,
    NodeTypeCapacity,
    ReservingPolicy,
    Resources,
    SelectingPolicy,
)
from tune_policies.cluster.labels import matcher
from tune_policies.placement.layout import place_slots, with_places
from tune_policies.placement.scale_up import types_with_room

mixed = st.lists(leaves | wrapped, min_size=2, max_size=3).map(lambda policies: MixedPolicy(*policies))
nested = (
    mixed
    | st.builds(CappedPolicy, inner=mixed, max_concurrent_trials=st.integers(1, 9))
    | st.tuples(st.builds(CappedPolicy, inner=mixed, max_concurrent_trials=st.integers(1, 5)), leaves).map(
        lambda policies: MixedPolicy(*policies)
    )
    | st.builds(SelectingPolicy, inner=mixed, label_selector=st.sampled_from([{"zone": "eu"}, {"zone": "!us"}]))
    | st.builds(
        ReservingPolicy,
        inner=mixed,
        cpus=st.sampled_from([0, 0.5, 1, 2]),
        gpus=st.integers(0, 2),
        memory=st.sampled_from([None, "1GiB", "16GiB"]),
    )
    | with_kinds
)


def plan_or_skip(policy, capacity):
    try:
        plan = policy.plan(capacity)
    except InfeasibleRequestError as error:
        pickle.loads(pickle.dumps(error))
        assume(False)
    event(f"{len(plan.slots)} kinds")
    return plan


@given(clusters(), nested)
def test_every_slot_has_a_place_on_the_planned_cluster(capacity, policy):
    plan = plan_or_skip(policy, capacity)

    layout = place_slots(plan.slots, capacity)

    assert [layout.count(slot_type) for slot_type in range(len(plan.slots))] == [
        s.max_concurrent_trials for s in plan.slots
    ]


def selects(node, slot, *, is_driver=False):
    """Return whether Ray may place a worker of the slot, or its driver, on the node."""
    has_type = is_driver or slot.accelerator_type in (None, node.capacity.accelerator_type)
    return has_type and matcher(slot.label_selector)(node.capacity.ray_labels)


class Pool:
    """Trials that start on the nodes of their slots and end in random order."""

    def __init__(self, plan, capacity, rng):
        self._slots, self._rng = plan.slots, rng
        self._nodes = {node.node_id: SimulatedNode(node, rng) for node in capacity.nodes}
        self._free = [place for place in place_slots(plan.slots, capacity).places for _ in range(place.count)]
        self._running = []

    def start_one(self):
        """Start a trial in a free slot, and return whether it fits."""
        place = self._free.pop(self._rng.randrange(len(self._free)))
        slot = self._slots[place.slot_type]
        home = self._nodes[place.node_id]
        assert selects(home, slot, is_driver=slot.num_workers > 0)
        bundles = [(home, slot.trial)]
        for node_id, count in place.worker_nodes:
            assert selects(self._nodes[node_id], slot)
            bundles += [(self._nodes[node_id], slot.per_worker)] * count
        assert len(bundles) == 1 + slot.num_workers
        taken = [(node, node.allocate(resources.ticks)) for node, resources in bundles]
        self._running.append((place, taken))
        return all(amounts is not None for _, amounts in taken)

    def end_one(self):
        place, taken = self._running.pop(self._rng.randrange(len(self._running)))
        for node, amounts in taken:
            node.release(amounts)
        self._free.append(place)

    def run(self, num_ends):
        """Start trials in free slots while other trials end, and return whether all started trials fit."""
        for _ in range(num_ends):
            while self._free and self._rng.random() < 0.8:
                if not self.start_one():
                    return False
            if self._running:
                self.end_one()
        return all(self.start_one() for _ in range(len(self._free)))


@given(clusters(), nested, st.integers(0, 2**32))
def test_a_trial_in_a_free_slot_never_waits(capacity, policy, seed):
    plan = plan_or_skip(policy, capacity)
    assume(len(plan.slots) > 1 and plan.max_concurrent_trials < 300)

    assert Pool(plan, capacity, random.Random(seed)).run(num_ends=15)


@given(clusters(), nested, st.randoms())
def test_plan_and_places_do_not_depend_on_the_order_of_nodes(capacity, policy, rng):
    plan = plan_or_skip(policy, capacity)
    other = ClusterCapacity(nodes=tuple(rng.sample(capacity.nodes, len(capacity.nodes))))

    assert policy.plan(other) == plan
    assert place_slots(plan.slots, other) == place_slots(plan.slots, capacity)


GIB = 2**30
ON_ONE_GIB = CpuPolicy(cpus=1, memory="1GiB", num_workers=1)


def node(node_id, cpus, memory):
    return NodeCapacity(node_id=node_id, resources=Resources(cpus=cpus, memory_bytes=memory))


def test_drivers_reduce_the_host_memory_for_workers():
    """Both drivers are on the large node, which then has room for only one worker."""
    cluster = ClusterCapacity.of(node("large", 8, 2 * GIB), node("small", 8, GIB + 10 * 2**20))

    layout = place_slots(ON_ONE_GIB.plan(cluster).slots, cluster)

    assert [(place.node_id, place.worker_nodes) for place in layout.places] == [
        ("large", (("large", 1),)),
        ("large", (("small", 1),)),
    ]


def test_a_driver_can_be_on_a_node_without_room_for_a_worker():
    cluster = ClusterCapacity.of(node("for workers", 4, 2**19), node("for drivers", 0, GIB))

    layout = place_slots(CpuPolicy(cpus=2, num_workers=2).plan(cluster).slots, cluster)

    assert [(place.node_id, place.worker_nodes) for place in layout.places] == [("for drivers", (("for workers", 2),))]


def test_on_a_smaller_cluster_only_trials_with_room_for_their_driver_are_placed():
    slots = ON_ONE_GIB.plan(ClusterCapacity.of(node("a", 8, 2 * GIB), node("b", 8, GIB + 10 * 2**20))).slots

    assert [slot.max_concurrent_trials for slot in with_places(slots, ClusterCapacity.of(node("a", 8, 2 * GIB)))] == [1]


def test_trials_without_gpus_use_gpu_node_types_last():
    types = [
        NodeTypeCapacity(name=name, resources=Resources(cpus=cpus, gpus=gpus), max_nodes_to_add=1)
        for name, cpus, gpus in (("a", 8, 1), ("b", 2, 0), ("c", 4, 0), ("d", 1, 0))
    ]
    (slot,) = CpuPolicy(cpus=2).plan(nodes((8, 0))).slots

    found = types_with_room(slot, ClusterCapacity(nodes=(), node_types=tuple(types)), 1)

    assert [each.name for each in found] == ["c", "b", "a"]


def test_slots_use_at_most_the_number_of_nodes_that_can_be_added():
    slots = CpuPolicy(cpus=4).plan(ClusterCapacity.of(*(Resources(cpus=4) for _ in range(5)))).slots
    more = NodeTypeCapacity(name="more", resources=Resources(cpus=4), max_nodes_to_add=5)
    used_up = more.model_copy(update={"name": "used up", "max_nodes_to_add": 0})
    cluster = ClusterCapacity(nodes=(node("alive", 4, GIB),), node_types=(more, used_up), max_nodes_to_add=2)

    assert place_slots(slots, cluster).count(0) == 3


def counts(policy, capacity):
    return [slot.max_concurrent_trials for slot in policy.plan(capacity).slots]


def test_slots_with_different_gpu_fractions_do_not_share_a_node():
    """The first policy leaves a GPU of its node free. Slots with a GPU fraction must not use this GPU."""
    one_whole, one_half = CappedPolicy(GpuPolicy(cpus=1), 1), CappedPolicy(GpuPolicy(gpus=0.5, cpus=1), 1)

    assert counts(MixedPolicy(one_whole, one_half, GpuPolicy(gpus=0.25, cpus=1)), nodes(*[(8, 2)] * 3)) == [1, 1, 8]


@pytest.mark.parametrize(
    ("first", "shapes", "at_once"),
    [
        pytest.param(CappedPolicy(CpuPolicy(), 4), [(4, 0), (8, 8)], [4, 8], id="on nodes without devices"),
        pytest.param(CappedPolicy(CpuPolicy(), 8), [(8, 4), (8, 1)], [8, 4], id="on nodes with the fewest devices"),
        pytest.param(
            CappedPolicy(GpuPolicy(cpus=4), 2), [(12, 8), (8, 2)], [2, 8], id="on nodes with CPUs for all devices"
        ),
    ],
)
def test_slots_are_placed_so_that_as_few_devices_as_possible_remain_without_cpus(first, shapes, at_once):
    assert counts(MixedPolicy(first, GpuPolicy(cpus=1)), nodes(*shapes)) == at_once


@pytest.mark.parametrize(("node_gib", "at_once"), [(2, [1, 1]), (2.5, [1, 2])])
def test_host_memory_of_drivers_is_not_available_to_other_slots(node_gib, at_once):
    with_driver, others = CappedPolicy(CpuPolicy(num_workers=1), 1), CpuPolicy(memory="1GiB")

    assert counts(MixedPolicy(with_driver, others), ClusterCapacity.of(node("a", 4, int(node_gib * GIB)))) == at_once
