"""Tests of the durations of trials in each slot type, and of the decision to leave a slow slot idle."""

import itertools
import pickle
import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evidence.plans.pool_simulation import SlotType, least_makespan, simulate
from tune_policies.trainers.scheduling.idle_slots import RunningTrial, TrialDurations, should_idle

slot_types = st.lists(
    st.builds(SlotType, st.integers(1, 4), st.sampled_from([0.1, 0.25, 0.3, 0.5, 0.7, 1, 3])), min_size=1, max_size=3
)
FAST, SLOW = 0, 1


def durations_of(*seconds, speeds=None, times=1):
    durations = TrialDurations(speeds or [None] * len(seconds))
    for slot_type, each in enumerate(seconds):
        for _ in range(times if each is not None else 0):
            durations.add(slot_type, each)
    return durations


def is_left_idle(slot_type=SLOW, *, durations, slots=(2, 2), running=((FAST, 0), (FAST, 0)), num_waiting=1):
    now = [RunningTrial(slot_type=of, elapsed_s=elapsed_s) for of, elapsed_s in running]
    return should_idle(slot_type, durations=durations, slots=slots, running=now, num_waiting=num_waiting)


def informed(slots):
    """Return the exact durations of trials with one unit of work."""
    return durations_of(*(1 / slot_type.speed for slot_type in slots))


def shortest_run(num_trials, slots):
    """Return the shortest makespan of trials with one unit of work, by trying every distribution over the slots."""
    speeds = [slot_type.speed for slot_type in slots for _ in range(slot_type.num_slots)]
    shared = itertools.combinations_with_replacement(range(len(speeds)), num_trials)
    return min(max(chosen.count(i) / speeds[i] for i in set(chosen)) for chosen in shared)


@given(st.integers(1, 6), slot_types.filter(lambda slots: sum(slot_type.num_slots for slot_type in slots) <= 8))
def test_with_known_durations_a_run_of_equal_trials_is_the_shortest_possible(num_trials, slots):
    slots = sorted(slots, key=lambda slot_type: -slot_type.speed)

    found = simulate([1] * num_trials, slots, durations=informed(slots))

    assert found == pytest.approx(shortest_run(num_trials, slots))


@given(st.integers(1, 200), slot_types)
def test_with_known_durations_a_run_of_equal_trials_reaches_the_lower_bound(num_trials, slots):
    slots = sorted(slots, key=lambda slot_type: -slot_type.speed)
    work = [1] * num_trials

    found = simulate(work, slots, durations=informed(slots))

    assert found == pytest.approx(least_makespan(work, slots))
    assert found <= simulate(work, slots, durations=None) + 1e-9
    assert found <= simulate(work, slots[:1], durations=None) + 1e-9


def ratios_with_known_speeds(work, slots):
    """Return the makespan relative to the fastest slot type alone, to all slot types, and to the lower bound."""
    best = max(slots, key=lambda slot_type: slot_type.speed)
    found = simulate(work, slots, durations=TrialDurations([slot_type.speed for slot_type in slots]))
    others = (simulate(work, [best], durations=None), simulate(work, slots, durations=None))
    return [found / other for other in (*others, least_makespan(work, slots))]


def test_with_known_speeds_a_run_of_equal_trials_is_as_short_as_possible():
    """The runs include decisions before the first trial has ended, and speeds that differ by a factor of a million."""
    rng = random.Random(0)
    for _ in range(1000):
        slots = [SlotType(rng.randint(1, 12), 10 ** rng.uniform(-3, 3)) for _ in range(rng.randint(2, 4))]
        work = [10 ** rng.uniform(-3, 5)] * int(10 ** rng.uniform(0, 2.3))

        assert max(ratios_with_known_speeds(work, slots)) <= 1 + 1e-9


pools = st.lists(st.builds(SlotType, st.integers(1, 32), st.floats(1, 100)), min_size=1, max_size=4)


@given(st.integers(1, 500), pools)
def test_known_speeds_never_make_a_run_of_equal_trials_longer(num_trials, slots):
    assert max(ratios_with_known_speeds([1.0] * num_trials, slots)[:2]) <= 1 + 1e-9


