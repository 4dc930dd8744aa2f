"""Tests of how many trials the searcher should suggest, and for which trials idle processes are kept."""

import pytest
from ray.tune.execution.tune_controller import _get_max_pending_trials
from ray.tune.experiment import Trial
from ray.tune.search import ConcurrencyLimiter, Repeater, Searcher, SearchGenerator

from tests.clusters import gpu_node
from tests.unit.runner.small_runs import ONE_CPU, LastFirst, SmallRun
from tune_policies import CpuPolicy, GpuPolicy, InfeasibleRequestError
from tune_policies.ray_compat.run_control import _max_requested

HALVES, CPUS = GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=2)
NODE = gpu_node("a", gpus=1, cpus=4, memory_gib=16)
TWO_GPUS = gpu_node("a", gpus=2, cpus=4, memory_gib=16)
NO_ROOM = InfeasibleRequestError("more", "less", "CPU", "Add nodes.")


@pytest.fixture
def run_of(monkeypatch):
    """A function that returns a run under a policy on nodes."""
    return lambda policy, *nodes, **options: SmallRun(monkeypatch, policy, *nodes or [NODE], **options)


def test_processes_are_kept_while_trials_wait(run_of):
    run = run_of(HALVES)
    trials = run.add(3)
    run.run_all()
    assert sum(run.controller._actor_cache.most.values()) == 2

    run.complete(trials[0])
    run.run_all()

    assert sum(run.controller._actor_cache.most.values()) == 0


def test_processes_are_kept_while_the_searcher_has_more_trials(run_of):
    run = run_of(HALVES)
    run.add()
    run.controller.search_alg.__wrapped__.has_ended = False
    run.run_all()

    assert sum(run.controller._actor_cache.most.values()) == 2


def test_a_run_waits_for_trials_that_wait_or_that_may_resume(run_of):
    run = run_of(HALVES)
    assert run.add()
    assert run.core.has_waiting_trials

    (trial,) = run.run_all()
    assert not run.core.has_waiting_trials

    run.core.inner.note_pause(trial)
    assert run.core.has_waiting_trials

    run.complete(trial)
    run.step()
    assert not run.core.has_waiting_trials
    run.processes.is_handling_event = True
    assert not run.core.has_waiting_trials


def test_a_run_waits_while_one_of_several_trials_may_resume(run_of):
    run = run_of(HALVES)
    run.add(2)
    first, second = run.run_all()
    run.core.inner.note_pause(second)
    run.pause(second)
    run.complete(first)
    run.step()

    assert run.core.has_waiting_trials


def test_a_trial_that_paused_without_a_decision_of_the_scheduler_may_resume(run_of):
    run = run_of(HALVES, inner=LastFirst())
    run.add()
    (trial,) = run.run_all()
    assert not run.core.has_waiting_trials

    run.pause(trial)
    run.step()

    assert run.core.has_waiting_trials


def test_a_trial_that_is_just_being_paused_may_resume(run_of):
    """While Tune pauses a trial, it counts the trial as finished for a moment."""
    run = run_of(HALVES)
    run.add()
    (trial,) = run.run_all()
    run.core.inner.note_pause(trial)
    trial.set_status(Trial.TERMINATED)

    assert not run.core.has_waiting_trials
    run.processes.is_handling_event = True
    assert run.core.has_waiting_trials


@pytest.mark.parametrize(
    ("waiting", "expected"), [pytest.param(0, 2, id="free slots"), pytest.param(1, 1, id="fewer by waiting trials")]
)
def test_an_adaptive_searcher_suggests_as_many_trials_as_slots_are_free(run_of, waiting, expected):
    run = run_of(HALVES, TWO_GPUS)
    run.add(2)
    run.run_all()
    run.add(waiting)

    assert run.core.num_suggestions(is_adaptive=True) == expected


def test_an_adaptive_searcher_suggests_a_trial_for_each_slot_if_all_trials_have_ended(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()
    run.complete(trial)
    run.step()

    assert run.core.num_suggestions(is_adaptive=True) == 2


def test_an_adaptive_searcher_suggests_further_trials_while_processes_start_but_not_while_a_request_waits(run_of):
    run = run_of(HALVES, TWO_GPUS)
    run.add()
    (trial,) = run.request_all()
    run.step()
    waiting = run.core.num_suggestions(is_adaptive=True)
    run.processes.started.add(trial.trial_id)  # Ray has granted the request, and the process starts
    run.step()

    assert (waiting, run.core.num_suggestions(is_adaptive=True)) == (0, 3)
    assert run.controller._max_pending_trials > 3


def test_an_adaptive_searcher_suggests_no_trial_if_no_slot_is_free(run_of):
    run = run_of(HALVES)
    run.add(4)
    run.run_all()

    assert run.core.num_suggestions(is_adaptive=True) < 1


def test_an_adaptive_searcher_suggests_a_trial_if_all_trials_have_ended(run_of):
    run = run_of(HALVES)
    (trial,) = run.add()
    run.run_all()
    run.slots.run_plan.wait_for_nodes(NO_ROOM, "a test")
    run.complete(trial)

    assert run.core.num_suggestions(is_adaptive=True) >= 1


def test_other_searchers_suggest_200_waiting_trials(run_of):
    run = run_of(HALVES)
    run.add(5)
    run.run_all()

    assert run.core.num_suggestions(is_adaptive=False) == 200 - 3


def test_trials_with_several_bundles_are_suggested_one_by_one_at_first(run_of):
    run = run_of(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=8))
    (trial,) = run.add(bundles=[ONE_CPU, ONE_CPU])
    run.run_all()

    assert run.core.num_suggestions(is_adaptive=True) == 3
    run.complete(trial)
    assert run.core.num_suggestions(is_adaptive=True) == 1


@pytest.mark.parametrize(
    ("searcher", "expected"),
    [
        pytest.param(Searcher(), 1, id="a searcher"),
        pytest.param(ConcurrencyLimiter(Searcher(), max_concurrent=5), 5, id="a limited searcher"),
        pytest.param(Repeater(ConcurrencyLimiter(Searcher(), max_concurrent=5)), 5, id="a limited searcher in another"),
    ],
)
def test_as_many_requests_of_an_adaptive_searcher_may_wait_for_ray_as_in_plain_tune(searcher, expected):
    search = SearchGenerator(searcher)

    assert _max_requested(search) == _get_max_pending_trials(search) == expected
