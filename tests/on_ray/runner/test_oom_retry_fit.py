"""Train runs that run out of memory resume from their checkpoint with more memory."""

import json
import tempfile
from pathlib import Path

import pytest
import ray.train
from ray.train import FailureConfig, RunConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import WorkerGroupError

from tests.clusters import nodes
from tests.on_ray.kernel_kills import be_killed
from tune_policies import GpuPolicy, InfeasibleRequestError, InvalidResourcesError, TrialPlan
from tune_policies.ray_compat.kernel_kills import note_kernel_kills
from tune_policies.trainers import fit_with_oom_retry

PLAN = GpuPolicy(gpus=0.25, cpus=1, num_workers=1).plan(nodes((4, 2)))


RAY = {"num_cpus": 4, "num_gpus": 2}


def train(config):
    """Report three steps. The second step needs the GPU fraction ``needs``."""
    share = ray.get_runtime_context().get_assigned_resources()["GPU"]
    checkpoint = ray.train.get_checkpoint()
    done = json.loads(Path(checkpoint.path, "done.json").read_text()) if checkpoint else 0
    for step in range(done + 1, 4):
        with Path(config["notes"]).open("a") as file:
            file.write(f"{step} at {share:g}\n")  # not printed, because Ray Train replaces print
        if step == 2 and share < config["needs"]:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "done.json").write_text(json.dumps(step))
            ray.train.report({"step": step}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def fit(tmp_path, plan=PLAN, *, loop=train, **config):
    def build(plan):
        # Use Ray's trainer, because the builders of this package would import torch and limit its GPU memory.
        return DataParallelTrainer(
            loop,
            train_loop_config={"notes": str(tmp_path / "notes"), **config},
            scaling_config=plan.scaling_config(),
            run_config=RunConfig(name="run", storage_path=str(tmp_path)),
        )

    return fit_with_oom_retry(build, plan)


def notes(tmp_path):
    return (tmp_path / "notes").read_text().splitlines()


@pytest.mark.rest
def test_a_train_run_that_ran_out_of_memory_resumes_with_a_larger_gpu_fraction(tmp_path):
    result = fit(tmp_path, needs=0.5)

    assert result.metrics["step"] == 3
    assert notes(tmp_path) == ["1 at 0.25", "2 at 0.25", "2 at 0.5", "3 at 0.5"]


def load_data(config):
    note_kernel_kills()  # the builders do this before they run the user's loop
    if ray.get_runtime_context().get_assigned_resources()["memory"] < 700 * 2**20:
        be_killed(config["group"])
    with Path(config["notes"]).open("a") as file:
        file.write("loaded\n")


@pytest.mark.slow
@pytest.mark.ray_border
def test_a_worker_killed_by_the_kernel_oom_killer_is_retried_with_more_host_memory(tmp_path, memory_group):
    plan = GpuPolicy(gpus=0.25, cpus=1, memory="400MiB", num_workers=1).plan(nodes((4, 2)))

    fit(tmp_path, plan, loop=load_data, group=memory_group)

    assert notes(tmp_path) == ["loaded"]


@pytest.mark.slow
def test_a_run_that_exceeds_a_whole_gpu_fails_with_an_error_that_explains_the_limit(tmp_path):
    plan = GpuPolicy(gpus=0.5, cpus=1, num_workers=1).plan(nodes((4, 2)))

    with pytest.raises(InfeasibleRequestError, match="more than 1 GPU, but max_gpus is 1") as raised:
        fit(tmp_path, plan, needs=2)

    assert isinstance(raised.value.__cause__, WorkerGroupError)
    assert notes(tmp_path) == ["1 at 0.5", "2 at 0.5", "2 at 1"]


@pytest.mark.rest
@pytest.mark.parametrize("max_failures", [-1, 2])
def test_max_failures_of_ray_train_is_rejected(max_failures):
    run_config = RunConfig(failure_config=FailureConfig(max_failures=max_failures))

    with pytest.raises(InvalidResourcesError, match=rf"max_failures={max_failures}\).*Set max_failures=0"):
        fit_with_oom_retry(lambda plan: DataParallelTrainer(train, run_config=run_config), PLAN)


@pytest.mark.rest
def test_a_trainer_of_ray_train_version_1_is_rejected():
    version_1 = type("TorchTrainer", (), {"__module__": "ray.train.torch.torch_trainer"})
    derived = type("Derived", (version_1,), {})

    with pytest.raises(InvalidResourcesError, match="RAY_TRAIN_V2_ENABLED=1"):
        fit_with_oom_retry(lambda plan: derived(), PLAN)


def test_other_errors_are_raised_unchanged():
    class Failing:
        def fit(self):
            raise error

    error = WorkerGroupError("a worker failed", {0: ValueError("no memory of it")})

    with pytest.raises(WorkerGroupError) as raised:
        fit_with_oom_retry(lambda plan: Failing(), PLAN)

    assert raised.value is error


def test_a_plan_without_train_workers_is_rejected():
    plan: TrialPlan = GpuPolicy(gpus=0.25).plan(nodes((4, 2)))

    with pytest.raises(InvalidResourcesError, match="num_workers=0"):
        fit_with_oom_retry(lambda plan: None, plan)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"growth": 1}, "growth must be a number above 1, got 1"), ({"max_gpus": 0}, "max_gpus must be above 0")],
)
def test_invalid_arguments_are_rejected(arguments, message):
    with pytest.raises(InvalidResourcesError, match=message):
        fit_with_oom_retry(lambda plan: None, PLAN, **arguments)
