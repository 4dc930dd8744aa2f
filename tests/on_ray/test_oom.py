"""Classifies real out-of-memory errors that Ray raises and that Tune saves."""

import time

import psutil
import pytest
import ray
from ray import tune

from tests.on_ray.rays import local_ray
from tune_policies import ClusterCapacity, CpuPolicy, Resources, run
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


FREE_BYTES = 2**30


@pytest.fixture
def ray_with_little_free_memory(monkeypatch):
    """A Ray instance whose memory monitor kills a worker if all processes allocate 1 GiB more than now."""
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
