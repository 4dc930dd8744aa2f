"""Tests of the choice of a policy that can run now, and of the resources that the other policies would request."""

import pytest

from tests.clusters import GIB, gpu_node, nodes
from tune_policies import (
    AutoPolicy,
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    EvenSplitPolicy,
    FirstFeasiblePolicy,
    FreeCapacityPolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    NodeTypeCapacity,
    ReservingPolicy,
    Resources,
    TrialPlan,
    TrialSlot,
)
from tune_policies.autoscaling.readiness import needs, plan_now

ALIVE = nodes((8, 0))
UNKNOWN = ALIVE.model_copy(update={"node_types": None})


def node_type(name, most=4, *, cpus=8, gpus=0):
    return NodeTypeCapacity(name=name, resources=Resources(cpus=cpus, gpus=gpus), max_nodes_to_add=most)


def growing(*node_types):
    return ALIVE.model_copy(update={"node_types": node_types})


def resources(bundles):
    """Return the resources of bundles, rounded to Ray's ticks."""
    return [{name: round(amount, 4) for name, amount in bundle.resources.items()} for bundle in bundles]


def test_each_choice_keeps_min_trials():
    gpu, cpu = GpuPolicy(), CpuPolicy()
    several = GpuPolicy(accelerator_type=("H100", "A100"), min_trials=4)

    first = FirstFeasiblePolicy(gpu, cpu, min_trials=4)
    one_by_one = tuple(FirstFeasiblePolicy(each, min_trials=4) for each in (gpu, cpu))
    assert (first.choices, one_by_one[0].choices) == (one_by_one, one_by_one[:1])
    assert first | several == FirstFeasiblePolicy(first, several)
    assert [choice.min_trials for choice in several.choices] == [4, 4]


@pytest.mark.parametrize("policy", [GpuPolicy(min_trials=3), FirstFeasiblePolicy(GpuPolicy(), min_trials=3)], ids=str)
@pytest.mark.parametrize("capacity", [UNKNOWN, growing(node_type("g", gpus=1))], ids=["unknown types", "known types"])
def test_nodes_are_requested_for_min_trials(policy, capacity):
    assert len(needs(policy, capacity, 1).bundles) == 3


def test_the_or_operator_returns_a_first_feasible_policy():
    gpu, cpu, small = GpuPolicy(), CpuPolicy(cpus=4), CpuPolicy()

    assert gpu | cpu == FirstFeasiblePolicy(gpu, cpu)
    assert gpu | cpu | small == FirstFeasiblePolicy(gpu, cpu, small)
    with pytest.raises(TypeError):
        gpu | 4
    with pytest.raises(TypeError):
        (gpu | cpu) | 4


def test_auto_policy_uses_a_gpu_a_gpu_fraction_or_a_cpu():
    gpus = ClusterCapacity.of(gpu_node("a", gpus=2, cpus=16, gpu_memory_gib=16))

    assert AutoPolicy().plan(gpus).trial.gpus == 1
    assert AutoPolicy(gpu_memory="4GiB").plan(gpus).trial.gpus == 0.25
    assert AutoPolicy(num_workers=2).plan(gpus).common_slot.per_worker.gpus == 1
    assert AutoPolicy().plan(ALIVE).trial == Resources(cpus=1)
    assert any("skipped GpuPolicy" in reason for reason in AutoPolicy().plan(ALIVE).reasons)


@pytest.mark.parametrize(
    ("policy", "fewer_than_fit"),
    [
        (CpuPolicy(), False),
        (CappedPolicy(CpuPolicy(), 3), True),
        (CappedPolicy(CpuPolicy(), 300), False),
        (ReservingPolicy(CpuPolicy(), cpus=1), True),
        (CpuPolicy(num_workers=2), False),
    ],
    ids=["resources", "capped", "capped above what fits", "reserving", "train workers"],
)
def test_fewer_than_fit_is_set_if_the_policy_limits_the_number_of_trials(policy, fewer_than_fit):
    assert policy.plan(ALIVE).fewer_than_fit is fewer_than_fit


def test_a_plan_with_nodes_to_add_runs_now_if_the_first_trials_fit_alive_nodes():
    policy = AutoscalingPolicy(CpuPolicy())

    assert plan_now(policy, growing(node_type("cpu")), 8).nodes_to_add == {"cpu": 4}
    with pytest.raises(InfeasibleRequestError, match="the alive nodes do not have room for these trials yet"):
        plan_now(policy, growing(node_type("cpu")), 9)


RESERVING, FREE = ReservingPolicy(CpuPolicy(), cpus=8), FreeCapacityPolicy(CpuPolicy())
IN_USE = ClusterCapacity.of(ALIVE.nodes[0].model_copy(update={"in_use": Resources(cpus=8)}))


@pytest.mark.parametrize(("inner", "alive"), [(RESERVING, ALIVE), (FREE, IN_USE)], ids=["reserved", "in use"])
def test_a_node_is_added_for_trials_if_all_resources_of_the_alive_node_are_left_free(inner, alive):
    policy = AutoscalingPolicy(inner)
    capacity = alive.model_copy(update={"node_types": (node_type("cpu"),)})

    assert CappedPolicy(policy, 8).plan(capacity).nodes_to_add == {"cpu": 1}
    assert CappedPolicy(policy, 9).plan(capacity).nodes_to_add == {"cpu": 2}
    with pytest.raises(InfeasibleRequestError, match="the alive nodes do not have room for these trials yet"):
        plan_now(policy, capacity, 1)


