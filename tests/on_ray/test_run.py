"""run, tuner and applied run Tune under a policy, which limits the number of concurrent trials."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from ray import tune

from tests.marks import further
from tests.on_ray.rays import local_ray
from tune_policies import (
    AutoPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    PolicyCallback,
    PolicyScheduler,
    ReservingPolicy,
    Resources,
    applied,
    run,
    tuner,
)
from tune_policies.tune.usage.resource_usage import USAGE_FILE, ResourceUsage

pytestmark = pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")

ONE_AT_ONCE = CappedPolicy(CpuPolicy(cpus=0.5), max_concurrent_trials=1)


@pytest.fixture(scope="module", autouse=True)
def ray():
    with local_ray(num_cpus=4, num_gpus=2):
        yield


def spans(config):
    start = time.time()
    time.sleep(0.3)
    tune.report({"start": start, "end": time.time()})


def most_at_once(frame):
    starts = [(start, 1) for start in frame["start"]]
    running, most = 0, 0
    for _, change in sorted([*starts, *((end, -1) for end in frame["end"])]):
        running += change
        most = max(most, running)
    return most


def test_run_gives_each_trial_its_planned_slot(tmp_path, capsys):
    found = run(spans, AutoPolicy(), num_samples=3, storage_path=str(tmp_path), verbose=0)

    assert set(found.dataframe()["slot"]) == {"2 CPUs, 1 GPU"}
    assert capsys.readouterr().out.count("2 trials at once, limited by GPU") == 1


@pytest.mark.rest
@pytest.mark.parametrize(
    "policy", [ONE_AT_ONCE, *further(ReservingPolicy(CpuPolicy(cpus=1), cpus=3))], ids=["capped", "reserving"]
)
def test_the_policy_limits_the_number_of_concurrent_trials(policy, tmp_path):
    frame = run(spans, policy, num_samples=3, storage_path=str(tmp_path), verbose=0).dataframe()

    assert most_at_once(frame) == 1


def runs_by_tune(**kwargs):
    return tune.run(spans, scheduler=PolicyScheduler(ONE_AT_ONCE), **kwargs).dataframe()


def runs_by_a_tuner(num_samples, max_concurrent_trials, storage_path, verbose):
    tune_config = tune.TuneConfig(
        num_samples=num_samples,
        max_concurrent_trials=max_concurrent_trials,
        scheduler=PolicyScheduler(ONE_AT_ONCE),
    )
    run_config = tune.RunConfig(storage_path=storage_path, verbose=verbose)
    return tune.Tuner(spans, tune_config=tune_config, run_config=run_config).fit().get_dataframe()


@pytest.mark.parametrize("most", [None, *further(3)], ids=["no limit in the run", "a higher limit in the run"])
@pytest.mark.parametrize("runs", [runs_by_tune, *further(runs_by_a_tuner)])
def test_the_scheduler_limits_concurrent_trials_without_a_limit_in_the_run(runs, most, tmp_path):
    frame = runs(num_samples=3, max_concurrent_trials=most, storage_path=str(tmp_path), verbose=0)

    assert most_at_once(frame) == 1


@pytest.mark.rest
def test_max_concurrent_trials_can_lower_the_limit_of_the_policy(tmp_path):
    kwargs = {"num_samples": 3, "max_concurrent_trials": 1, "storage_path": str(tmp_path), "verbose": 0}

    assert most_at_once(run(spans, CpuPolicy(cpus=1), **kwargs).dataframe()) == 1


class Trainer:
    def fit(self):
        pass


@pytest.mark.parametrize(
    ("trainable", "kwargs", "message"),
    [
        (spans, {}, "there is no policy. Pass one"),
        (spans, {"scheduler": "asynchyperband"}, "there is no policy. Pass one"),
        (
            spans,
            {"policy": CpuPolicy(), "resources_per_trial": {"cpu": 1}},
            "resources_per_trial comes from the policy",
        ),
        (spans, {"policy": CpuPolicy(), "scheduler": PolicyScheduler(CpuPolicy())}, "already has a policy"),
        (spans, {"policy": CpuPolicy(), "max_concurrent_trials": -1}, "max_concurrent_trials"),
        (spans, {"policy": "CpuPolicy"}, "policy must be a policy"),
        (Trainer(), {"policy": CpuPolicy()}, r"Trainer is a trainer, .* pass as_trainable\(function\)"),
    ],
    ids=["no policy", "only a scheduler", "resources twice", "two policies", "wrong limit", "text", "trainer"],
)
def test_invalid_arguments_of_run_are_rejected(trainable, kwargs, message):
    with pytest.raises(InvalidResourcesError, match=message):
        run(trainable, **kwargs)


def test_a_tuner_plans_when_the_run_starts(tmp_path):
    run_config = tune.RunConfig(storage_path=str(tmp_path), verbose=0)
    ready = tuner(spans, CpuPolicy(cpus=100), run_config=run_config)

    with pytest.raises(InfeasibleRequestError, match="short of CPU"):
        ready.fit()


@pytest.mark.rest
def test_run_accepts_a_policy_scheduler_instead_of_a_policy(tmp_path, capsys):
    scheduler = PolicyScheduler(ONE_AT_ONCE)

    (trial,) = run(spans, scheduler=scheduler, storage_path=str(tmp_path), verbose=0).trials

    assert trial.last_result["slot"] == "0.5 CPU"
    assert scheduler.plan.max_concurrent_trials == 1
    assert capsys.readouterr().out.count("1 trial at once, limited by") == 1


@pytest.mark.rest
def test_run_does_not_print_a_plan_that_the_user_passed(tmp_path, capsys):
    plan = CpuPolicy(cpus=1).plan(ClusterCapacity.of(Resources(cpus=4)))

    run(spans, plan, storage_path=str(tmp_path), verbose=0)

    assert "trials at once" not in capsys.readouterr().out


@pytest.mark.rest
def test_a_callback_without_a_plan_records_the_plan_of_the_run(tmp_path, capfd):
    run_config = tune.RunConfig(callbacks=[PolicyCallback()], storage_path=str(tmp_path), name="tuned", verbose=0)

    kept = {"storage_path": str(tmp_path), "name": "run", "verbose": 0}
    run(spans, ONE_AT_ONCE, callbacks=[PolicyCallback()], **kept)
    tuner(spans, ONE_AT_ONCE, run_config=run_config).fit()

    plans = [ResourceUsage.from_json((tmp_path / name / USAGE_FILE).read_text()).plans for name in ("run", "tuned")]
    assert ["1 trial at once" in plan.text for (plan,) in plans] == [True, True]
    printed = capfd.readouterr().out
    once_a_run = ("1 trial at once, limited by", "Resources used")
    assert [printed.count(text) for text in once_a_run] == [2, 2]


class UnpicklablePolicy(CpuPolicy):
    """A user's policy with an attribute that cannot be pickled, such as an open connection."""

    def __reduce__(self):
        raise TypeError("cannot pickle a connection")


