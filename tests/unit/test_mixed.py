"""Plans with several slot types: what each policy gets, and what of the cluster is left for the next."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.clusters import gpu_node, nodes
from tune_policies import (
    AcceleratorPolicy,
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuMemoryMeasurement,
    GpuMemoryPolicy,
    GpuMemoryProfile,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MixedPolicy,
    NodeTypeCapacity,
    ReservingPolicy,
    Resources,
    SelectingPolicy,
    TrialPlan,
    load_policy,
)
from tune_policies.placement.layout import Placement, place_slots
from tune_policies.values.units import GIB

QUARTERS = GpuPolicy(gpus=0.25, cpus=1)
ON_CPUS = CpuPolicy(cpus=2)


def counts(plan):
    """How many slots of each kind: {(cpus, gpus): count}."""
    return {(slot.worker.cpus, slot.worker.gpus): slot.max_concurrent_trials for slot in plan.slots}


def test_the_policies_are_given_as_arguments_or_in_a_list():
    assert MixedPolicy(policies=[QUARTERS, ON_CPUS], speeds=(4, 1)) == MixedPolicy(QUARTERS, ON_CPUS, speeds=(4, 1))


def with_type(capacity, **resources):
    extra = NodeTypeCapacity(name="large", resources=Resources(**resources), max_nodes_to_add=5)
    return capacity.model_copy(update={"node_types": (extra,)})


def test_each_policy_plans_on_what_those_before_it_leave():
    plan = MixedPolicy(QUARTERS, ON_CPUS).plan(nodes((16, 2)))

    assert counts(plan) == {(1, 0.25): 8, (2, 0): 4}


def test_all_kinds_count_as_trials_at_once():
    assert MixedPolicy(QUARTERS, ON_CPUS).plan(nodes((16, 2))).max_concurrent_trials == 12


def test_device_types_are_kinds():
    cluster = ClusterCapacity.of(
        gpu_node("a", gpus=2, cpus=8, accelerator_type="A100"), gpu_node("b", gpus=4, cpus=8, accelerator_type="L4")
    )

    plan = MixedPolicy(GpuPolicy(accelerator_type="A100"), GpuPolicy(accelerator_type="L4")).plan(cluster)

    assert [(slot.accelerator_type, slot.max_concurrent_trials) for slot in plan.slots] == [("A100", 2), ("L4", 4)]


def test_a_kind_for_which_nothing_is_left_is_left_out_with_a_reason():
    plan = MixedPolicy(QUARTERS, ON_CPUS).plan(nodes((8, 2)))

    assert counts(plan) == {(1, 0.25): 8}
    assert plan.reasons[0].startswith("no slots of CpuPolicy beside these: one trial needs 2 CPUs")


def test_without_gpus_the_plan_is_that_of_the_other_policy():
    plan = MixedPolicy(QUARTERS, ON_CPUS).plan(nodes((8, 0)))

    assert plan.slots == ON_CPUS.plan(nodes((8, 0))).slots


def test_an_error_tells_of_each_policy():
    with pytest.raises(InfeasibleRequestError, match=r"1 CPU, 0.25 GPU or else 2 CPUs") as caught:
        MixedPolicy(QUARTERS, ON_CPUS).plan(nodes((1, 0)))

    assert len(caught.value.tried) == 2
    assert caught.value.short_of == "GPU and CPU"


def test_it_explains_what_there_is_of_each_kind_and_why():
    plan = MixedPolicy(CappedPolicy(QUARTERS, 4), ON_CPUS, speeds=(10, 1)).plan(nodes((16, 2)))

    assert plan.explain().splitlines() == [
        "10 trials at once, limited by CPU",
        "  4 with 1 CPU, 0.25 GPU (speed 10)",
        "  6 with 2 CPUs (speed 1)",
        "  - CappedPolicy: GPU memory was not read on every node, so how much a share holds is not known",
        "  - CappedPolicy: 8 would fit, but at most 4 may run at once",
        "  - CpuPolicy: 2 CPUs per worker, as asked for, and no GPU",
    ]


def test_what_holds_for_all_kinds_is_said_once():
    cluster = nodes((16, 2)).model_copy(update={"draining": (gpu_node("leaving"),)})

    reasons = MixedPolicy(QUARTERS, ON_CPUS).plan(cluster).reasons

    assert [reason for reason in reasons if "drained" in reason] == ["not counted: 1 node being drained"]


def test_the_speeds_are_those_of_the_slots():
    plan = MixedPolicy(QUARTERS, ON_CPUS, speeds=(10, 1)).plan(nodes((16, 2)))

    assert [slot.speed for slot in plan.slots] == [10, 1]


def test_the_speed_of_a_policy_is_that_of_its_first_kind():
    inner = MixedPolicy(QUARTERS, ON_CPUS, speeds=(2, 1))

    plan = MixedPolicy(CappedPolicy(inner, 9), CpuPolicy(cpus=3), speeds=(10, 1)).plan(nodes((16, 2)))

    assert [slot.speed for slot in plan.slots] == [10, 5, 1]


@pytest.mark.parametrize("outer", [(1e11, 1), (1e-300, 1), (5e-324, 1)])
@pytest.mark.parametrize("inner", [(1e-300, 1e11), (1e11, 1e-300), (5e-324, 1)])
def test_speeds_stay_numbers_that_a_plan_may_have_however_they_multiply(inner, outer):
    mixed = MixedPolicy(CappedPolicy(QUARTERS, 1), CappedPolicy(ON_CPUS, 2), speeds=inner)

    plan = MixedPolicy(CappedPolicy(mixed, 9), CpuPolicy(cpus=3), speeds=outer).plan(nodes((16, 2)))

    assert TrialPlan.from_json(plan.to_json()) == plan


def test_a_kind_that_is_alone_keeps_its_speed():
    plan = MixedPolicy(QUARTERS, ON_CPUS, speeds=(10, 1)).plan(nodes((8, 0)))

    assert [slot.speed for slot in plan.slots] == [1]


def test_whole_gpus_beside_whole_gpus_share_a_node():
    plan = MixedPolicy(CappedPolicy(GpuPolicy(gpus=2, cpus=2), 1), GpuPolicy(cpus=1)).plan(nodes((16, 4)))

    assert counts(plan) == {(2, 2): 1, (1, 1): 2}


def test_shares_of_gpus_and_whole_gpus_do_not_share_a_node():
    """Ray may spread the shares, and then no device is whole."""
    cluster = nodes((16, 2), (16, 2))

    shares_first = MixedPolicy(CappedPolicy(QUARTERS, 2), GpuPolicy(cpus=1)).plan(cluster)
    whole_first = MixedPolicy(CappedPolicy(GpuPolicy(cpus=1), 1), QUARTERS).plan(cluster)

    assert counts(shares_first) == {(1, 0.25): 2, (1, 1): 2}
    assert counts(whole_first) == {(1, 1): 1, (1, 0.25): 8}


def test_a_kind_left_out_for_its_share_says_so():
    plan = MixedPolicy(CappedPolicy(GpuPolicy(cpus=1), 1), QUARTERS).plan(nodes((16, 2)))

    assert "the policies before it cut the same devices into other shares" in plan.reasons[0]


def test_capped_the_better_kinds_are_kept():
    plan = CappedPolicy(MixedPolicy(QUARTERS, ON_CPUS), 9).plan(nodes((16, 2)))

    assert counts(plan) == {(1, 0.25): 8, (2, 0): 1}


def test_what_is_reserved_inside_is_left_for_the_next_kind():
    plan = MixedPolicy(ReservingPolicy(CpuPolicy(cpus=1), cpus=4), ON_CPUS).plan(nodes((8, 0)))

    assert counts(plan) == {(1, 0): 4, (2, 0): 2}
    assert plan.fewer_than_fit


def test_what_is_reserved_outside_is_left_by_all_kinds():
    plan = ReservingPolicy(MixedPolicy(QUARTERS, ON_CPUS), cpus=4).plan(nodes((16, 2)))

    assert counts(plan) == {(1, 0.25): 8, (2, 0): 2}


def test_slots_have_their_places_still_where_a_policy_without_slots_has_told_more_nodes_apart():
    cluster = ClusterCapacity.of(
        gpu_node("a", gpus=0, cpus=4, memory_gib=2, labels={"zone": "eu"}),
        gpu_node("b", gpus=0, cpus=4, memory_gib=1),
    )
    in_eu = SelectingPolicy(CpuPolicy(cpus=4), label_selector={"zone": "eu"})
    plan = MixedPolicy(CpuPolicy(memory="64GiB"), CappedPolicy(CpuPolicy(cpus=4), 1), in_eu).plan(cluster)

    assert [place.node_id for place in place_slots(plan.slots, cluster).places] == ["b", "a"]


def test_what_is_left_free_beside_other_slots_is_counted_by_what_each_node_has():
    cluster = ClusterCapacity.of(
        Resources(cpus=4, memory_bytes=2 * GIB),
        Resources(cpus=4, memory_bytes=4 * GIB),
    )
    reserving = ReservingPolicy(CpuPolicy(cpus=0.5, memory="2GiB"), memory="5GiB")

    assert counts(MixedPolicy(CpuPolicy(cpus=3), reserving).plan(cluster)) == {(3, 0): 2}


def test_beside_a_reservation_slots_have_no_place_on_nodes_that_nobody_has_asked_for():
    policy = ReservingPolicy(MixedPolicy(CpuPolicy(cpus=3, num_workers=3), CpuPolicy(cpus=4)), cpus=2)
    alive = nodes((3, 0), (6, 0), (6, 0))

    assert policy.plan(with_type(alive, cpus=16)).slots == policy.plan(alive).slots


def test_a_selection_holds_for_all_kinds():
    cluster = ClusterCapacity.of(gpu_node("a", gpus=2, cpus=16, labels={"zone": "eu"}), gpu_node("b", gpus=2, cpus=16))

    plan = SelectingPolicy(MixedPolicy(QUARTERS, ON_CPUS), label_selector={"zone": "eu"}).plan(cluster)

    assert counts(plan) == {(1, 0.25): 8, (2, 0): 4}
    assert {place.node_id for place in place_slots(plan.slots, cluster).places} == {"a"}


def test_kinds_on_selections_of_their_own_do_not_count_the_same_node_twice():
    cluster = ClusterCapacity.of(gpu_node("a", gpus=0, cpus=8, labels={"zone": "eu"}), gpu_node("b", gpus=0, cpus=8))

    plan = MixedPolicy(SelectingPolicy(ON_CPUS, label_selector={"zone": "eu"}), CpuPolicy(cpus=1)).plan(cluster)

    assert counts(plan) == {(2, 0): 4, (1, 0): 8}


def test_nodes_that_can_be_added_hold_slots_of_every_kind():
    plan = AutoscalingPolicy(MixedPolicy(QUARTERS, ON_CPUS)).plan(with_type(nodes((16, 2)), cpus=16, gpus=2))

    assert counts(plan) == {(1, 0.25): 48, (2, 0): 24}
    assert plan.nodes_to_add == {"large": 5}


def test_no_more_nodes_are_added_than_the_slots_need():
    policy = CappedPolicy(AutoscalingPolicy(MixedPolicy(CappedPolicy(QUARTERS, 16), CappedPolicy(ON_CPUS, 8))), 50)

    plan = policy.plan(with_type(nodes((16, 2)), cpus=16, gpus=2))

    assert plan.nodes_to_add == {"large": 1}


def test_the_nodes_that_one_kind_adds_have_room_for_the_next():
    policy = MixedPolicy(AutoscalingPolicy(QUARTERS, max_nodes_to_add=1), ON_CPUS)

    plan = policy.plan(with_type(nodes((16, 2)), cpus=16, gpus=2))

    assert counts(plan) == {(1, 0.25): 16, (2, 0): 8}
    assert plan.nodes_to_add == {"large": 1}


def test_two_kinds_add_no_more_nodes_than_there_are():
    policy = MixedPolicy(AutoscalingPolicy(QUARTERS, max_nodes_to_add=3), AutoscalingPolicy(ON_CPUS))

    plan = policy.plan(with_type(nodes((16, 2)), cpus=16, gpus=2))

    assert plan.nodes_to_add == {"large": 5}


def test_train_workers_take_what_all_of_them_need():
    plan = MixedPolicy(GpuPolicy(cpus=1, num_workers=2), ON_CPUS).plan(nodes((16, 4)))

    assert [(slot.num_workers, slot.max_concurrent_trials) for slot in plan.slots] == [(2, 2), (0, 6)]


def worker_places(policy, cluster):
    """On which nodes the Train workers of each trial are: [({node: workers}, number of trials)]."""
    plan = policy.plan(cluster)
    places = place_slots(plan.slots, cluster).places
    return [(dict(place.worker_nodes), place.count) for place in places if place.worker_nodes]


def test_train_workers_use_what_other_slots_leave_of_each_node():
    policy = MixedPolicy(GpuPolicy(cpus=1), CpuPolicy(cpus=1, num_workers=2))

    assert worker_places(policy, nodes((8, 4), (4, 4), (6, 0))) == [({"node-2": 2}, 3), ({"node-0": 2}, 2)]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4)), min_size=1, max_size=6),
    st.sampled_from([GpuPolicy(cpus=1), CpuPolicy(cpus=3), CappedPolicy(CpuPolicy(cpus=2), 3)]),
    st.integers(1, 5),
    st.sampled_from([0.5, 1, 2]),
)
def test_as_many_train_trials_fit_as_all_that_is_left_of_the_nodes_holds(shapes, first, num_workers, cpus):
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


def test_the_workers_of_a_trial_share_a_node_where_they_can():
    policy = MixedPolicy(CappedPolicy(CpuPolicy(cpus=3), 1), CpuPolicy(cpus=1, num_workers=2))

    assert worker_places(policy, nodes((8, 0), (5, 0), (1, 0))) == [
        ({"node-0": 2}, 2),
        ({"node-1": 2}, 2),
        ({"node-0": 1, "node-1": 1}, 1),
    ]


def test_a_small_node_more_takes_no_train_trial_away():
    policy = MixedPolicy(GpuPolicy(cpus=1), CpuPolicy(cpus=1, num_workers=1))

    at_once = [policy.plan(nodes((96, 2), *more)).slots[1].max_concurrent_trials for more in ((), ((2, 0),))]

    assert at_once == [94, 96]


def test_train_workers_have_room_on_nodes_that_are_still_to_be_added():
    policy = AutoscalingPolicy(MixedPolicy(GpuPolicy(cpus=1, num_workers=2), ON_CPUS))

    plan = policy.plan(with_type(nodes((4, 0)), cpus=8, gpus=4))

    assert [slot.max_concurrent_trials for slot in plan.slots] == [10, 12]
    assert plan.nodes_to_add == {"large": 5}


@pytest.mark.parametrize("speeds", [None, (4, 1)])
def test_train_workers_keep_to_nodes_that_have_room_for_their_drivers_too(speeds):
    """All the host memory of the first node is left free, and a driver holds a little."""
    policy = MixedPolicy(CappedPolicy(GpuPolicy(cpus=1, num_workers=2), 2), CpuPolicy(), speeds=speeds)
    cluster = ClusterCapacity.of(*(gpu_node(name, gpus=4, cpus=8, memory_gib=64) for name in "ab"))

    plan = ReservingPolicy(policy, memory="64GiB").plan(cluster)

    assert [slot.max_concurrent_trials for slot in plan.slots] == [2, 12]
    driver, *_ = place_slots(plan.slots, cluster).places
    assert (driver.node_id, driver.worker_nodes) == ("a", (("a", 2),))


def test_slots_after_train_workers_get_what_they_can_never_take():
    policy = MixedPolicy(CappedPolicy(GpuPolicy(cpus=1, num_workers=2), 2), ON_CPUS)

    plan = policy.plan(nodes((8, 2), (8, 2)))

    assert [slot.max_concurrent_trials for slot in plan.slots] == [2, 6]


def test_other_devices_are_kinds_too():
    cluster = ClusterCapacity.of(gpu_node("a", gpus=0, cpus=16, custom={"NPU": 2}))

    plan = MixedPolicy(AcceleratorPolicy(resource="NPU", cpus=4), ON_CPUS).plan(cluster)

    assert [slot.max_concurrent_trials for slot in plan.slots] == [2, 4]


_planned = []


class Noted(CpuPolicy):
    """Notes each time that it plans."""

    def plan(self, capacity):
        _planned.append(capacity)
        return super().plan(capacity)


def test_policies_inside_one_another_plan_once():
    """Twice at each step would be 65,536 times."""
    _planned.clear()
    policy = Noted()
    for _ in range(16):
        policy = MixedPolicy(policy)

    policy.plan(nodes((8, 0)))

    assert len(_planned) == 1


def test_slots_that_are_to_run_by_config_are_refused():
    profile = GpuMemoryProfile(measurements=(GpuMemoryMeasurement(config={"batch": 1}, total_bytes=2**30),))

    with pytest.raises(
        InvalidResourcesError, match=r"a slot of MixedPolicy is for any trial, but .* give it gpu_memory"
    ):
        MixedPolicy(CappedPolicy(GpuMemoryPolicy(profile=profile), 3), ON_CPUS)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MixedPolicy(policies=()), "needs at least one policy"),
        (lambda: MixedPolicy(ON_CPUS, policies=(ON_CPUS,)), "give the policies as arguments or as policies="),
        (lambda: MixedPolicy(ON_CPUS, speeds=(1, 2)), "speeds needs a number for each policy, got 2 for 1"),
        (lambda: MixedPolicy(ON_CPUS, speeds=(0,)), "must be a number above 0, at most 1e.11, got 0"),
        (lambda: MixedPolicy(ON_CPUS, speeds=("fast",)), "must be a number above 0, at most 1e.11, got 'fast'"),
        (lambda: MixedPolicy(ON_CPUS, speeds=(1e300,)), "must be a number above 0, at most 1e.11, got 1e"),
    ],
)
def test_a_wrong_field_is_refused(build, message):
    with pytest.raises(InvalidResourcesError, match=message):
        build()


def test_it_can_be_written_in_a_file(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text(
        "kind: MixedPolicy\nspeeds: [10, 1]\npolicies:\n"
        "  - {kind: GpuPolicy, gpus: 0.25, cpus: 1}\n  - {kind: CpuPolicy, cpus: 2}\n"
    )

    assert load_policy(file) == MixedPolicy(QUARTERS, ON_CPUS, speeds=(10, 1))


def test_each_slot_has_its_node():
    cluster = nodes((16, 2), (8, 0))
    plan = MixedPolicy(QUARTERS, ON_CPUS).plan(cluster)

    assert place_slots(plan.slots, cluster).places == (
        Placement(slot_type=0, node_id="node-0", count=8),
        Placement(slot_type=1, node_id="node-0", count=4),
        Placement(slot_type=1, node_id="node-1", count=4),
    )


def test_on_a_smaller_cluster_the_better_kinds_keep_their_places():
    plan = MixedPolicy(QUARTERS, ON_CPUS).plan(nodes((16, 2), (8, 0)))

    layout = place_slots(plan.slots, nodes((12, 2)))

    assert [layout.count(slot_type) for slot_type in (0, 1)] == [8, 2]


def test_what_is_still_to_be_added_has_no_node_yet():
    cluster = with_type(nodes((16, 2)), cpus=16, gpus=2)
    plan = AutoscalingPolicy(MixedPolicy(QUARTERS, ON_CPUS), max_nodes_to_add=1).plan(cluster)

    assert place_slots(plan.slots, cluster).places == (
        Placement(slot_type=0, node_id="node-0", count=8),
        Placement(slot_type=0, node_id=None, count=8),
        Placement(slot_type=1, node_id="node-0", count=4),
        Placement(slot_type=1, node_id=None, count=4),
    )


def test_a_trial_with_train_workers_has_a_node_for_its_driver_too():
    cluster = nodes((16, 4))
    plan = MixedPolicy(GpuPolicy(cpus=1, num_workers=2), ON_CPUS).plan(cluster)

    first = place_slots(plan.slots, cluster).places[0]

    assert first == Placement(slot_type=0, node_id="node-0", count=2, worker_nodes=(("node-0", 2),))


def test_slots_that_take_few_nodes_leave_those_with_devices():
    cluster = nodes((8, 2), (8, 0))
    plan = MixedPolicy(CappedPolicy(ON_CPUS, 4), GpuPolicy(cpus=4)).plan(cluster)

    assert counts(plan) == {(2, 0): 4, (4, 1): 2}
