"""The probe reads a real GPU, and trials stay within their GPU fraction. `make test-gpu` runs these tests."""

import warnings
from pathlib import Path

import pytest
import ray
import ray.train
from ray import tune

from tests.on_gpu.device import evaluate_with_torch, sees_a_gpu
from tests.on_ray.rays import local_ray
from tune_policies import CpuPolicy, GpuMemoryPolicy, GpuPolicy, PolicyScheduler, ProbeWarning, probe_cluster
from tune_policies.trainers import peak_gpu_memory_bytes

pytestmark = pytest.mark.gpu

GIB = 2**30


@pytest.fixture(scope="module")
def capacity():
    with local_ray(num_cpus=8), warnings.catch_warnings():
        warnings.simplefilter("error", ProbeWarning)
        yield probe_cluster()


def run(trainable, plan, tmp_path):
    return tune.run(
        trainable,
        scheduler=PolicyScheduler(plan),
        storage_path=str(tmp_path),
        verbose=0,
        raise_on_failed_trial=False,
    ).trials


def allocate(config, gib):
    import torch

    held = torch.empty(int(gib * GIB), dtype=torch.uint8, device="cuda")
    tune.report({"bytes": held.numel(), "peak": peak_gpu_memory_bytes(), "visible": torch.cuda.device_count()})


def test_the_probe_reads_the_model_memory_and_uuid_of_a_gpu(capacity):
    model, total = evaluate_with_torch(
        "[torch.cuda.get_device_name(0), torch.cuda.get_device_properties(0).total_memory]"
    )

    device = next(capacity.gpu_nodes()).devices[0]

    assert device.name == model
    # The driver and CUDA reserve slightly different amounts.
    assert device.memory_bytes == pytest.approx(total, rel=0.01)
    assert device.uuid.startswith("GPU-")


def test_a_gpu_memory_plan_contains_as_many_trials_as_fit_on_the_device(capacity):
    plan = GpuMemoryPolicy(gpu_memory="6GiB").plan(capacity)
    node = next(capacity.gpu_nodes())

    workers_per_gpu = plan.max_concurrent_trials // int(node.resources.gpus)
    assert workers_per_gpu == node.smallest_gpu_memory_bytes // (6 * GIB)


def test_a_trial_within_its_limit_reports_its_peak_memory(capacity, tmp_path):
    plan = GpuPolicy(gpus=0.25).plan(capacity)

    (trial,) = run(lambda config: allocate(config, 2), plan, tmp_path)

    assert trial.last_result["bytes"] == 2 * GIB
    assert 2 * GIB <= trial.last_result["peak"] < 2.5 * GIB
    assert trial.last_result["visible"] == 1


def test_a_trial_that_exceeds_its_limit_fails_without_affecting_other_trials(capacity, tmp_path):
    plan = GpuPolicy(gpus=0.25).plan(capacity)
    share = plan.gpu_memory_bytes / GIB

    def train(config):
        allocate(config, 2 * share if config["greedy"] else 2)

    trials = tune.run(
        train,
        scheduler=PolicyScheduler(plan),
        config={"greedy": tune.grid_search([True, False, False])},
        storage_path=str(tmp_path),
        verbose=0,
        raise_on_failed_trial=False,
    ).trials

    assert [trial.status for trial in trials] == ["ERROR", "TERMINATED", "TERMINATED"]
    assert "OutOfMemoryError" in Path(trials[0].error_file).read_text()


def test_a_cpu_trial_sees_no_gpu(capacity, tmp_path):
    def train(config):
        import torch

        tune.report({"cuda": torch.cuda.is_available(), "peak": peak_gpu_memory_bytes()})

    (trial,) = run(train, CpuPolicy().plan(capacity), tmp_path)

    assert (trial.last_result["cuda"], trial.last_result["peak"]) == (False, None)


def test_two_train_workers_share_a_gpu_with_gloo_and_enforced_limits(capacity, tmp_path):
    from tune_policies.trainers import build_torch_trainer

    plan = GpuPolicy(gpus=0.5, cpus=1, num_workers=2).plan(capacity)

    def train_loop():
        import torch
        import torch.distributed

        total = torch.ones(1, device="cuda")
        torch.distributed.all_reduce(total)
        assert total.item() == 2
        assert torch.distributed.get_backend() == "gloo"
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(int(0.6 * torch.cuda.get_device_properties(0).total_memory), dtype=torch.uint8, device="cuda")

    result = build_torch_trainer(
        train_loop, plan=plan, run_config=ray.train.RunConfig(storage_path=str(tmp_path))
    ).fit()

    assert result.error is None


def test_the_memory_of_a_tensorflow_trial_is_limited(capacity, tmp_path):
    if not sees_a_gpu("tensorflow"):
        pytest.skip("tensorflow is not installed or finds no GPU")
    plan = GpuPolicy(gpus=0.25).plan(capacity)
    share = plan.gpu_memory_bytes

    def train(config):
        import tensorflow as tf

        (device,) = tf.config.list_physical_devices("GPU")
        (logical,) = tf.config.get_logical_device_configuration(device)
        with pytest.raises(tf.errors.ResourceExhaustedError):
            tf.zeros((2 * share,), tf.uint8)
        tune.report({"limit": logical.memory_limit * 2**20})

    (trial,) = run(train, plan, tmp_path)

    assert share - 2 * GIB < trial.last_result["limit"] < share - GIB
