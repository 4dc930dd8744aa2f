"""The part of a machine that Kubernetes leaves to pods, and the warning about node types like whole machines."""

import pytest

from tune_policies.kuberay import NodeCatalog, NodeType
from tune_policies.kuberay.design.whole_machines import about_whole_machines, allocatable

GIB = 2**30


@pytest.mark.parametrize(
    ("cpus", "gib", "left"),
    [
        # The memory that GKE's documentation states for a machine with 7.5 GiB: 1.7 GiB reserved, and 100 MiB.
        pytest.param(2, 7.5, (1, 5), id="n1-standard-2"),
        pytest.param(4, 16, (3, 13), id="4 CPUs"),
        pytest.param(8, 32, (7, 28), id="8 CPUs"),
        pytest.param(16, 64, (15, 58), id="16 CPUs"),
        pytest.param(48, 192, (47, 181), id="48 CPUs"),
        pytest.param(96, 384, (95, 369), id="96 CPUs"),
        pytest.param(1, 0.125, (0, 0), id="nothing left"),
    ],
)
def test_pods_get_less_than_the_machine_has(cpus, gib, left):
    assert allocatable(cpus, int(gib * GIB)) == (left[0], left[1] * GIB)


def test_a_node_type_like_a_whole_machine_is_reported_with_the_amounts_to_write():
    whole = NodeType(name="whole", cpus=4, memory="16GiB", gpus=1, accelerator_type="T4")
    parts = [
        NodeType(name="part", cpus=3, memory="12GiB"),
        NodeType(name="large", cpus=46, memory="180GiB"),
        NodeType(name="unknown", cpus=8),
    ]

    sentences = [*about_whole_machines(NodeCatalog(nodes=(whole, *parts)))]

    assert sentences == [
        "whole has 4 CPUs and 16 GiB of memory, like a whole machine. Kubernetes leaves only a part to pods, and pods "
        "that request more stay pending. In the catalog, write what pods can use, about cpus: 3, memory: 13GiB on GKE"
    ]
