"""Trials that run out of memory resume with more memory, without affecting other trials or the inner scheduler."""

import json
import os
import signal
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import ray
from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
)

from tests.clusters import nodes
from tests.on_ray.kernel_kills import be_killed
from tests.on_ray.rays import local_ray, wait_until
from tune_policies import GpuPolicy, OomRetryScheduler, PolicyScheduler, Resources, TrialPlan, TrialSlot, applied
from tune_policies.trainers.usage.oom_report import OomReport

SHARE = 0.25
NUM_STEPS = 4
SMALL, LARGE = {"batch_size": 32}, {"batch_size": 128}
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB"


@pytest.fixture(scope="module", autouse=True)
def real_ray():
    # Trials of 4 CPUs run one at a time even if Ray leaks one CPU. When Tune reuses a process, Tune may remove a
    # placement group that Ray is still preparing, and Ray may not release the resources of this group (see
    # docs/evidence/reliability.md).
    with pytest.MonkeyPatch.context() as patch, local_ray(num_cpus=5, num_gpus=3):
        # Tune's loggers do not close their files if a run is interrupted.
        patch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
        yield


def train(config):
    """Report four steps. The second step of a large batch needs half a GPU."""
    done = steps_done()
    share = ray.get_runtime_context().get_assigned_resources()["GPU"]
    for step in range(done + 1, NUM_STEPS + 1):
        note(config, f"{step} at {share:g}")
        if step == 2:
            wait_until(lambda: len(list(Path(config["folder"]).iterdir())) >= config["at_once"])
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


def train_one(config):
    train({**config, **config["trial"]})


def run(tmp_path, scheduler, configs, trainable=train_one, *, at_once=1, **kwargs):
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
    return tune.run(trainable, scheduler=scheduler, **{**arguments, **kwargs}).trials


def notes(tmp_path):
    """Count the trials by the lines that they recorded."""
    return Counter(tuple(path.read_text().splitlines()) for path in (tmp_path / "notes").iterdir())


NOT_REQUEUED = ("1 at 0.25", "2 at 0.25", "3 at 0.25", "4 at 0.25")
REQUEUED = ("1 at 0.25", "2 at 0.25", "out of memory", "2 at 0.5", "3 at 0.5", "4 at 0.5")


@pytest.mark.ci
@pytest.mark.ray_border
def test_trials_that_run_out_of_memory_resume_and_other_trials_do_not_restart(tmp_path, caplog):
    """A memory key that no config contains is logged once."""
    inner = ASHAScheduler(metric="loss", mode="min", max_t=9, grace_period=NUM_STEPS)
    scheduler = OomRetryScheduler(inner, memory_keys=["trial/batch_size", "trial/bacth_size"])

    trials = run(tmp_path, scheduler, [SMALL] * 3 + [LARGE] * 2, at_once=5)

    assert [trial.status for trial in trials] == ["TERMINATED"] * 5
    assert notes(tmp_path) == {NOT_REQUEUED: 3, REQUEUED: 2}
    assert [each.getMessage() for each in caplog.records if "memory_keys" in each.getMessage()] == [
        "no config of the first trials contains the key 'trial/bacth_size' of memory_keys; did you mean "
        "'trial/batch_size'?"
    ]


class Training(tune.Trainable):
    """Does the same as ``train``, as a class whose process Tune can reuse."""

    def setup(self, config):
        self.done = 0

    def reset_config(self, new_config):
        self.done = 0
        trial = new_config["trial"]
        if trial.get("resets") and ray.get_runtime_context().get_assigned_resources()["GPU"] < 0.5:
            raise RuntimeError(OUT_OF_MEMORY)
        return True

    def step(self):
        self.done += 1
        config = {**self.config, **self.config["trial"]}
        share = ray.get_runtime_context().get_assigned_resources()["GPU"]
        with Path(config["folder"], self.trial_id).open("a") as file:
            print(f"{self.done} of {config['batch_size']} at {share:g}", file=file)
        if self.done == 2 and config["batch_size"] >= 128 and share < 0.5:
            raise RuntimeError(OUT_OF_MEMORY)
        return {"size": config["batch_size"], "done": self.done == NUM_STEPS}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "done.json").write_text(json.dumps(self.done))

    def load_checkpoint(self, checkpoint_dir):
        self.done = json.loads(Path(checkpoint_dir, "done.json").read_text())


