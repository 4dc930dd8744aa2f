"""The verdict on a run with injected faults."""

import pytest

from tests.evidence.faults.judge import Event, Hit, TrialEnd, judge

KILL = Hit(2.5, pids=frozenset({1}))
TERMINATED = {"a": TrialEnd("TERMINATED", 3)}


def event(what, at_s, step, *, pid=1):
    return Event(what, at_s, "a", pid, "n", step)


FIRST_TWO = [event("start", 0, 0), event("step", 1, 1), event("step", 2, 2)]
RECOVERED = [event("start", 4, 1, pid=2), event("step", 5, 2, pid=2), event("step", 6, 3, pid=2)]


@pytest.mark.parametrize("hit", [KILL, Hit(2.5, nodes=frozenset({"n"}))], ids=["its process", "its node"])
def test_a_trial_that_was_hit_recovers_with_its_next_step(hit):
    found = judge([*FIRST_TWO, *RECOVERED], [hit], TERMINATED)

    assert found == ((), (), (1,), (2.5,))


def test_recovery_from_a_lasting_fault_is_counted_from_its_end():
    lasting = KILL._replace(until_s=5)
    again = [event("start", 7, 1, pid=3), event("step", 8, 2, pid=3)]

    found = judge([*FIRST_TWO, *RECOVERED[:1], *again], [lasting], {"a": TrialEnd("TERMINATED", 2)})

    assert (found.lost, found.disturbed, found.recovery_s) == ((), (), (3,))


def test_a_trial_that_restarts_without_a_fault_was_disturbed():
    found = judge([*FIRST_TWO, *RECOVERED], [Hit(2.5, pids=frozenset({7}))], TERMINATED)

    assert found.disturbed == ("a: restarted at step 1 of 2 without a fault",)


def test_a_trial_that_runs_in_two_processes_at_once_was_disturbed():
    found = judge([*FIRST_TWO, *RECOVERED, event("step", 7, 3)], [KILL], TERMINATED)

    assert found.disturbed == ("a: processes 1 and 2 run at once",)


@pytest.mark.parametrize(
    ("ends", "lost"),
    [
        ({"a": TrialEnd("ERROR", 2)}, ("a: ERROR",)),
        ({}, ("a: the run did not finish, or does not contain the trial",)),
        ({"a": TrialEnd("TERMINATED", 0)}, ("a: Tune's last result is of step 0 of 2",)),
        ({"a": TrialEnd("TERMINATED", 2), "b": TrialEnd("TERMINATED", None)}, ("b: never started",)),
    ],
)
def test_a_trial_without_a_normal_end_or_with_missing_results_is_lost(ends, lost):
    assert judge(FIRST_TWO, [], ends).lost == lost
