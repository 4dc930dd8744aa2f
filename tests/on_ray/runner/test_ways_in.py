"""A policy works with every way to pass a trainable to Tune."""

import os

import pytest
import ray
from ray import tune

from tests.on_ray.rays import end_shared_ray, local_ray, share_ray
from tune_policies import CpuPolicy, PolicyScheduler, run

RAY = {"num_cpus": 4, "num_gpus": 2}

# The GPUs are simulated, so their memory cannot be read.
pytestmark = pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")

POLICY = CpuPolicy(cpus=2)


def process_state(**more):
    return {
        "cpus": ray.get_runtime_context().get_assigned_resources()["CPU"],
        "threads": os.environ["OMP_NUM_THREADS"],
        "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
        **more,
    }


def report_threads(config):
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")
    tune.report({name: os.environ[name] for name in names})


def report(config):
    tune.report(process_state())


class Model:
    def __init__(self, data):
        self.data = data

    def fit(self, config):
        tune.report(process_state(data=self.data))


class Reporting(tune.Trainable):
    def setup(self, config, data=None):
        self.data = data

    def step(self):
        return process_state(data=self.data, done=True)


class RequestsTwoBundles(Reporting):
    @classmethod
    def default_resource_request(cls, config):
        return tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 2}])


def named(name, trainable):
    """Return a copy with a unique name, because Tune registers trainables by name."""
    if isinstance(trainable, type):
        return type(name, (trainable,), {})

    def function(config):
        return trainable(config)

    function.__name__ = name
    return function


EXPERIMENTS = {
    "method": lambda: Model("held").fit,
    "class_with_parameters": lambda: tune.with_parameters(named("A", Reporting), data="held"),
    "function_with_resources": lambda: tune.with_resources(named("b", report), {"cpu": 1}),
    "class_with_two_bundles": lambda: named("F", RequestsTwoBundles),
}


@pytest.mark.rest
def test_each_experiment_of_a_list_gets_the_resources_of_the_policy(tmp_path):
    """A trainable keeps its attributes and parameters, and a class with several bundles keeps its resource request."""
    experiments = [
        tune.Experiment(name, run=build(), config={"name": name, "cpus": 3}, storage_path=str(tmp_path))
        for name, build in EXPERIMENTS.items()
    ]

    results = tune.run(experiments, scheduler=PolicyScheduler(POLICY), verbose=0)

    seen = {trial.config["name"]: trial.last_result for trial in results.trials}
    planned, own = (2, "2", "", "2 CPUs"), (1, "1", "", "3 CPUs")
    assert {
        name: (each["cpus"], each["threads"], each["gpus"], each["slot"]) for name, each in seen.items()
    } == dict.fromkeys(EXPERIMENTS, planned) | {"class_with_two_bundles": own}
    assert [seen[name]["data"] for name in ("method", "class_with_parameters")] == ["held"] * 2


@pytest.mark.rest
def test_run_applies_the_policy_to_a_trainable_passed_by_its_registered_name(tmp_path):
    tune.register_trainable("user_trainable", report)

    (trial,) = run("user_trainable", POLICY, storage_path=str(tmp_path), verbose=0).trials

    assert [trial.last_result[name] for name in ("cpus", "threads", "slot")] == [2, "2", "2 CPUs"]


@pytest.mark.rest
def test_a_trial_keeps_the_threads_of_the_users_runtime_env_and_its_result_contains_a_note(tmp_path):
    """Ray's own OMP_NUM_THREADS, which is the number of CPUs of a process, is replaced."""
    variables = {"OMP_NUM_THREADS": "3", "NPROC": "5"}
    end_shared_ray()
    with local_ray(num_cpus=4, runtime_env={"env_vars": variables}):
        (trial,) = run(report_threads, POLICY, storage_path=str(tmp_path), verbose=0).trials
    share_ray(**RAY)

    result = trial.last_result
    assert [result[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")] == ["3", "3", "5"]
    assert result["usage"]["note"] == (
        "the runtime_env sets OMP_NUM_THREADS=3, NPROC=5, which takes precedence over the planned number of threads, 2"
    )
