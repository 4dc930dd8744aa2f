"""Decides which slots are free, which slot types a trial may use, and which requests are withdrawn.

A placement is a number of slots of one type on one node, or on any node if the plan does not distinguish nodes. A trial
that gets a slot requests the slot's resources from Ray. Ray grants the request at once, unless another program uses
these resources. If Ray has not granted a request after ``PATIENCE_S``, the placement is blocked: trials prefer all
other free slots, and a trial that still waits for the placement moves to another slot as soon as no other trial needs
that slot. A trial without another free slot keeps its request, so Ray starts it when the resources become free. A block
ends ``BLOCKED_S`` after the last request that waited too long, so that a trial tries each placement again.

This module does not import Ray or read the clock. Callers pass the current time. Trials are any hashable objects.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.labels import format_selector
from tune_policies.placement.fill_nodes import Placement
from tune_policies.placement.trial_slot import TrialSlot, WorkerNodes

PATIENCE_S: Final = 3.0
"""The time in which Ray normally grants a request, in seconds. Afterwards, the placement counts as blocked."""

BLOCKED_S: Final = 30.0
"""The time in which a placement stays blocked without a request that waits too long, in seconds."""


class SlotAssignment(NamedTuple):
    """The assigned slot of a trial.

    Attributes:
        slot: The slot, as planned when it was assigned to the trial.
        slot_type: The index of the slot's type in the plan, or ``None`` if the plan no longer has such a slot,
            or if the trial itself determines its resources.
        node_id: The ID of the slot's node, or ``None`` for any node.
        num_slots: The number of slots of this type that the trial occupies: 1 unless a scheduler gave the trial more
            resources.
        is_granted: Whether Ray has granted the trial's request. Its process runs or is starting.
        requested_s: The time at which the slot was assigned, in seconds.
        worker_nodes: The nodes that the placement assigns to the trial's Train workers.
    """

    slot: TrialSlot
    slot_type: int | None
    node_id: str | None
    num_slots: int = 1
    is_granted: bool = True
    requested_s: float = 0.0
    worker_nodes: WorkerNodes = ()

    @property
    def place(self) -> Hashable:
        """The key of the slot's placement, as returned by :func:`place_of`."""
        return self.slot_type, self.node_id, self.worker_nodes


def place_of(placement: Placement) -> Hashable:
    """Return a key that identifies a placement within a plan. The key does not depend on the number of slots."""
    return placement.slot_type, placement.node_id, placement.worker_nodes


def free_slots(placements: Sequence[Placement], assignments: Iterable[SlotAssignment]) -> list[int]:
    """Return the number of free slots of each placement.

    A trial occupies a slot of its assigned placement. If a changed plan has fewer slots in this placement, the
    trial occupies a slot of the same type elsewhere. A trial whose slot type is no longer in the plan occupies no slot.

    While a trial that needs several slots of a placement waits to start, the placement has no free slots. Otherwise,
    other trials could take single slots, and the trial might never get enough slots on one device.
    """
    free = [placement.count for placement in placements]
    index_of = {place_of(placement): index for index, placement in enumerate(placements)}
    # First, the slots in the placements of the trials themselves. ``elsewhere`` counts the slots that no longer fit
    # there.
    reserved: set[int] = set()
    elsewhere: Counter[int] = Counter()
    for assignment in assignments:
        if assignment.slot_type is None:
            continue
        index = index_of.get(assignment.place)
        needed, here = assignment.num_slots, 0
        if index is not None:
            # A request for more slots than the placement has uses only this node.
            needed = min(needed, placements[index].count)
            here = min(needed, free[index])
            free[index] -= here
            if assignment.num_slots > 1 and not assignment.is_granted:
                reserved.add(index)
        elsewhere[assignment.slot_type] += needed - here
    # Then, the slots that trials occupy in other placements of the same type.
    for index, placement in enumerate(placements):
        taken = min(elsewhere[placement.slot_type], free[index])
        free[index] -= taken
        elsewhere[placement.slot_type] -= taken
    # Last, the placements whose slots must all become free for one trial.
    for index in reserved:
        free[index] = 0
    return free


