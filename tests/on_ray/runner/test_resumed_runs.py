"""Tune can read its saved state without this package, and policies do not interfere with other features of Tune."""

import functools
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from ray import tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from tune_policies import (
    CpuPolicy,
    GpuPolicy,
    InvalidResourcesError,
    OomRetryScheduler,
    PolicyScheduler,
    applied,
    run,
)

RAY = {"num_cpus": 4, "num_gpus": 1}

pytestmark = [pytest.mark.ci, pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")]

WITHOUT_THIS_PACKAGE = """
import sys
sys.modules["tune_policies"] = sys.modules["trainers"] = None
from ray import tune
found = tune.ExperimentAnalysis(sys.argv[1])
print(sorted(found.dataframe()["slot"]), [trial.status for trial in found.trials])
"""


def report(config):
    tune.report({"loss": 1})


def report_and_fail(config):
    tune.report({"loss": 1})
    raise RuntimeError("mine")


class WithChild(tune.Trainable):
    @classmethod
    def default_resource_request(cls, config):
        return tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}])

    def step(self):
        if self.config["fails"]:
            raise RuntimeError("mine")
        return {"done": True}

    def save_checkpoint(self, checkpoint_dir):
        pass


@pytest.mark.rest
def test_an_experiment_can_be_opened_without_this_package(tmp_path):
    run(report, CpuPolicy(cpus=2), num_samples=2, storage_path=str(tmp_path), name="run", verbose=0)

    command = [sys.executable, "-c", WITHOUT_THIS_PACKAGE, str(tmp_path / "run")]
    opened = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd="/")

    assert opened.stdout.strip() == "['2 CPUs', '2 CPUs'] ['TERMINATED', 'TERMINATED']", opened.stderr


class Suggesting(Searcher):
    def suggest(self, trial_id):
        return {"x": 1}

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass


@pytest.mark.rest
def test_the_saved_state_of_a_run_with_a_searcher_has_the_same_keys_as_without_a_policy(tmp_path):
    """The run can therefore be resumed without a policy."""

    def saved(name, scheduler):
        tune.run(
            report,
            search_alg=Suggesting(metric="loss", mode="min"),
            scheduler=scheduler,
            storage_path=str(tmp_path),
            name=name,
            verbose=0,
        )
        (state,) = (tmp_path / name).glob("experiment_state-*.json")
        return json.loads(state.read_text())["runner_data"]

    plain, under_policy = saved("plain", FIFOScheduler()), saved("policy", PolicyScheduler(CpuPolicy(cpus=4)))

    assert under_policy.keys() == plain.keys()
    assert under_policy["_max_pending_trials"] == plain["_max_pending_trials"]


@pytest.mark.rest
def test_applied_keeps_an_existing_wrapper_of_tune_run(tmp_path, monkeypatch):
    calls = []
    original = tune.run

    @functools.wraps(original)
    def logged(*args, **kwargs):
        calls.append(kwargs["verbose"])
        return original(*args, **kwargs)

    monkeypatch.setattr(tune, "run", logged)
    with applied(CpuPolicy(cpus=2)):
        (trial,) = tune.run(report, storage_path=str(tmp_path), verbose=0).trials

    assert calls == [0]
    assert trial.last_result["slot"] == "2 CPUs"
    assert tune.run is logged


@pytest.mark.rest
def test_the_policy_overrides_resources_per_trial_in_a_resumed_run(tmp_path):
    kept = {"storage_path": str(tmp_path), "name": "run", "verbose": 0}
    run(report_and_fail, CpuPolicy(cpus=2), raise_on_failed_trial=False, **kept)

    resumed = tune.run(
        report,
        scheduler=PolicyScheduler(CpuPolicy(cpus=3)),
        resources_per_trial={"cpu": 1},
        resume="AUTO+ERRORED",
        raise_on_failed_trial=False,
        **kept,
    )

    assert [trial.placement_group_factory.bundles for trial in resumed.trials] == [[{"CPU": 3}]]


