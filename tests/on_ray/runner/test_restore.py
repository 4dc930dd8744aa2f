"""Unfinished trials of an experiment that is resumed under another plan get the resources of the new plan."""

import json
import os
import signal
import tempfile
from pathlib import Path

import pytest
import ray
from ray import tune

from tests.on_ray.rays import wait_until
from tune_policies import ClusterCapacity, CpuPolicy, PolicyScheduler, Resources, applied, run, tuner

CAPACITY = ClusterCapacity.of(Resources(cpus=2))
ONE_AT_ONCE, TWO_AT_ONCE = CpuPolicy(cpus=2).plan(CAPACITY), CpuPolicy(cpus=1).plan(CAPACITY)
FINISHED, BROKEN, INTERRUPTED, NOT_STARTED = "finished", "broken", "interrupted", "not started"
NUM_STEPS = 3


RAY = {"num_cpus": 2}

pytestmark = pytest.mark.usefixtures("without_loggers")


class InterruptOnce(tune.Callback):
    """Sends Ctrl-C once, in the middle of a trial."""

    def __init__(self, marker):
        self.marker = marker

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if trial.config["fate"] == INTERRUPTED and result["step"] == NUM_STEPS - 1 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGINT)


def take_step(config, step, first):
    folder = Path(config["folder"])
    if (folder / "marker").exists():
        wait_for_the_other(folder, config["fate"])
    elif config["fate"] == BROKEN and step == NUM_STEPS - 1:
        raise RuntimeError("broken")
    assigned = ray.get_runtime_context().get_assigned_resources()["CPU"]
    return {"step": step, "first": first, "cpus": assigned, "threads": os.environ["OMP_NUM_THREADS"]}


def wait_for_the_other(folder, fate):
    """Wait until the two resumed trials run at the same time."""
    pair = {BROKEN, INTERRUPTED}
    if fate not in pair:
        return
    (folder / fate).touch()
    wait_until(lambda: all((folder / name).exists() for name in pair))


def function(config):
    done = 0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as folder:
            done = json.loads(Path(folder, "done").read_text())
    for step in range(done + 1, NUM_STEPS + 1):
        result = take_step(config, step, first=done + 1)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "done").write_text(json.dumps(step))
            tune.report(result, checkpoint=tune.Checkpoint.from_directory(folder))


class Class(tune.Trainable):
    def setup(self, config):
        self.done = 0
        self.first = 1

    def reset_config(self, new_config):
        self.setup(new_config)
        return True

    def step(self):
        result = take_step(self.config, self.done + 1, self.first)
        self.done += 1
        return {**result, "done": self.done == NUM_STEPS}

    def save_checkpoint(self, checkpoint_dir):
        return {"done": self.done}

    def load_checkpoint(self, checkpoint):
        self.done = checkpoint["done"]
        self.first = self.done + 1


def space(folder):
    return {"folder": str(folder), "fate": tune.grid_search([FINISHED, BROKEN, INTERRUPTED, NOT_STARTED])}


def checkpoints(trainable):
    return tune.CheckpointConfig(checkpoint_frequency=1 if trainable is Class else 0)