@pytest.mark.slow
def test_a_trial_that_exploits_a_large_config_gets_its_gpu_fraction(tmp_path):
    """The trial with the small config scores worse, so PBT replaces its config and state with the large ones."""
    (tmp_path / "notes").mkdir()
    inner = PopulationBasedTraining(
        time_attr="training_iteration",
        metric="size",
        mode="max",
        perturbation_interval=2,
        hyperparam_mutations={"lr": [0.1, 0.2]},
        quantile_fraction=0.5,
        synch=True,
    )

    trials = tune.run(
        Training,
        scheduler=OomRetryScheduler(inner),
        config={"folder": str(tmp_path / "notes"), "lr": 0.1, "trial": tune.grid_search([SMALL, LARGE])},
        resources_per_trial={"cpu": 1, "gpu": SHARE},
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        reuse_actors=True,
        storage_path=str(tmp_path),
        verbose=0,
    ).trials

    large = [f"{step} of 128 at 0.5" for step in (2, 3, 4)]
    assert [trial.status for trial in trials] == ["TERMINATED"] * 2
    assert notes(tmp_path) == {
        ("1 of 128 at 0.25", "2 of 128 at 0.25", *large): 1,
        ("1 of 32 at 0.25", "2 of 32 at 0.25", *large[1:]): 1,
    }


@pytest.mark.rest
@pytest.mark.ray_border
def test_a_trial_that_runs_out_of_memory_in_a_reused_process_is_requeued(tmp_path):
    """Without the scheduler, Tune would end the run because of ``fail_fast`` when the reset fails."""
    trials = run(
        tmp_path,
        OomRetryScheduler(),
        [SMALL, {**SMALL, "resets": True}],
        Training,
        resources_per_trial={"cpu": 4, "gpu": SHARE},
        reuse_actors=True,
        fail_fast=True,
    )

    assert [trial.status for trial in trials] == ["TERMINATED"] * 2
    assert notes(tmp_path) == {tuple(f"{step} of 32 at {share}" for step in (1, 2, 3, 4)): 1 for share in (0.25, 0.5)}


class Saving(tune.Trainable):
    """Runs out of memory when it saves, while the other trials of its bracket reach the milestone."""

    def setup(self, config):
        self.trial, self.done, self.saving = config["trial"], 0, Path(config["folder"], "saving")

    def step(self):
        self.done += 1
        if self.done == self.trial.get("waits_at"):
            wait_until(self.saving.exists)
        return {"loss": self.trial["loss"], "done": self.done == self.trial["num_steps"]}

    def save_checkpoint(self, checkpoint_dir):
        if self.trial.get("runs_out") and ray.get_runtime_context().get_assigned_resources()["GPU"] < 0.5:
            self.saving.touch()
            raise RuntimeError(OUT_OF_MEMORY)
        Path(checkpoint_dir, "done.json").write_text(json.dumps(self.done))

    def load_checkpoint(self, checkpoint_dir):
        self.done = json.loads(Path(checkpoint_dir, "done.json").read_text())


@pytest.mark.slow
def test_hyperband_accepts_a_requeued_trial_that_ran_out_of_memory_at_a_milestone(tmp_path):
    """The first bracket has three trials and no milestone. The second one stops its worst trial after three steps."""
    inner = HyperBandScheduler(metric="loss", mode="min", max_t=9, reduction_factor=3)
    first = [{"num_steps": 1, "loss": 1}] * 3
    second = [
        {"num_steps": 4, **more} for more in ({"loss": 9, "runs_out": True}, {"loss": 1}, {"loss": 1, "waits_at": 3})
    ]

    trials = run(tmp_path, OomRetryScheduler(inner), first + second, Saving)

    assert [trial.status for trial in trials] == ["TERMINATED"] * 6
    assert sorted((trial.last_result["loss"], trial.last_result["training_iteration"]) for trial in trials) == [
        *[(1, 1)] * 3,
        *[(1, 4)] * 2,
        (9, 3),
    ]


