"""A Train run waits for nodes that an autoscaler can add, and fails if no combination has room for its workers."""

from threading import Timer

import pytest
import ray
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tests.on_ray.autoscaling import autoscaling_cluster, node_type
from tests.on_ray.rays import without_prestarted_workers
from tests.on_ray.runner.test_gang_deadlock import PASSED_ON
from tune_policies.trainers import with_deadlock_check

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def cluster():
    types = {"cpu": node_type(2, CPU=2), "gpu": node_type(2, CPU=2, GPU=1)}
    with without_prestarted_workers(), autoscaling_cluster(types, v2=True, max_workers=2) as started:
        ray.init(address=started.address, logging_level="ERROR", log_to_driver=False)
        yield started


def trainer_for(tmp_path, num_workers):
    def report_once():
        ray.train.report({"done": 1})

    scaling = ScalingConfig(num_workers=num_workers, use_gpu=True, resources_per_worker={"CPU": 1, "GPU": 1})
    return DataParallelTrainer(report_once, scaling_config=scaling, run_config=RunConfig(storage_path=str(tmp_path)))


@pytest.mark.timeout(120)
def test_a_run_fails_if_no_combination_of_new_nodes_has_room_for_its_workers(tmp_path):
    with pytest.raises(
        PASSED_ON, match="nodes that can be added: 2 cpu with 2 CPUs, 0 GPUs, 2 gpu with 2 CPUs, 1 GPU, at most 2"
    ):
        with_deadlock_check(trainer_for(tmp_path, num_workers=3)).fit()


@pytest.mark.timeout(180)
def test_a_run_waits_for_new_nodes_of_a_type_with_room_for_its_workers(tmp_path, cluster):
    cluster.launches(gpu="hang")
    launched = Timer(10, cluster.launches, kwargs={"gpu": "start"})  # longer than the timeout for blocked runs
    launched.start()

    result = with_deadlock_check(trainer_for(tmp_path, num_workers=2)).fit()

    assert result.error is None
