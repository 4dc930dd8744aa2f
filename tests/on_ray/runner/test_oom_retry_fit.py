"""Train runs that run out of memory resume from their checkpoint with more memory."""

from pathlib import Path

import pytest
import ray
from ray.train import FailureConfig, RunConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.train.v2.api.exceptions import WorkerGroupError

from tests.clusters import nodes
from tests.on_ray.counted_steps import OUT_OF_MEMORY, counted_steps, fit, notes
from tests.on_ray.kernel_kills import be_killed
from tune_policies import GpuPolicy, InfeasibleRequestError, InvalidResourcesError, TrialPlan
from tune_policies.ray_compat.kernel_kills import note_kernel_kills
from tune_policies.trainers import fit_with_oom_retry

PLAN = GpuPolicy(gpus=0.25, cpus=1, num_workers=1).plan(nodes((4, 2)))


RAY = {"num_cpus": 4, "num_gpus": 2}


def train(config):
    """Report three steps. The second step needs the GPU fraction ``needs``."""
    for step, gpus, _ in counted_steps(config, 3):
        if step == 2 and gpus < config["needs"]:
            raise RuntimeError(OUT_OF_MEMORY)


def steps_and_gpus(folder):
    return [(note.step, note.gpus) for note in notes(folder)]


@pytest.mark.rest
def test_a_train_run_that_ran_out_of_memory_resumes_with_a_larger_gpu_fraction(tmp_path):
    result = fit(train, tmp_path, PLAN, needs=0.5)

    assert result.metrics["step"] == 3
    assert steps_and_gpus(tmp_path) == [(1, 0.25), (2, 0.25), (2, 0.5), (3, 0.5)]


def load_data(config):
    note_kernel_kills()  # the builders do this before they run the user's loop
    if ray.get_runtime_context().get_assigned_resources()["memory"] < 700 * 2**20:
        be_killed(config["group"])
    Path(config["notes"]).write_text("loaded")


@pytest.mark.slow
@pytest.mark.ray_border
def test_a_worker_killed_by_the_kernel_oom_killer_is_retried_with_more_host_memory(tmp_path, memory_group):
    plan = GpuPolicy(gpus=0.25, cpus=1, memory="400MiB", num_workers=1).plan(nodes((4, 2)))

    fit(load_data, tmp_path, plan, group=memory_group)

    assert (tmp_path / "notes").read_text() == "loaded"


@pytest.mark.slow
def test_a_run_that_exceeds_a_whole_gpu_fails_with_an_error_that_explains_the_limit(tmp_path):
    plan = GpuPolicy(gpus=0.5, cpus=1, num_workers=1).plan(nodes((4, 2)))

    with pytest.raises(InfeasibleRequestError, match="more than 1 GPU, but max_gpus is 1") as raised:
        fit(train, tmp_path, plan, needs=2)

    assert isinstance(raised.value.__cause__, WorkerGroupError)
    assert steps_and_gpus(tmp_path) == [(1, 0.5), (2, 0.5), (2, 1)]


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