@pytest.mark.rest
def test_a_trial_whose_config_is_similar_to_one_that_ran_out_of_memory_starts_with_more_memory(tmp_path):
    """This also applies to a trial for which Tune has already requested resources."""
    trials = run(
        tmp_path,
        OomRetryScheduler(),
        [LARGE, {"batch_size": 256}, SMALL],
        resources_per_trial={"cpu": 4, "gpu": SHARE},
    )

    assert [trial.status for trial in trials] == ["TERMINATED"] * 3
    assert notes(tmp_path) == {REQUEUED: 1, FROM_THE_START: 1, NOT_REQUEUED: 1}


FROM_THE_START = tuple(f"{step} at 0.5" for step in (1, 2, 3, 4))


NEIGHBOUR = (
    "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 0.50 GiB is free. "
    "Including non-PyTorch memory, this process has 0.50 GiB memory in use."
)
ERRORS = {
    "gpu": RuntimeError(OUT_OF_MEMORY),
    "neighbour": RuntimeError(NEIGHBOUR),
    "host": MemoryError(),
    "other": ValueError("no memory of it"),
}


def fail(config):
    """Raise one of the given errors in each attempt. After the last error, the next attempt finishes."""
    folder = Path(config["folder"], tune.get_context().get_trial_id())
    with folder.open("a") as file:
        assigned = ray.get_runtime_context().get_assigned_resources()
        print(f"{assigned['GPU']:g}, {assigned.get('memory', 0) / 2**20:g} MiB", file=file)
    num_before = len(folder.read_text().splitlines()) - 1
    failures = config["trial"]["failures"]
    if num_before < len(failures):
        raise ERRORS[failures[num_before]]
    tune.report({"loss": 1})


FAILURES = {
    "out of memory does not count against max_failures": (
        ["gpu", "other", "gpu"],
        "TERMINATED",
        ["0.25", "0.5", "0.5", "1"],
    ),
    "out of memory adds no retry for other errors": (["gpu", "other", "other"], "ERROR", ["0.25", "0.5", "0.5"]),
    "a trial on a whole GPU is not requeued": (["gpu"] * 3, "ERROR", ["0.25", "0.5", "1"]),
    "after an error caused by a neighbor, the first retries keep the GPU fraction": (
        ["neighbour"] * 3,
        "TERMINATED",
        ["0.25"] * 3 + ["0.5"],
    ),
    "the reserved host memory is increased too": (
        ["host", "gpu"],
        "TERMINATED",
        ["0.25, 0 MiB", "0.25, 4096 MiB", "0.5, 4096 MiB"],
    ),
}


@pytest.mark.slow
def test_retries_after_out_of_memory_and_other_errors_are_counted_separately(tmp_path, caplog):
    """All configs differ, so that the scheduler does not apply the history of a trial to other trials."""
    trials = run(
        tmp_path,
        OomRetryScheduler(),
        [{"failures": failures, "name": name} for name, (failures, _, _) in FAILURES.items()],
        fail,
        max_failures=1,
    )

    found = {trial.config["trial"]["name"]: trial for trial in trials}
    attempts = {name: Path(tmp_path, "notes", trial.trial_id).read_text().splitlines() for name, trial in found.items()}
    assert {name: trial.status for name, trial in found.items()} == {
        name: status for name, (_, status, _) in FAILURES.items()
    }
    for name, (_, _, expected) in FAILURES.items():
        assert [each[: len(line)] for each, line in zip(attempts[name], expected, strict=True)] == expected, name
    reason = (
        "one trial needs more than 1 GPU, but max_gpus is 1: short of GPU memory. Raise max_gpus, use a GPU with more "
        "memory, or use less memory with a smaller batch or model."
    )
    failed = found["a trial on a whole GPU is not requeued"]
    assert reason in Path(failed.error_file).read_text()
    assert failed.get_pickled_error().__notes__ == [reason]
    retried = f"{failed} ran out of GPU memory and is retried with 0.5 GPU instead of 0.25 GPU"
    assert f"{retried}. This does not count as a failure" in caplog.messages
    assert f"{failed} is not retried and fails: {reason}" in caplog.messages


