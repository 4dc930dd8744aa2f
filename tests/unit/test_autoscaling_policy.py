"""Plans that count nodes which are not there yet."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.clusters import gpu_node, nodes
from tests.unit.strategies import clusters, fixed_size, with_kinds, wrapped
from tests.unit.test_plan_properties import placed_trials
from tune_policies import (
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    FirstFeasiblePolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    MixedPolicy,
    NodeTypeCapacity,
    ReservingPolicy,
    Resources,
)
from tune_policies.placement.layout import with_places


def node_type(name, most, *, cpus=8, gpus=0, **more):
    return NodeTypeCapacity(name=name, resources=Resources(cpus=cpus, gpus=gpus), max_nodes_to_add=most, **more)


SMALL = node_type("small", 4, cpus=8, gpus=1)
LARGE = node_type("large", 2, cpus=64, gpus=8)
CPUS = node_type("cpus", 3, cpus=16)


def growing(*node_types, alive=((8, 0),), most=None):
    return nodes(*alive).model_copy(update={"node_types": node_types, "max_nodes_to_add": most})


@pytest.mark.parametrize(
    ("capacity", "policy", "at_once", "nodes_to_add"),
    [
        pytest.param(growing(SMALL), GpuPolicy(), 4, {"small": 4}, id="as many as the type allows"),
        pytest.param(growing(SMALL, LARGE), GpuPolicy(), 20, {"small": 4, "large": 2}, id="of every type that helps"),
        pytest.param(growing(SMALL, CPUS), GpuPolicy(), 4, {"small": 4}, id="none that does not help"),
        pytest.param(growing(CPUS), CpuPolicy(), 56, {"cpus": 3}, id="beside the alive nodes"),
        pytest.param(growing(SMALL, LARGE, most=2), GpuPolicy(), 16, {"large": 2}, id="the types that hold the most"),
        pytest.param(
            growing(SMALL, LARGE, most=3), GpuPolicy(), 17, {"large": 2, "small": 1}, id="then those that hold less"
        ),
        pytest.param(growing(SMALL, LARGE, most=0), CpuPolicy(), 8, {}, id="none where none may be added"),
        pytest.param(
            growing(SMALL, LARGE), CappedPolicy(GpuPolicy(), 3), 3, {"large": 1}, id="only what the cap needs"
        ),
        pytest.param(growing(CPUS), CappedPolicy(CpuPolicy(), 8), 8, {}, id="none where the alive nodes do"),
        pytest.param(
            growing(LARGE, CPUS), CappedPolicy(CpuPolicy(), 20), 20, {"cpus": 1}, id="no GPU node for CPU trials"
        ),
        pytest.param(
            growing(LARGE, CPUS), CappedPolicy(CpuPolicy(), 99), 99, {"cpus": 3, "large": 1}, id="unless it must be"
        ),
        pytest.param(
            growing(CPUS),
            CappedPolicy(ReservingPolicy(CpuPolicy(), cpus=4), 6),
            6,
            {"cpus": 1},
            id="what is left free counts",
        ),
        pytest.param(
            growing(SMALL), GpuPolicy(num_workers=3), 1, {"small": 3}, id="3 of 4 for a trial with 3 Train workers"
        ),
        pytest.param(
            growing(SMALL), FirstFeasiblePolicy(GpuPolicy(), CpuPolicy()), 4, {"small": 4}, id="a GPU that can be had"
        ),
    ],
)
def test_the_nodes_that_are_counted_and_needed(capacity, policy, at_once, nodes_to_add):
    plan = AutoscalingPolicy(policy).plan(capacity)

    assert (plan.max_concurrent_trials, plan.nodes_to_add) == (at_once, nodes_to_add)


@pytest.mark.parametrize(
    ("capacity", "policy", "slots", "nodes_to_add"),
    [
        pytest.param(
            growing(SMALL),
            MixedPolicy(GpuPolicy(num_workers=2, cpus=1), CpuPolicy()),
            [2, 36],
            {"small": 4},
            id="GPU nodes run the Train workers for which they are added",
        ),
        pytest.param(
            growing(SMALL, CPUS),
            MixedPolicy(CappedPolicy(GpuPolicy(cpus=1), 2), CpuPolicy()),
            [2, 70],
            {"small": 2, "cpus": 3},
            id="no GPU node for CPU trials beside GPU trials",
        ),
        pytest.param(
            growing(SMALL, CPUS),
            MixedPolicy(CappedPolicy(GpuPolicy(cpus=1), 2), CappedPolicy(CpuPolicy(), 30)),
            [2, 30],
            {"small": 2, "cpus": 1},
            id="as few nodes as hold them",
        ),
        pytest.param(
            growing(SMALL),
            MixedPolicy(CappedPolicy(GpuPolicy(cpus=1), 2), CappedPolicy(CpuPolicy(), 30)),
            [2, 30],
            {"small": 3},
            id="unless nothing else would hold them",
        ),
        pytest.param(
            growing(SMALL, LARGE, CPUS),
            MixedPolicy(CappedPolicy(GpuPolicy(cpus=1), 2), CpuPolicy()),
            [2, 118],
            {"large": 1, "cpus": 3},
            id="no GPU node of a type that GPU trials do not need",
        ),
        pytest.param(
            growing(SMALL, CPUS),
            MixedPolicy(CappedPolicy(CpuPolicy(cpus=4), 4), CappedPolicy(CpuPolicy(cpus=2), 4)),
            [4, 4],
            {"cpus": 1},
            id="no GPU node for CPU trials of two sizes",
        ),
        pytest.param(
            growing(CPUS, node_type("huge", 1, cpus=48)),
            MixedPolicy(CappedPolicy(CpuPolicy(cpus=4), 12), CappedPolicy(CpuPolicy(cpus=2), 4)),
            [12, 4],
            {"huge": 1},
            id="a large node rather than several small ones",
        ),
        pytest.param(
            growing(LARGE, CPUS, most=2),
            MixedPolicy(CappedPolicy(GpuPolicy(cpus=1), 8), CpuPolicy()),
            [8, 80],
            {"large": 1, "cpus": 1},
            id="under a limit for all types together",
        ),
    ],
)
def test_the_nodes_that_slots_of_several_types_need(capacity, policy, slots, nodes_to_add):
    plan = AutoscalingPolicy(policy).plan(capacity)

    assert ([slot.max_concurrent_trials for slot in plan.slots], plan.nodes_to_add) == (slots, nodes_to_add)


def test_the_policys_own_limit_counts_too():
    plan = AutoscalingPolicy(GpuPolicy(), max_nodes_to_add=1).plan(growing(SMALL, LARGE, most=5))

    assert plan.nodes_to_add == {"large": 1}
    assert plan.reasons[0] == "nodes that can be added are counted: up to 2 large, 4 small, at most 1 together"


def test_the_reason_names_the_limit_of_each_type():
    plan = AutoscalingPolicy(GpuPolicy()).plan(growing(SMALL, LARGE))

    assert plan.reasons[0] == "nodes that can be added are counted: up to 2 large, 4 small"


@pytest.mark.parametrize(
    ("cap", "nodes_to_add"), [(20, {"large": 2, "small": 4}), (9, {"large": 2}), (8, {"large": 1})]
)
def test_a_cap_around_it_needs_no_more_nodes_than_a_cap_within(cap, nodes_to_add):
    around = CappedPolicy(AutoscalingPolicy(GpuPolicy()), cap).plan(growing(SMALL, LARGE))
    within = AutoscalingPolicy(CappedPolicy(GpuPolicy(), cap)).plan(growing(SMALL, LARGE))

    assert around.nodes_to_add == within.nodes_to_add == nodes_to_add


def test_types_that_are_not_known_add_nothing_and_the_plan_says_so():
    plan = AutoscalingPolicy(CpuPolicy()).plan(nodes((8, 0)).model_copy(update={"node_types": None}))

    assert (plan.max_concurrent_trials, plan.nodes_to_add) == (8, {})
    assert plan.reasons[0] == "the types of nodes that the autoscaler can add are not known, so none are counted"


@pytest.mark.parametrize("types", [(), (node_type("gone", 0, gpus=1),)], ids=["no types", "a type that is used up"])
def test_without_anything_to_add_it_is_the_inner_plan(types):
    assert AutoscalingPolicy(CpuPolicy()).plan(growing(*types)) == CpuPolicy().plan(nodes((8, 0)))


def test_what_no_node_type_can_meet_is_refused_with_what_they_have():
    with pytest.raises(InfeasibleRequestError) as caught:
        AutoscalingPolicy(GpuPolicy(gpus=16)).plan(growing(SMALL, LARGE))

    assert str(caught.value) == (
        "one trial needs 16 GPUs, but with all nodes that can be added, the largest node offers 64 CPUs, 8 GPUs: "
        "short of GPU. Ask for at most 8 GPUs per worker, or for num_workers=2 with 8 GPUs each, or add a larger node."
    )


def test_alive_nodes_that_fit_are_not_spoiled_by_nodes_that_could_come():
    """The GPU memory of a node that is not there cannot be read, so GpuMemoryPolicy cannot plan with it."""
    alive = ClusterCapacity.of(gpu_node("a", gpu_memory_gib=16))

    plan = AutoscalingPolicy(GpuMemoryPolicy(gpu_memory="6GiB")).plan(alive.model_copy(update={"node_types": (SMALL,)}))

    assert (plan.max_concurrent_trials, plan.nodes_to_add) == (2, {})
    assert plan.label_selector == {"ray.io/node-id": "a"}


def test_nodes_that_are_not_there_yet_are_never_listed_for_ray():
    large = NodeTypeCapacity(
        name="large", resources=Resources(cpus=8, gpus=1), accelerator_type="A100", max_nodes_to_add=2
    )
    alive = ClusterCapacity.of(
        gpu_node("a", gpu_memory_gib=80), gpu_node("b", gpu_memory_gib=16, accelerator_type="A100")
    ).model_copy(update={"node_types": (large,)})

    plan = AutoscalingPolicy(GpuPolicy(min_gpu_memory="30GiB")).plan(alive)

    assert (plan.label_selector, plan.nodes_to_add) == ({"ray.io/node-id": "a"}, {})


def test_little_host_memory_leaves_room_for_few_drivers():
    tiny = NodeTypeCapacity(name="tiny", resources=Resources(cpus=8, memory_bytes="2MiB"), max_nodes_to_add=5)

    plan = AutoscalingPolicy(CappedPolicy(CpuPolicy(num_workers=1), 6)).plan(growing(tiny, alive=()))

    assert plan.nodes_to_add == {"tiny": 3}


def test_nodes_without_room_for_a_driver_are_not_added_for_drivers():
    """The alive node has the CPUs for all workers, but not a mebibyte of host memory for a driver."""
    no_room = NodeTypeCapacity(name="no room", resources=Resources(cpus=8, memory_bytes=2**19 + 1), max_nodes_to_add=3)
    room = NodeTypeCapacity(name="room", resources=Resources(cpus=2, memory_bytes="1GiB"), max_nodes_to_add=3)
    alive = ClusterCapacity.of(Resources(cpus=8, memory_bytes=2**19 + 1))

    plan = CappedPolicy(AutoscalingPolicy(CpuPolicy(num_workers=1)), 2).plan(
        alive.model_copy(update={"node_types": (no_room, room)})
    )

    assert (plan.max_concurrent_trials, plan.nodes_to_add) == (2, {"room": 1})


def test_a_node_that_has_just_the_host_memory_of_a_trial_is_enough_for_it():
    exact = NodeTypeCapacity(name="exact", resources=Resources(cpus=8, memory_bytes="1GiB"), max_nodes_to_add=5)

    plan = AutoscalingPolicy(CappedPolicy(CpuPolicy(memory="1GiB"), 2)).plan(growing(exact, alive=()))

    assert plan.nodes_to_add == {"exact": 2}


def test_an_added_node_never_takes_the_id_of_an_alive_one():
    alive = ClusterCapacity.of(gpu_node("small+1")).model_copy(update={"node_types": (SMALL,)})

    ids = [node.node_id for node in alive.with_nodes_added({"small": 2}).nodes]

    assert len(set(ids)) == 3


node_types = st.builds(
    lambda cpus, gpus, most, accelerator: (cpus, gpus, most, accelerator),
    st.sampled_from([0, 1, 3, 16]),
    st.integers(0, 4),
    st.integers(0, 4),
    st.sampled_from([None, "T4", "A100"]),
)


@st.composite
def growing_clusters(draw):
    shapes = draw(st.lists(node_types, min_size=1, max_size=3))
    types = tuple(
        node_type(f"type-{i}", most, cpus=cpus, gpus=gpus, accelerator_type=accelerator)
        for i, (cpus, gpus, most, accelerator) in enumerate(shapes)
    )
    limit = draw(st.none() | st.integers(0, 6))
    return draw(clusters()).model_copy(update={"node_types": types, "max_nodes_to_add": limit})


def plan_or_skip(policy, capacity):
    try:
        return policy.plan(capacity)
    except InfeasibleRequestError:
        assume(False)


@given(growing_clusters(), wrapped, st.none() | st.integers(1, 9))
def test_the_trials_of_a_plan_run_with_the_nodes_that_it_adds(capacity, policy, cap):
    policy = AutoscalingPolicy(policy) if cap is None else CappedPolicy(AutoscalingPolicy(policy), cap)

    plan = plan_or_skip(policy, capacity)

    grown = capacity.with_nodes_added(plan.nodes_to_add)
    assert placed_trials(grown, plan, plan.max_concurrent_trials) == plan.max_concurrent_trials


@given(growing_clusters(), wrapped)
def test_no_more_nodes_are_added_than_may_be(capacity, policy):
    plan = plan_or_skip(AutoscalingPolicy(policy), capacity)

    assert sum(plan.nodes_to_add.values()) <= (99 if capacity.max_nodes_to_add is None else capacity.max_nodes_to_add)
    assert Counter(plan.nodes_to_add) <= Counter({each.name: each.max_nodes_to_add for each in capacity.node_types})


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(growing_clusters(), with_kinds)
def test_the_slots_of_all_types_have_their_places_with_the_nodes_that_are_added(capacity, policy):
    plan = plan_or_skip(AutoscalingPolicy(policy), capacity)
    assume(len(plan.slots) > 1)

    assert with_places(plan.slots, capacity.with_nodes_added(plan.nodes_to_add)) == plan.slots


@given(growing_clusters(), fixed_size, st.integers(1, 12))
def test_one_node_less_than_the_plan_adds_is_too_few(capacity, policy, cap):
    plan = plan_or_skip(AutoscalingPolicy(CappedPolicy(policy, cap)), capacity)

    for name in plan.nodes_to_add:
        fewer = capacity.with_nodes_added(Counter(plan.nodes_to_add) - Counter([name]))
        if len(plan.slots) > 1:
            assert with_places(plan.slots, fewer) != plan.slots
        else:
            assert placed_trials(fewer, plan, plan.max_concurrent_trials) < plan.max_concurrent_trials


@settings(max_examples=40)
@given(growing_clusters(), wrapped)
def test_more_nodes_never_turn_a_plan_into_an_error(capacity, policy):
    plan_or_skip(policy, capacity)

    assert AutoscalingPolicy(policy).plan(capacity)
