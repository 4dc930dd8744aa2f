"""Which place of a plan a trial gets: pure decisions, no Ray.

A place is where trials of one kind run: on one node, or, where nodes need not be told apart, anywhere.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.labels import format_selector
from tune_policies.placement.layout import Placement
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.values.resources import to_ticks

_HELD: Final = DEVICE_RESOURCES | {"CPU", "memory"}
"""The resources of which a trial may have been given more than its slot has."""


class Seat(NamedTuple):
    """Where a trial runs, or waits for Ray to start it.

    Attributes:
        slot: What the trial was given.
        kind: As which of the plan's kinds it counts; ``None``: as none of them.
        node_id: The node that it was given on; ``None``: any.
        num_slots: How many slots of the kind it takes: more than one where it was given more than one slot has.
        has_started: Whether it runs.
    """

    slot: TrialSlot
    kind: int | None
    node_id: str | None
    num_slots: int = 1
    has_started: bool = True


class DeviceKind(NamedTuple):
    """What a trial keeps when it is paused and resumed: the kind of devices, not how much of them."""

    resources: frozenset[str]
    accelerator_type: str | None
    nodes: str


def device_kind(slot: TrialSlot) -> DeviceKind:
    """Return the kind of devices that trials in ``slot`` run on; CPUs are one kind, too."""
    return DeviceKind(
        DEVICE_RESOURCES & slot.worker.ticks.keys(), slot.accelerator_type, format_selector(slot.label_selector)
    )


def looks(slot: TrialSlot) -> TrialSlot:
    """Return ``slot`` without how many there are and how fast they are: the same look means the same kind."""
    return slot.model_copy(update={"max_concurrent_trials": 1, "speed": None})


def free_slots(places: Sequence[Placement], seats: Iterable[Seat]) -> list[int]:
    """Return how many slots each place has free.

    Trials count where they are; what does not fit there, as a plan has changed since, counts elsewhere. What is of no
    kind of the plan takes no slot; Ray then lets a trial wait until it has ended.

    While a trial that takes several slots has not started, its place gives no slot to others: what is free there must
    come together on one device first.
    """
    free = [place.count for place in places]
    where = {(place.kind, place.node_id): index for index, place in enumerate(places)}
    blocked: set[int] = set()
    elsewhere: Counter[int] = Counter()
    for seat in seats:
        if seat.kind is None:
            continue
        index = where.get((seat.kind, seat.node_id))
        here = 0 if index is None else min(seat.num_slots, free[index])
        if index is not None:
            free[index] -= here
            if seat.num_slots > 1 and not seat.has_started:
                blocked.add(index)
        elsewhere[seat.kind] += seat.num_slots - here
    for index, place in enumerate(places):
        taken = min(elsewhere[place.kind], free[index])
        free[index] -= taken
        elsewhere[place.kind] -= taken
    return [0 if index in blocked else count for index, count in enumerate(free)]


class Kinds:
    """The kinds of slots of a plan, by which slots of this and of earlier plans are compared.

    Args:
        slots: The slots of the plan.
    """

    def __init__(self, slots: Sequence[TrialSlot]) -> None:
        self.slots = tuple(slots)
        self._found: dict[int, tuple[TrialSlot, int | None, tuple[int, ...]]] = {}

    def of(self, slot: TrialSlot) -> int | None:
        """Return as which kind a trial counts that was given ``slot``; ``None``: none is like it.

        It is the kind of the same look, else one of the same devices: the trial still holds what it was given.
        """
        return self._find(slot)[0]

    def allowed(self, kept: TrialSlot | None) -> tuple[int, ...]:
        """Return the kinds in which a trial may run that ran in ``kept`` before; ``None``: it has not, or may move.

        Where the plan has no such devices any more, for instance as their node died, any kind will do.
        """
        return tuple(range(len(self.slots))) if kept is None else self._find(kept)[1]

    def _find(self, slot: TrialSlot) -> tuple[int | None, tuple[int, ...]]:
        """Compare once for each object: slots are few, and asked for in each step of a run."""
        if id(slot) not in self._found:
            same_look = [i for i, each in enumerate(self.slots) if looks(each) == looks(slot)]
            same_devices = [i for i, each in enumerate(self.slots) if device_kind(each) == device_kind(slot)]
            kind = next(iter([*same_look, *same_devices]), None)
            self._found[id(slot)] = slot, kind, tuple(same_devices or range(len(self.slots)))
        return self._found[id(slot)][1:]


def num_slots(reserved: Mapping[str, float], of_slot: Mapping[str, float]) -> int:
    """Return how many slots hold what a trial reserves, both by Ray's names of the resources."""
    return max((_ratio(reserved[name], of_slot.get(name, 0)) for name in _HELD & reserved.keys()), default=1)


def _ratio(amount: float, of_slot: float) -> int:
    if of_slot <= 0:
        return 1
    # A share is floor(10000 / k) ticks, up to one less than its part: a whole GPU is three slots of 0.3333.
    return max(1, -(-to_ticks(amount) // (to_ticks(of_slot) + 1)))
