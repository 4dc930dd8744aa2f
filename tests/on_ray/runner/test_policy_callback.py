"""PolicyCallback records the usage of runs that start in different ways and use Tune's reporters and loggers."""

import csv
import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler

from tests.clusters import nodes
from tests.on_ray.rays import wait_until
from tune_policies import (
    GpuPolicy,
    InvalidResourcesError,
    OomRetryScheduler,
    PolicyCallback,
    PolicyScheduler,
    applied,
    load_usage,
    tuner,
)
from tune_policies.oom import OutOfMemory
from tune_policies.trainers.usage.gpu_memory_records import GpuMemoryUsage
from tune_policies.trainers.usage.policy_callback import last_failure
from tune_policies.trainers.usage.reservation_meter import PAUSED
from tune_policies.trainers.usage.resource_usage import STARTING, USAGE_FILE, OutOfMemoryCounts, ResourceUsage

RAY = {"num_cpus": 4, "num_gpus": 1}

# The GPUs are simulated, so their memory cannot be read.
pytestmark = pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")


POLICY = GpuPolicy(gpus=0.5, cpus=1)
PLAN = POLICY.plan(nodes((4, 1)))


def usage_of(tmp_path):
    return ResourceUsage.from_json((tmp_path / "run" / USAGE_FILE).read_text())


def run(trainable, tmp_path, *callbacks, **kwargs):
    """Run one experiment that reuses processes by default."""
    return tune.run(
        trainable,
        callbacks=[*callbacks],
        storage_path=str(tmp_path),
        name="run",
        raise_on_failed_trial=False,
        **{"verbose": 0, "reuse_actors": True, **kwargs},
    )


def sleep(config):
    time.sleep(0.5)
    if config.get("fails"):
        raise ValueError("no luck")
    file = Path(config["file"])
    tune.report({"is_final": json.loads(file.read_text())["is_final"] if file.exists() else None})


def sleep_with_another(config):
    """Wait until two trials have started, because on a slow machine, one could end before the other starts."""
    Path(config["started"], str(uuid4())).touch()
    wait_until(lambda: len(list(Path(config["started"]).iterdir())) >= 2)
    sleep(config)


def test_a_run_records_and_prints_its_usage(tmp_path, capfd):
    started = tmp_path / "started"
    started.mkdir()
    config = {"file": str(tmp_path / "run" / USAGE_FILE), "fails": tune.grid_search([False, True, False])}

    callback = PolicyCallback()
    analysis = run(
        sleep_with_another,
        tmp_path,
        callback,
        scheduler=PolicyScheduler(POLICY),
        config={**config, "started": str(started)},
    )

    printed, usage = capfd.readouterr().out, usage_of(tmp_path)
    assert callback.usage == load_usage(analysis) == load_usage(tmp_path / "run")
    assert callback.usage.resource_usage == usage
    assert len(callback.usage.trials) == 3
    assert [PLAN.headline in printed, "Resources used" in printed, "trials: 2 finished, 1 failed" in printed] == [
        True
    ] * 3
    assert [trial.last_result["is_final"] for trial in analysis.trials if not trial.config["fails"]] == [False] * 2
    assert usage.is_final
    assert usage.trials.model_dump(exclude_defaults=True) == {"num_finished": 2, "num_failed": 1}
    for each in usage.resources:
        assert each.used_hours + sum(idle.hours for idle in each.idle) == pytest.approx(each.total_hours)
        assert each.total_hours == pytest.approx(usage.elapsed_s / 3600 * {"CPU": 4, "GPU": 1}[each.resource])
    assert sorted(span.end for span in usage.spans) == ["failed", "finished", "finished"]
    assert {span.place for span in usage.spans} == {0, 1}
    assert [span.error for span in usage.spans if span.error] == ["ValueError: no luck"]
    (slot,) = usage.slots
    assert 3 * 0.5 <= slot.trial_hours * 3600 <= 2 * usage.elapsed_s
    assert (slot.num_starts, usage.num_rounds_planned) == (3, 2)


RECORD = GpuMemoryUsage(
    pid=1,
    gpus=0.5,
    limit_bytes={"torch": 3},
    peak_reserved_bytes=2,
    not_enforceable=("numba", "xgboost"),
    warnings=("one", "two"),
    sources={"peak_reserved_bytes": "torch"},
)


def report_usage_record(config):
    for _ in range(20):
        tune.report({"loss": config["level"], "gpu_memory": RECORD.to_result()})


