"""The verdict on a run with faults: what its trials noted, and what hit them."""

import pytest

from tests.evidence.faults.judge import Event, Hit, TrialEnd, judge

KILL = Hit(2.5, pids=frozenset({1}))
ENDED_WELL = {"a": TrialEnd("TERMINATED", 3)}


def event(what, at_s, step, *, pid=1):
    return Event(what, at_s, "a", pid, "n", step)


FIRST_TWO = [event("start", 0, 0), event("step", 1, 1), event("step", 2, 2)]
GOES_ON = [event("start", 4, 1, pid=2), event("step", 5, 2, pid=2), event("step", 6, 3, pid=2)]


@pytest.mark.parametrize("hit", [KILL, Hit(2.5, nodes=frozenset({"n"}))], ids=["its process", "its node"])
def test_a_trial_that_was_hit_repeats_steps_and_goes_on_with_its_next_step(hit):
    found = judge([*FIRST_TWO, *GOES_ON], [hit], ENDED_WELL)

    assert found == ((), (), (1,), (2.5,))


def test_a_trial_that_starts_again_while_a_fault_lasts_goes_on_from_its_end():
    lasting = KILL._replace(until_s=5)
    again = [event("start", 7, 1, pid=3), event("step", 8, 2, pid=3)]

    found = judge([*FIRST_TWO, *GOES_ON[:1], *again], [lasting], {"a": TrialEnd("TERMINATED", 2)})

    assert (found.lost, found.disturbed, found.recovery_s) == ((), (), (3,))


def test_a_trial_that_starts_again_without_being_hit_was_disturbed():
    found = judge([*FIRST_TWO, *GOES_ON], [Hit(2.5, pids=frozenset({7}))], ENDED_WELL)

    assert found.disturbed == ("a: starts again at step 1 of 2, and nothing had hit it",)


def test_a_process_that_goes_on_beside_the_next_one_disturbs_the_trial():
    found = judge([*FIRST_TWO, *GOES_ON, event("step", 7, 3)], [KILL], ENDED_WELL)

    assert found.disturbed == ("a: process 1 goes on beside 2",)


@pytest.mark.parametrize(
    ("ends", "lost"),
    [
        ({"a": TrialEnd("ERROR", 2)}, ("a: ERROR",)),
        ({}, ("a: the run did not end, or does not have it",)),
        ({"a": TrialEnd("TERMINATED", 0)}, ("a: Tune has step 0 of 2",)),
        ({"a": TrialEnd("TERMINATED", 2), "b": TrialEnd("TERMINATED", None)}, ("b: it never started",)),
    ],
)
def test_a_trial_that_did_not_end_well_or_did_not_report_its_steps_is_lost(ends, lost):
    assert judge(FIRST_TWO, [], ends).lost == lost
