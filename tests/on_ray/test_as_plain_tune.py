"""A run under a policy has the same resets, processes, results and final states as under plain Tune."""

import os
import tempfile
from pathlib import Path

import pytest
from ray import tune
from ray.tune.schedulers import FIFOScheduler, HyperBandScheduler, TrialScheduler

from tune_policies import CpuPolicy, PolicyScheduler

RAY = {"num_cpus": 2}


@pytest.fixture(autouse=True)
def without_loggers(monkeypatch):
    """Disable Tune's loggers, which do not close the files of paused trials."""
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")


NUM_STEPS = 4


class Stepping(tune.Trainable):
    def setup(self, config):
        self.num_resets = 0
        self.begin(config)

    def begin(self, config):
        self.fails_at = config.get("fails_at")
        self.x = config["x"]
        self.marker = Path(config["folder"], f"{config['x']} has failed")
        self.step_number = 0

    def step(self):
        self.step_number += 1
        if self.step_number == self.fails_at and not self.marker.exists():
            self.marker.touch()
            raise RuntimeError("once")
        return {
            "loss": self.x / self.step_number,
            "number": self.step_number,
            "process": os.getpid(),
            "num_resets": self.num_resets,
            "done": self.step_number >= NUM_STEPS,
        }

    def save_checkpoint(self, checkpoint_dir):
        return {"step_number": self.step_number}

    def load_checkpoint(self, checkpoint):
        self.step_number = checkpoint["step_number"]

    def reset_config(self, new_config):
        self.num_resets += 1
        self.begin(new_config)
        return True


def report_steps(config):
    checkpoint = tune.get_checkpoint()
    begun = int(Path(checkpoint.path, "number").read_text()) if checkpoint else 0
    for number in range(begun + 1, NUM_STEPS + 1):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "number").write_text(str(number))
            metrics = {"loss": config["x"] / number, "number": number, "process": os.getpid()}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))
        if number == config.get("fails_at") and checkpoint is None:
            raise RuntimeError("once")


class PauseEach(FIFOScheduler):
    """Pauses a trial after each result, and resumes the trial with the fewest results."""

    def on_trial_result(self, tune_controller, trial, result):
        return TrialScheduler.CONTINUE if result.get("done") else TrialScheduler.PAUSE

    def choose_trial_to_run(self, tune_controller):
        waiting = [trial for trial in tune_controller.get_trials() if trial.status in ("PENDING", "PAUSED")]
        return min(
            waiting, key=lambda trial: (trial.last_result.get("training_iteration", 0), trial.trial_id), default=None
        )


class RecordResults(tune.Callback):
    def __init__(self):
        self.results = []

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.results.append((trial.config["x"], result["number"], result["process"], result.get("num_resets")))


def outcome_of(trainable, folder, scheduler, xs, **kwargs):
    recorder = RecordResults()
    failure_folder = tempfile.mkdtemp(dir=folder)
    config = {"x": tune.grid_search(xs), "folder": failure_folder, **kwargs.pop("config", {})}
    found = tune.run(
        trainable,
        config=config,
        scheduler=scheduler,
        callbacks=[recorder],
        storage_path=str(folder),
        raise_on_failed_trial=False,
        verbose=0,
        metric="loss",
        mode="min",
        **kwargs,
    )
    return {
        "states": [(trial.status, trial.last_result["number"], trial.num_failures) for trial in found.trials],
        "results": [result[:2] for result in recorder.results],
        "processes": len({result[2] for result in recorder.results}),
        "resets": max((result[3] or 0 for result in recorder.results), default=0),
    }


ONE_AT_A_TIME = {"resources_per_trial": {"cpu": 2}}
PAUSED = {"reuse_actors": True, "max_failures": 2, "config": {"fails_at": 3}}
CASES = {
    "a class, paused and reused": (Stepping, PauseEach, {"reuse_actors": True}),
    "a class, paused": (Stepping, PauseEach, {"reuse_actors": False}),
    "a class that fails, paused and reused": (Stepping, PauseEach, PAUSED),
    "a function, paused and reused": (report_steps, PauseEach, {"reuse_actors": True}),
    "a function that fails": (report_steps, FIFOScheduler, {"max_failures": 2, "config": {"fails_at": 2}}),
    "HyperBand": (Stepping, lambda: HyperBandScheduler(max_t=NUM_STEPS), {"reuse_actors": True}),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_sequential_trials_behave_as_under_plain_tune(case, tmp_path):
    trainable, scheduler, kwargs = CASES[case]

    plain = outcome_of(trainable, tmp_path, scheduler(), [1.0, 2.0, 3.0], **ONE_AT_A_TIME, **kwargs)
    under_policy = outcome_of(
        trainable, tmp_path, PolicyScheduler(CpuPolicy(cpus=2), scheduler()), [1.0, 2.0, 3.0], **kwargs
    )

    if case == "a class that fails, paused and reused":
        # Plain Tune chooses the next trial before a trial fails. PolicyScheduler chooses it when a slot becomes free.
        plain, under_policy = (
            {**each, "results": sorted(each["results"]), "processes": None} for each in (plain, under_policy)
        )
    assert under_policy == plain


def test_paused_trials_reuse_one_process(tmp_path):
    scheduler = PolicyScheduler(CpuPolicy(cpus=2), PauseEach())

    found = outcome_of(Stepping, tmp_path, scheduler, [1.0, 2.0], reuse_actors=True)

    assert found["processes"] == 1
    assert found["resets"] == 2 * NUM_STEPS - 1
