"""Tests the results, checkpoints, errors and clean-up of Train runs that are Tune trials."""

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import ray
import ray.train
from packaging.version import Version
from ray import tune
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from tests.clusters import nodes
from tests.on_ray.marked_processes import ends
from tests.on_ray.rays import wait_until
from tune_policies import CappedPolicy, CpuPolicy, InvalidResourcesError, tuner
from tune_policies.trainers import as_trainable
from tune_policies.trainers.train.scaling_config_check import check_workers

ROOT = Path(__file__).parents[3]
POLICY = CpuPolicy(cpus=1, num_workers=1)
PLAN = POLICY.plan(nodes((2, 0)))


RAY = {"num_cpus": 2}


def trainer_of(loop, run_config=None):
    """Return a function that builds a trainer without a framework, so that its workers start within a second."""

    def build(config):
        return DataParallelTrainer(
            loop, train_loop_config=config, scaling_config=PLAN.scaling_config(), run_config=run_config
        )

    return build


def run(loop, tmp_path, space=None, *, policy=POLICY, trainer_config=None, stop=None, **kwargs):
    checkpoint_config, failures = kwargs.pop("checkpoint_config", None), kwargs.pop("max_failures", 0)
    return tuner(
        as_trainable(trainer_of(loop, trainer_config)),
        policy,
        param_space=space or {},
        tune_config=tune.TuneConfig(**kwargs),
        run_config=tune.RunConfig(
            name="run",
            storage_path=str(tmp_path),
            stop=stop,
            verbose=0,
            callbacks=[RecordResults(tmp_path / "seen")],
            checkpoint_config=checkpoint_config or tune.CheckpointConfig(),
            failure_config=tune.FailureConfig(max_failures=failures),
        ),
    ).fit()


class RecordResults(tune.Callback):
    """Records every result that Tune receives. Tune's own files lose results when a trial is retried."""

    def __init__(self, path):
        self.path = path

    def on_trial_result(self, iteration, trials, trial, result, **info):
        with self.path.open("a") as file:
            file.write(f"{result['step']}:{result['training_iteration']} ")


def report_step(step, *, with_checkpoint=True):
    if not with_checkpoint:
        ray.train.report({"step": step})
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "step").write_text(str(step))
        ray.train.report({"step": step}, checkpoint=Checkpoint.from_directory(folder))


def step_of(checkpoint):
    if checkpoint is None:
        return -1
    with checkpoint.as_directory() as folder:
        return int(Path(folder, "step").read_text())


@pytest.mark.ci
def test_a_trainer_with_more_workers_than_planned_fails_before_its_workers_start(tmp_path):
    def loop():
        (tmp_path / "started").touch()

    def build(config):
        return DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=4))

    results = tuner(
        as_trainable(build),
        CpuPolicy(cpus=0.5, num_workers=2),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()

    assert "the trainer has num_workers=4, but the policy plans num_workers=2 for each trial" in str(results.errors[0])
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    ("policy", "scaling", "message", "fix"),
    [
        pytest.param(
            CpuPolicy(num_workers=2),
            ScalingConfig(num_workers=4),
            "Set num_workers=4 in the policy, or ScalingConfig(num_workers=2) in the trainer",
            ScalingConfig(num_workers=2),
            id="too many workers",
        ),
        pytest.param(
            CpuPolicy(num_workers=2),
            ScalingConfig(num_workers=(2, 8)),
            "the trainer has num_workers=(2, 8), but the policy plans num_workers=2 for each trial. Set "
            "num_workers=(2, 8) in the policy, or ScalingConfig(num_workers=2) in the trainer",
            ScalingConfig(num_workers=2),
            id="a maximum above a fixed number",
        ),
        pytest.param(
            CappedPolicy(CpuPolicy(num_workers=(1, 2)), 1),
            ScalingConfig(num_workers=2),
            "or ScalingConfig(num_workers=(1, 2)) in the trainer",
            ScalingConfig(num_workers=(1, 2)),
            id="as many workers as elastic trials may have",
        ),
        pytest.param(
            CpuPolicy(num_workers=2),
            ScalingConfig(num_workers=2, use_gpu=True),
            "each worker of the trainer requests 1 GPU, but the policy plans 0 GPUs for it. Write "
            "ScalingConfig(num_workers=2, use_gpu=False, resources_per_worker={'CPU': 1}) in the trainer",
            ScalingConfig(num_workers=2, use_gpu=False, resources_per_worker={"CPU": 1.0}),
            id="a GPU that is not planned",
        ),
        pytest.param(
            CpuPolicy(cpus=0.5, num_workers=2),
            ScalingConfig(num_workers=2),
            "each worker of the trainer requests 1 CPU, but the policy plans 0.5 CPU for it. Write "
            "ScalingConfig(num_workers=2, use_gpu=False, resources_per_worker={'CPU': 0.5}) in the trainer",
            ScalingConfig(num_workers=2, use_gpu=False, resources_per_worker={"CPU": 0.5}),
            id="Ray's default of one CPU",
        ),
    ],
)
def test_workers_that_exceed_the_slot_raise_an_error_whose_advice_works(policy, scaling, message, fix):
    slot = policy.plan(nodes((4, 1))).common_slot

    with pytest.raises(InvalidResourcesError, match=re.escape(message)):
        check_workers(scaling, slot)
    check_workers(fix, slot)


