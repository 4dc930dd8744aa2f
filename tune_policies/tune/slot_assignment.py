"""Decides which slots of a plan are free, and which kinds of slots a trial may get. Pure decisions, no Ray.

A placement says how many slots of one kind are on one node, or on any node where nodes need not be told apart.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.labels import format_selector
from tune_policies.placement.layout import Placement
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.values.resources import to_ticks

_COUNTED: Final = DEVICE_RESOURCES | {"CPU", "memory"}
"""The resources of which a scheduler may give a trial more than its slot has."""


class SlotAssignment(NamedTuple):
    """The slot in which a trial runs, or waits for Ray to start it.

    Attributes:
        slot: The slot, as it was when the trial got it.
        kind: The index of its kind among the slots of the plan; ``None``: the plan has no such slot any more.
        node_id: The node of the slot; ``None``: any.
        num_slots: How many slots of the kind the trial takes: several where it has more than one slot holds.
        has_started: Whether the trial runs.
    """

    slot: TrialSlot
    kind: int | None
    node_id: str | None
    num_slots: int = 1
    has_started: bool = True


class DeviceKind(NamedTuple):
    """The devices that a trial keeps when it is paused and resumed; how much of them it gets may change."""

    resources: frozenset[str]
    accelerator_type: str | None
    nodes: str


def device_kind(slot: TrialSlot) -> DeviceKind:
    """Return the kind of devices on which trials in ``slot`` run. CPUs alone are a kind of their own."""
    return DeviceKind(
        DEVICE_RESOURCES & slot.worker.ticks.keys(), slot.accelerator_type, format_selector(slot.label_selector)
    )


def free_slots(placements: Sequence[Placement], assignments: Iterable[SlotAssignment]) -> list[int]:
    """Return how many slots of each placement are free.

    A trial takes a slot of the placement that it was assigned. Where the plan has changed and has fewer slots there, it
    takes one of the same kind elsewhere. A trial of a kind that the plan has no more takes no slot: Ray then lets
    others wait until it has ended.

    A placement gives no slot to others while a trial that takes several of its slots has not started: that many must
    become free on one device.
    """
    free = [placement.count for placement in placements]
    index_of = {(placement.slot_type, placement.node_id): index for index, placement in enumerate(placements)}
    blocked: set[int] = set()
    elsewhere: Counter[int] = Counter()
    for assignment in assignments:
        if assignment.kind is None:
            continue
        index = index_of.get((assignment.kind, assignment.node_id))
        here = 0 if index is None else min(assignment.num_slots, free[index])
        if index is not None:
            free[index] -= here
            if assignment.num_slots > 1 and not assignment.has_started:
                blocked.add(index)
        elsewhere[assignment.kind] += assignment.num_slots - here
    for index, placement in enumerate(placements):
        taken = min(elsewhere[placement.slot_type], free[index])
        free[index] -= taken
        elsewhere[placement.slot_type] -= taken
    return [0 if index in blocked else count for index, count in enumerate(free)]


class SlotKinds:
    """The kinds of slots of a plan, with which slots of earlier plans are matched.

    Args:
        slots: The slots of the plan.
    """

    def __init__(self, slots: Sequence[TrialSlot]) -> None:
        self.slots = tuple(slots)
        self._matches: dict[int, tuple[TrialSlot, int | None, tuple[int, ...]]] = {}

    def kind_of(self, slot: TrialSlot) -> int | None:
        """Return the kind as which a trial in ``slot`` counts; ``None``: the plan has none like it.

        That is the kind with the same resources and labels, else one with the same devices: a trial from before the
        plan changed still holds what it was given.
        """
        return self._match(slot)[0]

    def allowed_kinds(self, last_slot: TrialSlot | None) -> tuple[int, ...]:
        """Return the kinds in which a trial may run: those with the devices of ``last_slot``.

        Where the plan has no such devices any more, for instance because their node died, all kinds are allowed.

        Args:
            last_slot: The slot in which the trial ran last; ``None``: it has not run, or may move to other devices.
        """
        return tuple(range(len(self.slots))) if last_slot is None else self._match(last_slot)[1]

    def _match(self, slot: TrialSlot) -> tuple[int | None, tuple[int, ...]]:
        """Compare once for each object: slots are few, and each step of a run asks for them."""
        if id(slot) not in self._matches:
            alike = _without_count_and_speed(slot)
            same_slot = [i for i, each in enumerate(self.slots) if _without_count_and_speed(each) == alike]
            same_devices = [i for i, each in enumerate(self.slots) if device_kind(each) == device_kind(slot)]
            kind = next(iter([*same_slot, *same_devices]), None)
            self._matches[id(slot)] = slot, kind, tuple(same_devices or range(len(self.slots)))
        return self._matches[id(slot)][1:]


def _without_count_and_speed(slot: TrialSlot) -> TrialSlot:
    return slot.model_copy(update={"max_concurrent_trials": 1, "speed": None})


def num_slots_for(reserved: Mapping[str, float], of_slot: Mapping[str, float]) -> int:
    """Return how many slots hold what a trial reserves. Both are amounts by Ray's names of the resources."""
    return max((_ratio(reserved[name], of_slot.get(name, 0)) for name in _COUNTED & reserved.keys()), default=1)


def _ratio(amount: float, of_slot: float) -> int:
    if of_slot <= 0:
        return 1
    # A share is floor(10000 / k) ticks, up to one less than its part: a whole GPU is three slots of 0.3333.
    return max(1, -(-to_ticks(amount) // (to_ticks(of_slot) + 1)))