class InterruptAt(tune.Callback):
    """Interrupts the program once, at the first result with half a GPU."""

    def __init__(self, marker):
        self.marker = marker

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if trial.placement_group_factory.required_resources["GPU"] == 0.5 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGINT)


TO_BE_INTERRUPTED = [LARGE, {"batch_size": 256}, SMALL]


def run_twice(tmp_path):
    def plan(cpus):
        slot = TrialSlot(trial=Resources(cpus=cpus, gpus=SHARE), max_concurrent_trials=1)
        return TrialPlan(slots=(slot,), limited_by="CPU")

    (tmp_path / "notes").mkdir()
    tune.Tuner(
        train_one,
        param_space={"folder": str(tmp_path / "notes"), "at_once": 1, "trial": tune.grid_search(TO_BE_INTERRUPTED)},
        tune_config=tune.TuneConfig(scheduler=PolicyScheduler(plan(4), OomRetryScheduler())),
        run_config=tune.RunConfig(
            name="run", storage_path=str(tmp_path), callbacks=[InterruptAt(tmp_path / "marker")], verbose=0
        ),
    ).fit()
    with applied(plan(3)):
        restored = tune.Tuner.restore(str(tmp_path / "run"), trainable=train_one).fit()
    return restored._experiment_analysis.trials


@pytest.mark.slow
def test_a_restored_experiment_keeps_its_out_of_memory_history(tmp_path):
    """The history also applies to trials that had not started, and to trials with the resources of a new plan."""
    trials = sorted(run_twice(tmp_path), key=lambda trial: trial.trial_id)

    ran_out, alike, small = (Path(tmp_path, "notes", trial.trial_id).read_text().splitlines() for trial in trials)
    assert [trial.status for trial in trials] == ["TERMINATED"] * 3
    # A Tuner requests new resources for every trial, even for finished trials.
    assert [trial.placement_group_factory.required_resources["CPU"] for trial in trials] == [3] * 3
    assert ran_out[:3] == list(REQUEUED[:3])
    assert {line.rpartition(" ")[2] for line in ran_out[3:] + alike} == {"0.5"}
    assert {line.rpartition(" ")[2] for line in small} == {"0.25"}


def load_data(config):
    """Exceed the host memory in the first attempt, and report the reserved resources in the second attempt."""
    reserved = ray.get_runtime_context().get_assigned_resources()
    if reserved["memory"] < 700 * 2**20:
        if config["trial"] == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if config["trial"] != "MemoryError":
            be_killed(config["trial"])
        raise MemoryError
    tune.report({"reserved_mib": reserved["memory"] / 2**20, "gpus": reserved["GPU"]})


def load_under_plan(tmp_path, *trials):
    """Run trials that end in a :exc:`MemoryError`, in a crash, or in a kill by the kernel in the given cgroup."""
    plan = GpuPolicy(gpus=0.25, cpus=0.25, memory="400MiB").plan(nodes((4, 3)))
    scheduler = PolicyScheduler(plan, OomRetryScheduler())
    return run(tmp_path, scheduler, trials, load_data, resources_per_trial=None)


@pytest.mark.rest
@pytest.mark.ray_border
def test_a_trial_that_ran_out_of_host_memory_keeps_its_gpu_fraction_and_a_crashed_trial_fails(tmp_path):
    trials = {trial.config["trial"]: trial for trial in load_under_plan(tmp_path, "MemoryError", "crash")}

    requeued, crashed = trials["MemoryError"], trials["crash"]
    report = OomReport.from_text(Path(requeued.error_file).read_text())
    assert (report.out_of_memory.kind, report.out_of_memory.used_bytes > 2**20) == ("host", True)
    assert (requeued.last_result["reserved_mib"], requeued.last_result["gpus"]) == (800, 0.25)
    assert (crashed.status, crashed.num_failures) == ("ERROR", 1)


@pytest.mark.rest
@pytest.mark.ray_border
def test_a_trial_killed_by_the_kernel_oom_killer_is_requeued_with_more_host_memory(tmp_path, memory_group):
    (trial,) = load_under_plan(tmp_path, memory_group)

    assert (trial.status, trial.last_result["reserved_mib"]) == ("TERMINATED", 800)
