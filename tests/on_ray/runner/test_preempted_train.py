"""Train runs with retries after out-of-memory errors survive the preemption of a node."""

import threading
import time
from pathlib import Path

import pytest
import ray
from packaging.version import Version
from ray._raylet import GcsClient
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
from ray.train import FailureConfig
from ray.train.v2.api.exceptions import TrainingFailedError

from tests.on_ray.counted_steps import OUT_OF_MEMORY, counted_steps, fit, notes
from tests.on_ray.rays import cluster_of, wait_until
from tune_policies import GpuPolicy, probe_cluster

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
    for step, gpus, _ in counted_steps(config, 2):
        if step == 2 and Path(config["notes"]).read_text().count("\n") == 2:
            time.sleep(120)  # the preemption ends this attempt
        if step == 2 and gpus < 1:
            raise RuntimeError(OUT_OF_MEMORY)


def preempt_worker(cluster, tmp_path):
    """Drain the node of the worker like a cloud that takes back a spot machine, and then remove it."""
    wait_until(lambda: len(notes(tmp_path)) == 2)
    (preempted,) = (node for node in cluster.worker_nodes if node.node_id == notes(tmp_path)[1].node_id)
    gcs = GcsClient(address=cluster.address)
    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    gcs.drain_node(preempted.node_id, reason, "a test", int(time.time() * 1000) + 4000)
    time.sleep(5)
    cluster.remove_node(preempted)


def fit_during_a_preemption(cluster, tmp_path, failure_config):
    plan = GpuPolicy(gpus=0.5, cpus=1, num_workers=1).plan(probe_cluster())
    thread = threading.Thread(target=preempt_worker, args=(cluster, tmp_path))
    thread.start()
    try:
        return fit(train, tmp_path, plan, failure_config=failure_config)
    finally:
        thread.join()


@pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")  # the GPUs are simulated
def test_a_preempted_train_run_resumes_on_another_node_and_is_then_retried_with_more_memory(cluster, tmp_path):
    failure_config = FailureConfig(max_preemption_failures=1, preemption_grace_s=1)

    result = fit_during_a_preemption(cluster, tmp_path, failure_config)

    _, preempted, resumed, _ = (note.node_id for note in notes(tmp_path))
    assert result.metrics["step"] == 2
    assert [(note.step, note.gpus) for note in notes(tmp_path)] == [(1, 0.5), (2, 0.5), (2, 0.5), (2, 1)]
    assert resumed != preempted


@pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")
def test_a_preemption_above_the_limit_is_raised_and_not_retried(cluster, tmp_path):
    with pytest.raises(TrainingFailedError, match="preemption"):
        fit_during_a_preemption(cluster, tmp_path, FailureConfig(max_preemption_failures=0))

    assert len(notes(tmp_path)) == 2
