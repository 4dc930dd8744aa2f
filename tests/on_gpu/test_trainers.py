"""Tests the limits and visible devices of each framework's workers on a real GPU. `make test-gpu` runs these tests.

Each test imports its own trainer, so that a test does not require the frameworks of other tests.
"""

import json
import warnings
from pathlib import Path

import pytest
from ray.train import RunConfig

from tests.on_ray.rays import local_ray
from tune_policies import CpuPolicy, GpuPolicy, ProbeWarning, probe_cluster

pytestmark = pytest.mark.gpu

SHARE = 0.25


@pytest.fixture(scope="module")
def capacity():
    with local_ray(num_cpus=4), warnings.catch_warnings():
        warnings.simplefilter("error", ProbeWarning)
        yield probe_cluster()


def seen_by_worker(build, loop, plan, folder):
    """Run one worker, and return the values that it recorded."""
    build(
        loop,
        plan=plan,
        train_loop_config={"folder": str(folder), "share": plan.gpu_memory_bytes},
        run_config=RunConfig(storage_path=str(folder / "results")),
    ).fit()
    return json.loads((folder / "seen.json").read_text())


def write_down(config, **seen):
    Path(config["folder"], "seen.json").write_text(json.dumps(seen))


def plan_with_gpu_fraction(capacity):
    return GpuPolicy(gpus=SHARE, cpus=1, num_workers=1).plan(capacity)


def allocated_with_torch(most):
    """Allocate memory until an allocation fails or ``most`` bytes are allocated, and return the allocated bytes."""
    import torch

    held = []
    try:
        while len(held) * 2**28 < most:
            held.append(torch.empty(2**28, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError:
        pass
    return len(held) * 2**28


def fill_with_jax(config):
    import jax
    import jax.numpy as jnp

    held = []
    try:
        while len(held) * 2**28 < 2 * config["share"]:
            held.append(jnp.zeros(2**26, jnp.float32).block_until_ready())
    except jax.errors.JaxRuntimeError:
        pass
    write_down(config, taken=len(held) * 2**28, devices=len(jax.devices()), platform=jax.default_backend())


def test_a_jax_worker_sees_one_gpu_and_its_memory_is_limited(capacity, tmp_path):
    pytest.importorskip("jax_plugins")
    from tune_policies.trainers import build_jax_trainer

    plan = plan_with_gpu_fraction(capacity)

    seen = seen_by_worker(build_jax_trainer, fill_with_jax, plan, tmp_path)

    assert 0.5 * plan.gpu_memory_bytes < seen.pop("taken") < plan.gpu_memory_bytes
    assert seen == {"devices": 1, "platform": "gpu"}


def record_jax_backend(config):
    import jax

    write_down(config, platform=jax.default_backend())


def test_a_jax_worker_without_gpus_uses_the_cpu(capacity, tmp_path):
    pytest.importorskip("jax_plugins")
    from tune_policies.trainers import build_jax_trainer

    plan = CpuPolicy(num_workers=1).plan(capacity)

    assert seen_by_worker(build_jax_trainer, record_jax_backend, plan, tmp_path) == {"platform": "cpu"}


def boost_with_xgboost(config):
    import numpy as np
    import xgboost

    from tune_policies.trainers import gpu_memory_usage

    x = np.arange(64.0).reshape(-1, 1)
    booster = xgboost.train({"device": "cuda"}, xgboost.DMatrix(x, label=x[:, 0]), 1)
    device = json.loads(booster.save_config())["learner"]["generic_param"]["device"]
    write_down(config, device=device, not_enforceable=gpu_memory_usage().not_enforceable)


def test_an_xgboost_worker_trains_on_the_gpu_and_reports_an_unenforced_limit(capacity, tmp_path):
    xgboost = pytest.importorskip("xgboost")
    if not xgboost.build_info().get("USE_CUDA"):
        pytest.skip("this build of XGBoost does not support GPUs")
    from tune_policies.trainers import build_xgboost_trainer

    seen = seen_by_worker(build_xgboost_trainer, boost_with_xgboost, plan_with_gpu_fraction(capacity), tmp_path)

    assert seen == {"device": "cuda:0", "not_enforceable": ["xgboost"]}


def boost_with_lightgbm(config):
    import lightgbm
    import numpy as np

    from tune_policies.trainers import gpu_memory_usage

    x = np.arange(64.0).reshape(-1, 1)
    lightgbm.train({"verbose": -1}, lightgbm.Dataset(x, label=x[:, 0]), 1)  # LightGBM's wheels are built for CPUs
    write_down(config, not_enforceable=gpu_memory_usage().not_enforceable)


def test_a_lightgbm_worker_with_a_gpu_fraction_reports_an_unenforced_limit(capacity, tmp_path):
    pytest.importorskip("lightgbm")
    from tune_policies.trainers import build_lightgbm_trainer

    seen = seen_by_worker(build_lightgbm_trainer, boost_with_lightgbm, plan_with_gpu_fraction(capacity), tmp_path)

    assert seen == {"not_enforceable": ["lightgbm"]}


def fit_with_lightning(config):
    import lightning
    import torch
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer

    class Line(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch):
            taken = allocated_with_torch(2 * config["share"])
            write_down(config, taken=taken, device=self.device.type, devices=torch.cuda.device_count())
            torch.cuda.empty_cache()
            return self.layer(batch[0]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        max_steps=1,
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        logger=False,
        enable_checkpointing=False,
    )
    rows = torch.utils.data.TensorDataset(torch.ones(8, 2))
    prepare_trainer(trainer).fit(Line(), torch.utils.data.DataLoader(rows))


def fit_with_hugging_face(config):
    import torch
    from ray.train.huggingface.transformers import prepare_trainer
    from transformers import Trainer, TrainingArguments

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x):
            taken = allocated_with_torch(2 * config["share"])
            write_down(config, taken=taken, device=x.device.type, devices=torch.cuda.device_count())
            torch.cuda.empty_cache()
            return {"loss": self.layer(x).mean()}

    folder = Path(config["folder"], "trainer")
    args = TrainingArguments(str(folder), max_steps=1, save_strategy="no", report_to="none", disable_tqdm=True)
    trainer = Trainer(model=Line(), args=args, train_dataset=[{"x": torch.ones(2)}] * 8)
    prepare_trainer(trainer).train()


@pytest.mark.parametrize(
    ("package", "loop"), [("lightning", fit_with_lightning), ("transformers", fit_with_hugging_face)]
)
def test_the_memory_of_lightning_and_hugging_face_trainers_is_limited(capacity, tmp_path, package, loop):
    pytest.importorskip(package)
    from tune_policies.trainers import build_torch_trainer

    plan = plan_with_gpu_fraction(capacity)

    seen = seen_by_worker(build_torch_trainer, loop, plan, tmp_path)

    assert 0.5 * plan.gpu_memory_bytes < seen.pop("taken") < plan.gpu_memory_bytes
    assert seen == {"device": "cuda", "devices": 1}
