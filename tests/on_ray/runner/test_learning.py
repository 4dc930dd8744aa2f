"""Runs whose policy changes the resources of trials: one learns from its first trials, in the other, trials grow."""

import tempfile
import time
from pathlib import Path

import pytest
import ray
import ray.train
from ray import tune
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler, PopulationBasedTraining

from tests.clusters import nodes
from tune_policies import (
    ClusterCapacity,
    CpuPolicy,
    GrowingPolicy,
    LearningPolicy,
    Resources,
    as_trainable,
    load_policy,
    run,
)

RAY = {"num_cpus": 4}
START = CpuPolicy(cpus=2)


class MostAtOnce(tune.Callback):
    """Counts the trials that run at the same time."""

    most = 0

    def on_step_end(self, iteration, trials, **info):
        self.most = max(self.most, sum(trial.status == "RUNNING" for trial in trials))


def mostly_wait(config):
    for step in range(5):
        time.sleep(0.6)
        tune.report({"step": step})


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Run trials that use hardly any CPU. Return the callback and the file with what the run has learned."""
    folder = tmp_path_factory.mktemp("results")
    callback = MostAtOnce()
    options = {"num_samples": 14, "reuse_actors": True, "verbose": 0, "callbacks": [callback]}
    run(mostly_wait, LearningPolicy(START), storage_path=str(folder), name="run", **options)
    return callback, folder / "run" / "learned_policy.json"


@pytest.mark.ci
def test_more_trials_run_at_once_after_the_pilots(learned):
    callback, _ = learned

    assert callback.most > 2


@pytest.mark.rest
def test_what_a_run_has_learned_is_a_policy_file(learned):
    _, file = learned
    capacity = ClusterCapacity.of(Resources(cpus=4))

    plan = load_policy(file).plan(capacity)

    assert plan.max_concurrent_trials > START.plan(capacity).max_concurrent_trials


class Training(tune.Trainable):
    """Trains for a number of steps, faster with more CPUs."""

    def setup(self, config):
        self.done = 0

    def step(self):
        time.sleep(3 / ray.get_runtime_context().get_assigned_resources()["CPU"])
        self.done += 1
        return {"done_steps": self.done, "steps": self.config["steps"], "done": self.done >= self.config["steps"]}

    def save_checkpoint(self, folder):
        Path(folder, "done").write_text(str(self.done))

    def load_checkpoint(self, folder):
        self.done = int(Path(folder, "done").read_text())


@pytest.mark.rest
@pytest.mark.parametrize(
    "scheduler",
    [
        pytest.param(None, id="FIFO"),
        pytest.param(ASHAScheduler(metric="steps", mode="max", max_t=60, grace_period=2), id="ASHA"),
        pytest.param(HyperBandScheduler(metric="steps", mode="max", max_t=60), id="HyperBand"),
        pytest.param(
            PopulationBasedTraining(metric="steps", mode="max", hyperparam_mutations={"lr": [1, 2]}), id="PBT"
        ),
    ],
)
def test_the_last_trial_grows_into_the_free_cpus_and_loses_no_step(scheduler, tmp_path):
    config = {"steps": tune.grid_search([2, 2, 2, 60]), "lr": 1}
    options = {
        "checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1),
        "stop": {"training_iteration": 60},
        "verbose": 0,
    }
    cpus = []

    class Cpus(tune.Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            cpus.append(trial.placement_group_factory.required_resources["CPU"])
            # The rest of the training would show nothing more.
            if cpus[-1] == 4:
                trial.stopping_criterion = {"training_iteration": result["training_iteration"] + 1}

    policy = GrowingPolicy(CpuPolicy(cpus=1), up_to=4)
    options.update(config=config, scheduler=scheduler, callbacks=[Cpus()], storage_path=str(tmp_path))
    trials = run(Training, policy, **options).trials

    last = trials[-1].last_result
    assert max(cpus) == 4
    assert last["done_steps"] == last["training_iteration"]


def saves_steps(config):
    """Report each step with a checkpoint, and continue after its last step.

    The population pauses a trial at step 3 and not at its last step 5, because it may send a trial back to its other
    pauses any number of times.
    """
    begin = 0
    if tune.get_checkpoint() is not None:
        with tune.get_checkpoint().as_directory() as folder:
            begin = 1 + int(Path(folder, "step").read_text())
    for step in range(begin, 5):
        time.sleep(0.5)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            tune.report({"loss": config["lr"]}, checkpoint=tune.Checkpoint.from_directory(folder))


@pytest.mark.rest
def test_a_run_with_population_based_training_learns_and_ends(tmp_path):
    population = PopulationBasedTraining(
        "training_iteration", "loss", "min", perturbation_interval=3, hyperparam_mutations={"lr": [0.1, 0.2]}
    )
    options = {"config": {"lr": tune.choice([0.1, 0.2])}, "num_samples": 4, "scheduler": population, "verbose": 0}

    analysis = run(saves_steps, LearningPolicy(START), storage_path=str(tmp_path), name="run", **options)

    assert {trial.status for trial in analysis.trials} == {"TERMINATED"}
    assert load_policy(tmp_path / "run" / "learned_policy.json").needs is not None


@pytest.mark.rest
def test_trials_with_several_bundles_keep_them_and_end(tmp_path):
    def waits(config):  # with_resources changes the function itself, so the other tests need their own
        mostly_wait(config)

    several = tune.with_resources(waits, tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}]))

    analysis = run(several, LearningPolicy(START), num_samples=4, storage_path=str(tmp_path), name="run", verbose=0)

    assert {trial.status for trial in analysis.trials} == {"TERMINATED"}
    assert {len(trial.placement_group_factory.bundles) for trial in analysis.trials} == {2}
    assert not (tmp_path / "run" / "learned_policy.json").exists()


@pytest.mark.rest
def test_trials_with_train_workers_keep_the_requests_of_the_start_policy_and_end(tmp_path):
    start = CpuPolicy(cpus=1, num_workers=2)
    scaling = start.plan(nodes((4, 0))).scaling_config()

    def report(config):
        ray.train.report({"loss": config["lr"]})

    def build(config):
        return DataParallelTrainer(report, train_loop_config=config, scaling_config=scaling)

    options = {"config": {"lr": tune.grid_search([1, 2, 3])}, "storage_path": str(tmp_path), "name": "run"}

    analysis = run(as_trainable(build), LearningPolicy(start), verbose=0, **options)

    assert [trial.last_result["loss"] for trial in analysis.trials] == [1, 2, 3]
    assert not (tmp_path / "run" / "learned_policy.json").exists()


@pytest.mark.rest
def test_a_run_learns_beside_another_program_that_keeps_its_cpus(tmp_path):
    class Other:
        def is_alive(self):
            return True

    other = ray.remote(num_cpus=2)(Other).remote()
    assert ray.get(other.is_alive.remote(), timeout=60)
    options = {"storage_path": str(tmp_path), "name": "run", "reuse_actors": True}

    analysis = run(mostly_wait, LearningPolicy(CpuPolicy(cpus=1)), num_samples=6, verbose=0, **options)

    assert {trial.status for trial in analysis.trials} == {"TERMINATED"}
    assert ray.get(other.is_alive.remote(), timeout=60)
    assert load_policy(tmp_path / "run" / "learned_policy.json").plan(nodes((2, 0))).max_concurrent_trials > 2
    ray.kill(other)