@pytest.mark.rest
def test_trials_run_under_a_policy_that_cannot_be_pickled(tmp_path):
    scheduler = PolicyScheduler(UnpicklablePolicy(cpus=1))

    (trial,) = tune.run(spans, scheduler=scheduler, storage_path=str(tmp_path), verbose=0).trials

    assert (trial.status, trial.last_result["slot"]) == ("TERMINATED", "1 CPU")


class RecordPlanning(CpuPolicy):
    """Creates a file in ``folder`` when it plans."""

    folder: str

    def plan(self, capacity):
        (Path(self.folder) / "planned").touch()
        return super().plan(capacity)


class InterruptOnce(tune.Callback):
    """Sends Ctrl-C at the first result of the first run."""

    def __init__(self, restored):
        self.restored = restored

    def on_trial_result(self, **info):
        if not self.restored.exists():
            os.kill(os.getpid(), signal.SIGINT)


def report_until_replanned(config):
    """Report until the run is restored and a policy has planned again."""
    start = time.time()
    folder = Path(config["folder"])
    while not (folder / "restored").exists() or not (folder / "planned").exists():
        tune.report({"start": start, "end": time.time()})
        time.sleep(0.05)
    time.sleep(0.3)
    tune.report({"start": start, "end": time.time()})


def interrupted(make_tuner, folder, *callbacks):
    run_config = tune.RunConfig(
        callbacks=[InterruptOnce(folder / "restored"), *callbacks],
        storage_path=str(folder),
        name="run",
        verbose=0,
    )
    make_tuner(param_space={"folder": str(folder)}, run_config=run_config).fit()
    (folder / "restored").touch()
    return str(folder / "run")


@pytest.fixture
def without_loggers(monkeypatch):
    """Disable Tune's loggers, which do not close their files if a run is interrupted."""
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")


