"""Tests that the nodes of a plan are those that Ray's own autoscalers launch if several node types are suitable."""

import logging
import random

import pytest

from tests.autoscaler_v2 import nodes_launched, nodes_launched_by_v1, nodes_launched_for_groups
from tune_policies import (
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    NodeCapacity,
    NodeTypeCapacity,
    Resources,
)
from tune_policies.placement.launch_forecast import has_choice, launched_for_request

GIB = 2**30
DEVICE = "accelerator_type:"


@pytest.fixture(autouse=True)
def _no_messages_of_ray(caplog):
    caplog.set_level(logging.ERROR, logger="ray")


def config_of(capacity):
    """Return the configuration of Ray's autoscaler for a cluster with a head and node types."""
    (head,) = capacity.nodes
    types = {each.name: each for each in capacity.node_types}
    return {
        "head_node_type": "head",
        "max_workers": 10_000 if capacity.max_nodes_to_add is None else capacity.max_nodes_to_add,
        "available_node_types": {
            "head": {"resources": amounts_of(head.resources, None), "max_workers": 0},
            **{
                name: {
                    "resources": amounts_of(each.resources, each.accelerator_type),
                    "labels": each.labels,
                    "max_workers": each.max_nodes_to_add,
                }
                for name, each in types.items()
            },
        },
    }


def amounts_of(resources, accelerator_type):
    amounts = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": resources.memory_bytes, **resources.custom}
    if accelerator_type is not None:
        amounts[DEVICE + accelerator_type] = 1
    return {name: amount for name, amount in amounts.items() if amount}


def groups_of(plan):
    """Return the placement groups of a plan: the drivers of Train runs first, and then the trials or their workers."""
    drivers = [slot.bundles()[:1] for slot in plan.slots if slot.num_workers for _ in range(slot.max_concurrent_trials)]
    others = [
        slot.bundles()[1:] if slot.num_workers else slot.bundles()
        for slot in plan.slots
        for _ in range(slot.max_concurrent_trials)
    ]
    return drivers + others


def cluster(*types, head=None, version=2, limit=None):
    head = Resources(memory_bytes=8 * GIB) if head is None else head
    return ClusterCapacity(
        nodes=(NodeCapacity(node_id="head", resources=head, is_head=True),),
        node_types=types,
        autoscaler_version=version,
        max_nodes_to_add=limit,
    )


def node_type(name, cpus, *, most=20, memory=4, gpus=0, kind=None, custom=None, labels=None):
    resources = Resources(cpus=cpus, gpus=gpus, memory_bytes=int(memory * cpus * GIB), custom=custom or {})
    return NodeTypeCapacity(
        name=name, resources=resources, max_nodes_to_add=most, accelerator_type=kind, labels=labels or {}
    )


def draw(rng, version):
    """Return a cluster and a plan for it whose trials fit on several node types, or ``None``."""
    gpus = rng.choice((0, 0, 1))
    types = []
    for number in range(rng.randint(2, 5)):
        types.append(
            node_type(
                rng.choice("abcxyz") + str(number),
                rng.choice((4, 8, 16, 32, 64, 96)),
                most=rng.choice((1, 2, 5, 50, 500)),
                memory=rng.choice((1, 2, 3.5, 4, 8)),
                gpus=rng.choice((1, 1, 2, 4, 8)) if gpus else rng.choice((0, 0, 0, 1, 4)),
                kind=rng.choice((None, "T4", "A100")) if gpus else None,
                custom=rng.choice(({}, {}, {"disk": 3})),
                labels=rng.choice(({}, {"zone": "eu"}, {"zone": "us"})),
            )
        )
    head = rng.choice((Resources(memory_bytes=8 * GIB), Resources(cpus=4, memory_bytes=16 * GIB)))
    workers = rng.choice((0, 0, 0, 2, 3))
    memory = rng.choice((None, None, "2GiB", "20GiB"))
    cpus = rng.choice((1, 2, 4, 8))
    if gpus:
        policy = GpuPolicy(gpus=rng.choice((1, 1, 0.5, 0.25, 2)), cpus=cpus, memory=memory, num_workers=workers)
    else:
        policy = CpuPolicy(cpus=cpus, memory=memory, num_workers=workers)
    number = rng.choice((1, 2, 4, 7, 12, 30, 100))
    capacity = cluster(*types, head=head, version=version, limit=rng.choice((None, None, None, 1000)))
    try:
        plan = AutoscalingPolicy(CappedPolicy(policy, number)).plan(capacity)
    except InfeasibleRequestError:
        return None
    return (capacity, plan) if plan.nodes_to_add and has_choice(plan.slots, capacity) else None


