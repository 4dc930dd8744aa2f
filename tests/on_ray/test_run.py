"""A policy that goes straight in: one call runs Tune under it, and no way runs more trials than it has room for."""

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from ray import tune
from ray.tune.schedulers import HyperBandScheduler, PopulationBasedTraining, ResourceChangingScheduler

from tests.marks import further
from tests.on_ray.rays import local_ray
from tune_policies import (
    AutoPolicy,
    CappedPolicy,
    CpuPolicy,
    GpuMemoryMeasurement,
    GpuMemoryPolicy,
    GpuMemoryProfile,
    GpuPolicy,
    InvalidResourcesError,
    MixedPolicy,
    PolicyCallback,
    PolicyScheduler,
    ReservingPolicy,
    run,
    tuner,
    with_plan,
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


class Stepping(tune.Trainable):
    def setup(self, config):
        self.x = config.get("x", 0)

    def step(self):
        return {"loss": self.x / (self.iteration + 1), "done": self.iteration >= 3}

    def save_checkpoint(self, checkpoint_dir):
        return {"x": self.x}

    def load_checkpoint(self, checkpoint):
        self.x = checkpoint["x"]


def most_at_once(frame):
    starts = [(start, 1) for start in frame["start"]]
    running, most = 0, 0
    for _, change in sorted([*starts, *((end, -1) for end in frame["end"])]):
        running += change
        most = max(most, running)
    return most


def test_run_gives_each_trial_what_the_policy_says(tmp_path, capsys):
    found = run(spans, AutoPolicy(), num_samples=3, storage_path=str(tmp_path), verbose=0)

    assert set(found.dataframe()["slot"]) == {"2 CPUs, 1 GPU"}
    assert capsys.readouterr().out.count("2 trials at once, limited by GPU") == 1


@pytest.mark.rest
def test_run_uses_the_slots_of_all_kinds_without_another_word(tmp_path):
    policy = MixedPolicy(GpuPolicy(cpus=1), CpuPolicy(cpus=1))

    frame = run(spans, policy, num_samples=8, storage_path=str(tmp_path), verbose=0).dataframe()

    assert set(frame["slot"]) == {"1 CPU, 1 GPU", "1 CPU"}


@pytest.mark.rest
@pytest.mark.parametrize(
    "policy", [ONE_AT_ONCE, *further(ReservingPolicy(CpuPolicy(cpus=1), cpus=3))], ids=["capped", "reserving"]
)
def test_no_more_trials_run_than_the_policy_lets(policy, tmp_path):
    frame = run(spans, policy, num_samples=3, storage_path=str(tmp_path), verbose=0).dataframe()

    assert most_at_once(frame) == 1


@pytest.mark.parametrize(
    "policy", [ONE_AT_ONCE, *further(ReservingPolicy(CpuPolicy(cpus=1), cpus=3))], ids=["capped", "reserving"]
)
def test_a_run_without_the_cap_that_it_needs_is_refused_before_anything_starts(policy, tmp_path):
    with pytest.raises(InvalidResourcesError, match=r"run has no max_concurrent_trials: use tune_policies\.run"):
        tune.run(with_plan(spans, policy), num_samples=3, storage_path=str(tmp_path), verbose=0)


def test_a_cap_that_is_too_high_is_refused(tmp_path):
    with pytest.raises(InvalidResourcesError, match="run has max_concurrent_trials=2"):
        tune.run(
            with_plan(spans, ONE_AT_ONCE), num_samples=3, max_concurrent_trials=2, storage_path=str(tmp_path), verbose=0
        )


@pytest.mark.rest
@pytest.mark.parametrize(
    "kwargs",
    [{"max_concurrent_trials": 1}, *further({"num_samples": 1}, {"scheduler": True})],
    ids=["cap", "fewer trials", "scheduler"],
)
def test_a_run_that_cannot_start_too_many_is_not_refused(kwargs, tmp_path):
    scheduler = {"scheduler": PolicyScheduler(None, ONE_AT_ONCE)} if kwargs.pop("scheduler", False) else {}
    kwargs = {"num_samples": 2, "storage_path": str(tmp_path), "verbose": 0, **kwargs, **scheduler}

    assert most_at_once(tune.run(with_plan(spans, ONE_AT_ONCE), **kwargs).dataframe()) == 1


@pytest.mark.rest
@pytest.mark.parametrize(
    "scheduler",
    [
        "asynchyperband",
        PopulationBasedTraining(perturbation_interval=2, hyperparam_mutations={"x": tune.uniform(0, 1)}),
        pytest.param(HyperBandScheduler(max_t=4), marks=pytest.mark.slow),
    ],
    ids=lambda scheduler: scheduler if isinstance(scheduler, str) else type(scheduler).__name__,
)
def test_the_tuner_keeps_the_users_scheduler(scheduler, tmp_path):
    ready = tuner(
        Stepping,
        ONE_AT_ONCE,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=4, metric="loss", mode="min", scheduler=scheduler),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    )

    assert len(ready.fit()) == 4


@pytest.mark.rest
def test_beside_a_resource_changing_scheduler_tunes_own_cap_counts(tmp_path):
    scheduler = ResourceChangingScheduler(resources_allocation_function=lambda *_: None)

    frame = run(
        spans, ONE_AT_ONCE, num_samples=2, scheduler=scheduler, storage_path=str(tmp_path), verbose=0
    ).dataframe()

    assert most_at_once(frame) == 1


