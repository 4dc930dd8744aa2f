"""Tests that compare the remaining resources of a node with the placement of workers one by one."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clusters import gpu_node
from tune_policies.placement.bundles import BundleGroup, RemainingNode, count_groups, is_held
from tune_policies.placement.count_trials import subtract, workers_on_node
from tune_policies.placement.request import Request
from tune_policies.values.resources import Resources

GPU = 10_000

worker_amounts = st.fixed_dictionaries(
    {},
    optional={
        "CPU": st.sampled_from([1_000, 5_000, 10_000, 20_000]),
        "GPU": st.sampled_from([384, 2_500, 3_333, 4_000, 6_000, 10_000, 20_000]),
        "memory": st.integers(1, 9),
        "accelerator_type:T4": st.just(10),
    },
).filter(bool)
planned_workers = worker_amounts.map(
    lambda worker: {name: amount for name, amount in worker.items() if ":" not in name}
).filter(lambda worker: "CPU" in worker or "GPU" in worker)
node_amounts = st.fixed_dictionaries(
    {"CPU": st.integers(0, 80_000), "GPU": st.integers(0, 5).map(lambda gpus: gpus * GPU)},
    optional={"memory": st.integers(0, 30), "accelerator_type:T4": st.just(GPU)},
)


def resources(worker):
    """Return the worker's amounts as Resources, without its device type."""
    return Resources(
        cpus=worker.get("CPU", 0) / GPU, gpus=worker.get("GPU", 0) / GPU, memory_bytes=worker.get("memory")
    )


def allocated(node, worker, most=400):
    return next((count for count in range(most) if not node.allocate(worker)), most)


@given(node_amounts, worker_amounts)
def test_the_number_of_slots_equals_the_workers_placed_one_by_one(has, worker):
    number = RemainingNode(has).slots(worker, 400)

    assert number == allocated(RemainingNode(has), worker)


@given(st.integers(0, 4), st.sampled_from([0, 0.5, 1, 8]), st.none() | st.integers(2, 30), planned_workers)
def test_the_planner_counts_as_many_workers_as_are_placed_one_by_one(gpus, cpus, memory, worker):
    node = gpu_node("a", gpus=gpus, cpus=cpus)
    node = node.model_copy(update={"resources": node.resources.replaced(memory_bytes=memory)})

    planned = workers_on_node(node, Request(worker=resources(worker)))

    assert min(planned, 400) == allocated(RemainingNode(node.amounts), worker)


@given(st.integers(1, 3), st.lists(st.sampled_from([2_500, 4_000, 5_000, 6_000, 10_000]), max_size=5))
def test_placed_fractions_fit_some_assignment_to_devices(gpus, shares):
    """A set of fractions that fits some assignment may still be rejected, because Ray does not search for one."""
    node = RemainingNode({"GPU": gpus * GPU})

    are_placed = all(node.allocate({"GPU": share}) for share in sorted(shares, reverse=True))

    choices = product(range(gpus), repeat=len(shares))
    sums = ([sum(s for s, d in zip(shares, each, strict=True) if d == i) for i in range(gpus)] for each in choices)
    assert not are_placed or any(max(each) <= GPU for each in sums)


@given(node_amounts, st.lists(worker_amounts, max_size=4), worker_amounts)
def test_released_resources_are_available_again(has, held, worker):
    node = RemainingNode(has)
    for each in held:
        node.hold(each)
    between = node.slots(worker, 400)
    for each in held:
        node.release(each)

    assert between <= node.slots(worker, 400) == RemainingNode(has).slots(worker, 400)


@given(st.integers(0, 4), st.integers(1, 30), planned_workers, st.integers(0, 3))
def test_subtracting_workers_never_leaves_more_resources_than_placing_the_workers(gpus, memory, worker, drivers):
    node = gpu_node("a", gpus=gpus, cpus=4)
    node = node.model_copy(update={"resources": node.resources.replaced(memory_bytes=memory)})
    fit = workers_on_node(node, Request(worker=resources(worker)))
    held = RemainingNode(node.amounts)
    for _ in range(fit):
        held.allocate(worker)

    left = subtract(node, worker, fit, num_drivers=drivers)

    assert all(left.amounts.get(name, 0) <= held.amount(name) for name in ("CPU", "GPU"))
    assert left.resources.memory_bytes is not None  # the host memory remains known


@pytest.mark.parametrize("memory_gib", [None, 64])
def test_unknown_host_memory_does_not_limit_workers(memory_gib):
    node = gpu_node("a", cpus=8, memory_gib=memory_gib)
    worker = Resources(cpus=1, memory_bytes="8GiB")

    assert workers_on_node(node, Request(worker=worker)) == 8
    assert is_held(BundleGroup([{"CPU": 1, "memory": 8 * 2**30}] * 8), [node])
    assert RemainingNode(node.amounts).slots(worker.ticks, 9) == 8


def test_the_largest_bundles_are_placed_first():
    two, three = gpu_node("two", cpus=2), gpu_node("three", cpus=3)

    assert is_held(BundleGroup([{"CPU": 1}, {"CPU": 2}, {"CPU": 2}]), [two, three])


@pytest.mark.parametrize("turn", [1, -1])
def test_bundles_without_a_device_leave_devices_for_others_in_any_order_of_the_nodes(turn):
    nodes = [gpu_node("gpu", gpus=1, cpus=2), gpu_node("cpu", gpus=0, cpus=2)][::turn]

    assert is_held(BundleGroup([{"CPU": 2}, {"CPU": 1, "GPU": 1}]), nodes)
    assert count_groups(BundleGroup([{"CPU": 1}, {"CPU": 1}]), nodes, most=9) == 2


def test_a_node_can_declare_any_number_of_devices():
    node = RemainingNode({"GPU": 10**15})

    assert node.allocate({"GPU": 2_500})
    assert node.slots({"GPU": 5_000}, 10**12) == 2 * 10**11 - 1
