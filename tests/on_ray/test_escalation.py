"""Trials that run out of memory come back with more, go on where they stopped, and nobody else notices."""

import json
import logging
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, HyperBandScheduler, MedianStoppingRule, PopulationBasedTraining

from tests.on_ray.rays import local_ray
from tune_policies import EscalatingScheduler

SHARE = 0.25
NUM_STEPS = 4
SMALL, LARGE = {"batch_size": 32}, {"batch_size": 128}
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB"


@pytest.fixture(scope="module", autouse=True)
def real_ray():
    with local_ray(num_cpus=4, num_gpus=3):
        yield


def train(config):
    """Take some steps, each once; a large batch needs half a GPU from the second on."""
    done = steps_done()
    share = ray.get_runtime_context().get_assigned_resources()["GPU"]
    for step in range(done + 1, NUM_STEPS + 1):
        note(config, f"{step} at {share:g}")
        if step == 2:
            wait_for_trials(config["at_once"], Path(config["folder"]))
            if config["batch_size"] >= 128 and share < 0.5:
                note(config, "out of memory")
                raise RuntimeError(OUT_OF_MEMORY)
        report(step)


def steps_done():
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as folder:
        return json.loads(Path(folder, "done.json").read_text())


def report(step):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "done.json").write_text(json.dumps(step))
        tune.report({"loss": 1 / step}, checkpoint=tune.Checkpoint.from_directory(folder))


def note(config, text):
    with Path(config["folder"], tune.get_context().get_trial_id()).open("a") as file:
        print(text, file=file)


def wait_for_trials(number, folder):
    deadline = time.monotonic() + 100
    while len(list(folder.iterdir())) < number:
        assert time.monotonic() < deadline, "not as many trials run at once as were to"
        time.sleep(0.02)


def run(tmp_path, scheduler, configs, trainable=train, *, at_once=1, **kwargs):
    folder = tmp_path / "notes"
    folder.mkdir(exist_ok=True)
    arguments = {
        "config": {"folder": str(folder), "at_once": at_once, "trial": tune.grid_search(configs)},
        "resources_per_trial": {"cpu": 0.25, "gpu": SHARE},
        "storage_path": str(tmp_path),
        "name": "run",
        "raise_on_failed_trial": False,
        "verbose": 0,
    }

    def one(config):
        trainable({**config, **config["trial"]})

    return tune.run(one, scheduler=scheduler, **{**arguments, **kwargs}).trials


def notes(tmp_path):
    """What each trial noted, and how many noted the same."""
    return Counter(tuple(path.read_text().splitlines()) for path in (tmp_path / "notes").iterdir())


UNTOUCHED = ("1 at 0.25", "2 at 0.25", "3 at 0.25", "4 at 0.25")
CAME_BACK = ("1 at 0.25", "2 at 0.25", "out of memory", "2 at 0.5", "3 at 0.5", "4 at 0.5")


def test_of_12_trials_5_run_out_and_go_on_where_they_stopped(tmp_path):
    trials = run(tmp_path, EscalatingScheduler(), [SMALL] * 7 + [LARGE] * 5, at_once=12)

    assert [trial.status for trial in trials] == ["TERMINATED"] * 12
    assert notes(tmp_path) == {UNTOUCHED: 7, CAME_BACK: 5}


INNER = {
    "asha": lambda: ASHAScheduler(metric="loss", mode="min", max_t=9, grace_period=NUM_STEPS),
    "median": lambda: MedianStoppingRule(metric="loss", mode="min", grace_period=NUM_STEPS),
    "hyperband": lambda: HyperBandScheduler(metric="loss", mode="min", max_t=9, reduction_factor=3),
}


@pytest.mark.parametrize("inner", INNER)
def test_the_scheduler_inside_does_not_notice(tmp_path, inner):
    trials = run(tmp_path, EscalatingScheduler(INNER[inner]()), [SMALL] * 2 + [LARGE] * 2, at_once=4)

    assert [trial.status for trial in trials] == ["TERMINATED"] * 4
    assert notes(tmp_path) == {UNTOUCHED: 2, CAME_BACK: 2}