def at_once(results):
    found = [result.metrics for result in results]
    return most_at_once({name: [each[name] for each in found] for name in ("start", "end")})


@pytest.mark.rest
@pytest.mark.usefixtures("without_loggers")
def test_a_restored_tuner_uses_the_applied_policy(tmp_path):
    """The saved policy is not used, even when the scheduler plans again."""
    policy = RecordPlanning(cpus=2, folder=str(tmp_path))
    tune_config = tune.TuneConfig(num_samples=3, reuse_actors=True)
    path = interrupted(
        partial(tuner, report_until_replanned, policy, tune_config=tune_config), tmp_path, PolicyCallback()
    )
    (tmp_path / "planned").unlink()

    with applied(ReservingPolicy(policy, cpus=2)):
        found = tune.Tuner.restore(path, report_until_replanned).fit()

    *_, last = ResourceUsage.from_json((tmp_path / "run" / USAGE_FILE).read_text()).plans
    assert (len(found), at_once(found)) == (3, 1)
    assert last.text.startswith("1 trial at once")


@pytest.mark.rest
@pytest.mark.usefixtures("without_loggers")
def test_a_restored_tuner_plans_again_with_its_saved_policy(tmp_path, capsys):
    policy = RecordPlanning(cpus=2, folder=str(tmp_path))
    path = interrupted(partial(tuner, report_until_replanned, policy), tmp_path)
    (tmp_path / "planned").unlink()
    capsys.readouterr()

    (result,) = tune.Tuner.restore(path, report_until_replanned).fit()

    assert (tmp_path / "planned").exists()
    assert result.metrics["slot"] == "2 CPUs"
    assert capsys.readouterr().out.count("2 trials at once, limited by") == 1


@pytest.mark.rest
@pytest.mark.usefixtures("without_loggers")
def test_a_resumed_run_uses_the_given_policy(tmp_path):
    (tmp_path / "planned").touch()
    kept = {"config": {"folder": str(tmp_path)}, "storage_path": str(tmp_path), "name": "run", "verbose": 0}
    run(report_until_replanned, CpuPolicy(cpus=1), callbacks=[InterruptOnce(tmp_path / "restored")], **kept)
    (tmp_path / "restored").touch()

    (trial,) = run(report_until_replanned, CpuPolicy(cpus=3), resume=True, **kept).trials

    assert (trial.status, trial.last_result["slot"]) == ("TERMINATED", "3 CPUs")


def library_by_run(folder, **kwargs):
    return tune.run(spans, num_samples=2, storage_path=folder, verbose=0, **kwargs).dataframe()


def library_by_tuner(folder, **kwargs):
    tune_config = tune.TuneConfig(num_samples=2, **kwargs)
    run_config = tune.RunConfig(storage_path=folder, verbose=0)
    return tune.Tuner(spans, tune_config=tune_config, run_config=run_config).fit().get_dataframe()


@pytest.mark.rest
@pytest.mark.parametrize("library", [library_by_run, library_by_tuner])
def test_applied_affects_tune_runs_of_a_library_only_in_the_block(library, tmp_path):
    with applied(ONE_AT_ONCE):
        frame = library(str(tmp_path / "in the block"))
    after = library(str(tmp_path / "after"))

    assert (set(frame["slot"]), most_at_once(frame)) == ({"0.5 CPU"}, 1)
    assert "slot" not in after


@pytest.mark.rest
def test_a_policy_of_the_run_and_the_innermost_block_take_precedence(tmp_path):
    with applied(CpuPolicy(cpus=1)), applied(CpuPolicy(cpus=3)):
        own = library_by_run(str(tmp_path / "own"), scheduler=PolicyScheduler(CpuPolicy(cpus=2)))
        inner = library_by_run(str(tmp_path / "inner"), scheduler="asynchyperband", metric="end", mode="max")

    assert (set(own["slot"]), set(inner["slot"])) == ({"2 CPUs"}, {"3 CPUs"})


def test_applied_rejects_an_invalid_policy_before_the_block():
    with pytest.raises(InvalidResourcesError), applied("CpuPolicy"):
        pytest.fail("the block was entered")


def test_applied_uses_the_options_of_a_policy_scheduler(tmp_path):
    with applied(PolicyScheduler(GpuPolicy(gpus=0.5, cpus=1), on_unenforced_limit="warn")):
        found = tune.run(spans, storage_path=str(tmp_path), verbose=0).dataframe()

    assert list(found["slot"]) == ["1 CPU, 0.5 GPU"]