@pytest.mark.rest
def test_the_callback_works_with_tunes_default_loggers_and_mlflow(tmp_path, capfd, monkeypatch):
    """Tune's default loggers (CSV, JSON and TensorBoard) and MLflow's logger accept the GPU memory usage in results."""
    mlflow = pytest.importorskip("mlflow")
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    halving = AsyncHyperBandScheduler(metric="loss", mode="min", max_t=20, grace_period=2)
    callbacks = [PolicyCallback(), MLflowLoggerCallback(tracking_uri=uri, experiment_name="tried")]

    results = tune.Tuner(
        report_usage_record,
        param_space={"level": tune.grid_search([1, 2, 3])},
        tune_config=tune.TuneConfig(scheduler=PolicyScheduler(PLAN, halving), reuse_actors=True),
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="run", verbose=1, callbacks=callbacks),
    ).fit()

    trials, folder = usage_of(tmp_path).trials, Path(results[0].path)
    with (folder / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    last = json.loads((folder / "result.json").read_text().splitlines()[-1])
    client = mlflow.MlflowClient(uri)
    logged = client.search_runs([client.get_experiment_by_name("tried").experiment_id])
    printed = "".join(capfd.readouterr())
    assert trials.num_finished + trials.num_stopped_early == 3
    assert [row["gpu_memory/not_enforceable"] for row in rows] == ["numba\nxgboost"] * 20
    assert GpuMemoryUsage.from_dict(last["gpu_memory"]) == RECORD
    assert len([*tmp_path.glob("run/*/events.out.tfevents*")]) == 3
    assert [each.data.metrics["gpu_memory/peak_reserved_bytes"] for each in logged] == [2] * 3
    assert "Resources used" in printed
    assert "invalid value" not in printed


class PausesOnce(FIFOScheduler):
    """Pauses each trial for two seconds after its first result."""

    def __init__(self):
        super().__init__()
        self.paused_at = {}

    def on_trial_result(self, tune_controller, trial, result):
        if trial in self.paused_at:
            return TrialScheduler.CONTINUE
        self.paused_at[trial] = time.monotonic()
        return TrialScheduler.PAUSE

    def choose_trial_to_run(self, tune_controller):
        for trial in tune_controller.get_trials():
            if trial.status == "PENDING":
                return trial
            if trial.status == "PAUSED" and time.monotonic() - self.paused_at[trial] > 2:
                return trial
        return None


class Steps(tune.Trainable):
    def setup(self, config):
        self.num_steps = 0

    def step(self):
        self.num_steps += 1
        return {"done": self.num_steps >= 3}

    def save_checkpoint(self, folder):
        Path(folder, "steps").write_text(str(self.num_steps))

    def load_checkpoint(self, folder):
        self.num_steps = int(Path(folder, "steps").read_text())


@pytest.mark.rest
def test_paused_time_counts_as_idle(tmp_path):
    scheduler = PolicyScheduler(PLAN, PausesOnce())

    run(Steps, tmp_path, PolicyCallback(), scheduler=scheduler, reuse_actors=False)

    usage = usage_of(tmp_path)
    (slot,) = usage.slots
    paused = [idle.hours for idle in usage.resources[1].idle if idle.reason == PAUSED]
    assert (slot.num_starts, usage.trials.num_finished) == (2, 1)
    assert paused[0] * 3600 >= 0.5 * 1.5
    assert slot.trial_hours * 3600 < usage.elapsed_s - 1.5


@pytest.mark.ci
@pytest.mark.parametrize(
    "scheduler",
    [
        PolicyScheduler(POLICY),
        pytest.param(PolicyScheduler(POLICY, AsyncHyperBandScheduler(metric="x", mode="max")), marks=pytest.mark.rest),
        pytest.param(OomRetryScheduler(), marks=pytest.mark.rest),
    ],
    ids=["FIFO", "ASHA", "retries without a policy"],
)
def test_no_time_counts_as_paused_if_the_inner_scheduler_pauses_no_trial(tmp_path, scheduler):
    config = {"x": tune.grid_search([1, 2, 3])}

    run(report_twice, tmp_path, PolicyCallback(), scheduler=scheduler, config=config)

    reasons = {idle.reason for resource in usage_of(tmp_path).resources for idle in resource.idle}
    assert STARTING in reasons
    assert PAUSED not in reasons


def report_twice(config):
    for _ in range(2):
        time.sleep(0.3)
        tune.report({"x": config["x"]})


def run_out_of_memory(config):
    from ray import tune

    if tune.get_context().get_trial_resources().required_resources["GPU"] < 1:
        error = type("OutOfMemoryError", (RuntimeError,), {"__module__": "torch"})
        raise error("CUDA out of memory. Tried to allocate 2.00 GiB.")
    tune.report({"gpu_memory": {"num_ooms": 3, "pid": 1}})


@pytest.mark.rest
def test_out_of_memory_errors_and_retries_are_counted(tmp_path):
    run(run_out_of_memory, tmp_path, PolicyCallback(), scheduler=PolicyScheduler(PLAN, OomRetryScheduler()))

    usage = usage_of(tmp_path)
    assert usage.out_of_memory.model_dump(exclude_defaults=True) == {
        "num_gpu_errors": 1,
        "num_raised": 1,
        "num_refused_allocations": 3,
    }
    assert (usage.trials.num_finished, usage.trials.num_retries) == (1, 1)
    assert [(span.end, span.out_of_memory) for span in usage.spans] == [("tried_again", True), ("finished", False)]


def fail_once(config):
    time.sleep(0.5)
    flag = Path(config["flag"])
    if not flag.exists():
        flag.touch()
        raise ValueError("once")
    tune.report({"x": 1})


@pytest.mark.rest
def test_a_restored_run_continues_its_usage_and_prints_its_new_plan_once(tmp_path, capfd):
    """The usage continues from the usage file if this file is newer than Tune's state."""
    other = PLAN.capped(1, limited_by="the test")
    run_config = tune.RunConfig(storage_path=str(tmp_path), name="run", verbose=0, callbacks=[PolicyCallback()])
    tuner(fail_once, PLAN, param_space={"flag": str(tmp_path / "flag")}, run_config=run_config).fit()
    saved = usage_of(tmp_path)
    later = {
        "elapsed_s": saved.elapsed_s + 100,
        "trials": saved.trials.model_copy(update={"num_retries": 3, "num_stopped_early": 5}),
        "out_of_memory": OutOfMemoryCounts(num_gpu_errors=3),
    }
    (tmp_path / "run" / USAGE_FILE).write_text(saved.model_copy(update=later).to_json())
    capfd.readouterr()

    with applied(other):
        tune.Tuner.restore(str(tmp_path / "run"), fail_once, restart_errored=True).fit()

    usage = usage_of(tmp_path)
    assert capfd.readouterr().out.count(other.explain()) == 1
    assert [plan.text for plan in usage.plans] == [PLAN.explain(), other.explain()]
    assert (saved.trials.num_failed, [slot.num_starts for slot in usage.slots]) == (1, [2])
    assert usage.elapsed_s > saved.elapsed_s + 100
    assert usage.trials.model_dump(exclude_defaults=True) == {"num_finished": 1, "num_retries": 3}
    assert usage.out_of_memory.num_gpu_errors == 3


@pytest.mark.rest
def test_a_run_without_a_policy_uses_the_plan_of_the_callback(tmp_path, capfd):
    config = {"file": "none", "fails": tune.grid_search([False, True])}

    run(sleep, tmp_path, PolicyCallback(PLAN), config=config, **PLAN.tune_run_kwargs())

    usage = usage_of(tmp_path)
    (slot,) = usage.slots
    assert usage.trials.model_dump(exclude_defaults=True) == {"num_finished": 1, "num_failed": 1}
    assert (slot.slot, slot.num_starts) == (str(PLAN.slots[0]), 2)
    assert capfd.readouterr().out.count(PLAN.explain()) == 1


class FailingScheduler(PolicyScheduler):
    """A scheduler whose methods raise errors when the callback calls them."""

    def slot_of(self, trial):
        raise RuntimeError("out of order")

    def slots_left_idle(self):
        raise RuntimeError("out of order")


@pytest.mark.rest
def test_errors_in_the_callback_are_logged_once_and_do_not_stop_the_run(tmp_path, caplog):
    config = {"file": "none", "fails": tune.grid_search([False, False])}

    with caplog.at_level(logging.ERROR, logger="tune_policies"):
        analysis = run(sleep, tmp_path, PolicyCallback(), scheduler=FailingScheduler(PLAN), config=config)

    assert [trial.status for trial in analysis.trials] == ["TERMINATED"] * 2
    assert [record.getMessage().rpartition(", because ")[2] for record in caplog.records] == [
        "_read_trials failed",
        "on_trial_start failed",
        "_end failed",
    ]


def test_an_error_that_cannot_be_unpickled_is_classified_by_its_text(tmp_path):
    (tmp_path / "text").write_text(
        "Failure # 1\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    )
    (tmp_path / "pickled").write_bytes(b"cut off")
    trial = SimpleNamespace(
        error_file=str(tmp_path / "text"), pickled_error_file=str(tmp_path / "pickled"), temporary_state=None
    )

    assert last_failure(trial).kind == "accelerator"


def test_a_failure_that_the_scheduler_classified_is_not_classified_again():
    """The kernel's kill of a process leaves no error that the error files could contain."""
    trial = SimpleNamespace(trial_id="a", error_file=None, pickled_error_file=None)
    records = {id(trial): SimpleNamespace(failure=OutOfMemory(kind="host"))}
    run = SimpleNamespace(records=SimpleNamespace(get=lambda trial: records.get(id(trial))))
    trial.temporary_state = SimpleNamespace(policy_run=run)

    assert last_failure(trial).kind == "host"


@pytest.mark.parametrize("wrong", ["CpuPolicy", POLICY], ids=["a name", "a policy"])
def test_an_argument_other_than_a_plan_is_rejected(wrong):
    with pytest.raises(InvalidResourcesError, match="plan must be the TrialPlan of a policy"):
        PolicyCallback(wrong)


@pytest.mark.rest
def test_a_run_without_a_policy_gets_what_the_program_requests(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("RAY_TUNE_CALLBACKS", "tune_policies.PolicyCallback")
    config = {"file": "none", "fails": tune.grid_search([False, True])}

    run(tune.with_resources(sleep, {"cpu": 2}), tmp_path, config=config)

    usage = usage_of(tmp_path)
    assert usage.trials.model_dump(exclude_defaults=True) == {"num_finished": 1, "num_failed": 1}
    assert [(slot.slot, slot.num_starts) for slot in usage.slots] == [("2 CPUs", 2)]
    assert "2 trials at once, limited by CPU" in capfd.readouterr().out
