"""Under a policy, a trial is still the user's trial: its class, its methods, its scheduler and its own request."""

import copy
import pickle

import pytest
import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, ResourceChangingScheduler
from ray.tune.schedulers.resource_changing_scheduler import DistributeResources
from ray.tune.search import Searcher

from tune_policies import (
    CpuPolicy,
    GpuPolicy,
    InvalidResourcesError,
    OomRetryScheduler,
    PolicyScheduler,
    run,
)

# The GPUs are simulated, so their memory cannot be read.
pytestmark = [pytest.mark.rest, pytest.mark.filterwarnings("ignore::tune_policies.ProbeWarning")]
RAY = {"num_cpus": 8, "num_gpus": 4}


def report_cpus(config):
    tune.report({"cpus": ray.get_runtime_context().get_assigned_resources().get("CPU", 0)})


class Noting(tune.Trainable):
    """A trainable with a method of its own, which a callback calls."""

    def setup(self, config):
        self.notes = 0

    def note(self, number):
        self.notes += number
        return self.notes

    @classmethod
    def name_of_class(cls):
        return cls.__name__

    @staticmethod
    def seven():
        return 7

    def __len__(self):
        return 3

    def _set_up(self):
        return "the user's"

    def step(self):
        return {"notes": self.notes, "done": self.iteration >= 2}


class CallsNote(tune.Callback):
    def on_trial_start(self, iteration, trials, trial, **info):
        self.type = type(trial)
        self.trainable_class = trial.get_trainable_cls()
        actor = trial.temporary_state.ray_actor
        self.answer = ray.get(actor.note.remote(5))
        self.members = ray.get(
            [
                *(actor.name_of_class.remote(), actor.seven.remote(), actor.__len__.remote(), actor._set_up.remote()),
                actor.__ray_call__.remote(lambda trainable: trainable.notes),
            ]
        )
        self.copies = copy.copy(trial).trial_id, pickle.loads(pickle.dumps(trial)).trial_id


def test_a_callback_calls_the_trainables_own_methods_and_sees_tunes_classes(tmp_path):
    callback = CallsNote()

    (trial,) = run(Noting, CpuPolicy(cpus=1), storage_path=str(tmp_path), callbacks=[callback], verbose=0).trials

    assert trial.last_result["notes"] == 5
    assert (callback.answer, callback.type, callback.trainable_class) == (5, Trial, Noting)
    assert callback.members == ["Noting", 7, 3, "the user's", 5]
    assert callback.copies == (trial.trial_id, trial.trial_id)


class OddScheduler(FIFOScheduler):
    """A scheduler with attributes that other schedulers use for other things, and without an answer to a result."""

    def __init__(self):
        super().__init__()
        self._inner = "not a scheduler"
        self._base_scheduler = self.inner = 3

    def on_trial_result(self, controller, trial, result):
        super().on_trial_result(controller, trial, result)


def test_attributes_of_a_users_scheduler_have_no_meaning(tmp_path):
    class Named(OddScheduler):
        def on_trial_result(self, controller, trial, result):
            return FIFOScheduler.on_trial_result(self, controller, trial, result)

    trials = run(
        report_cpus, CpuPolicy(cpus=2), num_samples=3, scheduler=Named(), storage_path=str(tmp_path), verbose=0
    ).trials

    assert [trial.status for trial in trials] == ["TERMINATED"] * 3


@pytest.mark.usefixtures("without_loggers")  # Tune does not close its loggers' files after such an end
def test_a_scheduler_that_returns_none_ends_as_with_plain_tune(tmp_path):
    arguments = {"storage_path": str(tmp_path), "verbose": 0, "time_budget_s": 4}

    of_tune = tune.run(report_cpus, scheduler=OddScheduler(), **arguments).trials
    of_policy = run(report_cpus, CpuPolicy(cpus=1), scheduler=OddScheduler(), **arguments).trials

    assert [trial.status for trial in of_policy] == [trial.status for trial in of_tune]


