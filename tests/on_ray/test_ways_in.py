"""A policy works with every way to pass a trainable to Tune."""

import os

import pytest
import ray
from ray import tune

from tests.decisions import a_decision
from tune_policies import BenchmarkedPolicy, CpuPolicy, GpuPolicy, PolicyScheduler, run

RAY = {"num_cpus": 4, "num_gpus": 2}

# The GPUs are simulated, so their memory cannot be read.
pytestmark = pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")

POLICY = CpuPolicy(cpus=2)


def process_state(**more):
    return {
        "cpus": ray.get_runtime_context().get_assigned_resources()["CPU"],
        "threads": os.environ["OMP_NUM_THREADS"],
        "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
        "process": os.getpid(),
        **more,
    }


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

    def reset_config(self, new_config):
        self.config = new_config
        return True


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


def cpus_by_config(config):
    return tune.PlacementGroupFactory([{"CPU": config["cpus"]}])


EXPERIMENTS = {
    "method": lambda: Model("held").fit,
    "class_with_parameters": lambda: tune.with_parameters(named("A", Reporting), data="held"),
    "function_with_resources": lambda: tune.with_resources(named("b", report), {"cpu": 1}),
    "class_with_resources_by_config": lambda: tune.with_resources(named("D", Reporting), cpus_by_config),
    "class_with_two_bundles": lambda: named("F", RequestsTwoBundles),
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """Run all experiments in one ``tune.run``, and return the last result of each trial."""
    folder = str(tmp_path_factory.mktemp("results"))
    experiments = [
        tune.Experiment(name, run=build(), config={"name": name, "cpus": 3}, storage_path=folder)
        for name, build in EXPERIMENTS.items()
    ]
    results = tune.run(experiments, scheduler=PolicyScheduler(POLICY), verbose=0)
    return {trial.config["name"]: trial.last_result for trial in results.trials}


@pytest.mark.rest
@pytest.mark.parametrize("experiment", [name for name in EXPERIMENTS if name != "class_with_two_bundles"])
def test_each_experiment_of_a_list_gets_the_resources_of_the_policy(seen, experiment):
    """The policy overrides the resources that the trainable requests."""
    trial = seen[experiment]

    assert (trial["cpus"], trial["threads"], trial["gpus"], trial["slot"]) == (2, "2", "", "2 CPUs")


@pytest.mark.rest
def test_a_trainable_with_several_bundles_keeps_its_resource_request(seen):
    trial = seen["class_with_two_bundles"]

    assert (trial["cpus"], trial["threads"], trial["gpus"], trial["slot"]) == (1, "1", "", "3 CPUs")


@pytest.mark.rest
@pytest.mark.parametrize("experiment", ["method", "class_with_parameters"])
def test_a_trainable_keeps_its_attributes_and_parameters(seen, experiment):
    assert seen[experiment]["data"] == "held"


@pytest.mark.rest
@pytest.mark.parametrize("trainable", [report, Reporting], ids=["function", "class"])
def test_a_process_is_reused_only_for_trials_with_the_same_resources(tmp_path, trainable):
    policy = BenchmarkedPolicy(
        a_decision(), gpu=GpuPolicy(cpus=1), cpu=CpuPolicy(cpus=2), accept_other_hardware=True, max_age_days=None
    )

    results = tune.run(
        trainable,
        scheduler=PolicyScheduler(policy),
        config={"batch_size": tune.grid_search([8, 64, 64])},
        max_concurrent_trials=1,
        reuse_actors=True,
        storage_path=str(tmp_path),
        verbose=0,
    )

    first, second, third = (trial.last_result for trial in results.trials)
    assert [(trial["threads"], trial["gpus"] != "") for trial in (first, second, third)] == [
        ("2", False),
        ("1", True),
        ("1", True),
    ]
    assert first["process"] != second["process"] == third["process"]


def by_run(trainable, folder):
    return [trial.last_result for trial in run(trainable, POLICY, num_samples=2, storage_path=folder, verbose=0).trials]


def by_tuner_of_ray(trainable, folder):
    results = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(num_samples=2, reuse_actors=True, scheduler=PolicyScheduler(POLICY)),
        run_config=tune.RunConfig(storage_path=folder, verbose=0),
    ).fit()
    return [result.metrics for result in results]


def by_name(trainable, folder):
    tune.register_trainable("user_trainable", trainable)
    return by_run("user_trainable", folder)


@pytest.mark.rest
@pytest.mark.parametrize(
    ("trainable", "results_of"),
    [(Reporting, by_tuner_of_ray), (report, by_name)],
    ids=["class, Tuner", "registered name, run"],
)
def test_each_way_to_start_a_run_uses_the_resources_of_the_policy(tmp_path, trainable, results_of):
    results = results_of(trainable, str(tmp_path))

    assert [(result["cpus"], result["threads"], result["slot"]) for result in results] == [(2, "2", "2 CPUs")] * 2
