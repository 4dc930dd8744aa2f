"""Train runs with retries after out-of-memory errors survive the preemption of a node."""

import json
import tempfile
import threading
import time
from pathlib import Path

import pytest
import ray
import ray.train
from packaging.version import Version
from ray._raylet import GcsClient
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
from ray.train import FailureConfig, RunConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import TrainingFailedError

from tests.on_ray.rays import cluster_of, wait_until
from tune_policies import GpuPolicy, probe_cluster
from tune_policies.trainers import fit_with_oom_retry

pytestmark = [
    pytest.mark.rest,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        Version(ray.__version__) < Version("2.60"), reason="this Ray version does not detect preemptions"
    ),
]


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S", "0.5")
    with cluster_of({"num_cpus": 1}, {"num_cpus": 2, "num_gpus": 1}, {"num_cpus": 2, "num_gpus": 1}) as started:
        ray.init(started.address, logging_level="ERROR", log_to_driver=False)
        yield started
        ray.shutdown()


def train(config):
    """Report two steps. The first attempt stops after the first step, until its node is preempted."""
    share = ray.get_runtime_context().get_assigned_resources()["GPU"]
    checkpoint = ray.train.get_checkpoint()
    done = json.loads(Path(checkpoint.path, "done.json").read_text()) if checkpoint else 0
    for step in range(done + 1, 3):
        with Path(config["notes"]).open("a") as file:
            file.write(f"{step} {share:g} {ray.get_runtime_context().get_node_id()}\n")
        if step == 2 and Path(config["notes"]).read_text().count("\n") == 2:
            time.sleep(120)  # the preemption ends this attempt
        if step == 2 and share < 1:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "done.json").write_text(json.dumps(step))
            ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def notes(tmp_path):
    path = tmp_path / "notes"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def preempt_worker(cluster, tmp_path):
    """Drain the node of the worker like a cloud that takes back a spot machine, and then remove it."""
    wait_until(lambda: len(notes(tmp_path)) == 2)
    (node,) = (each for each in cluster.worker_nodes if each.node_id == notes(tmp_path)[1][2])
    gcs = GcsClient(address=cluster.address)
    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    gcs.drain_node(node.node_id, reason, "a test", int(time.time() * 1000) + 4000)
    time.sleep(5)
    cluster.remove_node(node)


def fit(cluster, tmp_path, failure_config):
    def build(plan):
        return DataParallelTrainer(
            train,
            train_loop_config={"notes": str(tmp_path / "notes")},
            scaling_config=plan.scaling_config(),
            run_config=RunConfig(name="run", storage_path=str(tmp_path), failure_config=failure_config),
        )

    plan = GpuPolicy(gpus=0.5, cpus=1, num_workers=1).plan(probe_cluster())
    thread = threading.Thread(target=preempt_worker, args=(cluster, tmp_path))
    thread.start()
    try:
        return fit_with_oom_retry(build, plan)
    finally:
        thread.join()


@pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")  # the GPUs are simulated
def test_a_preempted_train_run_resumes_on_another_node_and_is_then_retried_with_more_memory(cluster, tmp_path):
    failure_config = FailureConfig(max_preemption_failures=1, preemption_grace_s=1)

    result = fit(cluster, tmp_path, failure_config)

    steps = [f"{step} with {share} GPU" for step, share, _ in notes(tmp_path)]
    _, preempted, resumed, _ = (node_id for _, _, node_id in notes(tmp_path))
    assert result.metrics["step"] == 2
    assert steps == ["1 with 0.5 GPU", "2 with 0.5 GPU", "2 with 0.5 GPU", "2 with 1 GPU"]
    assert resumed != preempted


@pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")
def test_a_preemption_above_the_limit_is_raised_and_not_retried(cluster, tmp_path):
    with pytest.raises(TrainingFailedError, match="preemption"):
        fit(cluster, tmp_path, FailureConfig(max_preemption_failures=0))

    assert len(notes(tmp_path)) == 2