def test_the_known_node_types_determine_the_bundles_and_the_suitable_types():
    wanted = needs(GpuPolicy(), growing(node_type("gpu", gpus=1), node_type("cpu"), node_type("gone", 0, gpus=8)), 2)

    assert (resources(wanted.bundles), wanted.node_types) == ([{"CPU": 8, "GPU": 1}] * 2, {"gpu"})


@pytest.mark.parametrize(
    ("capacity", "num_trials", "message"),
    [
        pytest.param(
            growing(node_type("gpu", gpus=1)),
            1,
            "the largest node has 8 CPUs, 1 GPU",
            id="node types that are too small",
        ),
        pytest.param(growing(node_type("gpu", 2, gpus=2)), 3, "only 2 would fit at once", id="too few nodes"),
        pytest.param(ALIVE, 1, "the largest node has 8 CPUs, 0 GPUs", id="no nodes to add"),
    ],
)
def test_a_request_that_no_known_node_type_satisfies_is_rejected(capacity, num_trials, message):
    with pytest.raises(InfeasibleRequestError, match=message):
        needs(GpuPolicy(gpus=2), capacity, num_trials)


def test_the_limit_of_the_users_autoscaling_policy_applies():
    policy = CappedPolicy(AutoscalingPolicy(GpuPolicy(num_workers=2), max_nodes_to_add=1), 4)

    with pytest.raises(InfeasibleRequestError, match="the cluster has room for only 1 such worker"):
        needs(policy, growing(node_type("gpu", gpus=1)), 1)


@pytest.mark.parametrize(
    ("policy", "bundles"),
    [
        pytest.param(GpuPolicy(), [{"GPU": 1}], id="a GPU with any number of CPUs"),
        pytest.param(GpuPolicy(gpus=0.3, cpus=3), [{"CPU": 3, "GPU": 0.3333}], id="a GPU fraction"),
        pytest.param(GpuPolicy(accelerator_type="H100"), [{"GPU": 1, "accelerator_type:H100": 0.001}], id="a GPU type"),
        pytest.param(CpuPolicy(cpus=12, memory="9GiB"), [{"CPU": 12, "memory": 9 * GIB}], id="host memory"),
        pytest.param(GpuMemoryPolicy(gpu_memory="40GiB", cpus=2), [{"CPU": 2, "GPU": 1}], id="GPU memory"),
        pytest.param(EvenSplitPolicy(num_trials=4, min_cpus=3, min_gpus=3), [{"CPU": 3, "GPU": 3}], id="an even split"),
        pytest.param(ReservingPolicy(GpuPolicy(), cpus=4), [{"GPU": 1}], id="without reserved resources"),
        pytest.param(
            GpuPolicy(gpus=2, num_workers=2), [{"memory": 2**20}, {"GPU": 2}, {"GPU": 2}], id="a driver and workers"
        ),
    ],
)
def test_without_known_node_types_the_policy_determines_the_request(policy, bundles):
    wanted = needs(policy, UNKNOWN, 1)

    assert (resources(wanted.bundles), wanted.node_types) == (bundles, None)


def test_a_request_that_no_node_could_satisfy_is_infeasible():
    with pytest.raises(InfeasibleRequestError, match="reserved for other programs"):
        needs(ReservingPolicy(CpuPolicy(), gpus=2**20), UNKNOWN, 1)


def test_bundles_of_better_slot_types_come_first():
    gpu = TrialSlot(trial=Resources(gpus=0.5), max_concurrent_trials=2, label_selector={"market": "spot"})
    cpu = TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=4)

    bundles = TrialPlan(slots=(gpu, cpu), limited_by="GPU").bundles(3)

    assert [tuple(bundle) for bundle in bundles] == [({"GPU": 0.5}, {"market": "spot"})] * 2 + [({"CPU": 2}, {})]


def test_a_request_with_too_many_bundles_raises_an_error_with_the_limit():
    workers = TrialSlot(trial=Resources(), num_workers=9, per_worker=Resources(cpus=1), max_concurrent_trials=1)

    with pytest.raises(InvalidResourcesError, match="100000 trials may need 1,000,000 bundles, more than the 100,000"):
        TrialPlan(slots=(workers,), limited_by="CPU").bundles(100_000)


@pytest.mark.parametrize("share", [2, 5, 7, 10, 25, 96])
def test_subtracting_fractions_as_floats_leaves_room_for_exactly_the_planned_trials(share):
    slot = TrialSlot(trial=Resources(gpus=1 / share), max_concurrent_trials=4 * share)
    left, fitting = 4.0, 0

    (bundle,) = {each.resources["GPU"] for each in TrialPlan(slots=(slot,), limited_by="GPU").bundles(99)}
    while bundle <= left:
        left -= bundle
        fitting += 1

    assert fitting == 4 * 10_000 // (10_000 // share)


def test_the_error_explains_why_each_choice_failed():
    errors = (
        InfeasibleRequestError("1 GPU", "the largest node has 8 CPUs, and the launch failed", "GPU", "Add one."),
        InfeasibleRequestError("99 CPUs", "the largest node has 8 CPUs", "CPU", "Ask for 8."),
    )

    assert str(InfeasibleRequestError.of_each(errors)) == (
        "one trial needs 1 GPU or else 99 CPUs, but for 1 GPU: the largest node has 8 CPUs, and the launch failed; "
        "for 99 CPUs: the largest node has 8 CPUs: short of GPU and CPU. Ask for 8."
    )
    assert InfeasibleRequestError.of_each(errors).tried == errors