def test_before_a_trial_has_ended_slot_types_are_compared_by_their_speeds():
    """Two rounds of trials in eight fast slots take less time than one trial in a slow slot."""
    assert is_left_idle(durations=TrialDurations([10, 1]), slots=(8, 4), running=[(FAST, 3600)] * 8, num_waiting=8)
    assert not is_left_idle(durations=TrialDurations([10, 1]), slots=(8, 4), running=[(FAST, 3600)] * 8, num_waiting=80)


def test_the_speeds_are_used_until_a_trial_has_ended_in_a_slot_type_with_a_speed():
    durations = durations_of(None, None, 5, speeds=[10, 1, None])

    assert is_left_idle(durations=durations, slots=(2, 2, 2))


@given(st.lists(st.floats(0.5, 2), min_size=1, max_size=30), slot_types, st.booleans())
def test_no_run_is_shorter_than_the_lower_bound(work, slots, has_speeds):
    speeds = [slot_type.speed if has_speeds else None for slot_type in slots]

    found = simulate(work, slots, durations=TrialDurations(speeds))

    assert found >= least_makespan(work, slots) - 1e-9


def test_near_the_end_of_a_run_a_slow_slot_stays_idle():
    assert is_left_idle(durations=durations_of(1, 10), num_waiting=2)


@pytest.mark.parametrize(("slow_s", "num_waiting"), [(2, 1), (3, 2), (4, 3)])
def test_a_slow_slot_stays_idle_from_the_duration_on_at_which_the_run_takes_no_longer(slow_s, num_waiting):
    """A fast slot takes 1 s per trial. If a trial starts in the slow slot, the fast slot has one trial less to run."""
    one_each = {"slots": (1, 1), "running": [(FAST, 0)], "num_waiting": num_waiting}

    assert is_left_idle(durations=durations_of(1, slow_s), **one_each)
    assert not is_left_idle(durations=durations_of(1, slow_s - 0.01), **one_each)


def test_a_slow_slot_is_used_while_many_trials_wait():
    assert not is_left_idle(durations=durations_of(1, 10), num_waiting=20)


@pytest.mark.parametrize(
    "durations", [TrialDurations([2, 1]), durations_of(1, None, speeds=[2, 1])], ids=["none has ended", "one has"]
)
def test_in_an_endless_search_no_slot_stays_idle_and_the_decision_is_immediate(durations):
    assert not should_idle(1, durations=durations, slots=[1, 1], running=[], num_waiting=sys.maxsize)


def test_a_slow_slot_that_becomes_free_before_the_fast_slots_is_used_until_the_end():
    assert not is_left_idle(durations=durations_of(4, 5), num_waiting=2, running=((FAST, 0), (FAST, 0)))


@pytest.mark.parametrize(
    ("slot_type", "durations", "num_waiting"),
    [
        pytest.param(FAST, durations_of(1, 10), 1, id="of the fastest type"),
        pytest.param(SLOW, durations_of(1, None), 1, id="of a type with unknown durations"),
        pytest.param(SLOW, durations_of(None, 10), 1, id="without another known duration"),
        pytest.param(SLOW, durations_of(1, 1), 1, id="of a type as fast as the others"),
        pytest.param(SLOW, durations_of(1, 10), 0, id="without a waiting trial"),
    ],
)
def test_a_slot_is_not_left_idle_without_a_reason(slot_type, durations, num_waiting):
    assert not is_left_idle(slot_type, durations=durations, num_waiting=num_waiting)


def test_no_slot_stays_idle_for_a_slot_type_without_slots():
    assert not is_left_idle(durations=durations_of(1, 10), slots=(0, 2), running=())


def test_no_slot_stays_idle_because_of_a_trial_that_hangs():
    assert not is_left_idle(durations=durations_of(1, 10), slots=(1, 2), running=((FAST, 1000),), num_waiting=1)


def test_a_slow_slot_stays_idle_if_a_fast_slot_becomes_free_soon():
    late = is_left_idle(durations=durations_of(6, 10), slots=(1, 2), running=((FAST, 5.5),), num_waiting=1)
    early = is_left_idle(durations=durations_of(6, 10), slots=(1, 2), running=((FAST, 0),), num_waiting=1)

    assert (late, early) == (True, False)


