"""With the same seed, a plan and manually set resources give the same trials and metrics.

An adaptive searcher is asked for a trial as soon as a slot is free.
"""

import json
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler, PopulationBasedTraining
from ray.tune.search import BasicVariantGenerator

from tests.on_ray.rays import wait_until
from tune_policies import CpuPolicy, PolicyScheduler, probe_cluster
from tune_policies import run as policy_run

SEED = 7
GOAL = {"metric": "loss", "mode": "min"}
# The suggestions of a searcher depend on the order of results, so trials run one at a time. The limit
# max_concurrent_trials also counts paused trials, so tests of schedulers that pause trials reserve all CPUs for each
# trial instead.
ONE_AT_A_TIME = {"max_concurrent_trials": 1}


def optuna():
    from ray.tune.search.optuna import OptunaSearch

    return {"search_alg": OptunaSearch(seed=SEED, **GOAL), **ONE_AT_A_TIME}


ALGORITHMS = {
    "random": dict,
    "Optuna": optuna,
    "ASHA": lambda: {"scheduler": ASHAScheduler(grace_period=1, max_t=3, reduction_factor=2, **GOAL)},
    "PBT": lambda: {
        "scheduler": PopulationBasedTraining(
            perturbation_interval=2, hyperparam_mutations={"x": tune.uniform(0, 1)}, synch=True, **GOAL
        )
    },
    "HyperBand": lambda: {"scheduler": HyperBandScheduler(max_t=3, reduction_factor=2, **GOAL)},
}
MARKS = {"random": (), "ASHA": pytest.mark.rest}


RAY = {"num_cpus": 2}


@pytest.fixture(scope="module")
def plan():
    return CpuPolicy(cpus=2).plan(probe_cluster())


def train(config):
    done = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            done = json.loads(Path(folder, "done").read_text())
    for iteration in range(done + 1, 4):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "done").write_text(json.dumps(iteration))
            loss = (config["x"] - 0.3) ** 2 + 1 / iteration
            tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_directory(folder))


def run(trainable, folder, **kwargs):
    """Run Tune with a fixed seed, and return the config and the last result of each trial, in order."""
    random.seed(SEED)
    np.random.seed(SEED)  # Tune uses this generator to sample configs
    results = tune.run(
        trainable,
        config={"x": tune.uniform(0, 1)},
        num_samples=3,
        storage_path=str(folder),
        verbose=0,
        reuse_actors=True,
        **{"search_alg": BasicVariantGenerator(random_state=SEED), **kwargs},
    )
    return [
        (trial.config["x"], trial.last_result["loss"], trial.last_result["training_iteration"])
        for trial in results.trials
    ]


@pytest.mark.rest
@pytest.mark.parametrize(
    "algorithm", [pytest.param(algorithm, marks=MARKS.get(algorithm, pytest.mark.slow)) for algorithm in ALGORITHMS]
)
def test_with_the_same_seed_a_plan_gives_the_same_results_as_manually_set_resources(plan, tmp_path, algorithm):
    by_hand = run(train, tmp_path / "by_hand", resources_per_trial={"cpu": 2}, **ALGORITHMS[algorithm]())

    own = ALGORITHMS[algorithm]()
    scheduler = PolicyScheduler(plan, own.pop("scheduler", None))
    under_the_plan = run(train, tmp_path / "under_the_plan", scheduler=scheduler, **own)

    assert under_the_plan == by_hand


def results_seen_by_suggestions(tmp_path, **kwargs):
    from ray.tune.search.optuna import OptunaSearch

    class RecordingSearch(OptunaSearch):
        num_results, seen = 0, ()

        def suggest(self, trial_id):
            suggestion = super().suggest(trial_id)
            self.seen += (self.num_results,) if isinstance(suggestion, dict) else ()
            return suggestion

        def on_trial_complete(self, *args, **kwargs):
            self.num_results += 1
            super().on_trial_complete(*args, **kwargs)

    def train(config):
        time.sleep(0.2 + config["x"])
        tune.report({"loss": config["x"]})

    searcher = RecordingSearch(seed=SEED, **GOAL)
    space = {"x": tune.uniform(0, 0.5)}
    tune.run(train, config=space, search_alg=searcher, num_samples=6, storage_path=str(tmp_path), verbose=0, **kwargs)
    return searcher.seen


@pytest.mark.slow
def test_each_suggestion_uses_as_many_results_as_with_max_concurrent_trials(plan, tmp_path):
    """Without ``max_concurrent_trials`` and without a policy, Tune requests each suggestion one result earlier."""
    limited = results_seen_by_suggestions(tmp_path, max_concurrent_trials=2, resources_per_trial={"cpu": 1})

    under_policy = results_seen_by_suggestions(tmp_path, scheduler=PolicyScheduler(CpuPolicy(cpus=1)))

    assert limited == under_policy == (0, 0, 1, 2, 3, 4)


class InOrder(tune.search.Searcher):
    """Suggests 0, 1, 2 and so on, like an adaptive searcher."""

    num_suggested = 0

    def suggest(self, trial_id):
        self.num_suggested += 1
        return {"x": self.num_suggested}

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass

    def save(self, checkpoint_path):
        pass

    def restore(self, checkpoint_path):
        pass


class StartsWithOthers(tune.Trainable):
    """A process that starts only together with another one."""

    def setup(self, config):
        folder = Path(config["folder"])
        (folder / str(config["x"])).touch()
        wait_until(lambda: len(list(folder.iterdir())) == 2, timeout_s=60)

    def step(self):
        return {"loss": 0, "done": True}


@pytest.mark.ci
def test_processes_start_together_although_an_adaptive_searcher_suggests_the_trials(tmp_path):
    """In plain Tune, the searcher suggests a trial only after the process of the trial before has started."""
    started = tmp_path / "started"
    started.mkdir()

    trials = policy_run(
        StartsWithOthers,
        CpuPolicy(cpus=1),
        config={"folder": str(started)},
        search_alg=InOrder(**GOAL),
        num_samples=2,
        storage_path=str(tmp_path / "results"),
        verbose=0,
    ).trials

    assert [trial.status for trial in trials] == ["TERMINATED"] * 2
