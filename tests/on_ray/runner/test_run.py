"""``run``, ``tuner`` and ``applied`` run Tune under a policy that limits the number of concurrent trials."""

import inspect
import os
import signal
import time
from functools import partial
from itertools import accumulate
from pathlib import Path

import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler

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
from tune_policies.policies.policy import OPTIONS_OF_RUNS
from tune_policies.trainers.start.tune_run import OPTIONS
from tune_policies.trainers.usage.resource_usage import USAGE_FILE, ResourceUsage

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


def most_at_once(results):
    """Return the maximum number of trials that ran concurrently."""
    changes = sorted([*((each["start"], 1) for each in results), *((each["end"], -1) for each in results)])
    return max(accumulate(change for _, change in changes))


def test_run_gives_each_trial_its_planned_slot(tmp_path, capsys):
    halving = ASHAScheduler(metric="end", mode="max")

    found = run(spans, AutoPolicy(), scheduler=halving, num_samples=3, storage_path=str(tmp_path), verbose=0)

    assert set(found.dataframe()["slot"]) == {"2 CPUs, 1 GPU"}
    printed = capsys.readouterr().out
    assert printed.count("2 trials at once, limited by GPU") == 1
    assert "PAUSED while it waits for a slot\n" in printed.partition("2 trials at once, limited by GPU")[2]


@pytest.mark.rest
@pytest.mark.parametrize("most", [None, 3], ids=["no limit in the run", "a higher limit in the run"])
def test_the_policy_limits_the_number_of_concurrent_trials(most, tmp_path):
    trials = tune.run(
        spans,
        scheduler=PolicyScheduler(ONE_AT_ONCE),
        num_samples=3,
        max_concurrent_trials=most,
        storage_path=str(tmp_path),
        verbose=0,
    ).trials

    assert most_at_once([trial.last_result for trial in trials]) == 1


@pytest.mark.rest
def test_max_concurrent_trials_can_lower_the_limit_of_the_policy(tmp_path):
    kwargs = {"num_samples": 3, "max_concurrent_trials": 1, "storage_path": str(tmp_path), "verbose": 0}

    trials = run(spans, CpuPolicy(cpus=1), **kwargs).trials

    assert most_at_once([trial.last_result for trial in trials]) == 1


class Trainer:
    def fit(self):
        pass


@pytest.mark.parametrize(
    ("trainable", "kwargs", "message"),
    [
        (spans, {}, "no policy was given. Pass a policy"),
        (spans, {"scheduler": "asynchyperband"}, "no policy was given. Pass a policy"),
        (
            spans,
            {"policy": CpuPolicy(), "resources_per_trial": {"cpu": 1}},
            "resources_per_trial cannot be passed, because the policy sets it",
        ),
        (spans, {"policy": CpuPolicy(), "scheduler": PolicyScheduler(CpuPolicy())}, "already has a policy"),
        (spans, {"policy": CpuPolicy(), "max_concurrent_trials": -1}, "max_concurrent_trials"),
        (spans, {"policy": "CpuPolicy"}, "policy must be a policy"),
        (spans, {"policy": CpuPolicy(), "scheduler": PolicyScheduler(CpuPolicy()), "may_move": True}, "already has"),
        (spans, {"scheduler": PolicyScheduler(CpuPolicy()), "may_move": True}, "Pass may_move to the PolicyScheduler"),
        (spans, {"may_move": True}, "no policy was given"),
        (Trainer(), {"policy": CpuPolicy()}, r"Trainer is a trainer, .* pass as_trainable\(function\)"),
    ],
    ids=[
        "no policy",
        "only a scheduler",
        "resources set twice",
        "two policies",
        "invalid limit",
        "a string",
        "two policies and an option",
        "an option in addition to a PolicyScheduler",
        "an option without a policy",
        "a trainer",
    ],
)
def test_invalid_arguments_of_run_are_rejected(trainable, kwargs, message):
    with pytest.raises(InvalidResourcesError, match=message):
        run(trainable, **kwargs)


def enter_applied(*arguments, **options):
    with applied(*arguments, **options):
        pass


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: enter_applied(PolicyScheduler(CpuPolicy()), falls_back=True),
            "Pass falls_back to the PolicyScheduler",
        ),
        (lambda: enter_applied(PolicyScheduler(CpuPolicy(), ASHAScheduler())), "the inner scheduler AsyncHyperBand"),
        (
            lambda: tuner(spans, tune_config=tune.TuneConfig(scheduler=PolicyScheduler(CpuPolicy())), may_move=True),
            "Pass may_move to the PolicyScheduler",
        ),
    ],
    ids=[
        "an option in addition to a PolicyScheduler",
        "an inner scheduler for all runs",
        "an option of a tuner in addition to a PolicyScheduler",
    ],
)
def test_a_conflict_with_a_policy_scheduler_is_rejected(call, message):
    with pytest.raises(InvalidResourcesError, match=message):
        call()


@pytest.mark.parametrize("start", [partial(run, spans), partial(tuner, spans), enter_applied], ids=lambda start: "")
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"isolation": "mig"}, "isolation"),
        ({"on_unenforced_limit": "ignore"}, "on_unenforced_limit"),
        ({"falls_back": True}, "falls_back=True requires a policy with a second choice"),
        ({"replan_interval_s": 0}, "replan_interval_s"),
        ({"wait_for_nodes_s": "long"}, "wait_for_nodes_s"),
    ],
    ids=lambda option: "",
)
def test_every_entry_point_validates_the_options_of_a_policy_scheduler(start, option, message):
    with pytest.raises(InvalidResourcesError, match=message):
        start(CpuPolicy(), **option)


