"""The exact optimum, on clusters small enough to check in the head, and plans beside it."""

import pytest

pytest.importorskip("ortools")

from benchmarks.optimum import Question, optimum
from benchmarks.optimum_comparison import compare, draw_questions, rule_of_thumb
from tests.clusters import gpu_node, nodes
from tune_policies import ClusterCapacity, CpuPolicy, GpuMemoryPolicy, GpuPolicy, Resources, SelectingPolicy

GIB = 2**30


def question(policy, capacity):
    return Question.of(policy, capacity.nodes, cpus=1)


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
        pytest.param(GpuPolicy(gpus=0.4), nodes((16, 3)), 6, id="two shares of 0.4 on each of three devices"),
        pytest.param(GpuPolicy(gpus=0.3), nodes((2, 3)), 2, id="no more than there are CPUs"),
        pytest.param(GpuPolicy(gpus=2), nodes((8, 1), (8, 1)), 0, id="two devices are on no node"),
        pytest.param(GpuPolicy(gpus=2), nodes((8, 3), (8, 5)), 3, id="whole devices of one node"),
        pytest.param(GpuPolicy(gpus=0.6, num_workers=3), nodes((8, 4)), 1, id="four places are one trial of three"),
        pytest.param(CpuPolicy(memory="1GiB", num_workers=1), of_memory(4), 3, id="the drivers take the fourth GiB"),
        pytest.param(CpuPolicy(memory="1GiB", num_workers=1), of_memory(1, 1), 1, id="a driver spoils one node only"),
        pytest.param(CpuPolicy(memory="1GiB", num_workers=2), of_memory(1, 1), 0, id="a driver is on either node"),
        pytest.param(
            GpuMemoryPolicy(gpu_memory="6GiB"),
            ClusterCapacity.of(gpu_node("a", gpu_memory_gib=16), gpu_node("b", gpu_memory_gib=80)),
            13,
            id="one share for all: 13 on the large device alone",
        ),
        pytest.param(GpuPolicy(accelerator_type="T4"), ZONES, 7, id="devices of one type"),
        pytest.param(
            SelectingPolicy(GpuPolicy(), label_selector={"zone": "!us"}), ZONES, 6, id="nodes without a label"
        ),
        pytest.param(SelectingPolicy(GpuPolicy(), exclude_nodes=["c"]), ZONES, 5, id="nodes that are not excluded"),
    ],
)
def test_the_optimum_is_the_number_in_the_head(policy, capacity, expected):
    assert optimum(question(policy, capacity)) == expected


def test_more_fit_where_each_device_has_shares_of_its_own():
    capacity = ClusterCapacity.of(gpu_node("a", gpu_memory_gib=16), gpu_node("b", gpu_memory_gib=80))

    assert optimum(question(GpuMemoryPolicy(gpu_memory="6GiB"), capacity), one_share=False) == 2 + 13


def test_the_rule_of_thumb_promises_trials_that_no_node_holds():
    assert rule_of_thumb(question(GpuPolicy(gpus=2), nodes((8, 1), (8, 1)))) == 1
    assert rule_of_thumb(question(GpuPolicy(gpus=0.4), nodes((16, 3)))) == 7


@pytest.mark.parametrize("seed", range(20))
def test_no_plan_is_above_the_optimum(seed):
    capacity, policies = draw_questions(seed, 3)

    compared = [compare(seed, capacity, policy) for policy in policies]
    assert all(each.planned <= each.best for each in compared), compared
    assert all((each.planned < each.best) == (each.reason is not None) for each in compared)