@pytest.mark.rest
def test_a_profile_gives_each_trial_what_its_config_needs(tmp_path):
    profile = GpuMemoryProfile(
        measurements=[GpuMemoryMeasurement(config={"x": x}, total_bytes=x * 2**30) for x in (1, 2)]
    )

    with pytest.raises(InvalidResourcesError, match="not both"):
        AutoPolicy(gpu_memory="1GiB", profile=profile)
    # The logical GPUs here have no memory that could be read.
    found = run(
        spans,
        GpuMemoryPolicy(profile=profile) | CpuPolicy(cpus=2),
        config={"x": tune.grid_search([1, 2])},
        storage_path=str(tmp_path),
        verbose=0,
    )
    assert set(found.dataframe()["slot"]) == {"2 CPUs"}


@pytest.mark.parametrize(
    ("trainable", "kwargs", "message"),
    [
        (spans, {}, "no plan yet: give a policy"),
        (
            spans,
            {"policy": CpuPolicy(), "resources_per_trial": {"cpu": 1}},
            "resources_per_trial comes from the policy",
        ),
        ("PPO", {"policy": CpuPolicy()}, "a trainable must be a function"),
    ],
    ids=["no plan", "resources given twice", "a name"],
)
def test_what_cannot_run_says_why(trainable, kwargs, message):
    with pytest.raises(InvalidResourcesError, match=message):
        run(trainable, **kwargs)


def test_a_trainable_has_one_plan():
    with pytest.raises(InvalidResourcesError, match="has a plan already"):
        run(with_plan(spans, CpuPolicy()), CpuPolicy())


@pytest.mark.rest
def test_a_callback_without_a_plan_tells_of_the_runs_own(tmp_path, capfd):
    run_config = tune.RunConfig(callbacks=[PolicyCallback()], storage_path=str(tmp_path), name="tuned", verbose=0)

    kept = {"storage_path": str(tmp_path), "name": "run", "verbose": 0}
    run(spans, ONE_AT_ONCE, callbacks=[PolicyCallback()], **kept)
    tuner(spans, ONE_AT_ONCE, run_config=run_config).fit()

    plans = [ResourceUsage.from_json((tmp_path / name / USAGE_FILE).read_text()).plans for name in ("run", "tuned")]
    assert ["1 trial at once" in plan.text for (plan,) in plans] == [True, True]
    printed = capfd.readouterr().out
    once_a_run = ("1 trial at once, limited by", "What was used")
    assert [printed.count(text) for text in once_a_run] == [2, 2]


class UnpicklablePolicy(CpuPolicy):
    """A policy of a user's own that holds what no process can send, as an open connection."""

    def __reduce__(self):
        raise TypeError("cannot pickle a connection")


@pytest.mark.rest
def test_trials_run_by_a_policy_that_cannot_be_pickled(tmp_path):
    trainable = with_plan(spans, UnpicklablePolicy(cpus=1))

    (trial,) = tune.run(trainable, storage_path=str(tmp_path), verbose=0).trials

    assert (trial.status, trial.last_result["slot"]) == ("TERMINATED", "1 CPU")


class AskedPolicy(CpuPolicy):
    """Notes in ``folder`` that it was asked for a plan."""

    folder: str

    def plan(self, capacity):
        (Path(self.folder) / "asked").touch()
        return super().plan(capacity)


class InterruptOnce(tune.Callback):
    """Presses Ctrl-C at the first result of the first run."""

    def __init__(self, restored):
        self.restored = restored

    def on_trial_result(self, **info):
        if not self.restored.exists():
            os.kill(os.getpid(), signal.SIGINT)


def until_planned_anew(config):
    """Report until the run is restored, and a policy has planned anew in it."""
    start = time.time()
    folder = Path(config["folder"])
    while not (folder / "restored").exists() or not (folder / "asked").exists():
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
    """Where a run is interrupted, Tune's loggers do not close their files."""
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")


@pytest.mark.rest
@pytest.mark.usefixtures("without_loggers")
def test_a_tuner_is_restored_under_the_plan_and_the_policy_that_it_is_given(tmp_path):
    """And not under those that its saved scheduler had, also once the scheduler plans anew."""
    policy = AskedPolicy(cpus=2, folder=str(tmp_path))
    tune_config = tune.TuneConfig(num_samples=3, reuse_actors=True)
    path = interrupted(partial(tuner, until_planned_anew, policy, tune_config=tune_config), tmp_path, PolicyCallback())
    stricter = with_plan(until_planned_anew, ReservingPolicy(policy, cpus=2))
    (tmp_path / "asked").unlink()

    found = [result.metrics for result in tune.Tuner.restore(path, stricter).fit()]

    *_, last = ResourceUsage.from_json((tmp_path / "run" / USAGE_FILE).read_text()).plans
    at_once = most_at_once({name: [each[name] for each in found] for name in ("start", "end")})
    assert (len(found), at_once) == (3, 1)
    assert last.text.startswith("1 trial at once")


@pytest.mark.rest
@pytest.mark.usefixtures("without_loggers")
def test_a_tuner_that_cannot_hold_back_trials_is_not_restored_under_a_plan_that_leaves_room(tmp_path):
    trainable = with_plan(until_planned_anew, CpuPolicy(cpus=4))
    tune_config = tune.TuneConfig(num_samples=2)
    path = interrupted(partial(tune.Tuner, trainable, tune_config=tune_config), tmp_path)

    with pytest.raises(InvalidResourcesError, match="run has no max_concurrent_trials"):
        tune.Tuner.restore(path, with_plan(until_planned_anew, ONE_AT_ONCE)).fit()
