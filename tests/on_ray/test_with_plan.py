"""A plan in Tune's trials: what they reserve, what they see, and that the user's own trainable stays as it is."""

import functools
import os
import warnings
from pathlib import Path

import pytest
from ray import tune

from tests.marks import further
from tune_policies import (
    ClusterCapacity,
    CpuPolicy,
    GpuPolicy,
    InvalidResourcesError,
    ProbeWarning,
    Resources,
    probe_cluster,
)
from tune_policies.trainers import with_plan

RAY = {"num_cpus": 4, "num_gpus": 2}


@pytest.fixture(scope="module")
def capacity():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProbeWarning)
        return probe_cluster()


def what_the_trial_sees(config):
    import ray

    return {
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "order": os.environ.get("CUDA_DEVICE_ORDER"),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "assigned": ray.get_runtime_context().get_assigned_resources(),
        "x": config.get("x"),
    }


def report(config):
    tune.report(what_the_trial_sees(config))


class Reporting(tune.Trainable):
    def setup(self, config):
        self.seen_in_setup = os.environ.get("CUDA_VISIBLE_DEVICES")

    def step(self):
        return {**what_the_trial_sees(self.config), "seen_in_setup": self.seen_in_setup, "done": True}


def yielding(config):
    yield what_the_trial_sees(config)


class Callable:
    def __call__(self, config):
        report(config)


def run(trainable, tmp_path, **kwargs):
    results = tune.run(
        trainable, storage_path=str(tmp_path), verbose=0, raise_on_failed_trial=False, **{"num_samples": 1, **kwargs}
    )
    return results.trials


def threads_of_torch(config):
    import torch

    tune.report({"threads": torch.get_num_threads()})


@pytest.mark.parametrize(
    "trainable",
    [report, *further(yielding), Reporting, *further(functools.partial(report), Callable())],
    ids=["function", "generator", "class", "partial", "object"],
)
def test_a_cpu_trial_sees_no_gpu_and_has_a_thread_for_each_cpu(capacity, tmp_path, trainable):
    """Without a plan Ray shows every GPU of the node to a trial that asked for none."""
    plan = CpuPolicy(cpus=2).plan(capacity)

    (trial,) = run(with_plan(trainable, plan), tmp_path, config={"x": 7})

    seen = trial.last_result
    assert (seen["gpus"], seen["threads"], seen["x"]) == ("", "2", 7)
    assert seen["assigned"]["CPU"] == 2
    assert seen.get("seen_in_setup", "") == ""
    assert "gpu_memory" not in seen


def test_a_trial_on_a_share_sees_its_one_device(capacity, tmp_path):
    plan = GpuPolicy(gpus=0.3).plan(capacity)

    (trial,) = run(with_plan(report, plan), tmp_path)

    assert trial.last_result["gpus"] in ("0", "1")
    assert trial.last_result["order"] == "PCI_BUS_ID"  # by which Ray numbers them
    assert trial.last_result["assigned"]["GPU"] == pytest.approx(0.3333)


def report_and_change_the_environment(config):
    seen = what_the_trial_sees(config)
    os.environ |= {"CUDA_VISIBLE_DEVICES": "7", "CUDA_DEVICE_ORDER": "FASTEST_FIRST", "OMP_NUM_THREADS": "9"}
    tune.report(seen | {"pid": os.getpid()})


def test_a_trial_in_a_reused_process_sees_its_devices_whatever_the_trial_before_set(capacity, tmp_path):
    plan = GpuPolicy(cpus=1).plan(capacity)

    trials = run(
        with_plan(report_and_change_the_environment, plan),
        tmp_path,
        num_samples=2,
        reuse_actors=True,
        max_concurrent_trials=1,
    )

    seen = [[trial.last_result[name] for name in ("pid", "gpus", "order", "threads")] for trial in trials]
    assert seen[0] == seen[1]


def with_data(config, data=None):
    tune.report({"data": data})


@pytest.mark.rest
@pytest.mark.parametrize("plan_first", [True, False])
def test_it_goes_together_with_parameters_either_way(capacity, tmp_path, plan_first):
    plan = CpuPolicy().plan(capacity)
    both = (
        tune.with_parameters(with_plan(with_data, plan), data=[7])
        if plan_first
        else with_plan(tune.with_parameters(with_data, data=[7]), plan)
    )

    (trial,) = run(both, tmp_path)

    assert trial.last_result["data"] == [7]