def test_trials_in_removed_slots_do_not_free_a_slot():
    left = is_left_idle(durations=durations_of(6, 10), slots=(1, 2), running=((FAST, 5.5), (FAST, 0)), num_waiting=1)

    assert not left


def test_a_slow_slot_stays_idle_earlier_if_the_durations_of_trials_vary():
    """A long trial in the slow slot would end long after all other trials."""
    equal, mixed = TrialDurations([1, 0.25]), TrialDurations([1, 0.25])
    for seconds in [1] * 9:
        equal.add(FAST, seconds)
    for seconds in [0.1] * 3 + [1] * 3 + [4] * 3:
        mixed.add(FAST, seconds)

    answers = [is_left_idle(durations=durations, num_waiting=9) for durations in (equal, mixed)]

    assert answers == [False, True]


def test_the_typical_duration_is_the_median_of_measured_durations():
    durations = TrialDurations([None])
    for seconds in (2, 1, 100):
        durations.add(0, seconds)

    assert durations.typical_s(0) == 2


def test_the_duration_in_a_slot_type_without_trials_follows_from_the_speeds():
    durations = durations_of(2, 8, None, speeds=[10, None, 1])

    assert [durations.typical_s(slot_type) for slot_type in range(3)] == [2, 8, 20]


def test_the_duration_in_a_slot_type_with_few_trials_follows_from_the_speeds():
    durations = durations_of(2, None, speeds=[10, 1], times=9)
    durations.add(1, 4)

    assert durations.typical_s(1) == 20


def test_the_duration_in_a_slot_type_with_many_trials_is_the_measured_duration():
    assert durations_of(2, 4, speeds=[10, 1], times=9).typical_s(1) == 4


def test_without_finished_trials_the_duration_is_unknown():
    assert TrialDurations([10, 1]).typical_s(0) is None


def test_a_duration_of_zero_is_valid():
    assert is_left_idle(durations=durations_of(0, 10), num_waiting=1000)


def test_durations_round_trip_through_pickle():
    durations = pickle.loads(pickle.dumps(durations_of(1, 2)))

    assert durations.typical_s(1) == 2


speeds_given = (
    st.none() | st.floats(min_value=0, max_value=1e11, exclude_min=True) | st.sampled_from([5e-324, 1e-300, 1e11])
)


@given(st.lists(speeds_given, min_size=2, max_size=3), st.data())
def test_extreme_speeds_cause_no_error(speeds, data):
    measured = [data.draw(st.none() | st.floats(0, 1e9)) for _ in speeds]
    durations = durations_of(*measured, speeds=speeds)
    slots = [2] * len(speeds)

    for slot_type in range(len(slots)):
        should_idle(slot_type, durations=durations, slots=slots, running=[], num_waiting=data.draw(st.integers(0, 50)))


def test_the_quantiles_of_few_durations_are_the_durations_relative_to_the_median():
    durations = durations_of(None, None)
    for seconds in range(1, 21):
        durations.add(SLOW, seconds)

    assert durations.quantiles() == [seconds / 10.5 for seconds in range(1, 21)]


def test_the_longest_of_many_durations_is_left_out():
    durations = durations_of(None, None)
    for seconds in range(1, 42):
        durations.add(FAST, seconds)

    assert len(durations.quantiles()) == 20
    assert max(durations.quantiles()) == 40 / 21


def test_the_quantiles_are_from_the_type_with_the_most_trials():
    durations = durations_of(1, None)
    for seconds in (2, 4, 6):
        durations.add(SLOW, seconds)

    assert set(durations.quantiles()) == {0.5, 1, 1.5}


def test_five_measured_trials_are_enough_for_their_own_median():
    durations = durations_of(1, None, speeds=[2, 1], times=9)
    for _ in range(4):
        durations.add(SLOW, 7)
    assert durations.typical_s(SLOW) == 2

    durations.add(SLOW, 7)

    assert durations.typical_s(SLOW) == 7
