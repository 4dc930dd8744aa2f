"""Tests of the choice of nodes that a probe reads, and of the warnings about unread nodes."""

import pytest

from tests.clusters import GIB, gpu_node
from tune_policies import GpuDevice, NodeCapacity, Resources
from tune_policies.probe.nodes_to_read import (
    NodeFacts,
    first_reads,
    group_kinds,
    second_reads,
    spread_facts,
    unread,
    unread_nodes_warnings,
)


def large_cluster(num_nodes, accelerator_type=None):
    """Return GPU nodes whose host memory differs by a few MiB, with labels that identify each node."""
    return [
        NodeCapacity(
            node_id=f"{i:04}",
            resources=Resources(cpus=64, gpus=8, memory_bytes=512 * GIB + i * 2**20, custom={f"host-{i}": 1}),
            accelerator_type=accelerator_type,
            labels={"ray.io/node-id": f"{i:04}", "rack": f"r{i // 16}", "zone": "ab"[i % 2]},
        )
        for i in range(num_nodes)
    ]


def facts(memory_gib, cpus=64, uuid="GPU-1"):
    device = GpuDevice(index=0, name="GPU", memory_bytes=memory_gib * GIB, uuid=uuid)
    return NodeFacts(devices=(device,), usable_cpus=cpus)


def read(nodes, read_one):
    """Read nodes with ``read_one``, and return the facts of all nodes and the number of nodes that were read."""
    kinds = group_kinds(nodes)
    first = first_reads(kinds, nodes[:1])
    found = {node.node_id: read_one(node) for node in first}
    second = second_reads(kinds, found)
    found |= {node.node_id: read_one(node) for node in second}
    return spread_facts(kinds, found), len(first) + len(second)


def test_all_of_a_hundred_nodes_are_read():
    _, num_read = read(large_cluster(100, "A100"), lambda _: facts(80))

    assert num_read == 100


def test_of_5000_nodes_of_two_kinds_only_seven_are_read():
    """The probe reads three nodes of each kind and the head."""
    nodes = large_cluster(5000)

    known, num_read = read(nodes[::-1], lambda _: facts(80))

    assert (len(known), num_read) == (5000, 7)


@pytest.mark.parametrize("accelerator_type", ["A100-80G", "T4", "L4", "H200"])
def test_problems_and_cpu_limits_are_read_on_some_of_5000_nodes_of_a_type_with_one_size(accelerator_type):
    found = facts(80, cpus=8).model_copy(update={"problem": "tune-policies is not installed"})

    known, num_read = read(large_cluster(5000, accelerator_type), lambda _: found)

    assert (len(known), num_read) == (5000, 6)
    assert {(fact.problem, fact.usable_cpus) for fact in known.values()} == {(found.problem, 8)}


def test_a_type_with_several_sizes_is_read_on_some_of_5000_nodes():
    """An A100 has 40 or 80 GB."""
    known, num_read = read(large_cluster(5000, "A100"), lambda _: facts(80))

    assert (len(known), num_read) == (5000, 6)


def test_all_nodes_of_a_kind_are_read_if_the_first_three_differ():
    nodes = [*large_cluster(200), *(gpu_node(f"x{i}", gpus=1, cpus=8) for i in range(200))]

    known, num_read = read(nodes, lambda node: facts(40 if node.node_id in ("0002", "0150") else 80))

    # All 100 nodes of zone "a" are read, because the first three differ. Three nodes of each other kind are read.
    assert num_read == 100 + 3 + 3
    assert [known[name].devices[0].memory_bytes // GIB for name in ("0002", "0004", "0150", "0151", "x9")] == [
        *(40, 80, 40, 80, 80)
    ]


def test_an_unread_node_has_devices_without_uuids():
    known, _ = read(large_cluster(200), lambda _: facts(80))

    assert (known["0000"].devices[0].uuid, known["0199"].devices[0].uuid) == ("GPU-1", None)


def test_nodes_that_differ_only_in_usable_cpus_are_all_read():
    _, num_read = read(large_cluster(200), lambda node: facts(80, cpus=int(node.node_id) + 1))

    assert num_read == 200


def test_only_three_cpu_nodes_of_the_same_kind_are_read():
    nodes = [NodeCapacity(node_id=f"{i}", resources=Resources(cpus=8)) for i in range(5000)]

    known, num_read = read(nodes, lambda _: NodeFacts(usable_cpus=4))

    assert (num_read, {fact.usable_cpus for fact in known.values()}, len(known)) == (3 + 0, {4}, 5000)


def test_kinds_beyond_the_limit_are_not_read_and_have_a_reason():
    nodes = [gpu_node(f"{i:04}", gpus=1, cpus=1 + i // 2) for i in range(400)]
    kinds = group_kinds(nodes)

    first = first_reads(kinds, ())
    reasons = unread(kinds, {node.node_id: facts(80) for node in first}, {})

    assert (len(first), len(reasons), set(reasons.values())) == (
        100,
        300,
        {"the cluster has too many kinds of nodes to read all of them"},
    )


def test_all_nodes_of_an_unreadable_kind_have_the_same_reason():
    kinds = group_kinds(large_cluster(200))
    failures = {node.node_id: "no driver" for node in first_reads(kinds, ())}

    assert unread(kinds, {}, failures) == {f"{i:04}": "no driver" for i in range(200)}


def test_a_failure_on_one_node_does_not_hide_the_facts_of_its_kind():
    kinds = group_kinds(large_cluster(200))
    first = first_reads(kinds, ())
    found = {node.node_id: facts(80) for node in first[1:]}

    known = spread_facts(kinds, found)

    assert unread(kinds, known, {first[0].node_id: "no answer"}) == {first[0].node_id: "no answer"}


def test_cpu_models_are_neither_compared_nor_applied_to_other_nodes():
    nodes = large_cluster(1000)

    def read_one(node):
        return facts(80).model_copy(update={"cpu_model": f"CPU {node.node_id}"})

    known, num_read = read(nodes, read_one)

    assert num_read < 100
    assert sum(each.cpu_model is not None for each in known.values()) == num_read


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        pytest.param({"gpus": 0}, "CPU limits of unread nodes are unknown: node a: no NVML", id="CPUs"),
        pytest.param({}, "GPU memory was not read: node a: no NVML", id="no type"),
        pytest.param(
            {"accelerator_type": "A100"},
            "GPU memory was not read, so plans assume the smallest amount known for the type: node a: no NVML",
            id="a known type",
        ),
        pytest.param(
            {"accelerator_type": "A100", "gpus": 2, "gpu_memory_gib": 40, "num_devices": 1},
            "GPU memory was not read: node a: no NVML",
            id="fewer devices than Ray counts",
        ),
    ],
)
def test_a_warning_about_an_unread_node_explains_the_consequence(node, expected):
    assert list(unread_nodes_warnings([gpu_node("a", **node), gpu_node("b")], {"a": "no NVML"})) == [expected]