def test_the_maximum_of_an_elastic_policy_may_exceed_the_room_of_this_cluster():
    slot = CpuPolicy(num_workers=(2, 8)).plan(nodes((4, 0))).common_slot

    check_workers(ScalingConfig(num_workers=(2, 8)), slot)

    assert (slot.num_workers, slot.max_workers) == (2, 2)


@pytest.mark.rest
@pytest.mark.ray_border
def test_the_workers_of_a_plain_driver_function_must_fit_in_the_slot(tmp_path):
    def loop():
        (tmp_path / "started").touch()

    def driver(config):
        run_config = RunConfig(storage_path=str(tmp_path / "train"))
        DataParallelTrainer(loop, scaling_config=ScalingConfig(num_workers=2), run_config=run_config).fit()

    plan = CpuPolicy(cpus=1, num_workers=1).plan(nodes((2, 0)))
    results = tuner(driver, plan, run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0)).fit()

    assert (
        "the trainer has num_workers=2, but the policy plans num_workers=1 for each trial. Set num_workers=2 in the "
        "policy, or ScalingConfig(num_workers=1) in the trainer"
    ) in str(results.errors[0])
    assert not (tmp_path / "started").exists()


@pytest.mark.ray_border
def test_train_reports_become_ordered_tune_results_and_tune_manages_the_checkpoints(tmp_path):
    def loop():
        for step in range(20):
            report_step(step, with_checkpoint=step % 5 == 0)

    results = run(loop, tmp_path, checkpoint_config=tune.CheckpointConfig(num_to_keep=1), metric="step", mode="max")

    best = results.get_best_result()
    seen = [step for step in (tmp_path / "seen").read_text().split() if step]
    assert results.errors == []
    assert [f"{step}:{step + 1}" for step in range(20)] == seen[:20]
    assert step_of(best.checkpoint) == 15
    # The checkpoint exists only once, in the trial's folder.
    assert [path.parent.parent.name for path in tmp_path.rglob("step")] == [Path(best.path).name]


@pytest.mark.slow
def test_each_trial_saves_its_train_run_in_a_subfolder_with_the_name_of_the_run(tmp_path):
    def loop():
        report_step(0)

    results = run(
        loop,
        tmp_path,
        {"x": tune.grid_search([0, 1])},
        trainer_config=RunConfig(name="mine"),
        metric="step",
        mode="max",
    )

    assert results.errors == []
    assert {Path(each.checkpoint.path).parent for each in results} == {Path(each.path, "mine") for each in results}


@pytest.mark.slow
def test_a_retried_trial_resumes_from_its_checkpoint_and_raises_the_users_error(tmp_path):
    def loop():
        start = step_of(ray.train.get_checkpoint()) + 1
        report_step(start)
        if start < 2:
            raise ValueError(f"failed at {start}")

    results = run(loop, tmp_path, max_failures=1)

    error = results[0].error
    assert (tmp_path / "seen").read_text().split() == ["0:1", "1:2"]
    assert isinstance(error, ValueError)
    assert "ValueError: failed at 1" in str(error)


