"""Tests of the free slots of a plan while trials run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_policies import Resources, TrialSlot
from tune_policies.placement.count_trials import num_slots_for
from tune_policies.placement.fill_nodes import Placement
from tune_policies.trainers.scheduling.slot_board import (
    BLOCKED_S,
    PATIENCE_S,
    SlotAssignment,
    SlotBoard,
    SlotTypes,
    free_slots,
    place_of,
)

GPU = TrialSlot(trial=Resources(cpus=1, gpus=0.25), max_concurrent_trials=4)
HALF = TrialSlot(trial=Resources(cpus=1, gpus=0.5), max_concurrent_trials=2)
CPU = TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=3)
L4 = TrialSlot(trial=Resources(cpus=1, gpus=0.25), max_concurrent_trials=4, accelerator_type="L4")
PLACEMENTS = (
    Placement(slot_type=0, node_id="a", count=4),
    Placement(slot_type=0, node_id="b", count=2),
    Placement(slot_type=1, node_id="b", count=3),
)


def assigned(slot_type, node_id, *, num_slots=1, has_started=True):
    return SlotAssignment(CPU if slot_type == 1 else GPU, slot_type, node_id, num_slots, has_started)


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        pytest.param([], [4, 2, 3], id="no trial runs"),
        pytest.param([assigned(0, "b"), assigned(1, "b"), assigned(1, "b")], [4, 1, 1], id="slots on their nodes"),
        pytest.param([assigned(0, "b")] * 3, [3, 0, 3], id="a trial without room on its node uses another node"),
        pytest.param([assigned(0, "gone"), assigned(0, None)], [2, 2, 3], id="trials on nodes outside of the plan"),
        pytest.param([assigned(None, "a")], [4, 2, 3], id="a trial of another type uses no slot"),
        pytest.param([assigned(0, "a", num_slots=2)], [2, 2, 3], id="a trial with more resources uses several slots"),
        pytest.param([assigned(0, "b", num_slots=3)], [4, 0, 3], id="a request for more slots than a node has"),
        pytest.param([assigned(0, "a", num_slots=2, has_started=False)], [0, 2, 3], id="a waiting trial blocks slots"),
    ],
)
def test_trials_use_slots_of_their_type(assignments, expected):
    assert free_slots(PLACEMENTS, assignments) == expected


@given(
    assignments=st.lists(
        st.builds(
            SlotAssignment,
            st.just(GPU),
            st.sampled_from([0, 1, None]),
            st.sampled_from(["a", "b", "gone", None]),
            st.integers(1, 3),
            st.booleans(),
        ),
        max_size=12,
    )
)
def test_free_slots_never_exceed_the_slots_that_trials_do_not_use(assignments):
    free = free_slots(PLACEMENTS, assignments)

    count_of = {place_of(placement): placement.count for placement in PLACEMENTS}
    for slot_type, total in ((0, 6), (1, 3)):
        of_type = [assignment for assignment in assignments if assignment.slot_type == slot_type]
        taken = sum(min(each.num_slots, count_of.get(each.place, each.num_slots)) for each in of_type)
        of_type = [count for count, place in zip(free, PLACEMENTS, strict=True) if place.slot_type == slot_type]
        assert all(count >= 0 for count in of_type)
        assert sum(of_type) <= max(0, total - taken)


@pytest.mark.parametrize(
    ("slot", "slot_type"),
    [
        pytest.param(CPU, 1, id="the same slot"),
        pytest.param(CPU.model_copy(update={"max_concurrent_trials": 9}), 1, id="the same slot with another number"),
        pytest.param(HALF, 0, id="another fraction of the same devices"),
        pytest.param(L4, None, id="other devices"),
    ],
)
def test_a_trial_of_an_earlier_plan_counts_as_the_most_similar_slot_type(slot, slot_type):
    assert SlotTypes((GPU, CPU)).type_of(slot) == slot_type


@pytest.mark.parametrize(
    ("kept", "slot_types"),
    [
        pytest.param(None, (0, 1, 2), id="a trial that has not run may use any type"),
        pytest.param(CPU, (2,), id="a trial on CPUs stays on CPUs"),
        pytest.param(GPU, (0, 1), id="a trial on a GPU may use another GPU fraction"),
        pytest.param(L4, (0, 1, 2), id="without such devices, any type is allowed"),
    ],
)
def test_a_trial_may_only_use_slot_types_with_the_device_resource_of_its_first_run(kept, slot_types):
    assert SlotTypes((GPU, HALF, CPU)).allowed_types(kept) == slot_types


@pytest.mark.parametrize(
    ("reserved", "of_slot", "expected"),
    [
        pytest.param({"CPU": 1, "GPU": 0.25}, {"CPU": 1, "GPU": 0.25}, 1, id="the resources of the slot"),
        pytest.param({"CPU": 1, "GPU": 0.5}, {"CPU": 1, "GPU": 0.25}, 2, id="a half uses two quarters"),
        pytest.param({"GPU": 1}, {"GPU": 0.3333}, 3, id="a whole uses three thirds"),
        pytest.param({"GPU": 0.5}, {"GPU": 0.3333}, 2, id="a half uses two thirds"),
        pytest.param({"GPU": 2}, {"GPU": 1}, 2, id="two GPUs use two slots with one GPU"),
        pytest.param({"CPU": 1, "memory": 5e9}, {"CPU": 1, "memory": 2e9}, 3, id="host memory counts too"),
        pytest.param({"CPU": 1, "memory": 5e9}, {"CPU": 1}, 1, id="resources outside of the slot do not count"),
    ],
)
def test_a_trial_uses_as_many_slots_as_its_resources_need(reserved, of_slot, expected):
    assert num_slots_for(reserved, of_slot) == expected


def board_with_late_request():
    board = SlotBoard(PLACEMENTS[:2])
    board.assign("trial", assigned(0, "a", has_started=False))
    board.find_blocked(PATIENCE_S)
    return board


def test_free_slots_of_a_blocked_placement_come_last():
    board = board_with_late_request()

    assert [placement.node_id for placement, _ in board.free()] == ["b", "a"]


def test_a_grant_ends_a_block():
    board = board_with_late_request()

    board.update("trial", is_granted=True)

    assert [placement.node_id for placement, _ in board.free()] == ["a", "b"]


@pytest.mark.parametrize(
    ("has_left", "first"),
    [pytest.param(True, "a", id="without a late request"), pytest.param(False, "b", id="not with a late request")],
)
def test_a_block_ends_after_some_time(has_left, first):
    board = board_with_late_request()
    if has_left:
        board.release("trial")

    board.find_blocked(PATIENCE_S + BLOCKED_S)

    assert board.free()[0][0].node_id == first


def test_a_block_of_a_placement_ends_after_some_time_also_if_no_trial_asked_in_between():
    board = board_with_late_request()
    board.release("trial")
    assert [placement.node_id for placement, _ in board.free()] == ["b", "a"]

    board.find_blocked(PATIENCE_S + BLOCKED_S)

    assert [placement.node_id for placement, _ in board.free()] == ["a", "b"]


def test_a_placement_that_leaves_and_joins_again_is_not_blocked():
    board = board_with_late_request()

    board.replace_placements(PLACEMENTS[1:2], lambda _: 0)
    board.replace_placements(PLACEMENTS[:2], lambda _: 0)

    assert [placement.node_id for placement, _ in board.free()] == ["a", "b"]


def test_a_placement_that_stays_is_still_blocked():
    board = board_with_late_request()

    board.replace_placements(PLACEMENTS[:2], lambda _: 0)

    assert [placement.node_id for placement, _ in board.free()] == ["b", "a"]


def test_trials_occupy_the_slot_types_of_a_changed_plan():
    board = SlotBoard(PLACEMENTS)
    board.assign("gpu", assigned(0, "b"))
    board.assign("own", assigned(None, "b"))
    swapped = [place.model_copy(update={"slot_type": 1 - place.slot_type}) for place in PLACEMENTS]

    board.replace_placements(swapped, lambda slot: 1 if slot is GPU else 0)

    assert [(place.slot_type, place.node_id, count) for place, count in board.free()] == [
        (1, "a", 4),
        (1, "b", 1),
        (0, "b", 3),
    ]


def test_each_change_is_counted():
    board = SlotBoard(PLACEMENTS)
    changes = (
        lambda: board.assign("trial", assigned(0, "a", has_started=False)),
        lambda: board.update("trial", is_granted=True),
        lambda: board.release("trial"),
        lambda: board.replace_placements(PLACEMENTS, lambda _: 0),
    )

    counts = [board.num_changes]
    for change in changes:
        change()
        counts.append(board.num_changes)
    board.release("trial")

    assert counts == sorted(set(counts))
    assert board.num_changes == counts[-1]


def test_a_late_request_moves_only_to_a_free_slot_that_its_trial_may_use():
    board = board_with_late_request()

    assert board.trial_to_move(PATIENCE_S, lambda _: board.free()) == ("trial", PLACEMENTS[1])
    assert board.trial_to_move(PATIENCE_S, lambda _: []) is None


def test_a_blocked_placement_has_only_the_slots_of_granted_requests():
    board = board_with_late_request()
    board.assign("running", assigned(0, "a"))

    assert board.usable_slots(2) == [3, 0]
