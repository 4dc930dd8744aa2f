"""GPUs that nodes share below Ray, in real Ray clusters with a stand-in for NVIDIA's driver."""

import os

import pytest
import ray

from tests.on_ray.rays import cluster_of
from tests.stand_ins import state_counts, write_stand_ins
from tune_policies import GpuMemoryPolicy, probe_cluster
from tune_policies.trainers import run

pytestmark = [
    pytest.mark.rest,
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning"),
]

GIB = 2**30


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a cluster with a node for each dictionary of variables. Each node reports a GPU of 40 GiB.

    The driver reports the same UUID on all nodes.
    """
    write_stand_ins(tmp_path)
    monkeypatch.setenv("TUNE_POLICIES_CACHE", str(tmp_path))
    clusters = []

    def start_nodes(*containers):
        nodes = [{"num_cpus": 1}]
        for number, variables in enumerate(containers):
            counts = tmp_path / f"nvml-{number}.json"
            state_counts(counts, total=40 * GIB, free=40 * GIB)
            path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
            env_vars = {"PYTHONPATH": path, "STAND_IN_NVML": str(counts), **variables}
            nodes.append({"num_cpus": 8, "num_gpus": 1, "env_vars": env_vars})
        context = cluster_of(*nodes)
        clusters.append(context)
        ray.init(context.__enter__().address, logging_level="ERROR", log_to_driver=False)

    yield start_nodes
    for context in clusters:
        context.__exit__(None, None, None)


def memory_of_nodes():
    return [node.smallest_gpu_memory_bytes for node in probe_cluster().nodes if node.resources.gpus]


@pytest.mark.parametrize(
    ("variables", "gib"),
    [
        pytest.param({"CUDA_DEVICE_MEMORY_LIMIT_0": "10240m"}, 10, id="HAMi"),
        pytest.param({"GPU_MEMORY_LIMIT": str(20 * GIB)}, 20, id="KAI Scheduler"),
    ],
)
def test_the_memory_of_a_node_is_the_part_that_its_container_gets(start, variables, gib):
    start(variables)

    assert memory_of_nodes() == [gib * GIB]


def test_pods_with_a_part_of_the_same_gpu_keep_their_parts(start):
    """HAMi has already divided the memory, so the plan does not divide it again."""
    start({"CUDA_DEVICE_MEMORY_LIMIT_0": "10240m"}, {"CUDA_DEVICE_MEMORY_LIMIT_0": "11264m"})

    plan = GpuMemoryPolicy(gpu_memory="4GiB").plan(probe_cluster())

    assert sorted(memory_of_nodes()) == [10 * GIB, 11 * GIB]
    assert plan.max_concurrent_trials == 4
    assert all(slot.gpu_memory_bytes >= 4 * GIB for slot in plan.slots)


def test_a_gpu_that_two_nodes_share_by_time_slices_counts_once_and_its_trials_run(start, tmp_path):
    start({}, {})
    policy = GpuMemoryPolicy(gpu_memory="8GiB", cpus=1)
    plan = policy.plan(probe_cluster())

    results = run(train, policy, config={"folder": str(tmp_path)}, num_samples=4, storage_path=str(tmp_path), verbose=0)

    assert memory_of_nodes() == [20 * GIB, 20 * GIB]
    assert plan.max_concurrent_trials == 4  # 2 of 10 GiB on each node, instead of 5 of 8 GiB
    assert any("share" in reason and "GPU-0" in reason for reason in plan.reasons)
    assert [trial.status for trial in results.trials] == ["TERMINATED"] * 4
    assert [trial.last_result["gpus"] for trial in results.trials] == [0.5] * 4


def train(config):
    return {"gpus": ray.get_runtime_context().get_assigned_resources()["GPU"]}
