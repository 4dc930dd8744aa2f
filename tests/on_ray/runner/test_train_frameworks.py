"""Train workers of each framework train together with the planned threads and devices.

The tests access builders of trainers only when they run, because the access imports the framework, and importing
TensorFlow takes seconds.
"""

import json
import os
from collections import Counter
from pathlib import Path

import pytest
import ray.train
from ray.train import RunConfig

from tests.clusters import nodes
from tune_policies import CappedPolicy, CpuPolicy, GpuPolicy, InvalidResourcesError, trainers

pytestmark = pytest.mark.rest

THREADS = os.cpu_count() + 1
"""A number of threads that no library uses by default."""

PLAN = CpuPolicy(cpus=THREADS, num_workers=2).plan(nodes((2 * THREADS, 2)))
GPU_PLAN = GpuPolicy(cpus=1, num_workers=2).plan(nodes((2 * THREADS, 2)))


RAY = {"num_cpus": 2 * THREADS, "num_gpus": 2}


def write_down(folder, **seen):
    rank = ray.train.get_context().get_world_rank()
    seen |= {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}
    Path(folder, f"{rank}.json").write_text(json.dumps(seen))


def num_threads_called(name):
    return Counter(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))[name]


def openmp_threads():
    from threadpoolctl import threadpool_info

    return sorted({library["num_threads"] for library in threadpool_info() if library["user_api"] == "openmp"})


def seen_by_workers(build, loop, folder, plan=PLAN):
    trainer = build(
        loop,
        plan=plan,
        train_loop_config={"folder": str(folder)},
        run_config=RunConfig(storage_path=str(folder / "results")),
    )
    trainer.fit()
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def boost_with_xgboost(config):
    import numpy as np
    import xgboost

    x = np.arange(64.0).reshape(-1, 1)
    xgboost.train({}, xgboost.DMatrix(x, label=x[:, 0]), 1)
    write_down(config["folder"], threads=openmp_threads(), together=xgboost.collective.get_world_size())


def boost_with_lightgbm(config):
    import lightgbm
    import numpy as np
    from ray.train.lightgbm import get_network_params

    x = np.arange(64.0).reshape(-1, 1)
    together = get_network_params()
    params = {"tree_learner": "data_parallel", "pre_partition": True, "verbose": -1, **together}
    lightgbm.train(params, lightgbm.Dataset(x, label=x[:, 0]), 1)
    write_down(config["folder"], threads=openmp_threads(), together=together["num_machines"])


def sum_with_jax(config):
    import jax.numpy as jnp
    from jax.experimental.multihost_utils import process_allgather

    ranks = process_allgather(jnp.ones(1))
    write_down(config["folder"], threads=[num_threads_called("tf_XLAEigen")], together=int(ranks.sum()))


@pytest.mark.parametrize(
    ("build", "loop"),
    [
        pytest.param("build_xgboost_trainer", boost_with_xgboost, id="XGBoost", marks=pytest.mark.slow),
        pytest.param("build_lightgbm_trainer", boost_with_lightgbm, id="LightGBM", marks=pytest.mark.slow),
        pytest.param("build_jax_trainer", sum_with_jax, id="JAX", marks=pytest.mark.slow),
    ],
)
def test_two_workers_train_together_with_the_planned_threads_and_no_gpu(tmp_path, build, loop):
    seen = seen_by_workers(getattr(trainers, build), loop, tmp_path)

    assert seen == [{"threads": [THREADS], "together": 2, "gpus": ""}] * 2


def fit_with_keras(config):
    import tensorflow as tf

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
    history = model.fit(tf.ones((8, 2)), tf.ones(8), batch_size=4, verbose=0)
    write_down(
        config["folder"],
        keras=type(model).__module__.partition(".")[0],
        losses=len(history.history["loss"]),
        threads=num_threads_called("tf_Compute"),
    )


@pytest.mark.slow
def test_model_fit_works_on_two_tensorflow_workers_with_the_planned_threads(tmp_path):
    seen = seen_by_workers(trainers.build_tensorflow_trainer, fit_with_keras, tmp_path)

    # TensorFlow has an intra-op pool, an inter-op pool, and one internal thread.
    expected = {"keras": "tf_keras", "losses": 1, "threads": 2 * THREADS + 1, "gpus": ""}
    assert seen == [expected] * 2


