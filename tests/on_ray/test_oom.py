"""Running out of memory for real: as it arrives through a real Ray, and as Tune leaves it behind."""

import time

import numpy as np
import pytest
import ray
from ray import tune

from tests.on_ray.rays import local_ray
from tune_policies.oom import OutOfMemory, classify_oom, classify_oom_text

pytestmark = pytest.mark.rest

SMALL = {"num_cpus": 2, "object_store_memory": 100 * 2**20}


@pytest.fixture
def ray_that_kills(monkeypatch):
    """A Ray whose memory monitor takes the node for full at 0.01 % of its memory: it kills whatever runs."""
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.0001")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    with local_ray(**SMALL):
        yield


@pytest.fixture
def ordinary_ray():
    with local_ray(**SMALL):
        yield


def ask_for_too_much(config=None):
    try:
        np.empty(2**47)
    except MemoryError as error:
        raise RuntimeError("the batch could not be built") from error


def sleep(config=None):
    time.sleep(60)


def answers(function, folder):
    """Return what is said of ``function`` in a task, and of its trial: by Tune's error, and by its text on disk."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one it is, is what the answer tells
        ray.get(ray.remote(function).options(max_retries=0).remote(), timeout=60)
    run_config = tune.RunConfig(storage_path=folder, verbose=0)
    (result,) = tune.Tuner(function, run_config=run_config).fit()
    (text,) = folder.rglob("error.txt")
    return [classify_oom(caught.value), classify_oom(result.error), classify_oom_text(text.read_text())]


@pytest.mark.usefixtures("ordinary_ray")
def test_memory_that_the_machine_refused_is_host_memory_in_a_task_and_in_a_trial(tmp_path):
    refused = OutOfMemory(kind="host", framework="python", requested_bytes=2**50)

    assert answers(ask_for_too_much, tmp_path) == [refused, refused, refused]


@pytest.mark.usefixtures("ray_that_kills")
def test_a_worker_that_the_memory_monitor_killed_ran_out_of_host_memory(tmp_path):
    said = answers(sleep, tmp_path)

    assert [(each.kind, each.framework) for each in said] == [("host", "ray")] * 3
    assert all(each.requested_bytes for each in said)
