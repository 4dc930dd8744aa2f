"""Tests that Tune's own table of a run names the scheduler inside a ``PolicyScheduler``."""

import copy
import pickle

import pytest
from ray.tune.schedulers import AsyncHyperBandScheduler

from tests.clusters import gpu_node
from tests.rest_parameters import further
from tests.unit.runner.small_runs import SmallRun
from tune_policies import CpuPolicy, PolicyScheduler


def test_tune_shows_the_inner_scheduler_until_the_run_begins(monkeypatch):
    run = SmallRun(monkeypatch, CpuPolicy(), gpu_node("a", gpus=0, cpus=2), inner=AsyncHyperBandScheduler())

    run.scheduler.set_search_properties("loss", "min")
    shown = type(run.scheduler).__name__  # Tune reads the name here
    run.add()
    run.step()

    assert shown == "PolicyScheduler(AsyncHyperBandScheduler)"
    assert type(run.scheduler) is PolicyScheduler


def test_without_an_inner_scheduler_tune_shows_the_class(monkeypatch):
    run = SmallRun(monkeypatch, CpuPolicy(), gpu_node("a", gpus=0, cpus=2))

    run.scheduler.set_search_properties("loss", "min")

    assert type(run.scheduler) is PolicyScheduler
    assert type(pickle.loads(pickle.dumps(run.scheduler))) is PolicyScheduler


@pytest.mark.parametrize("copied", [lambda run: pickle.loads(pickle.dumps(run)), *further(copy.copy, copy.deepcopy)])
def test_a_copy_of_a_scheduler_whose_name_is_shown_has_its_own_class(monkeypatch, copied):
    run = SmallRun(monkeypatch, CpuPolicy(), gpu_node("a", gpus=0, cpus=2), inner=AsyncHyperBandScheduler())

    run.scheduler.set_search_properties("loss", "min")
    other = copied(run.scheduler)

    assert type(other) is PolicyScheduler
    assert type(other.inner) is AsyncHyperBandScheduler