@pytest.mark.rest
def test_the_tuner_takes_it_too(capacity, tmp_path):
    plan = CpuPolicy(cpus=3).plan(capacity)

    results = tune.Tuner(
        with_plan(report, plan),
        tune_config=plan.tune_config(num_samples=2),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()

    assert [result.metrics["threads"] for result in results] == ["3", "3"]


@pytest.mark.rest
@pytest.mark.ray_border
def test_resources_per_trial_alone_is_what_tune_takes(capacity, tmp_path):
    plan = CpuPolicy(cpus=3).plan(capacity)

    (trial,) = run(report, tmp_path, resources_per_trial=plan.resources_per_trial)

    assert trial.last_result["assigned"]["CPU"] == 3


def threads_of_tensorflow(config):
    import tensorflow as tf

    tf.linalg.matmul(tf.ones((2, 2)), tf.ones((2, 2)))
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    tune.report({"threads": names.count("tf_Compute")})


@pytest.mark.rest
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_tensorflow_has_a_thread_for_each_cpu(capacity, tmp_path):
    plan = CpuPolicy(cpus=3).plan(capacity)

    (trial,) = run(with_plan(threads_of_tensorflow, plan), tmp_path)

    assert trial.last_result["threads"] == 3


@pytest.mark.rest
@pytest.mark.parametrize("cpus", [*further(1), 3])
def test_torch_has_a_thread_for_each_cpu(capacity, tmp_path, cpus):
    plan = CpuPolicy(cpus=cpus).plan(capacity)

    (trial,) = run(with_plan(threads_of_torch, plan), tmp_path)

    assert trial.last_result["threads"] == cpus


def test_the_users_own_trainable_is_left_untouched(capacity):
    plan = CpuPolicy().plan(capacity)
    before = dict(vars(report)), dict(vars(Reporting))

    with_plan(report, plan)
    with_plan(Reporting, plan)

    assert (dict(vars(report)), dict(vars(Reporting))) == before


def test_a_trial_keeps_the_name_of_its_trainable(capacity):
    plan = CpuPolicy().plan(capacity)

    assert with_plan(report, plan).__name__ == "report"
    assert with_plan(functools.partial(report), plan).__name__ == "report"
    assert with_plan(Callable(), plan).__name__ == "Callable"
    assert "Reporting" in with_plan(Reporting, plan).__name__


@pytest.mark.parametrize("thing", [None, "report", int], ids=repr)
def test_what_is_no_trainable_is_refused(capacity, thing):
    with pytest.raises(InvalidResourcesError, match="a trainable must be a function of a config or a subclass"):
        with_plan(thing, CpuPolicy().plan(capacity))


@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.slow)])
def test_a_framework_that_cannot_be_held_to_its_share_fails_the_trial(capacity, tmp_path, framework):
    """Without a device behind its GPU, nothing could keep the trial within its share."""

    def train(config):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # where there is one after all
        __import__(framework)
        tune.report({"reached": True})

    plan = GpuPolicy(gpus=0.5).plan(capacity)

    (trial,) = run(with_plan(train, plan), tmp_path)

    assert trial.status == "ERROR"
    error = Path(trial.error_file).read_text()
    assert f"MemoryLimitError: Ray gave this process a share of a GPU, but {framework} sees no GPU" in error

    (trial,) = run(with_plan(train, plan, on_void_limit="warn"), tmp_path)

    assert trial.last_result["reached"]
    assert (
        f"{framework} sees no GPU, so nothing can hold it to its share" in trial.last_result["gpu_memory"]["warnings"]
    )


def test_more_trials_at_once_than_planned_are_refused(capacity):
    plan = CpuPolicy().plan(capacity)

    with pytest.raises(InvalidResourcesError, match="max_concurrent_trials=9, but the plan has room for 4 at once"):
        plan.tune_config(max_concurrent_trials=9)


def test_fewer_trials_at_once_than_planned_are_kept(capacity):
    assert CpuPolicy().plan(capacity).tune_config(max_concurrent_trials=2).max_concurrent_trials == 2


def test_a_scaling_config_needs_train_workers(capacity):
    with pytest.raises(InvalidResourcesError, match="num_workers=0, so the trial itself trains"):
        CpuPolicy().plan(capacity).scaling_config()


@pytest.mark.ray_border
def test_a_scaling_config_takes_what_the_plan_does_not_set(capacity):
    plan = GpuPolicy(num_workers=2).plan(capacity)

    config = plan.scaling_config(placement_strategy="SPREAD")

    assert (config.num_workers, config.use_gpu, config.placement_strategy) == (2, True, "SPREAD")
    assert config.resources_per_worker == {"CPU": 2, "GPU": 1}
    with pytest.raises(InvalidResourcesError, match="num_workers comes from the plan"):
        plan.scaling_config(num_workers=4)


@pytest.mark.ray_border
def test_a_scaling_config_names_the_device_type():
    node = ClusterCapacity.of(Resources(cpus=4, gpus=1)).nodes[0].model_copy(update={"accelerator_type": "A100"})
    plan = GpuPolicy(accelerator_type="A100", num_workers=1).plan(ClusterCapacity.of(node))

    assert plan.scaling_config().accelerator_type == "A100"


class Returning(tune.Trainable):
    def setup(self, config):
        pass

    def step(self):
        return self.config["value"]


@pytest.mark.parametrize("value", [None, *further(3, [{"loss": 1}])], ids=["nothing", "a number", "a list"])
def test_ray_itself_says_what_is_wrong_with_a_step_that_returns_no_dict(capacity, tmp_path, value):
    trainable = with_plan(Returning, CpuPolicy(cpus=1).plan(capacity))

    [trial] = tune.run(
        trainable, config={"value": value}, storage_path=str(tmp_path), verbose=0, raise_on_failed_trial=False
    ).trials

    assert "AssertionError: step() needs to return a dict." in Path(trial.error_file).read_text()