@pytest.mark.parametrize(
    "inner",
    [PolicyScheduler(CpuPolicy(cpus=1)), OomRetryScheduler(PolicyScheduler(CpuPolicy(cpus=1)))],
    ids=["directly", "inside another scheduler"],
)
def test_a_second_policy_inside_a_policy_scheduler_is_refused(inner):
    with pytest.raises(InvalidResourcesError, match="already has a policy"):
        PolicyScheduler(CpuPolicy(cpus=2), inner)


def test_a_custom_resource_of_the_trainable_still_limits_the_number_of_trials(tmp_path):
    """Nodes have no such resource here, so a request that keeps it cannot be granted."""
    limited = tune.with_resources(report_cpus, {"cpu": 1, "node:__internal_head__": 0.4})

    trials = run(limited, CpuPolicy(cpus=1), num_samples=4, storage_path=str(tmp_path), verbose=0).trials

    assert [trial.placement_group_factory.bundles for trial in trials] == [
        [{"node:__internal_head__": 0.4, "CPU": 1.0}]
    ] * 4
    assert [trial.last_result["cpus"] for trial in trials] == [1] * 4


def test_requests_that_differ_between_trials_are_refused_with_the_policy_that_keeps_them(tmp_path):
    by_config = tune.with_resources(
        report_cpus, lambda config: {"cpu": 1, "gpu": 1 if config["algo"] == "SAC" else 0.25}
    )

    with pytest.raises(InvalidResourcesError, match=r"ByConfigPolicy\('algo'|ByConfigPolicy\(\"algo\""):
        run(
            by_config,
            GpuPolicy(gpus=0.25),
            config={"algo": tune.grid_search(["SAC", "PPO"])},
            storage_path=str(tmp_path),
            verbose=0,
        )


class OneByOne(Searcher):
    """Suggests the next algorithm when the trial before has ended."""

    def __init__(self):
        super().__init__(metric="cpus", mode="max")
        self.algorithms = ["SAC", "PPO", "SAC"]
        self.runs = False

    def suggest(self, trial_id):
        if not self.algorithms:
            return Searcher.FINISHED
        if self.runs:
            return None
        self.runs = True
        return {"algo": self.algorithms.pop(0)}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.runs = False


def test_a_trial_with_another_request_keeps_it_if_trials_have_run(tmp_path):
    by_config = tune.with_resources(report_cpus, lambda config: {"cpu": 1 if config["algo"] == "SAC" else 3})

    trials = run(
        by_config, CpuPolicy(cpus=2), search_alg=OneByOne(), num_samples=-1, storage_path=str(tmp_path), verbose=0
    ).trials

    assert [(trial.status, trial.last_result["cpus"]) for trial in trials] == [
        ("TERMINATED", 2),
        ("TERMINATED", 3),
        ("TERMINATED", 2),
    ]


class Steps(tune.Trainable):
    def step(self):
        gpus = ray.get_runtime_context().get_assigned_resources().get("GPU", 0)
        return {"gpus": gpus, "done": self.iteration >= 3}

    def save_checkpoint(self, folder):
        return {}

    def load_checkpoint(self, state):
        pass


def test_amounts_that_another_scheduler_requests_are_rounded_to_what_ray_can_place(tmp_path):
    """Ray's function requests 1.5 GPUs for each trial, which no process can have."""
    changing = ResourceChangingScheduler(None, DistributeResources())

    trials = run(
        Steps,
        num_samples=2,
        scheduler=PolicyScheduler(GpuPolicy(gpus=0.5, cpus=1), changing, on_unenforced_limit="warn"),
        storage_path=str(tmp_path),
        verbose=0,
    ).trials

    assert [trial.status for trial in trials] == ["TERMINATED"] * 2
    gpus = {trial.last_result["gpus"] for trial in trials}
    assert all(amount == 0.5 or amount.is_integer() for amount in gpus)
