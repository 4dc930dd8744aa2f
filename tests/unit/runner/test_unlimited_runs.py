"""Tests of runs with an unlimited number of trials: for ``num_samples=-1``, Tune passes ``sys.maxsize``."""

import math
import re
import sys
from types import SimpleNamespace

import pyarrow.fs
import pytest

from tests.clusters import gpu_node
from tests.unit.runner.small_runs import SmallRun
from tune_policies import CpuPolicy, PolicyCallback
from tune_policies.ray_compat.run_control import number_of_trials
from tune_policies.trainers.usage import policy_callback
from tune_policies.trainers.usage.resource_usage import ResourceUsage

NODE = gpu_node("a", gpus=0, cpus=2)


@pytest.fixture
def run(monkeypatch):
    """A run in which a trial has ended, another one runs, and a third one waits."""
    run = SmallRun(monkeypatch, CpuPolicy(cpus=2), NODE)
    trials = run.add(3)
    run.run_all()
    trials[0].run_metadata.last_result = {"time_total_s": 60.0}
    run.complete(trials[0])
    run.run_all()
    return run


@pytest.fixture
def callback(run, monkeypatch, tmp_path):
    """A function that returns the callback of the run after Tune has passed it the number of trials and a step."""
    monkeypatch.setattr(policy_callback, "_read_capacity", run.cluster.capacity)
    for trial in run.trials:
        files = pyarrow.fs.LocalFileSystem()
        trial.storage = SimpleNamespace(experiment_fs_path=str(tmp_path), storage_filesystem=files)
        trial.storage.experiment_dir_name = "run"

    def after_a_step(total_num_samples, before=None, **options):
        callback = PolicyCallback(**options)
        monkeypatch.setattr(callback, "_now_s", lambda: 60.0)
        callback.setup(total_num_samples=total_num_samples)
        callback._before = before
        callback.on_step_end(1, run.trials)
        return callback

    return after_a_step


@pytest.mark.parametrize(
    ("total_samples", "expected"),
    [
        pytest.param(8, 8, id="a number"),
        pytest.param(0, None, id="a searcher that does not know it"),
        pytest.param(None, None, id="a searcher without it"),
        pytest.param(sys.maxsize, None, id="num_samples=-1"),
        pytest.param(3 * sys.maxsize, None, id="num_samples=-1 and a grid"),
        pytest.param(math.inf, None, id="infinite"),
    ],
)
def test_an_unlimited_number_of_trials_is_not_known(total_samples, expected):
    assert number_of_trials(total_samples) == expected


@pytest.mark.parametrize("total_samples", [sys.maxsize, 0], ids=["unlimited", "unknown"])
def test_a_run_with_an_unlimited_number_of_trials_is_counted_without_a_forecast(
    callback, capsys, caplog, total_samples
):
    record = callback(total_samples).usage.resource_usage

    assert (record.warnings, record.forecast, record.num_rounds_planned) == ((), "", None)
    assert "have ended" not in capsys.readouterr().out
    assert not caplog.records


def test_a_run_with_a_known_number_of_trials_has_a_forecast(callback, capsys):
    record = callback(3).usage.resource_usage

    assert record.forecast.startswith("ends in")
    assert record.num_rounds_planned == 3
    assert "1 of 3 trials have ended, and the run ends in" in capsys.readouterr().out


def test_the_forecast_cost_of_a_restored_run_includes_its_earlier_part(callback):
    of_earlier_part = ResourceUsage(elapsed_s=10 * 3600)

    restored = callback(3, before=of_earlier_part, price_per_hour=2.0).usage.resource_usage

    low = float(re.search(r"\((\S+) to \S+\)$", restored.forecast)[1])
    assert low > 20


def test_the_number_of_future_trials_of_an_unlimited_run_is_not_known(run):
    search = run.controller.search_alg.__wrapped__
    search.has_ended = False
    search.total_samples = sys.maxsize

    assert run.core.tune.num_future_trials is None
