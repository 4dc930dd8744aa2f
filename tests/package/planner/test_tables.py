"""Tests of the tables of a cluster in a terminal with 80 columns."""

import pytest
from rich.console import Console

from tests.clusters import GIB, gpu_node
from tune_policies import ClusterCapacity, NodeCapacity, Resources
from tune_policies.cluster.cluster_view import cluster_view
from tune_policies.cluster.node import NodeTypeCapacity

NODE = gpu_node("a", gpus=8, cpus=96, gpu_memory_gib=80, accelerator_type="A100", memory_gib=1100)


def shown(capacity, width=80):
    console = Console(width=width)
    with console.capture() as capture:
        console.print(cluster_view(capacity))
    return [line.rstrip() for line in capture.get().splitlines()]


def words(line):
    return " ".join(line.split())


def changed(node, **changes):
    return node.model_copy(update=changes)


def test_equal_nodes_share_a_row_with_their_total_use():
    used = Resources(cpus=4, gpus=1, memory_bytes=GIB)
    capacity = ClusterCapacity(nodes=tuple(changed(NODE, node_id=name, in_use=used) for name in "abc"))

    lines = shown(capacity)

    assert lines[0] == "3 nodes"
    assert words(lines[1]) == "Nodes CPU GPU Type GPU memory Host memory In use"
    assert words(lines[3]) == "3 96 8 A100 80 GiB 1.1 TiB 12 CPUs"
    assert [line.strip() for line in lines[4:]] == ["3 GPUs", "3 GiB"]


@pytest.mark.parametrize(
    ("gib", "shown_as"), [((14.7, 14.9), "14.7 to 14.9 GiB"), ((0.5, 1), "512 MiB to 1 GiB")], ids=["GiB", "two units"]
)
def test_nodes_that_differ_slightly_in_host_memory_share_a_row(gib, shown_as):
    memories = [int(each * GIB) for each in gib]
    pair = tuple(NodeCapacity(node_id=str(i), resources=Resources(cpus=4, memory_bytes=i)) for i in memories)

    assert words(shown(ClusterCapacity(nodes=pair), width=120)[3]) == f"2 4 0 - - {shown_as} not known"


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ("ab", "- 2 with 96 CPUs, 8 GPUs (A100): labels team=vision"),
        ("a", "- 1 with 96 CPUs, 8 GPUs (A100): labels rack=a, team=vision"),
    ],
    ids=["shared by both nodes", "of the only node"],
)
def test_only_labels_that_equal_nodes_share_are_shown_and_the_node_id_is_omitted(names, line):
    nodes = [changed(NODE, node_id=n, labels={"ray.io/node-id": n, "rack": n, "team": "vision"}) for n in names]

    assert shown(ClusterCapacity(nodes=tuple(nodes)))[-1] == line


def test_custom_resources_and_unusable_cpus_are_shown():
    node = NodeCapacity(node_id="a", resources=Resources(cpus=64, custom={"TPU": 4}), usable_cpus=16)

    assert shown(ClusterCapacity(nodes=(node,)))[-1] == "- 1 with 64 CPUs, 0 GPUs: only 16 CPUs usable, 4 TPUs"


def test_only_the_first_five_of_many_draining_nodes_are_listed():
    drained = tuple(changed(NODE, node_id=f"b{i}", address=f"10.0.0.{i}") for i in range(7))

    text = " ".join(shown(ClusterCapacity(nodes=(NODE,), draining=drained))[-2:])

    assert text == ("plans ignore 7 nodes being drained: 10.0.0.0, 10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4 and 2 more")


def test_nodes_that_an_autoscaler_can_add_have_their_own_table():
    resources, labels = Resources(cpus=8, gpus=1), {"market": "spot"}
    kinds = tuple(
        NodeTypeCapacity(name=name, resources=resources, max_nodes_to_add=most, labels=labels)
        for name, most in (("gpu-worker", 6), ("unlimited", 2**31 - 2))
    )

    lines = shown(ClusterCapacity(nodes=(NODE,), node_types=kinds, max_nodes_to_add=4))

    assert lines[5] == "The autoscaler can add"
    assert [words(line) for line in lines[8:10]] == [
        "6 gpu-worker 8 1 - not known",
        "no limit unlimited 8 1 - not known",
    ]
    assert lines[-3:-1] == ["- gpu-worker: labels market=spot", "- unlimited: labels market=spot"]
    assert lines[-1] == "- at most 4 nodes of all types together"


def test_an_autoscaler_with_unknown_node_types_is_shown():
    unknown, none = (ClusterCapacity(nodes=(NODE,), node_types=types) for types in (None, ()))

    assert "An autoscaler is running, but its node types are unknown" in " ".join(shown(unknown))
    assert "autoscaler" not in " ".join(shown(none))


def test_long_names_fit_into_80_columns():
    labels = {"ray.io/availability-region": "eu-central-1", "example.com/a-label-of-a-cluster": "with-a-long-value"}
    node = changed(
        gpu_node("b", gpus=4, cpus=1024, gpu_memory_gib=141.5, accelerator_type="Intel-GPU-Max-1550", memory_gib=2000),
        labels=labels,
        in_use=Resources(cpus=1000, gpus=4, memory_bytes=900 * GIB, custom={"a-resource-of-the-cluster": 3}),
    )

    lines = shown(ClusterCapacity(nodes=(NODE, node)))

    assert max(map(len, lines)) <= 80
    assert all(f"{key}={value}" in " ".join(lines) for key, value in labels.items())


def test_in_a_narrow_terminal_each_row_is_a_list_whose_words_are_complete():
    lines = shown(ClusterCapacity(nodes=(NODE,)), width=40)

    assert lines[:4] == ["1 node", "- Nodes: 1", "  CPU: 96", "  GPU: 8"]
    assert max(map(len, lines)) <= 40
