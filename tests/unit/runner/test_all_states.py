"""Tests that slot assignment is correct in all states of a small run, and that the exploration finds mistakes."""

import pytest

from tests.evidence.faults.all_states import GPU_NODES, THREE_NODES, Model, explore
from tune_policies.trainers.scheduling import slot_board
from tune_policies.trainers.scheduling.choose_slots import RunSlots
from tune_policies.trainers.scheduling.slot_board import SlotBoard, SlotTypes

find_blocked, free, release, trial_to_move = (
    SlotBoard.find_blocked,
    SlotBoard.free,
    SlotBoard.release,
    SlotBoard.trial_to_move,
)
replace_placements, free_slots, update = SlotBoard.replace_placements, slot_board.free_slots, SlotBoard.update
withdrawal, follow_nodes = RunSlots.withdrawal, RunSlots.follow_nodes


def never_withdraws(self, records, now_s):
    withdrawal(self, records, now_s)


def waits_for_all_waiting_trials(self, records, now_s):
    return None if self.waiting else withdrawal(self, records, now_s)


def keeps_blocks(self, now_s):
    blocked = dict(self._blocked)
    late = find_blocked(self, now_s)
    self._blocked.update(dict.fromkeys(blocked, now_s))
    self._free = None
    return late


def marks_nothing(self, now_s):
    return [trial for trial, assignment in self.assignments.items() if self.waits_too_long(assignment, now_s)]


def moves_without_free_slot(self, now_s, free_for):
    late = self.find_blocked(now_s)
    return trial_to_move(self, now_s, free_for) or (late[0], self.placements[0]) if late else None


def moves_to_any_type(self, now_s, free_for):
    return trial_to_move(self, now_s, lambda _: self.free())


def blocked_first(self):
    return sorted(free(self), key=lambda item: not self.is_blocked(item[0]))


def keeps_released_slots(self, trial):
    assignment = self.assignments.get(trial)
    released = release(self, trial)
    if assignment is not None and assignment.is_granted:
        self.assign(trial, assignment)
    return released


def counts_one_slot_per_trial(placements, assignments):
    return free_slots(placements, [each._replace(num_slots=1) for each in assignments])


def counts_only_granted(placements, assignments):
    return free_slots(placements, [each for each in assignments if each.is_granted])


def grants_nothing(self, trial, **changes):
    update(self, trial, **{**changes, "is_granted": False})


def withdraws_nothing_on_lost_nodes(self, records, nodes):
    follow_nodes(self, records, nodes)
    return []


MISTAKES = [
    (RunSlots, "withdrawal", never_withdraws, "no request is withdrawn"),
    (RunSlots, "withdrawal", waits_for_all_waiting_trials, "a waiting trial that needs another slot prevents a move"),
    (SlotBoard, "waits_too_long", lambda *_: False, "patience never elapses"),
    (SlotBoard, "find_blocked", keeps_blocks, "blocks never end"),
    (SlotBoard, "find_blocked", marks_nothing, "placements are never blocked"),
    (SlotBoard, "trial_to_move", moves_without_free_slot, "a request is withdrawn without a free slot"),
    (SlotBoard, "trial_to_move", moves_to_any_type, "a request is withdrawn for a slot that is not allowed"),
    (SlotBoard, "free", blocked_first, "blocked placements come first"),
    (SlotBoard, "release", keeps_released_slots, "a released slot stays in use"),
    (SlotBoard, "update", grants_nothing, "a grant is not recorded"),
    (slot_board, "free_slots", counts_one_slot_per_trial, "the number of slots of a trial is ignored"),
    (slot_board, "free_slots", counts_only_granted, "a requested slot counts as free"),
    (SlotTypes, "allowed_types", lambda *_: (0, 1), "a trial may resume on other devices"),
    (RunSlots, "follow_nodes", withdraws_nothing_on_lost_nodes, "requests on lost nodes are kept"),
]


@pytest.mark.parametrize(
    ("nodes", "trials"),
    [
        pytest.param(GPU_NODES, (1, 1), id="two trials on two nodes"),
        pytest.param(GPU_NODES, (2, 1), id="a trial that needs two slots"),
        pytest.param(THREE_NODES, (1,), id="slots of two types", marks=pytest.mark.rest),
    ],
)
def test_in_no_reachable_state_does_a_trial_wait_although_an_allowed_slot_is_free(nodes, trials):
    """``python -m tests.evidence all-states`` explores larger runs."""
    found = explore(Model(nodes, trials))

    assert not found.violation, (found.violation, found.path)


@pytest.mark.parametrize(("owner", "name", "mistake"), [pytest.param(*case[:3], id=case[3]) for case in MISTAKES])
def test_the_exploration_finds_a_mistake(owner, name, mistake, monkeypatch):
    monkeypatch.setattr(owner, name, mistake)

    runs = [(THREE_NODES, (1,)), (GPU_NODES, (1, 1)), (GPU_NODES, (2, 1)), (THREE_NODES, (1, 1, 1))]
    assert any(explore(Model(*run), limit=8_000).violation for run in runs)
