"""The probe reads the nodes that a real autoscaler can still add."""

import time

import pytest
import ray
import yaml

from tests.on_ray.autoscaling import autoscaling_cluster, node_type
from tests.on_ray.launching import LAUNCHED
from tests.on_ray.rays import wait_until, without_prestarted_workers
from tune_policies import NodeTypeCapacity, Resources, probe_cluster

pytestmark = pytest.mark.ci

GPU_NODE = {**node_type(3, CPU=2, GPU=1, **{"accelerator_type:A100": 1}), "labels": {"zone": "a"}}
CPU_NODE = node_type(2, CPU=8)


@ray.remote(num_gpus=1, num_cpus=0)
class OnGpu:
    def ready(self):
        return True


def gpu_nodes_to_add(expected):
    """Wait until the expected number of GPU nodes can be added, and return this number and the number for all types."""
    deadline = time.monotonic() + 30
    while True:
        capacity = probe_cluster()
        # A node may briefly count as both starting and running. A type without addable nodes is not listed.
        found = {row.name: row.max_nodes_to_add for row in capacity.node_types}.get("gpu-node", 0)
        if found == expected or time.monotonic() > deadline:
            return found, capacity.max_nodes_to_add
        time.sleep(0.5)


@pytest.fixture(
    scope="module", params=[pytest.param(False, marks=pytest.mark.slow), True], ids=["autoscaler-v1", "autoscaler-v2"]
)
def autoscaled(request):
    types = {"gpu-node": GPU_NODE, "cpu-node": CPU_NODE}
    with without_prestarted_workers(), autoscaling_cluster(types, v2=request.param) as cluster:
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield cluster


@pytest.mark.usefixtures("autoscaled")
def test_the_node_types_of_a_running_autoscaler_are_read():
    capacity = probe_cluster()

    assert capacity.max_nodes_to_add == 5
    # Version 2 reports the types in another order.
    assert sorted(capacity.node_types, key=lambda node_type: node_type.name) == [
        NodeTypeCapacity(name="cpu-node", resources=Resources(cpus=8), max_nodes_to_add=2),
        NodeTypeCapacity(
            name="gpu-node",
            resources=Resources(cpus=2, gpus=1),
            max_nodes_to_add=3,
            accelerator_type="A100",
            labels={"zone": "a"},
        ),
    ]


@pytest.mark.usefixtures("autoscaled")
def test_a_given_cluster_file_takes_precedence_over_the_autoscaler(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump({"max_workers": 7, "available_node_types": {"mine": CPU_NODE}}))

    capacity = probe_cluster(cluster_config=file)

    assert (capacity.max_nodes_to_add, [row.name for row in capacity.node_types]) == (7, ["mine"])


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")  # the memory of a simulated GPU cannot be read
def test_a_starting_node_counts_as_addable_and_a_running_node_does_not(autoscaled):
    autoscaled.launches(**{"gpu-node": "hang"})
    holders = [OnGpu.remote() for _ in range(2)]
    wait_until((autoscaled.modes / f"gpu-node{LAUNCHED}").exists)
    while_starting = gpu_nodes_to_add(3)
    autoscaled.launches(**{"gpu-node": "start"})
    ray.get([holder.ready.remote() for holder in holders], timeout=120)

    assert (while_starting, gpu_nodes_to_add(1)) == ((3, 5), (1, 3))