def test_no_option_of_a_policy_scheduler_is_an_argument_of_tune():
    of_tune = {*inspect.signature(tune.run).parameters, *inspect.signature(tune.Tuner).parameters}

    assert OPTIONS == OPTIONS_OF_RUNS
    assert not OPTIONS & of_tune


@pytest.mark.rest
def test_run_tuner_and_applied_use_the_options_of_a_policy_scheduler(tmp_path):
    """Without the option, a trial with a fraction of a simulated GPU fails, because its memory cannot be limited."""
    policy, options = GpuPolicy(gpus=0.5, cpus=1), {"storage_path": str(tmp_path), "verbose": 0}
    warn = {"on_unenforced_limit": "warn"}

    by_run = run(spans, policy, **warn, **options).trials[0].last_result
    by_tuner = tuner(spans, policy, **warn, run_config=tune.RunConfig(**options)).fit()[0].metrics
    with applied(policy, **warn):
        by_applied = tune.run(spans, **options).trials[0].last_result

    assert [result["slot"] for result in (by_run, by_tuner, by_applied)] == ["1 CPU, 0.5 GPU"] * 3


def test_a_tuner_plans_when_the_run_starts(tmp_path):
    run_config = tune.RunConfig(storage_path=str(tmp_path), verbose=0)
    ready = tuner(spans, CpuPolicy(cpus=100), run_config=run_config)

    with pytest.raises(InfeasibleRequestError, match="short of CPU"):
        ready.fit()


class UnpicklablePolicy(CpuPolicy):
    """A user's policy with an attribute that cannot be pickled, such as an open connection."""

    def __reduce__(self):
        raise TypeError("cannot pickle a connection")


@pytest.mark.rest
def test_run_accepts_a_policy_scheduler_whose_policy_cannot_be_pickled(tmp_path, capsys):
    scheduler = PolicyScheduler(UnpicklablePolicy(cpus=1))

    (trial,) = run(spans, scheduler=scheduler, storage_path=str(tmp_path), verbose=0).trials

    assert (trial.status, trial.last_result["slot"]) == ("TERMINATED", "1 CPU")
    assert scheduler.plan.max_concurrent_trials == 4
    assert capsys.readouterr().out.count("4 trials at once, limited by") == 1


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
    assert (len(found), most_at_once([result.metrics for result in found])) == (3, 1)
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
def test_applied_affects_tune_runs_of_a_library_only_in_the_block(tmp_path):
    def library(name):
        run_config = tune.RunConfig(storage_path=str(tmp_path / name), verbose=0)
        return tune.Tuner(spans, tune_config=tune.TuneConfig(num_samples=2), run_config=run_config).fit()

    with applied(ONE_AT_ONCE):
        results = [result.metrics for result in library("in the block")]
    after = library("after")

    assert ({each["slot"] for each in results}, most_at_once(results)) == ({"0.5 CPU"}, 1)
    assert "slot" not in after[0].metrics


@pytest.mark.rest
def test_a_plan_passed_to_the_run_overrides_applied_and_an_inner_block_overrides_an_outer_block(tmp_path, capsys):
    """A run does not print a plan that the user passed."""
    plan = CpuPolicy(cpus=2).plan(ClusterCapacity.of(Resources(cpus=4)))
    options = {"storage_path": str(tmp_path), "verbose": 0}

    with applied(CpuPolicy(cpus=1)), applied(CpuPolicy(cpus=3)):
        (own,) = tune.run(spans, scheduler=PolicyScheduler(plan), **options).trials
        printed = capsys.readouterr().out
        (inner,) = tune.run(spans, scheduler="asynchyperband", metric="end", mode="max", **options).trials

    assert (own.last_result["slot"], inner.last_result["slot"]) == ("2 CPUs", "3 CPUs")
    assert "at once" not in printed


RUN_OF_A_LIBRARY = partial(tune.run, spans, verbose=0)


@pytest.mark.rest
@pytest.mark.parametrize("scheduler", [None, "asynchyperband"], ids=["no scheduler", "the name of a scheduler"])
def test_applied_affects_a_function_that_a_library_made_from_tune_run_before_the_block(scheduler, tmp_path):
    with applied(CpuPolicy(cpus=3)):
        (trial,) = RUN_OF_A_LIBRARY(scheduler=scheduler, metric="end", mode="max", storage_path=str(tmp_path)).trials
    (after,) = RUN_OF_A_LIBRARY(storage_path=str(tmp_path)).trials

    assert trial.last_result["slot"] == "3 CPUs"
    assert "slot" not in after.last_result


def test_applied_rejects_an_invalid_policy_before_the_block():
    with pytest.raises(InvalidResourcesError), applied("CpuPolicy"):
        pytest.fail("the block was entered")


def test_applied_uses_the_options_of_a_policy_scheduler(tmp_path):
    with applied(PolicyScheduler(GpuPolicy(gpus=0.5, cpus=1), on_unenforced_limit="warn")):
        found = tune.run(spans, storage_path=str(tmp_path), verbose=0).dataframe()

    assert list(found["slot"]) == ["1 CPU, 0.5 GPU"]
