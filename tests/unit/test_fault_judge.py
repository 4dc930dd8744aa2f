"""What a run of the fault matrix is judged by: what its trials noted, and what hit them."""

from tests.evidence.faults.matrix.judge import Hit, TrialEnd, judge, not_kept
from tests.evidence.faults.matrix.trial import Event

KIND = "kill"
ENDED_WELL = {"a": TrialEnd("TERMINATED", 3)}
KILL = Hit(2.5, pids=frozenset({1}), kind=KIND)


def event(what, at_s, step, *, trial="a", pid=1, node="n", origin="", began_s=0.0):
    return Event(what, at_s, trial, pid, node, step, origin, began_s)


def judged(events, hits, ends, kind=KIND):
    return judge(events, hits, ends)[kind]


FIRST_TWO = [event("start", 0, 0), event("step", 1, 1), event("step", 2, 2)]
GOES_ON = [
    event("start", 4, 1, pid=2, origin="a/1", began_s=3.5),
    event("step", 5, 2, pid=2),
    event("step", 6, 3, pid=2),
]


def test_a_trial_that_goes_on_after_a_kill_repeats_the_step_in_which_it_was_hit():
    found = judged([*FIRST_TWO, *GOES_ON], [KILL], ENDED_WELL)

    assert (found.lost, found.disturbed, found.repeated, found.recovery_s) == ((), (), (1,), (2.5,))


def test_the_time_to_go_on_is_told_apart_from_the_time_to_a_new_process():
    found = judged([*FIRST_TWO, *GOES_ON], [KILL], ENDED_WELL)

    assert found.process_s == (1.0,)


def test_each_restart_counts_for_the_kind_of_fault_that_hit_it():
    again = [event("start", 8, 2, pid=3, origin="a/2", began_s=7), event("step", 9, 3, pid=3)]
    raised = Hit(6.5, pids=frozenset({2}), kind="raise")

    found = judge([*FIRST_TWO, *GOES_ON, *again], [KILL, raised], ENDED_WELL)

    assert {kind: verdict.recovery_s for kind, verdict in found.items()} == {"kill": (2.5,), "raise": (2.5,)}


def test_a_trial_that_starts_again_while_a_fault_lasts_goes_on_from_its_end():
    lasting = Hit(2.5, pids=frozenset({1}), until_s=5, kind=KIND)
    again = [event("start", 7, 1, pid=3, origin="a/1", began_s=6), event("step", 8, 2, pid=3)]

    found = judged([*FIRST_TWO, *GOES_ON[:1], *again], [lasting], {"a": TrialEnd("TERMINATED", 2)})

    assert (found.lost, found.disturbed, found.recovery_s) == ((), (), (3,))


def test_a_trial_whose_checkpoints_were_destroyed_may_fail():
    destroyed = KILL._replace(doomed=frozenset({"a"}))

    found = judged(FIRST_TWO, [destroyed], {"a": TrialEnd("ERROR", 2)})

    assert found.lost == ()


def test_a_node_that_is_lost_hits_all_its_processes():
    found = judged([*FIRST_TWO, *GOES_ON], [Hit(2.5, nodes=frozenset({"n"}), kind=KIND)], ENDED_WELL)

    assert (found.disturbed, found.repeated) == ((), (1,))


def test_a_trial_that_starts_again_without_being_hit_was_disturbed():
    found = judged([*FIRST_TWO, *GOES_ON], [Hit(2.5, pids=frozenset({7}), kind=KIND)], ENDED_WELL)

    assert found.disturbed == ("a: starts again at step 1 of 2, unhit",)


def test_a_trial_that_pbt_paused_was_disturbed_only_if_it_repeats_a_step():
    paused = [*FIRST_TWO, event("start", 4, 2, pid=2, origin="a/2"), event("step", 5, 3, pid=2)]

    found = [
        judge(events, [KILL._replace(pids=frozenset({7}))], ENDED_WELL, may_pause=True)[KIND].disturbed
        for events in (paused, [*FIRST_TWO, *GOES_ON])
    ]

    assert found == [(), ("a: starts again at step 1 of 2, unhit",)]


def test_a_trial_that_takes_over_anothers_state_was_not_disturbed():
    taken_over = [event("start", 4, 9, pid=2, origin="b/1"), event("step", 5, 10, pid=2)]

    found = judged([*FIRST_TWO, *taken_over], [], {"a": TrialEnd("TERMINATED", 10)}, "")

    assert (found.lost, found.disturbed, found.repeated) == ((), (), ())


def test_a_process_that_goes_on_beside_the_next_one_is_told():
    found = judged([*FIRST_TWO, *GOES_ON, event("step", 7, 3)], [KILL], ENDED_WELL)

    assert found.disturbed == ("a: process 1 goes on beside 2",)


def test_a_trial_is_lost_that_did_not_end_well_or_never_started():
    ends = {"a": TrialEnd("ERROR", 2), "b": TrialEnd("TERMINATED", None)}

    found = judged(FIRST_TWO, [], ends, "")

    assert found.lost == ("a: ERROR", "b: it never started")


def test_a_trial_is_lost_of_whose_last_steps_tune_has_not_heard():
    found = judged([*FIRST_TWO, event("step", 3, 3)], [], {"a": TrialEnd("TERMINATED", 1)}, "")

    assert found.lost == ("a: Tune knows step 1 of 3",)


def test_a_run_that_ends_early_keeps_all_but_the_step_that_was_begun():
    begun = [*FIRST_TWO, event("step", 1, 3, trial="b")]

    found = not_kept(begun, {"a": 1, "b": 1})

    assert found.lost == ("b: its last checkpoint is of step 1 of 3",)