class SlotTypes:
    """Matches slots, including slots of earlier plans, with the slot types of a plan.

    Args:
        slots: The slots of the plan.
    """

    def __init__(self, slots: Sequence[TrialSlot]) -> None:
        self.slots = tuple(slots)
        self._matches: dict[int, tuple[TrialSlot, int | None, tuple[int, ...]]] = {}

    def type_of(self, slot: TrialSlot) -> int | None:
        """Return the index of the slot type that matches ``slot``, or ``None`` if the plan has no similar type.

        A trial keeps its slot when the plan changes, so ``slot`` may be from an earlier plan. A type with the same
        resources and labels is preferred over a type with only the same kind of devices.
        """
        return self._match(slot)[0]

    def same_type(self, slot: TrialSlot) -> int | None:
        """Return the index of the slot type with the same resources and labels as ``slot``, or ``None``."""
        slot_type = self.type_of(slot)
        is_same = slot_type is not None and _without_count_and_speed(self.slots[slot_type]) == (
            _without_count_and_speed(slot)
        )
        if is_same:
            return slot_type
        return None

    def allowed_types(self, last_slot: TrialSlot | None) -> tuple[int, ...]:
        """Return the slot types in which a trial may run: the types with the same devices as its last slot.

        All types are allowed if the trial has not run yet (``last_slot`` is ``None``), or if the plan no longer has
        such devices, for instance because their node died.
        """
        if last_slot is None:
            return tuple(range(len(self.slots)))
        return self._match(last_slot)[1]

    def _match(self, slot: TrialSlot) -> tuple[int | None, tuple[int, ...]]:
        """Return the results of ``type_of`` and ``allowed_types`` for ``slot``, and cache them."""
        if id(slot) not in self._matches:
            plain = _without_count_and_speed(slot)
            devices = _devices_of(slot)
            same_slot = [index for index, other in enumerate(self.slots) if _without_count_and_speed(other) == plain]
            same_devices = [index for index, other in enumerate(self.slots) if _devices_of(other) == devices]
            slot_type = next(iter([*same_slot, *same_devices]), None)
            # The entry contains the slot, so that Python does not reuse its ID.
            self._matches[id(slot)] = slot, slot_type, tuple(same_devices or range(len(self.slots)))
        return self._matches[id(slot)][1:]


def _without_count_and_speed(slot: TrialSlot) -> TrialSlot:
    # A changed plan may have more slots of the same type, or know their speed only now.
    return slot.model_copy(update={"max_concurrent_trials": 1, "speed": None})


def _devices_of(slot: TrialSlot) -> tuple[frozenset[str], str | None, str]:
    """Return a key for the kind of devices in a slot. Slots without devices also have a key.

    The key does not include the number of devices, because a paused trial may resume with a different number.
    """
    devices = DEVICE_RESOURCES & slot.worker.ticks.keys()
    return devices, slot.accelerator_type, format_selector(slot.label_selector)


