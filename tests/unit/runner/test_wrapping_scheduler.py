"""Tests of the scheduler that passes all calls on, and of the search through nested schedulers."""

import pytest
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
    TrialScheduler,
)

from tune_policies.trainers.scheduling.wrapping_scheduler import (
    WrappingScheduler,
    nested_schedulers,
    runs_first_waiting,
)


class Recording(TrialScheduler):
    """A scheduler that returns and records the name and the arguments of each call."""

    metric = "loss"
    supports_buffered_results = False

    def __init__(self):
        super().__init__()
        self.calls = []

    def _record(self, name, *arguments):
        self.calls.append((name, *arguments))
        return "answer"

    def set_search_properties(self, metric, mode, **spec):
        return self._record("set_search_properties", metric, mode, spec)

    def debug_string(self):
        return self._record("debug_string")


CALLS = {
    "on_trial_add": ("controller", "trial"),
    "on_trial_error": ("controller", "trial"),
    "on_trial_result": ("controller", "trial", {"loss": 1}),
    "on_trial_complete": ("controller", "trial", {"loss": 1}),
    "on_trial_remove": ("controller", "trial"),
    "choose_trial_to_run": ("controller",),
    "save": ("path",),
    "restore": ("path",),
}
for _name in CALLS:
    setattr(Recording, _name, lambda self, *arguments, _name=_name: self._record(_name, *arguments))
Recording.__abstractmethods__ = frozenset()


@pytest.mark.parametrize("name", CALLS)
def test_each_call_reaches_the_inner_scheduler(name):
    inner = Recording()

    getattr(WrappingScheduler(inner), name)(*CALLS[name])

    assert inner.calls == [(name, *CALLS[name])]


@pytest.mark.parametrize("name", ["on_trial_result", "choose_trial_to_run"])
def test_a_decision_of_the_inner_scheduler_is_returned(name):
    assert getattr(WrappingScheduler(Recording()), name)(*CALLS[name]) == "answer"


def test_properties_are_those_of_the_inner_scheduler():
    inner = Recording()
    outer = WrappingScheduler(inner)

    assert (outer.metric, outer.supports_buffered_results, outer.debug_string()) == ("loss", False, "answer")
    assert outer.set_search_properties("loss", "min", total_num_samples=3) is True
    assert inner.calls[-1] == ("set_search_properties", "loss", "min", {"total_num_samples": 3})


def test_the_default_is_the_fifo_scheduler_of_tune():
    outer = WrappingScheduler(None)

    assert type(outer.inner) is FIFOScheduler
    assert outer.supports_buffered_results is True


def test_nested_schedulers_are_found_from_outside_to_inside():
    fifo = FIFOScheduler()
    changing = ResourceChangingScheduler(fifo)
    outer = WrappingScheduler(changing)

    assert list(nested_schedulers(outer)) == [outer, changing, fifo]
    assert list(nested_schedulers(None)) == []


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        pytest.param(FIFOScheduler(), True, id="FIFO"),
        pytest.param(AsyncHyperBandScheduler(), True, id="ASHA"),
        pytest.param(WrappingScheduler(WrappingScheduler(None)), True, id="wrapped FIFO"),
        pytest.param(HyperBandScheduler(), False, id="HyperBand"),
        pytest.param(
            WrappingScheduler(PopulationBasedTraining(hyperparam_mutations={"lr": [1, 2]})), False, id="wrapped PBT"
        ),
    ],
)
def test_a_scheduler_runs_the_first_waiting_trial_if_all_nested_schedulers_choose_like_fifo(scheduler, expected):
    assert runs_first_waiting(scheduler) is expected
