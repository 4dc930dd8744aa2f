"""Tests that compare plans with the exact optimum, on clusters that are small enough to check by hand.

The solver runs in its own process, because OR-tools and TensorFlow in one process cause a segmentation fault.
"""

import importlib.util
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.clusters import gpu_node, nodes
from tests.unit.planner import solver
from tune_policies import ClusterCapacity, CpuPolicy, GpuMemoryPolicy, GpuPolicy, Resources, SelectingPolicy

GIB = 2**30


pytestmark = pytest.mark.skipif(importlib.util.find_spec("ortools") is None, reason="needs OR-tools")


@pytest.fixture(scope="module")
def apart():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        yield lambda function, *args, **kwargs: process.submit(function, *args, **kwargs).result(timeout=120)


def of_memory(*gibs):
    return ClusterCapacity.of(*(Resources(cpus=8, memory_bytes=gib * GIB) for gib in gibs))


ZONES = ClusterCapacity.of(
    gpu_node("a", gpus=2, accelerator_type="A100", labels={"zone": "eu"}),
    gpu_node("b", gpus=3, accelerator_type="T4", labels={"zone": "us"}),
    gpu_node("c", gpus=4, accelerator_type="T4"),
)


@pytest.mark.parametrize(
    ("policy", "capacity", "expected"),
    [
        pytest.param(GpuPolicy(gpus=0.4), nodes((16, 3)), 6, id="two fractions of 0.4 on each of three devices"),
        pytest.param(GpuPolicy(gpus=0.3), nodes((2, 3)), 2, id="at most as many as CPUs"),
        pytest.param(GpuPolicy(gpus=2), nodes((8, 1), (8, 1)), 0, id="no node has two devices"),
        pytest.param(GpuPolicy(gpus=2), nodes((8, 3), (8, 5)), 3, id="whole devices of one node"),
        pytest.param(GpuPolicy(gpus=0.6, num_workers=3), nodes((8, 4)), 1, id="four places are one trial of three"),
        pytest.param(CpuPolicy(memory="1GiB", num_workers=1), of_memory(4), 3, id="the drivers take the fourth GiB"),
        pytest.param(CpuPolicy(memory="1GiB", num_workers=1), of_memory(1, 1), 1, id="a driver blocks only one node"),
        pytest.param(CpuPolicy(memory="1GiB", num_workers=2), of_memory(1, 1), 0, id="a driver is on either node"),
        pytest.param(
            GpuMemoryPolicy(gpu_memory="6GiB"),
            ClusterCapacity.of(gpu_node("a", gpu_memory_gib=16), gpu_node("b", gpu_memory_gib=80)),
            13,
            id="one fraction for all: 13 on the large device",
        ),
        pytest.param(GpuPolicy(accelerator_type="T4"), ZONES, 7, id="devices of one type"),
        pytest.param(
            SelectingPolicy(GpuPolicy(), label_selector={"zone": "!us"}), ZONES, 6, id="nodes without a label"
        ),
        pytest.param(SelectingPolicy(GpuPolicy(), exclude_nodes=["c"]), ZONES, 5, id="nodes that are not excluded"),
    ],
)
def test_the_optimum_is_the_number_computed_by_hand(apart, policy, capacity, expected):
    assert apart(solver.best, policy, capacity) == expected


def test_more_trials_fit_if_each_device_has_its_own_fraction(apart):
    capacity = ClusterCapacity.of(gpu_node("a", gpu_memory_gib=16), gpu_node("b", gpu_memory_gib=80))

    assert apart(solver.best, GpuMemoryPolicy(gpu_memory="6GiB"), capacity, one_share=False) == 2 + 13


def test_the_rule_of_thumb_counts_trials_that_fit_no_node(apart):
    assert apart(solver.promised, GpuPolicy(gpus=2), nodes((8, 1), (8, 1))) == 1
    assert apart(solver.promised, GpuPolicy(gpus=0.4), nodes((16, 3))) == 7


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_has_more_trials_than_the_optimum(apart, seed):
    compared = apart(solver.compared, seed)

    assert all(planned <= best for planned, best, _ in compared), compared
    assert all((planned < best) == (reason is not None) for planned, best, reason in compared)