def resumed_after_manual_resources(trainable, folder):
    """Run with manually set resources, which Tune saves, resume the run under a plan, and return its trials."""
    options = {
        "name": "experiment",
        "storage_path": str(folder),
        "config": space(folder),
        "checkpoint_config": checkpoints(trainable),
        "raise_on_failed_trial": False,
        "reuse_actors": True,
        "verbose": 0,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1")
        tune.run(trainable, resources_per_trial={"cpu": 2}, callbacks=[InterruptOnce(folder / "marker")], **options)
    return tune.run(trainable, scheduler=PolicyScheduler(TWO_AT_ONCE), resume="AUTO+ERRORED", **options).trials


def restored_by_the_tuner(trainable, folder):
    tune.Tuner(
        trainable,
        param_space=space(folder),
        tune_config=tune.TuneConfig(scheduler=PolicyScheduler(ONE_AT_ONCE), reuse_actors=True),
        run_config=tune.RunConfig(
            name="experiment",
            storage_path=str(folder),
            callbacks=[InterruptOnce(folder / "marker")],
            checkpoint_config=checkpoints(trainable),
            verbose=0,
        ),
    ).fit()
    with applied(TWO_AT_ONCE):
        restored = tune.Tuner.restore(str(folder / "experiment"), trainable, resume_errored=True).fit()
    return restored._experiment_analysis.trials


@pytest.mark.parametrize(
    ("trainable", "resumed"),
    [
        (Class, restored_by_the_tuner),
        pytest.param(function, resumed_after_manual_resources, marks=pytest.mark.slow),
    ],
    ids=["class, Tuner", "function, tune.run after a run with manually set resources"],
)
@pytest.mark.ray_border
def test_unfinished_trials_resume_with_the_resources_of_the_new_plan(tmp_path, trainable, resumed):
    """The trials resume from their checkpoints, and the planned number of trials runs concurrently."""
    trials = {trial.config["fate"]: trial for trial in resumed(trainable, tmp_path)}

    found = {
        fate: (trial.last_result["cpus"], trial.last_result["threads"], trial.last_result["first"] > 1)
        for fate, trial in trials.items()
    }
    assert found == {
        FINISHED: (2, "2", False),
        BROKEN: (1, "1", True),
        INTERRUPTED: (1, "1", True),
        NOT_STARTED: (1, "1", False),
    }
    assert {trial.status for trial in trials.values()} == {"TERMINATED"}
    assert {trial.last_result["step"] for trial in trials.values()} == {NUM_STEPS}


def report_twice(config):
    for _ in range(2):
        tune.report({"step": 1})


class InterruptAtFirst(tune.Callback):
    """Sends Ctrl-C at the first result of the first run."""

    def __init__(self, marker):
        self.marker = marker

    def on_trial_result(self, **info):
        if not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.rest
@pytest.mark.ray_border
@pytest.mark.parametrize("start", ["run", "tuner"])
def test_after_ctrl_c_the_logged_line_continues_the_run(start, tmp_path, caplog):
    options = {"callbacks": [InterruptAtFirst(tmp_path / "marker")], "verbose": 0}
    if start == "run":
        run(report_twice, TWO_AT_ONCE, storage_path=str(tmp_path), num_samples=3, **options)
    else:
        run_config = tune.RunConfig(storage_path=str(tmp_path), **options)
        tuner(report_twice, TWO_AT_ONCE, tune_config=tune.TuneConfig(num_samples=3), run_config=run_config).fit()

    (line,) = [message for message in caplog.messages if "To continue it, write" in message]
    code = line.partition("write ")[2].partition(", where")[0].replace("…", "num_samples=3, **options")
    results = eval(code, {**globals(), "options": options, "policy": TWO_AT_ONCE})
    trials = results.trials if start == "run" else results._experiment_analysis.trials

    assert [(trial.status, trial.last_result["step"]) for trial in trials] == [("TERMINATED", 1)] * 3


class InterruptAtTheLastEnd(tune.Callback):
    """Sends Ctrl-C when the last of three trials has ended."""

    def __init__(self):
        self.num_ended = 0

    def on_trial_complete(self, **info):
        self.num_ended += 1
        if self.num_ended == 3:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.rest
@pytest.mark.ray_border
@pytest.mark.parametrize("start", ["run", "tuner"])
def test_ctrl_c_after_the_last_trial_has_ended_logs_no_line_to_continue(start, tmp_path, caplog):
    options = {"callbacks": [InterruptAtTheLastEnd()], "verbose": 0}
    if start == "run":
        run(report_twice, ONE_AT_ONCE, storage_path=str(tmp_path), name="mine", num_samples=3, **options)
    else:
        run_config = tune.RunConfig(storage_path=str(tmp_path), name="mine", **options)
        tuner(report_twice, ONE_AT_ONCE, tune_config=tune.TuneConfig(num_samples=3), run_config=run_config).fit()

    found = [message for message in caplog.messages if "nothing is left to continue" in message]
    assert [message.rpartition(" ")[2] for message in found] == [str(tmp_path / "mine")]
    assert not any("To continue it" in message for message in caplog.messages)


class InterruptAtTheFirstEnd(tune.Callback):
    """Sends Ctrl-C when the first trial has ended."""

    def __init__(self):
        self.has_interrupted = False

    def on_trial_complete(self, **info):
        if not self.has_interrupted:
            self.has_interrupted = True
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.rest
@pytest.mark.ray_border
def test_ctrl_c_logs_a_line_to_continue_if_the_searcher_has_created_only_ended_trials(tmp_path, caplog):
    """The searcher creates the next trial only when the previous one has ended."""
    search = tune.search.ConcurrencyLimiter(OneByOne(), max_concurrent=1)
    results = run(
        report_twice,
        ONE_AT_ONCE,
        search_alg=search,
        num_samples=3,
        storage_path=str(tmp_path),
        callbacks=[InterruptAtTheFirstEnd()],
        verbose=0,
    )

    assert [trial.status for trial in results.trials] == ["TERMINATED"]
    assert any("To continue it" in message for message in caplog.messages)


class OneByOne(tune.search.Searcher):
    def suggest(self, trial_id):
        return {}

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass
