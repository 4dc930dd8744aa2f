"""Tests Ray's trainers with the workers, resources and backends of a plan."""

import json
import os
from pathlib import Path

import pytest
import ray.train
import torch
from ray.train import RunConfig
from ray.train.torch import TorchConfig
from ray.train.v2.api.exceptions import WorkerGroupError

from tests.clusters import nodes
from tests.rest_parameters import further
from tests.stand_ins import PYNVML
from tune_policies import CpuPolicy, GpuPolicy, InvalidResourcesError, trainers
from tune_policies.trainers import build_torch_trainer

pytestmark = pytest.mark.ci
RAY = {"num_cpus": 4, "num_gpus": 2}


CPU_PLAN = CpuPolicy(cpus=1, num_workers=2).plan(nodes((4, 2)))
SHARED_GPU_PLAN = GpuPolicy(gpus=0.5, cpus=1, num_workers=2).plan(nodes((4, 2)))
WHOLE_GPU_PLAN = GpuPolicy(cpus=1, num_workers=2).plan(nodes((4, 2)))

# Builders are listed by name, because access to a builder imports its framework. Importing TensorFlow takes seconds.
OF_TORCH, *OF_OTHERS = [
    f"build_{framework}_trainer" for framework in ("torch", "jax", "lightgbm", "tensorflow", "xgboost")
]


@pytest.fixture
def build(request):
    return getattr(trainers, request.param)


def record_worker_environment(config):
    rank = ray.train.get_context().get_world_rank()
    seen = {
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "cpus": ray.get_runtime_context().get_assigned_resources().get("CPU"),
        "workers": ray.train.get_context().get_world_size(),
    }
    Path(config["folder"], f"{rank}.json").write_text(json.dumps(seen))


@pytest.mark.parametrize(
    ("build", "num_workers", "cls"),
    [
        (OF_TORCH, 2, "TorchTrainer"),
        pytest.param("build_tensorflow_trainer", 1, "TensorflowTrainer", marks=pytest.mark.slow),
    ],
    indirect=["build"],
)
def test_rays_trainer_runs_the_planned_workers_with_their_cpus_and_threads(tmp_path, build, num_workers, cls):
    plan = CpuPolicy(cpus=1, num_workers=num_workers).plan(nodes((4, 2)))

    trainer = build(
        record_worker_environment,
        plan=plan,
        train_loop_config={"folder": str(tmp_path)},
        run_config=RunConfig(storage_path=str(tmp_path / "results")),
    )
    trainer.fit()

    seen = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("*.json"))]
    assert (type(trainer).__name__, type(trainer).__module__.partition(".")[0]) == (cls, "ray")
    assert seen == [{"gpus": "", "threads": "1", "cpus": 1, "workers": num_workers}] * num_workers


def test_workers_that_share_a_gpu_use_gloo():
    trainer = build_torch_trainer(lambda: None, plan=SHARED_GPU_PLAN, torch_config=TorchConfig(timeout_s=77))

    assert (trainer.backend_config.backend, trainer.backend_config.timeout_s) == ("gloo", 77)


@pytest.mark.parametrize("backend", ["nccl", "NCCL", "cpu:gloo,cuda:nccl"])
def test_nccl_on_a_shared_gpu_is_rejected(backend):
    with pytest.raises(InvalidResourcesError, match=r"0\.5 GPU share a device, and NCCL does not support"):
        build_torch_trainer(lambda: None, plan=SHARED_GPU_PLAN, torch_config=TorchConfig(backend=backend))


def test_workers_with_whole_gpus_use_rays_default_backend():
    trainer = build_torch_trainer(lambda: None, plan=WHOLE_GPU_PLAN)

    assert trainer.backend_config.backend == "nccl"


@pytest.mark.rest
@pytest.mark.skipif(torch.cuda.is_available(), reason="requires a machine without a GPU")
def test_a_run_fails_if_the_limit_of_a_worker_cannot_be_enforced(tmp_path):
    """A stand-in for NVIDIA's driver fails, so the node looks like a GPU node with a broken driver."""
    (tmp_path / "pynvml.py").write_text(PYNVML)
    plan = GpuPolicy(gpus=0.5, cpus=1, num_workers=1).plan(nodes((4, 2)))
    run_config = RunConfig(storage_path=str(tmp_path), worker_runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path)}})

    trainer = build_torch_trainer(lambda: None, plan=plan, run_config=run_config)

    with pytest.raises(WorkerGroupError, match="torch detects no GPU, so the memory limit cannot be enforced"):
        trainer.fit()


@pytest.mark.slow
@pytest.mark.ray_border
@pytest.mark.skipif(torch.cuda.is_available(), reason="requires a machine without a GPU")
@pytest.mark.parametrize(
    ("gpus", "is_recognized"), [(0.5, True), (1, True), (1, False)], ids=["a fraction", "recognized", "with the option"]
)
def test_a_training_loop_runs_with_simulated_gpus_on_cpus(tmp_path, gpus, is_recognized):
    def loop():
        from ray.train.torch import get_device, prepare_data_loader, prepare_model
        from torch.utils.data import DataLoader, TensorDataset

        loader = prepare_data_loader(DataLoader(TensorDataset(torch.ones(4, 2))))
        model = prepare_model(torch.nn.Linear(2, 1))
        seen = {str(model(batch).device) for (batch,) in loader} | {str(get_device()), ray.get_gpu_ids() and "counted"}
        rank = ray.train.get_context().get_world_rank()
        tmp_path.joinpath(f"{rank}").write_text(f"{sorted(seen)} {torch.distributed.get_backend()}")

    policy = GpuPolicy(gpus=gpus, cpus=1, num_workers=2)
    run_config = RunConfig(storage_path=str(tmp_path))

    if is_recognized:
        build_torch_trainer(loop, plan=policy, run_config=run_config).fit()
    else:
        plan = policy.plan(nodes((4, 2)))
        build_torch_trainer(loop, plan=plan, on_unenforced_limit="warn", run_config=run_config).fit()

    assert [(tmp_path / rank).read_text() for rank in "01"] == ["['counted', 'cpu'] gloo"] * 2


@pytest.mark.parametrize("build", [OF_TORCH, *further(*OF_OTHERS)], indirect=True)
def test_a_plan_without_workers_and_a_users_scaling_config_are_rejected(build):
    with pytest.raises(InvalidResourcesError, match="num_workers=1 or more"):
        build(lambda: None, plan=CpuPolicy().plan(nodes((4, 2))))
    with pytest.raises(InvalidResourcesError, match="scaling_config cannot be passed, because the plan sets it"):
        build(lambda: None, plan=CPU_PLAN, scaling_config=CPU_PLAN.scaling_config())