class SlotBoard:
    """The placements of a run, and the trials that have a slot.

    Attributes:
        placements: The placements of the plan, better slot types first.
        assignments: The trials that have a slot, in the order in which they got it.
        num_changes: The number of changes of the placements and assignments.
    """

    def __init__(self, placements: Sequence[Placement] = ()) -> None:
        self.placements = tuple(placements)
        self.assignments: dict[Any, SlotAssignment] = {}
        self.num_changes = 0
        self._blocked: dict[Hashable, float] = {}  # the time of the last late request
        self._free: list[tuple[Placement, int]] | None = None

    def replace_placements(self, placements: Sequence[Placement], type_of: Callable[[TrialSlot], int | None]) -> None:
        """Use the placements of a changed plan. Trials keep their slots.

        Args:
            placements: The new placements.
            type_of: A function that returns the index of a slot's type in the new plan, or ``None``.
        """
        self.placements = tuple(placements)
        places = {place_of(placement) for placement in placements}
        # A placement that is added again later must not count as blocked.
        self._blocked = {place: late_s for place, late_s in self._blocked.items() if place in places}
        for trial, assignment in self.assignments.items():
            if assignment.slot_type is not None:
                self.assignments[trial] = assignment._replace(slot_type=type_of(assignment.slot))
        self._note_change()

    def assign(self, trial: Hashable, assignment: SlotAssignment) -> None:
        """Give ``trial`` a slot."""
        self.assignments[trial] = assignment
        self._note_change()

    def update(self, trial: Hashable, **changes: Any) -> None:
        """Change fields of a trial's assignment. A granted request shows that its placement is not blocked."""
        assignment = self.assignments[trial]._replace(**changes)
        self.assignments[trial] = assignment
        if assignment.is_granted:
            self._blocked.pop(assignment.place, None)
        self._note_change()

    def release(self, trial: Hashable) -> SlotAssignment | None:
        """Free the slot of ``trial``, and return its assignment, or ``None`` if the trial has no slot."""
        if trial in self.assignments:
            self._note_change()
        return self.assignments.pop(trial, None)

    def _note_change(self) -> None:
        self._free = None
        self.num_changes += 1

    def free(self) -> list[tuple[Placement, int]]:
        """Return the placements with free slots and their numbers of free slots.

        Placements that are not blocked come first, and then better slot types.
        """
        if self._free is None:
            counts = free_slots(self.placements, self.assignments.values())
            found = [(placement, count) for placement, count in zip(self.placements, counts, strict=True) if count > 0]
            # Sorting is stable, so better slot types stay first.
            self._free = sorted(found, key=lambda item: self.is_blocked(item[0]))
        return self._free

    def is_blocked(self, placement: Placement) -> bool:
        """Return whether another program seems to use the resources of ``placement``."""
        return bool(self._blocked) and place_of(placement) in self._blocked

    def waits_too_long(self, assignment: SlotAssignment, now_s: float) -> bool:
        """Return whether Ray has not granted a request for longer than it normally takes."""
        return not assignment.is_granted and now_s - assignment.requested_s >= PATIENCE_S

    def find_blocked(self, now_s: float) -> list[Any]:
        """Mark placements as blocked if their requests wait too long. Return the trials of these requests.

        Blocks that are too old end, because the other program may have released the resources.
        """
        late = []
        for trial, assignment in self.assignments.items():
            if self.waits_too_long(assignment, now_s):
                late.append(trial)
                # The order of the free slots depends on the blocks.
                if assignment.place not in self._blocked:
                    self._free = None
                self._blocked[assignment.place] = now_s
        for place, late_s in list(self._blocked.items()):
            if now_s - late_s >= BLOCKED_S:
                del self._blocked[place]
                self._free = None
        return late

    def trial_to_move(
        self, now_s: float, free_for: Callable[[Any], Iterable[tuple[Placement, int]]]
    ) -> tuple[Any, Placement] | None:
        """Return a trial whose request waits too long, and a free slot that it may use instead, or ``None``.

        Args:
            now_s: The current time, in seconds.
            free_for: A function that returns those of the free placements that a trial may use, in the order of
                :meth:`free`, and their numbers of free slots.
        """
        for trial in self.find_blocked(now_s):
            assignment = self.assignments[trial]
            if assignment.slot_type is None:
                continue  # the trial's own request determines where it fits
            for placement, count in free_for(trial):
                if self.is_blocked(placement):
                    break  # only blocked placements follow
                if count >= min(assignment.num_slots, placement.count):
                    return trial, placement
        return None

    def usable_slots(self, num_types: int) -> list[int]:
        """Return the number of slots of each type in which trials run or can start.

        In a blocked placement, only the slots of granted requests count.
        """
        slots = [0] * num_types
        granted = Counter(assignment.place for assignment in self.assignments.values() if assignment.is_granted)
        for placement in self.placements:
            count = placement.count
            if self.is_blocked(placement):
                count = min(count, granted[place_of(placement)])
            slots[placement.slot_type] += count
        return slots


def assignment_to(
    placement: Placement, slots: Sequence[TrialSlot], *, num_slots: int, requested_s: float
) -> SlotAssignment:
    """Return the assignment of a trial that requests slots of ``placement``."""
    return SlotAssignment(
        slots[placement.slot_type],
        placement.slot_type,
        placement.node_id,
        num_slots=num_slots,
        is_granted=False,
        requested_s=requested_s,
        worker_nodes=placement.worker_nodes,
    )
