"""What the autoscaler could still add, read from real ones."""

import time

import pytest
import ray
import yaml

from tests.on_ray.autoscaling import autoscaling_cluster
from tune_policies import NodeTypeCapacity, Resources, probe_cluster

GPU_NODE = {"resources": {"CPU": 2, "GPU": 1, "accelerator_type:A100": 1}, "labels": {"zone": "a"}, "max_workers": 3}
CPU_NODE = {"resources": {"CPU": 8}, "max_workers": 2}


@ray.remote(num_gpus=1, num_cpus=0)
class OnGpu:
    def ready(self):
        return True


def gpu_nodes_to_add(expected):
    """Return how many GPU nodes a probe says can be added, once it says so of all that were asked for."""
    deadline = time.monotonic() + 30
    while True:
        capacity = probe_cluster()
        found = {row.name: row.max_nodes_to_add for row in capacity.node_types}["gpu-node"]
        if found == expected or time.monotonic() > deadline:
            return found, capacity.max_nodes_to_add
        time.sleep(0.5)


@pytest.fixture(scope="module", params=[False, True], ids=["autoscaler-v1", "autoscaler-v2"])
def autoscaled(request):
    with autoscaling_cluster({"gpu-node": GPU_NODE, "cpu-node": CPU_NODE}, v2=request.param, max_workers=4) as address:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
        try:
            yield
        finally:
            ray.shutdown()


@pytest.mark.usefixtures("autoscaled")
def test_the_node_types_of_a_running_autoscaler_are_read_at_its_head():
    capacity = probe_cluster()

    assert capacity.max_nodes_to_add == 4
    assert capacity.node_types == (
        NodeTypeCapacity(name="cpu-node", resources=Resources(cpus=8), max_nodes_to_add=2),
        NodeTypeCapacity(
            name="gpu-node",
            resources=Resources(cpus=2, gpus=1),
            max_nodes_to_add=3,
            accelerator_type="A100",
            labels={"zone": "a"},
        ),
    )


@pytest.mark.usefixtures("autoscaled")
def test_a_file_of_the_user_goes_before_what_the_cluster_says(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump({"max_workers": 7, "available_node_types": {"mine": CPU_NODE}}))

    capacity = probe_cluster(cluster_config=file)

    assert (capacity.max_nodes_to_add, [row.name for row in capacity.node_types]) == (7, ["mine"])


@pytest.mark.usefixtures("autoscaled")
@pytest.mark.filterwarnings("ignore:GPU memory is not known")  # there is no GPU behind the logical one
def test_a_node_that_is_ordered_or_runs_can_not_be_added_again():
    holders = [OnGpu.remote() for _ in range(2)]
    ordered = gpu_nodes_to_add(1)
    ray.get([holder.ready.remote() for holder in holders], timeout=120)
    running = gpu_nodes_to_add(1)

    assert (ordered, running) == ((1, 2), (1, 2))
