"""Every way in which a trainable is given to Tune works under a plan."""

import os

import pytest
import ray
from ray import tune
from ray.tune.error import TuneError

from tune_policies import ClusterCapacity, CpuPolicy, Resources, run, tuner
from tune_policies.ray_compat.tune_trial import has_other_resources
from tune_policies.trainers import with_plan

CAPACITY = ClusterCapacity.of(Resources(cpus=4, gpus=2))
ONE = CpuPolicy(cpus=1).plan(CAPACITY)
TWO = CpuPolicy(cpus=2).plan(CAPACITY)


RAY = {"num_cpus": 4, "num_gpus": 2}


def what_the_trial_sees(**more):
    return {
        "cpus": ray.get_runtime_context().get_assigned_resources()["CPU"],
        "threads": os.environ["OMP_NUM_THREADS"],
        "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
        "process": os.getpid(),
        **more,
    }


def report(config):
    tune.report(what_the_trial_sees())


class Model:
    def __init__(self, data):
        self.data = data

    def fit(self, config):
        tune.report(what_the_trial_sees(data=self.data))


class Reporting(tune.Trainable):
    def setup(self, config, data=None):
        self.data = data

    def step(self):
        return what_the_trial_sees(data=self.data, done=True)

    def reset_config(self, new_config):
        self.config = new_config
        return True


def named(name, trainable):
    """Return the same under a name of its own: Tune keeps the trainables of a process by their names."""
    if isinstance(trainable, type):
        return type(name, (trainable,), {})

    def function(config):
        return trainable(config)

    function.__name__ = name
    return function


def cpus_by_config(config):
    return tune.PlacementGroupFactory([{"CPU": config["cpus"]}])


EXPERIMENTS = {
    "method": lambda: with_plan(Model("held").fit, TWO),
    "lambda": lambda: with_plan(lambda config: report(config), TWO),
    "class_with_parameters": lambda: with_plan(tune.with_parameters(named("A", Reporting), data="held"), TWO),
    "parameters_for_a_class_under_a_plan": lambda: tune.with_parameters(
        with_plan(named("B", Reporting), TWO), data="held"
    ),
    "function_with_other_resources": lambda: with_plan(tune.with_resources(named("c", report), {"cpu": 1}), TWO),
    "class_with_other_resources": lambda: with_plan(tune.with_resources(named("D", Reporting), {"cpu": 1}), TWO),
    "another_plan": lambda: with_plan(named("e", report), ONE),
    "resources_given_after_the_plan": lambda: tune.with_resources(with_plan(named("f", report), TWO), {"cpu": 1}),
    "class_by_config": lambda: tune.with_resources(with_plan(named("G", Reporting), TWO), cpus_by_config),
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What a trial of each experiment saw; all of them are given to one ``tune.run``."""
    folder = str(tmp_path_factory.mktemp("results"))
    experiments = [
        tune.Experiment(name, run=build(), config={"name": name, "cpus": 3}, storage_path=folder)
        for name, build in EXPERIMENTS.items()
    ]
    results = tune.run(experiments, verbose=0)
    return {trial.config["name"]: trial.last_result for trial in results.trials}


@pytest.mark.rest
@pytest.mark.parametrize(
    ("experiment", "cpus"),
    [
        ("method", 2),
        ("lambda", 2),
        ("class_with_parameters", 2),
        ("parameters_for_a_class_under_a_plan", 2),
        ("function_with_other_resources", 2),
        ("class_with_other_resources", 2),
        ("another_plan", 1),
        ("resources_given_after_the_plan", 1),
        ("class_by_config", 3),
    ],
)
def test_each_experiment_of_a_list_has_what_its_own_plan_says(seen, experiment, cpus):
    """What was given last to the trainable holds, the plan or Tune's own resources."""
    trial = seen[experiment]

    assert (trial["cpus"], trial["threads"], trial["gpus"]) == (cpus, str(cpus), "")


@pytest.mark.rest
@pytest.mark.parametrize("experiment", ["method", "class_with_parameters", "parameters_for_a_class_under_a_plan"])
def test_a_trainable_keeps_what_it_was_given(seen, experiment):
    assert seen[experiment]["data"] == "held"


@pytest.mark.rest
@pytest.mark.parametrize("trainable", [report, Reporting], ids=["function", "class"])
def test_a_process_is_used_again_by_trials_of_the_same_resources_only(tmp_path, trainable):
    results = tune.run(
        tune.with_resources(with_plan(trainable, TWO), cpus_by_config),
        config={"cpus": tune.grid_search([1, 2, 2])},
        max_concurrent_trials=1,
        reuse_actors=True,
        storage_path=str(tmp_path),
        verbose=0,
    )

    first, second, third = (trial.last_result for trial in results.trials)
    assert [trial["threads"] for trial in (first, second, third)] == ["1", "2", "2"]
    assert first["process"] != second["process"] == third["process"]


def by_run(trainable, space, folder):
    return [trial.last_result for trial in run(trainable, config=space, storage_path=folder, verbose=0).trials]


def by_tuner(trainable, space, folder):
    run_config = tune.RunConfig(storage_path=folder, verbose=0)
    return [result.metrics for result in tuner(trainable, param_space=space, run_config=run_config).fit()]


@pytest.mark.rest
@pytest.mark.parametrize(
    ("trainable", "results_of"), [(report, by_run), (Reporting, by_tuner)], ids=["function by run", "class by tuner"]
)
def test_resources_around_a_plan_hold_in_run_and_tuner_too(tmp_path, trainable, results_of):
    ready = tune.with_resources(with_plan(trainable, TWO), cpus_by_config)

    results = results_of(ready, {"cpus": tune.grid_search([1, 2, 3])}, str(tmp_path))

    found = [(result["cpus"], result["threads"], result["slot"]) for result in results]
    assert found == [(1, "1", "1 CPU"), (2, "2", "2 CPUs"), (3, "3", "3 CPUs")]


@pytest.mark.ray_border
@pytest.mark.parametrize(
    "build",
    [
        lambda: with_plan(report, TWO),
        lambda: with_plan(Reporting, TWO),
        lambda: with_plan(Model("held").fit, TWO),
        lambda: tune.with_parameters(with_plan(report, TWO), data="held"),
        lambda: tune.with_parameters(with_plan(Reporting, TWO), data="held"),
    ],
    ids=["function", "class", "method", "parameters around a function", "parameters around a class"],
)
def test_whose_resources_a_trainable_has_is_known(build):
    assert not has_other_resources(build())
    assert has_other_resources(tune.with_resources(build(), {"cpu": 1}))


@pytest.mark.rest
def test_the_tuner_takes_a_class_too(tmp_path):
    results = tune.Tuner(
        with_plan(Reporting, TWO),
        tune_config=TWO.tune_config(reuse_actors=True, num_samples=2),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()

    assert [(result.metrics["cpus"], result.metrics["threads"]) for result in results] == [(2, "2")] * 2


@pytest.mark.rest
def test_resources_for_tune_run_beside_a_plan_are_refused(tmp_path):
    with pytest.raises(TuneError, match="clear the `resources_per_trial` option"):
        tune.run(with_plan(report, TWO), resources_per_trial={"cpu": 1}, storage_path=str(tmp_path), verbose=0)
