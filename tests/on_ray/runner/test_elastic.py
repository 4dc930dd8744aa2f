"""Tests of elastic Train runs under a plan on a real Ray cluster."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tests.clusters import nodes
from tests.on_ray.rays import cluster_of
from tune_policies import CappedPolicy, CpuPolicy, GpuPolicy, InvalidResourcesError
from tune_policies.plan import scaling_config
from tune_policies.trainers import with_deadlock_check

ALONE = 1


def record_world_size(config):
    """Record the number of workers until it reaches ``enough``."""
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        size = ray.train.get_context().get_world_size()
        Path(config["folder"], str(size)).touch()
        if size >= config["enough"]:
            return
        time.sleep(0.2)
    raise TimeoutError(f"still {size} workers")


def fit(plan, folder, *, enough):
    DataParallelTrainer(
        record_world_size,
        train_loop_config={"folder": str(folder), "enough": enough},
        scaling_config=plan.scaling_config(elastic_resize_monitor_interval_s=1),
        run_config=RunConfig(storage_path=str(folder / "results")),
    ).fit()


def sizes_seen(folder):
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


@pytest.fixture(scope="module")
def cluster():
    with cluster_of({"num_cpus": 1, "num_gpus": 1}) as cluster:
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster


@pytest.mark.slow
def test_five_workers_with_a_fifth_of_a_gpu_start_on_one_gpu(cluster, tmp_path):
    """Ray counts elastic workers with floats. If each worker reserved exactly 0.2 GPU, Ray would count only four."""
    policy = GpuPolicy(gpus=0.2, cpus=0.1, num_workers=(2, 9))
    plan = CappedPolicy(policy, ALONE).plan(nodes((1, 1)))

    fit(plan, tmp_path, enough=5)

    assert plan.common_slot.max_workers == 5
    assert sizes_seen(tmp_path) == [5]


def record_world_size_and_sleep(config):
    Path(config["folder"], str(ray.train.get_context().get_world_size())).touch()
    time.sleep(10)


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_run_waits_while_elastic_runs_use_its_resources(cluster, tmp_path):
    """Ray assigns free resources to the first run that requests them."""
    plan = CappedPolicy(CpuPolicy(cpus=0.25, num_workers=(1, 9)), 3).plan(nodes((1, 0)))
    folders = [tmp_path / str(number) for number in range(3)]

    def run(folder):
        folder.mkdir()
        loop_config = {"folder": str(folder)}
        run_config = RunConfig(storage_path=str(folder / "results"))
        trainer = DataParallelTrainer(
            record_world_size_and_sleep,
            train_loop_config=loop_config,
            scaling_config=plan.scaling_config(),
            run_config=run_config,
        )
        with_deadlock_check(trainer).fit()

    with ThreadPoolExecutor() as pool:
        list(pool.map(run, folders))

    assert [sizes_seen(folder) for folder in folders] == [[2], [2], [2]]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_run_starts_on_the_existing_nodes_and_grows_when_a_node_is_added(cluster, tmp_path):
    plan = CappedPolicy(CpuPolicy(num_workers=(1, 9)), ALONE).plan(nodes((1, 0), (1, 0)))

    with ThreadPoolExecutor() as pool:
        run = pool.submit(fit, plan, tmp_path, enough=2)
        while not (tmp_path / "1").exists() and not run.done():
            time.sleep(0.1)
        cluster.add_node(num_cpus=1)  # in the main thread, because only the main thread can handle signals
        run.result()

    assert plan.common_slot.max_workers == 2
    assert sizes_seen(tmp_path) == [1, 2]


def test_num_workers_is_a_range_only_if_the_run_can_add_workers():
    policy = CpuPolicy(num_workers=(2, 8))

    full, alone = policy.plan(nodes((8, 0))), CappedPolicy(policy, ALONE).plan(nodes((8, 0)))

    assert (full.scaling_config().num_workers, alone.scaling_config().num_workers) == (2, (2, 8))


def test_a_ray_version_without_elastic_workers_raises_an_error(monkeypatch):
    known = [field for field in scaling_config.fields_of(ScalingConfig) if "elastic" not in field.name]
    monkeypatch.setattr(scaling_config, "fields_of", lambda _: known)

    with pytest.raises(InvalidResourcesError, match=r"needs ScalingConfig\(num_workers=\(2, 8\)\)"):
        CappedPolicy(CpuPolicy(num_workers=(2, 8)), ALONE).plan(nodes((8, 0))).scaling_config()
