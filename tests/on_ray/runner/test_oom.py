"""Classifies real out-of-memory errors that Ray raises and that Tune saves."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import ray
from ray import tune

from tests.on_ray.rays import local_ray, wait_until
from tune_policies import ClusterCapacity, CpuPolicy, OomRetryScheduler, Resources, run
from tune_policies.oom import classify_oom, classify_oom_text

pytestmark = pytest.mark.rest

SMALL = {"num_cpus": 2, "object_store_memory": 100 * 2**20}


@pytest.fixture
def ray_with_low_memory_threshold(monkeypatch):
    """A Ray instance whose memory monitor kills every worker, because its threshold is 0.01 % of the memory."""
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.0001")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    with local_ray(**SMALL):
        yield


def sleep(config=None):
    time.sleep(60)


def classifications(function, folder):
    """Classify the error of ``function`` in a task, its error in a trial, and the text of the trial's error file."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the class of the error differs
        ray.get(ray.remote(function).options(max_retries=0).remote(), timeout=60)
    run_config = tune.RunConfig(storage_path=folder, verbose=0)
    (result,) = tune.Tuner(function, run_config=run_config).fit()
    (text,) = folder.rglob("error.txt")
    return [classify_oom(caught.value), classify_oom(result.error), classify_oom_text(text.read_text())]


@pytest.mark.usefixtures("ray_with_low_memory_threshold")
def test_a_kill_by_rays_memory_monitor_is_classified_as_host_memory(tmp_path):
    found = classifications(sleep, tmp_path)

    assert [(each.kind, each.framework) for each in found] == [("host", "ray")] * 3
    assert all(each.used_bytes for each in found)


FREE_BYTES = 3 * 2**30  # far more than tests that run at the same time allocate or release


@pytest.fixture
def ray_with_little_free_memory(monkeypatch):
    """A Ray instance whose memory monitor kills a worker if all processes allocate 3 GiB more than now."""
    memory = psutil.virtual_memory()
    threshold = (memory.total - memory.available + FREE_BYTES) / memory.total
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{threshold:.4f}")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    with local_ray(**SMALL):
        yield


def allocate(config):
    held = b"x" * (2 * FREE_BYTES)
    time.sleep(60)
    assert held


@pytest.mark.usefixtures("ray_with_little_free_memory")
def test_a_trial_that_rays_memory_monitor_kills_in_training_is_retried(tmp_path):
    """In a run of plain Tune, such a kill ends the run."""
    plan = CpuPolicy(cpus=2).plan(ClusterCapacity.of(Resources(cpus=2)))
    options = {"max_failures": 1, "raise_on_failed_trial": False, "storage_path": str(tmp_path), "verbose": 0}

    analysis = run(allocate, plan, **options)

    assert [(trial.status, trial.num_failures) for trial in analysis.trials] == [("ERROR", 2)]


@pytest.mark.usefixtures("ray_with_little_free_memory")
@pytest.mark.ray_border
def test_ray_still_ends_a_whole_run_of_plain_tune_if_its_memory_monitor_kills_one_trial(tmp_path, monkeypatch):
    """If this test fails, Tune handles the kill, and ``_report_memory_kills_as_actor_deaths`` can be removed."""
    # Tune's loggers do not close their files if a run is interrupted.
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")

    with pytest.raises(RuntimeError, match=r"Caught unexpected exception: .*low on memory"):
        tune.run(allocate, max_failures=3, raise_on_failed_trial=False, storage_path=str(tmp_path), verbose=0)


def use_little(config):
    reserved = ray.get_runtime_context().get_assigned_resources()["memory"]
    Path(config["folder"], tune.get_context().get_trial_id()).touch()
    wait_until(Path(config["folder"], "over").exists)
    tune.report({"reserved_mib": reserved / 2**20})


def take_the_memory(folder, num_trials):
    """Run another program that takes the free memory for some seconds after all trials have started."""
    code = f"import time; held = b'x' * {2 * FREE_BYTES}; time.sleep(3)"
    try:
        wait_until(lambda: len(list(folder.iterdir())) >= num_trials)
        subprocess.run([sys.executable, "-c", code], check=False)
    finally:
        (folder / "over").touch()  # or else the trials would wait


@pytest.mark.usefixtures("ray_with_little_free_memory")
def test_a_trial_killed_because_another_program_takes_the_memory_keeps_its_reservation(tmp_path):
    """The kill changes neither its reservation nor those of later trials.

    A retry starts without a pause, so the program may also kill the retries, which then count as failures.
    """
    folder = tmp_path / "notes"
    folder.mkdir()
    plan = CpuPolicy(cpus=1, memory="300MiB").plan(ClusterCapacity.of(Resources(cpus=2, memory_bytes=2**31)))
    other = threading.Thread(target=take_the_memory, args=(folder, 2))
    other.start()
    config = {"folder": str(folder), "number": tune.grid_search([1, 2, 3])}
    scheduler = OomRetryScheduler()
    options = {"max_failures": 20, "storage_path": str(tmp_path), "verbose": 0}

    analysis = run(use_little, plan, config=config, scheduler=scheduler, **options)

    other.join()
    assert [(trial.status, trial.last_result["reserved_mib"]) for trial in analysis.trials] == [("TERMINATED", 300)] * 3
    assert any(Path(trial.local_path, "error.txt").exists() for trial in analysis.trials)
