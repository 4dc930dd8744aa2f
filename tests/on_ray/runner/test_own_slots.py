"""If GPUs have different memory sizes, a run divides each GPU according to its memory."""

from collections import Counter
from pathlib import Path

import pytest
import ray
from ray import tune

from tests.on_ray.rays import cluster_of, wait_until
from tune_policies import GpuMemoryPolicy, probe_cluster, run


@pytest.fixture(scope="module", autouse=True)
def large_and_small():
    """Start a cluster with simulated GPUs. The planner assumes 39.6 GiB for an A100 and 14.7 GiB for a T4."""
    small_store = {"object_store_memory": 100 * 2**20}
    with cluster_of(
        {"num_cpus": 3, "num_gpus": 1, "resources": {"accelerator_type:A100": 1}, **small_store},
        {"num_cpus": 2, "num_gpus": 2, "resources": {"accelerator_type:T4": 1}, **small_store},
    ) as cluster:
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        yield


def wait_for_all(config):
    """Wait until the planned number of trials runs concurrently, or fail."""
    share = ray.get_runtime_context().get_assigned_resources()["GPU"]
    folder = Path(config["folder"])
    (folder / tune.get_context().get_trial_id()).touch()
    wait_until(lambda: len(list(folder.iterdir())) >= config["at_once"])
    tune.report({"share": share})


@pytest.mark.rest
@pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")
def test_each_gpu_runs_as_many_trials_as_fit_into_its_memory(tmp_path):
    policy = GpuMemoryPolicy(gpu_memory="11GiB", cpus=1)
    at_once = policy.plan(probe_cluster()).max_concurrent_trials
    running = tmp_path / "running"
    running.mkdir()

    done = run(
        wait_for_all,
        policy,
        config={"folder": str(running), "at_once": at_once},
        num_samples=at_once,
        storage_path=str(tmp_path / "results"),
        verbose=0,
    )

    assert Counter(result["share"] for result in done.results.values()) == {0.3333: 3, 1.0: 2}