def fit_with_lightning(config):
    import lightning
    import torch
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer

    class Line(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch):
            in_a_step.update(threads=torch.get_num_threads(), device=self.device.type)
            return self.layer(batch[0]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    in_a_step = {}
    trainer = lightning.Trainer(
        max_epochs=1,
        strategy=RayDDPStrategy(),
        plugins=[RayLightningEnvironment()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    rows = torch.utils.data.TensorDataset(torch.ones(8, 2))
    prepare_trainer(trainer).fit(Line(), torch.utils.data.DataLoader(rows))
    write_down(config["folder"], **in_a_step, together=trainer.world_size)


def fit_with_hugging_face(config):
    import torch
    from ray.train.huggingface.transformers import prepare_trainer
    from transformers import Trainer, TrainingArguments

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x):
            in_a_step.update(threads=torch.get_num_threads(), device=x.device.type)
            return {"loss": self.layer(x).mean()}

    in_a_step = {}
    folder = Path(config["folder"], "trainer")
    fields = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    args = TrainingArguments(str(folder), num_train_epochs=1, **fields)
    trainer = Trainer(model=Line(), args=args, train_dataset=[{"x": torch.ones(2)}] * 8)
    prepare_trainer(trainer).train()
    write_down(config["folder"], **in_a_step, together=args.world_size)


@pytest.mark.slow
@pytest.mark.parametrize("loop", [fit_with_lightning, fit_with_hugging_face])
def test_lightning_and_hugging_face_use_the_planned_threads_and_no_gpu(tmp_path, loop):
    seen = seen_by_workers(trainers.build_torch_trainer, loop, tmp_path)

    assert seen == [{"threads": THREADS, "device": "cpu", "together": 2, "gpus": ""}] * 2


@pytest.mark.slow
def test_each_jax_worker_sees_its_own_gpu(tmp_path):
    """With Ray's JAX backend, both workers of a node would see the first GPU."""
    seen = seen_by_workers(trainers.build_jax_trainer, lambda config: write_down(config["folder"]), tmp_path, GPU_PLAN)

    assert [each["gpus"] for each in seen] == ["0", "1"]


def test_elastic_jax_workers_on_a_shared_gpu_are_rejected():
    plan = CappedPolicy(GpuPolicy(gpus=0.5, cpus=1, num_workers=(1, 9)), 1).plan(nodes((8, 2)))

    with pytest.raises(InvalidResourcesError, match=r"4 JAX workers with 0\.5 GPU each share a device"):
        trainers.build_jax_trainer(lambda: None, plan=plan)


def without_tf_keras(monkeypatch):
    monkeypatch.setattr("tune_policies.trainers.train.framework_trainers.find_spec", lambda _: None)


def test_elastic_tensorflow_workers_require_tf_keras_when_the_trainer_is_built(monkeypatch):
    plan = CappedPolicy(CpuPolicy(num_workers=(1, 9)), 1).plan(nodes((8, 0)))

    trainer = trainers.build_tensorflow_trainer(lambda: None, plan=plan)
    without_tf_keras(monkeypatch)

    assert trainer.run_config.worker_runtime_env == {"env_vars": {"TF_USE_LEGACY_KERAS": "1"}}
    with pytest.raises(InvalidResourcesError, match=r"model\.fit with 8 workers requires Keras 2"):
        trainers.build_tensorflow_trainer(lambda: None, plan=plan)


def test_an_unknown_keras_version_is_rejected():
    with pytest.raises(InvalidResourcesError, match="keras_version must be 2, 3 or None, got '2'"):
        trainers.build_tensorflow_trainer(lambda: None, plan=PLAN, keras_version="2")


@pytest.mark.parametrize(("keras_version", "legacy"), [(2, "1"), (3, "0")])
def test_an_explicit_keras_version_does_not_require_tf_keras(monkeypatch, keras_version, legacy):
    without_tf_keras(monkeypatch)

    trainer = trainers.build_tensorflow_trainer(lambda: None, plan=PLAN, keras_version=keras_version)

    assert trainer.run_config.worker_runtime_env == {"env_vars": {"TF_USE_LEGACY_KERAS": legacy}}


def test_environment_variables_in_the_users_run_config_are_kept():
    run_config = RunConfig(worker_runtime_env={"env_vars": {"TF_USE_LEGACY_KERAS": "0", "MINE": "x"}})

    trainer = trainers.build_tensorflow_trainer(lambda: None, plan=PLAN, run_config=run_config)

    assert trainer.run_config.worker_runtime_env == {"env_vars": {"TF_USE_LEGACY_KERAS": "0", "MINE": "x"}}
