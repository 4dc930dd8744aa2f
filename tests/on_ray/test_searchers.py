"""A plan changes no result: the same seed gives the same trials and metrics as resources set by hand."""

import json
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler, HyperBandForBOHB, HyperBandScheduler, PopulationBasedTraining
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.bohb import TuneBOHB

from tests.on_ray.bohb import skip_without_bohb
from tune_policies import CpuPolicy, probe_cluster
from tune_policies.trainers import with_plan

SEED = 7
GOAL = {"metric": "loss", "mode": "min"}
# A searcher learns from results in the order in which they come, so it must not be asked ahead. The limit counts paused
# trials too, so where a scheduler pauses some, only the resources keep them one at a time.
ONE_AT_A_TIME = {"max_concurrent_trials": 1}


def optuna():
    from ray.tune.search.optuna import OptunaSearch

    return {"search_alg": OptunaSearch(seed=SEED, **GOAL), **ONE_AT_A_TIME}


def hyperopt():
    from ray.tune.search.hyperopt import HyperOptSearch  # which takes seconds

    return {"search_alg": HyperOptSearch(random_state_seed=SEED, n_initial_points=2, **GOAL), **ONE_AT_A_TIME}


WAYS = {
    "random": dict,
    "Optuna": optuna,
    "HyperOpt": hyperopt,
    "ASHA": lambda: {"scheduler": ASHAScheduler(grace_period=1, max_t=3, reduction_factor=2, **GOAL)},
    "PBT": lambda: {
        "scheduler": PopulationBasedTraining(
            perturbation_interval=2, hyperparam_mutations={"x": tune.uniform(0, 1)}, synch=True, **GOAL
        )
    },
    "HyperBand": lambda: {"scheduler": HyperBandScheduler(max_t=3, reduction_factor=2, **GOAL)},
    "BOHB": lambda: {
        "scheduler": HyperBandForBOHB(max_t=3, reduction_factor=2, **GOAL),
        "search_alg": TuneBOHB(seed=SEED, **GOAL),
    },
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
    """Return each trial's config and what it reported last, in the order of the trials."""
    random.seed(SEED)
    np.random.seed(SEED)  # what Tune draws from
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
@pytest.mark.parametrize("way", [pytest.param(way, marks=MARKS.get(way, pytest.mark.slow)) for way in WAYS])
@pytest.mark.filterwarnings("ignore:Please use `:DeprecationWarning")  # how Ray and hpbandster use ConfigSpace
def test_the_same_seed_gives_the_same_trials_and_results_as_resources_set_by_hand(plan, tmp_path, way):
    if way == "BOHB":
        skip_without_bohb()

    by_hand = run(train, tmp_path / "by_hand", resources_per_trial={"cpu": 2}, **WAYS[way]())

    under_the_plan = run(with_plan(train, plan), tmp_path / "under_the_plan", **WAYS[way]())

    assert under_the_plan == by_hand
