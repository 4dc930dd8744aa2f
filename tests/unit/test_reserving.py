"""What ``ReservingPolicy`` leaves free: of a cluster, and of each GPU."""

import pytest

from tests.clusters import GIB, gpu_node, nodes
from tune_policies import (
    AcceleratorPolicy,
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    NodeTypeCapacity,
    ReservingPolicy,
    Resources,
)
from tune_policies.cluster.accelerators import gpu_memory_of_type

L4_BYTES = gpu_memory_of_type("L4")
SHARE = GpuPolicy(gpus=0.25, cpus=1)


def test_gpu_memory_stays_unknown_on_a_node_of_which_some_gpus_are_left_free():
    """Ray counts 8 GPUs and the driver lists 7: with one left free, the numbers agree by chance."""
    cluster = ClusterCapacity.of(gpu_node("a", gpus=8, gpu_memory_gib=16, num_devices=7))

    plan = ReservingPolicy(GpuPolicy(), gpus=1).plan(cluster)

    assert (plan.max_concurrent_trials, plan.gpu_memory_bytes, plan.label_selector) == (7, None, {})


@pytest.mark.parametrize(
    ("policy", "node", "at_once", "share_bytes"),
    [
        pytest.param(GpuMemoryPolicy(gpu_memory="5GiB"), {"gpu_memory_gib": 24}, 4, 20 * GIB // 4, id="by need"),
        pytest.param(GpuPolicy(gpus=0.5), {"gpu_memory_gib": 24}, 2, 20 * GIB // 2, id="by share"),
        pytest.param(GpuPolicy(gpus=0.5), {"accelerator_type": "L4"}, 2, (L4_BYTES - 4 * GIB) // 2, id="by type"),
    ],
)
def test_gpu_memory_is_left_free_on_every_gpu(policy, node, at_once, share_bytes):
    cluster = ClusterCapacity.of(gpu_node("a", **node))

    plan = ReservingPolicy(policy, gpu_memory="4GiB").plan(cluster)

    assert (plan.max_concurrent_trials, plan.gpu_memory_bytes) == (at_once, share_bytes)
    assert plan.reasons[0] == "4 GiB of each GPU left free for others: trials share the rest"


@pytest.mark.parametrize("order", [1, -1])
def test_of_nodes_with_too_little_gpu_memory_to_leave_free_the_one_with_the_least_is_named(order):
    cluster = ClusterCapacity.of(*[gpu_node("a", gpu_memory_gib=6), gpu_node("b", gpu_memory_gib=4)][::order])

    with pytest.raises(InfeasibleRequestError, match="node b has GPUs of 4 GiB"):
        ReservingPolicy(GpuPolicy(), gpu_memory="8GiB").plan(cluster)


@pytest.mark.parametrize(
    ("policy", "note"),
    [
        (ReservingPolicy(GpuPolicy(gpus=0.5), gpus=1), "perhaps no whole GPU"),
        (ReservingPolicy(CpuPolicy(), memory="1GiB"), "host memory of some nodes is not known"),
        (ReservingPolicy(GpuPolicy(gpus=0.5), gpu_memory="1GiB"), "GPU memory of some nodes is not known"),
        (ReservingPolicy(GpuPolicy(), gpu_memory="1GiB"), "a trial with a whole GPU has no limit"),
    ],
    ids=["shares of a GPU", "host memory", "GPU memory", "whole GPUs"],
)
def test_a_reservation_says_what_it_does_not_hold(policy, note):
    plan = policy.plan(nodes((8, 1), (8, 1)))

    assert any(note in reason for reason in plan.reasons)


@pytest.mark.parametrize("cpus", [1, 5], ids=["of one node", "of both nodes"])
def test_cpus_that_ray_counts_and_a_quota_does_not_allow_are_told_once_wherever_cpus_are_left_free(cpus):
    alike = [gpu_node(name, gpus=0, cpus=4).model_copy(update={"usable_cpus": 2}) for name in "ab"]

    plan = ReservingPolicy(CpuPolicy(), cpus=cpus).plan(ClusterCapacity.of(*alike))

    told = [reason for reason in plan.reasons if "Ray counts" in reason]
    assert [reason.partition(" where")[0] for reason in told] == ["Ray counts 4 CPUs on 2 nodes"]


@pytest.mark.parametrize(
    ("shapes", "wish", "left"),
    [
        pytest.param([(4, 0), (8, 0)], {"cpus": 3}, [(4, 0), (5, 0)], id="by the node that keeps the most"),
        pytest.param([(8, 2), (4, 0)], {"cpus": 3}, [(1, 0), (8, 2)], id="by CPUs that serve no GPU"),
        pytest.param([(8, 2), (2, 0)], {"cpus": 3}, [(2, 0), (5, 2)], id="by one node if one has it all"),
        pytest.param([(2, 1), (3, 2)], {"cpus": 4, "gpus": 1}, [(0, 0), (1, 2)], id="each from where it is"),
        pytest.param([(8, 2), (4, 1)], {"cpus": 2, "gpus": 1}, [(2, 0), (8, 2)], id="by few GPUs"),
        pytest.param([(2, 0), (2, 0)], {"cpus": 3}, [(0, 0), (1, 0)], id="else by several nodes"),
        pytest.param([(2, 0), (5, 1)], {"cpus": 6}, [(0, 0), (1, 1)], id="of different shapes, if need be"),
        pytest.param([(4, 0), (4, 0), (4, 1)], {"cpus": 6}, [(0, 0), (2, 0), (4, 1)], id="of one shape, if that does"),
    ],
)
def test_what_is_left_free_is_given(shapes, wish, left):
    seen = []

    class Looking(CpuPolicy):
        def plan(self, capacity):
            seen.append(sorted((node.resources.cpus, node.resources.gpus) for node in capacity.nodes))
            return super().plan(capacity)

    ReservingPolicy(Looking(), **wish).plan(nodes(*shapes))

    assert seen[0] == left


@pytest.mark.parametrize(
    ("shapes", "policy", "wish", "slots"),
    [
        pytest.param([(8, 1)] * 2, SHARE, {"cpus": 8}, ["8 x 1 CPU, 0.25 GPU"], id="CPUs that trials leave over"),
        pytest.param([(8, 1)] * 2, SHARE, {"cpus": 7}, ["8 x 1 CPU, 0.25 GPU"], id="not as many from each node"),
        pytest.param([(8, 1)] * 2, SHARE, {"cpus": 9}, ["7 x 1 CPU, 0.25 GPU"], id="one CPU more than they leave over"),
        pytest.param(
            [(8, 1)] * 2, GpuPolicy(gpus=0.25), {"cpus": 8}, ["8 x 1 CPU, 0.25 GPU"], id="CPUs that trials divide"
        ),
        pytest.param([(1, 1)] * 2, GpuPolicy(gpus=0.5), {"cpus": 1}, ["4 x 0.25 CPU, 0.5 GPU"], id="half a CPU each"),
        pytest.param(
            [(8, 1), (8, 1), (8, 2)], SHARE, {"cpus": 8}, ["16 x 1 CPU, 0.25 GPU"], id="where devices have the most"
        ),
        pytest.param(
            [(8, 1), (8, 1), (4, 0)], SHARE, {"cpus": 12}, ["8 x 1 CPU, 0.25 GPU"], id="CPUs without devices first"
        ),
        pytest.param(
            [(8, 1), (8, 1), (8, 1)], SHARE, {"cpus": 12, "gpus": 1}, ["8 x 1 CPU, 0.25 GPU"], id="beside a whole GPU"
        ),
        pytest.param([(2, 1)] * 2, GpuPolicy(cpus=2), {"cpus": 2}, ["1 x 2 CPUs, 1 GPU"], id="few nodes if that does"),
        pytest.param(
            [(8, 1)] * 2, GpuPolicy(cpus=8) | CpuPolicy(cpus=1), {"cpus": 8}, ["1 x 8 CPUs, 1 GPU"], id="no fallback"
        ),
    ],
)
def test_cpus_are_left_free_where_no_device_needs_them(shapes, policy, wish, slots):
    plan = ReservingPolicy(policy, **wish).plan(nodes(*shapes))

    assert [f"{slot.max_concurrent_trials} x {slot}" for slot in plan.slots] == slots


@pytest.mark.parametrize(
    ("policy", "wish", "limited_by"),
    [
        pytest.param(GpuPolicy(cpus=4), {"cpus": 12}, "CPU", id="CPUs left free of which a GPU has too few"),
        pytest.param(SHARE, {"cpus": 12}, "CPU", id="and a share of a GPU"),
        pytest.param(GpuPolicy(cpus=4), {"cpus": 8}, "GPU", id="GPUs, all in use"),
        pytest.param(GpuPolicy(), {"cpus": 12}, "GPU", id="GPUs, whose trials divide the CPUs"),
        pytest.param(GpuPolicy(cpus=4), {"gpus": 1}, "GPU", id="GPUs left free"),
        pytest.param(CappedPolicy(GpuPolicy(cpus=4), 1), {"cpus": 1}, "max_concurrent_trials", id="a cap"),
    ],
)
def test_a_plan_beside_what_is_left_free_is_limited_by_what_stops_one_more_trial(policy, wish, limited_by):
    assert ReservingPolicy(policy, **wish).plan(nodes((8, 1), (8, 1))).limited_by == limited_by


def test_cpus_are_left_free_where_no_npu_needs_them():
    node = Resources(cpus=8, custom={"NPU": 1})

    plan = ReservingPolicy(AcceleratorPolicy(resource="NPU", cpus=1), cpus=8).plan(ClusterCapacity.of(node, node))

    assert plan.max_concurrent_trials == 2


@pytest.mark.parametrize("nested", [False, True], ids=["around", "inside"])
def test_gpu_memory_is_left_free_on_nodes_to_come_on_whichever_side_they_are_counted(nested):
    l4 = NodeTypeCapacity(name="l4", resources=Resources(cpus=8, gpus=1), accelerator_type="L4", max_nodes_to_add=2)
    inner = GpuMemoryPolicy(gpu_memory="6GiB")
    inside = ReservingPolicy(AutoscalingPolicy(inner), gpu_memory="5GiB")
    policy = inside if nested else AutoscalingPolicy(ReservingPolicy(inner, gpu_memory="5GiB"))

    plan = policy.plan(ClusterCapacity(node_types=(l4,)))

    assert (plan.max_concurrent_trials, plan.nodes_to_add) == (4, {"l4": 2})


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        pytest.param({"memory": "1GiB"}, "host memory of some nodes", id="host memory"),
        pytest.param({"gpu_memory": "1GiB"}, "GPU memory of some nodes", id="GPU memory"),
        pytest.param({"cpus": 1}, None, id="what nobody asks for is not told"),
    ],
)
def test_one_node_that_is_not_known_is_enough_to_say_so(wish, told):
    cluster = ClusterCapacity.of(gpu_node("a", gpu_memory_gib=16, memory_gib=8), gpu_node("b"))

    reasons = ReservingPolicy(GpuPolicy(gpus=0.5), **wish).plan(cluster).reasons

    about = [reason for reason in reasons if reason.startswith(("host memory of some", "GPU memory of some"))]
    assert [reason.partition(" is not known")[0] for reason in about] == ([] if told is None else [told])
