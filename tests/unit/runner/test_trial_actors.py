"""Tests of trials that fail instead of being started."""

from types import SimpleNamespace

import pytest
from ray.tune.result import TRIAL_INFO

from tune_policies.ray_compat.placement_groups import PlacementGroups
from tune_policies.ray_compat.trial_actors import TrialActors


class Handler:
    """Lets every trial fail instead of being started, and records the failures that it has to decide about."""

    starts_more = True

    def __init__(self):
        self.failures = []

    def start_error(self, trial_id):
        return ValueError(f"{trial_id} has no room")

    def is_running(self, trial_id):
        return False

    def look_up(self, trial_id, error):
        return None

    def report_failure(self, trial_id, error, cause, report):
        self.failures.append((trial_id, str(error)))
        report()


@pytest.fixture
def actors():
    actors = TrialActors(PlacementGroups())
    actors.handler = Handler()
    return actors


def add(actors, trial_id, on_error=lambda actor, error: None):
    """Request a process for a trial as Tune does. Return the tracked actor."""
    config = {TRIAL_INFO: SimpleNamespace(trial_id=trial_id)}
    return actors.add_actor(object, {"config": config}, None, on_error=on_error)


def test_a_trial_that_cannot_start_fails_in_the_next_step(actors):
    reported = []
    actor = add(actors, "a", lambda *failure: reported.append(failure[0]))

    assert actors.next(timeout=0)
    assert actors.handler.failures == [("a", "a has no room")]
    assert reported == [actor]


def test_a_trial_that_is_withdrawn_before_its_failure_is_reported_does_not_fail(actors):
    """Its request may be withdrawn in the next step, because a similar trial ran out of memory."""
    withdrawn = add(actors, "a")
    add(actors, "b")

    actors.remove_actor(withdrawn)
    actors.next(timeout=0)

    assert actors.handler.failures == [("b", "b has no room")]