def living_actors():
    return {each["ActorClassName"] for each in ray._private.state.actors().values() if each["State"] == "ALIVE"}


@pytest.mark.slow
@pytest.mark.ray_border
def test_stopping_a_trial_ends_its_workers_and_releases_its_resources(tmp_path):
    def loop():
        (tmp_path / "pid").write_text(str(os.getpid()))
        for step in range(100_000):
            report_step(step, with_checkpoint=False)

    results = run(loop, tmp_path, stop={"step": 3})

    pid = (tmp_path / "pid").read_text()
    assert results[0].metrics["step"] == 3
    assert ends(pid)
    wait_until(lambda: ray.available_resources().get("CPU") == 2)
    wait_until(lambda: not living_actors() & {"TrainController", "PlacementGroupCleaner"})


@pytest.mark.rest
def test_num_to_keep_in_the_trainer_is_rejected(tmp_path):
    keep_one = RunConfig(checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1))

    results = run(lambda: None, tmp_path, trainer_config=keep_one)

    assert isinstance(results[0].error, InvalidResourcesError)
    assert "pass tune.CheckpointConfig(num_to_keep=1) to Tune" in str(results[0].error)


@pytest.mark.rest
def test_a_trial_fails_if_its_policy_plans_no_train_workers(tmp_path):
    results = run(lambda: None, tmp_path, policy=CpuPolicy())

    assert isinstance(results[0].error, InvalidResourcesError)
    assert "Set num_workers=1 or more" in str(results[0].error)


class KillProgram(tune.Callback):
    """Kills the original program after four steps, but not the program that restores the run."""

    def __init__(self):
        self.pid = os.getpid()

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if result["step"] == 4 and os.getpid() == self.pid:
            os.kill(self.pid, signal.SIGKILL)


def record_steps(config):
    for step in range(step_of(ray.train.get_checkpoint()) + 1, 7):
        with Path(config["folder"], "taken").open("a") as file:
            file.write(f"{step} ")
        report_step(step)


class Data:
    """An object whose ``repr`` contains its address."""


def unrepeatable_config(folder):
    """Return a config that has a different ``repr`` and different values after Tune restores the trial."""
    return {
        "folder": str(folder),
        "loss": lambda x: x,
        "data": Data(),
        "shape": (2, 3),
        "noise": tune.sample_from(lambda spec: random.random()),
    }


def run_until_killed(address, folder):
    ray.init(address=address, logging_level="ERROR")
    tuner(
        as_trainable(trainer_of(record_steps)),
        POLICY,
        param_space=unrepeatable_config(folder),
        run_config=tune.RunConfig(name="run", storage_path=str(folder), callbacks=[KillProgram()], verbose=0),
    ).fit()


@pytest.mark.slow
@pytest.mark.ray_border
@pytest.mark.skipif(
    Version(ray.__version__) < Version("2.54"), reason="Ray Train numbers its reports only in Ray 2.54 or later"
)
def test_a_trial_resumes_from_its_latest_checkpoint_after_its_program_was_killed(tmp_path):
    """``TUNE_GLOBAL_CHECKPOINT_S`` makes Tune save the state of the run only when the run starts."""
    address = ray.get_runtime_context().gcs_address
    command = f"from {__name__} import run_until_killed; run_until_killed({address!r}, {str(tmp_path)!r})"
    variables = os.environ | {"TUNE_GLOBAL_CHECKPOINT_S": "1000"}
    program = subprocess.run([sys.executable, "-c", command], cwd=ROOT, env=variables, timeout=150, check=False)
    assert program.returncode == -signal.SIGKILL

    restored = tune.Tuner.restore(str(tmp_path / "run"), as_trainable(trainer_of(record_steps)))
    [result] = restored.fit()

    taken = (tmp_path / "taken").read_text().split()
    assert sorted({*taken}) == [*"0123456"]
    assert [taken.count(step) for step in "01234"] == [1] * 5  # the worker can be one or two steps ahead of Train
    assert (result.metrics["step"], result.metrics["training_iteration"]) == (6, 7)