def drawn(number, version):
    rng, found = random.Random(version), []
    while len(found) < number:
        if (one := draw(rng, version)) is not None:
            found.append(one)
    return found


SIZES = [12, pytest.param(200, marks=[pytest.mark.rest, pytest.mark.timeout(600)])]


def is_forecast(plan, launched):
    """Return whether the plan contains the launched nodes, or for Train runs, more nodes of the launched types.

    A plan assumes the worst case for the nodes of trial drivers.
    """
    planned = plan.nodes_to_add
    if any(slot.num_workers for slot in plan.slots):
        return planned.keys() == launched.keys() and all(planned[name] >= launched[name] for name in launched)
    return planned == launched


@pytest.mark.parametrize(("version", "launched_by"), [(1, nodes_launched_by_v1), (2, nodes_launched_for_groups)])
@pytest.mark.parametrize("number", SIZES)
def test_rays_autoscaler_launches_the_nodes_of_the_plan_for_pending_trials(number, version, launched_by):
    others = []
    for capacity, plan in drawn(number, version):
        launched = launched_by(config_of(capacity), groups_of(plan))
        if not is_forecast(plan, launched):
            others.append((plan.nodes_to_add, launched, capacity))

    assert not others


@pytest.mark.parametrize("number", SIZES)
def test_autoscaler_v2_launches_the_forecast_nodes_for_one_request_of_all_trials(number):
    others = []
    for capacity, plan in drawn(number, 2):
        bundles = plan.bundles(plan.max_concurrent_trials)
        resources, selectors = [each.resources for each in bundles], [each.label_selector for each in bundles]
        launched = nodes_launched(config_of(capacity), resources, selectors)
        forecast = launched_for_request(plan.slots, capacity)
        if launched != (forecast.nodes if forecast.is_enough else {}):
            others.append((forecast, launched, capacity))

    assert not others


BIG_AND_SMALL = node_type("big", 64), node_type("small", 8)


@pytest.mark.parametrize("version", [1, 2])
def test_four_small_trials_get_four_small_nodes_instead_of_a_big_one(version):
    plan = AutoscalingPolicy(CappedPolicy(CpuPolicy(cpus=8), 4)).plan(cluster(*BIG_AND_SMALL, version=version))

    assert plan.nodes_to_add == {"small": 4}


def test_the_plan_states_that_a_request_for_all_trials_gets_fewer_nodes_than_pending_trials():
    plan = AutoscalingPolicy(CappedPolicy(CpuPolicy(cpus=8), 8)).plan(cluster(*BIG_AND_SMALL))

    assert (
        "Ray's autoscaler (version 2) launches 8 small for pending trials, but 1 big if you call request_capacity "
        "before the run"
    ) in plan.reasons


@pytest.mark.parametrize(("version", "chosen"), [(2, "standard"), (1, "standard")])
def test_of_two_types_with_the_same_gpu_ray_chooses_the_first_or_the_last_by_name(version, chosen):
    """The case has the resources of a report to Ray's developers, in which the autoscaler chose the other type."""
    standard, highmem = (
        NodeTypeCapacity(
            name=name,
            resources=Resources(cpus=16, gpus=1, memory_bytes=memory, custom={"gram": 24}),
            max_nodes_to_add=5,
        )
        for name, memory in [("standard", 30107260928), ("highmem", 62277025792)]
    )

    plan = AutoscalingPolicy(CappedPolicy(GpuPolicy(cpus=16), 1)).plan(cluster(standard, highmem, version=version))

    assert plan.nodes_to_add == {chosen: 1}


def test_a_limit_on_all_nodes_is_reached_by_the_types_that_ray_launches():
    """The plan does not promise the 32 trials of four big nodes, because Ray launches four small nodes."""
    plan = AutoscalingPolicy(CpuPolicy(cpus=8)).plan(cluster(*BIG_AND_SMALL, limit=4))

    assert (plan.max_concurrent_trials, plan.nodes_to_add) == (4, {"small": 4})


@pytest.mark.parametrize("version", [1, 2])
def test_a_plan_for_all_nodes_of_six_types_launches_all_of_them(version):
    sizes = {f"t{number}": cpus for number, cpus in enumerate((4, 8, 16, 32, 64, 96))}
    capacity = cluster(*(node_type(name, cpus, most=1000) for name, cpus in sizes.items()), version=version)

    plan = AutoscalingPolicy(CpuPolicy(cpus=2)).plan(capacity)

    assert plan.nodes_to_add == dict.fromkeys(sizes, 1000)
    assert plan.max_concurrent_trials == sum(1000 * cpus // 2 for cpus in sizes.values())