@pytest.mark.rest
def test_a_run_without_a_policy_resumes_with_the_new_resources_per_trial(tmp_path):
    kept = {"storage_path": str(tmp_path), "name": "run", "verbose": 0, "raise_on_failed_trial": False}
    tune.run(report_and_fail, scheduler=OomRetryScheduler(), resources_per_trial={"cpu": 1}, **kept)

    resumed = tune.run(
        report, scheduler=OomRetryScheduler(), resources_per_trial={"cpu": 2}, resume="AUTO+ERRORED", **kept
    )

    assert [trial.placement_group_factory.bundles for trial in resumed.trials] == [[{"CPU": 2}]]


def fail_once_and_report_cpus(config):
    if not Path(config["marker"]).exists():
        Path(config["marker"]).touch()
        raise RuntimeError("mine")
    tune.report({"cpus": ray.get_runtime_context().get_assigned_resources()["CPU"]})


@pytest.mark.rest
@pytest.mark.parametrize(
    ("scheduler", "bundles"),
    [
        pytest.param(OomRetryScheduler(), 1, id="without a policy"),
        pytest.param(PolicyScheduler(CpuPolicy()), 2, id="several bundles under a policy"),
    ],
)
def test_a_restored_trial_gets_what_its_trainable_requests_now(tmp_path, scheduler, bundles):
    def requesting(cpus):
        request = tune.PlacementGroupFactory([{"CPU": cpus}] * bundles)
        return tune.with_resources(fail_once_and_report_cpus, request)

    tune.Tuner(
        requesting(1),
        param_space={"marker": str(tmp_path / "marker")},
        tune_config=tune.TuneConfig(scheduler=scheduler),
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="run", verbose=0),
    ).fit()
    restored = tune.Tuner.restore(str(tmp_path / "run"), requesting(2), resume_errored=True)

    assert [result.metrics["cpus"] for result in restored.fit()] == [2]


@pytest.mark.rest
def test_a_failed_restore_does_not_change_the_experiment(tmp_path):
    run_config = tune.RunConfig(storage_path=str(tmp_path), name="run", verbose=0)
    tune_config = tune.TuneConfig(scheduler=PolicyScheduler(CpuPolicy(cpus=1)))
    space = {"fails": tune.grid_search([True, False])}
    tune.Tuner(WithChild, param_space=space, tune_config=tune_config, run_config=run_config).fit()
    path = str(tmp_path / "run")

    # If the scheduler raised the error while Tune adds trials, Tune would only log it and restart the experiment.
    with pytest.raises(InvalidResourcesError, match="the policy plans trials with a GPU"), applied(GpuPolicy()):
        tune.Tuner.restore(path, WithChild, resume_errored=True).fit()

    space = {"fails": tune.grid_search([False, False])}
    again = tune.Tuner.restore(path, WithChild, resume_errored=True, param_space=space).fit()
    assert len(again) == 2


def test_tune_does_not_warn_about_unused_gpus_if_the_policy_assigns_them(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="ray.tune"):
        run(report, GpuPolicy(), storage_path=str(tmp_path), verbose=0)

    assert "Tune detects GPUs" not in caplog.text


@pytest.mark.rest
def test_run_experiments_and_lists_of_experiments_accept_the_scheduler(tmp_path):
    experiments = [
        tune.Experiment(name, run=report, storage_path=str(tmp_path), config={"x": 1}) for name in ("one", "two")
    ]

    ran = tune.run_experiments(experiments, scheduler=PolicyScheduler(CpuPolicy(cpus=2)), verbose=0)
    listed = tune.run(experiments, scheduler=PolicyScheduler(CpuPolicy(cpus=3)), verbose=0).trials

    assert [trial.last_result["slot"] for trial in ran] == ["2 CPUs"] * 2
    assert [trial.last_result["slot"] for trial in listed] == ["3 CPUs"] * 2
