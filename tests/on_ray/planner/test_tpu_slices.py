"""Ray Train reserves exactly the planned number of TPU slices. The hosts are raylets with simulated TPUs."""

import json
import os
from pathlib import Path

import pytest
import ray
import ray.train
from packaging.version import Version
from ray import tune
from ray.train import RunConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tests.clusters import slice_hosts
from tests.on_ray.rays import cluster_of, wait_until
from tune_policies import AcceleratorPolicy, ClusterCapacity, InvalidResourcesError, PolicyScheduler, probe_cluster
from tune_policies.cluster.tpu_slices import SliceShape

POLICY = AcceleratorPolicy(resource="TPU", amount=4, accelerator_type="TPU-V4", topology="2x2x2", num_workers=2)

IS_OLDER = Version(ray.__version__) < Version("2.60")

only_where_train_reserves_slices = pytest.mark.skipif(IS_OLDER, reason="this Ray version cannot reserve whole slices")


@pytest.fixture(scope="module")
def cluster():
    """Start two TPU slices of two hosts each.

    Ray derives their labels and resources from environment variables that Google sets on its machines. The hosts of the
    second slice also have the labels of a designed worker group, which KubeRay gives to all hosts.
    """
    with cluster_of() as started, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPU_ACCELERATOR_TYPE", "v4-16")
        patch.setenv("TPU_TOPOLOGY", "2x2x2")
        for name in "ab":
            patch.setenv("TPU_NAME", f"slice-{name}")
            for i in range(2):
                patch.setenv("TPU_WORKER_ID", str(i))
                labels = {"labels": SliceShape("2x2x2", "TPU-V4").head_labels} if name == "b" else {}
                started.add_node(num_cpus=4, resources={"TPU": 4}, **labels)
        ray.init(address=started.address, logging_level="ERROR", log_to_driver=False)
        yield started


def on_worker(config):
    """Record the worker's slice and chips, wait for the workers of all trials, and try to reserve another slice."""
    from ray._private.accelerators.tpu import reserve_tpu_slice

    folder = Path(config["folder"])
    context = ray.train.get_context()
    found = {"trial": config["trial"], "slice": os.environ["TPU_NAME"], "chips": os.environ["TPU_VISIBLE_CHIPS"]}
    name = f"{config['trial']}-{context.get_world_rank()}.json"
    (folder / f"{name}.tmp").write_text(json.dumps(found))
    (folder / f"{name}.tmp").rename(folder / name)
    wait_until(lambda: len(list(folder.glob("*.json"))) >= config["num_workers"], timeout_s=150)
    if context.get_world_rank() == 0:
        with pytest.raises(TimeoutError, match="Failed to reserve TPU head"):
            reserve_tpu_slice("2x2x2", "TPU-V4", timeout_s=2)
    (folder / f"{name}.done").touch()


@only_where_train_reserves_slices
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_planned_trial_runs_on_its_own_tpu_slice_and_no_slice_remains_free(cluster, tmp_path):
    plan = POLICY.plan(probe_cluster())
    running, stored = tmp_path / "running", str(tmp_path / "results")
    running.mkdir()
    num_workers = plan.max_concurrent_trials * plan.num_workers

    def trial(config):
        DataParallelTrainer(
            on_worker,
            train_loop_config={**config, "folder": str(running), "num_workers": num_workers},
            scaling_config=plan.scaling_config(),
            run_config=RunConfig(storage_path=stored),
        ).fit()

    tune.run(
        trial,
        scheduler=PolicyScheduler(plan),
        config={"trial": tune.grid_search([1, 2])},
        storage_path=stored,
        verbose=0,
    )

    seen = [json.loads(path.read_text()) for path in running.glob("*.json")]
    assert plan.max_concurrent_trials == 2
    assert len({(found["trial"], found["slice"]) for found in seen}) == 2 == len({found["slice"] for found in seen})
    assert {found["chips"] for found in seen} == {"0,1,2,3"}
    assert len(list(running.glob("*.done"))) == num_workers


@pytest.mark.rest
@only_where_train_reserves_slices
def test_the_planner_counts_as_many_tpu_slices_as_ray(cluster):
    from ray.util.tpu import get_num_tpu_slices

    planned = POLICY.plan(probe_cluster()).max_concurrent_trials

    assert planned == get_num_tpu_slices("2x2x2", "TPU-V4") == 2


@pytest.mark.rest
@only_where_train_reserves_slices
@pytest.mark.parametrize("num_workers", [2, 4])
def test_the_scaling_config_of_a_tpu_plan_has_the_planned_topology_and_workers(cluster, num_workers):
    plan = POLICY.model_copy(update={"num_workers": num_workers}).plan(probe_cluster())

    config = plan.scaling_config()

    assert (config.use_tpu, config.topology, config.accelerator_type) == (True, "2x2x2", "TPU-V4")
    assert (config.num_workers, config.num_tpus_per_worker) == (num_workers, 4)


@pytest.mark.skipif(not IS_OLDER, reason="this Ray version can reserve whole slices")
def test_the_error_for_a_ray_version_without_tpu_slices_names_the_required_version():
    plan = POLICY.plan(ClusterCapacity.of(*slice_hosts("a")))

    with pytest.raises(InvalidResourcesError, match=r"needs ScalingConfig\(topology=…\), but Ray Train in Ray 2"):
        plan.scaling_config()
