"""Decides which slots of a plan are free, which types a trial may get, and when a slow slot is better left idle.

A placement is a number of slots of one type on one node, or on any node if the plan need not distinguish nodes.

While many trials wait, every slot helps. Near the end of a run, a trial that starts in a slow slot may be the last to
finish, although the faster slots could run all waiting trials sooner.

All decisions are pure: this module does not import Ray, and callers pass the time.
"""

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.labels import format_selector
from tune_policies.placement.layout import Placement
from tune_policies.placement.trial_slot import TrialSlot, WorkerNodes


class SlotAssignment(NamedTuple):
    """The slot in which a trial runs, or waits for Ray to start it.

    Attributes:
        slot: The slot when the trial got it.
        slot_type: The index of its type among the slots of the plan; ``None``: the plan no longer has such a slot, or
            the trial has a slot of its own.
        node_id: The node of the slot; ``None``: any.
        num_slots: How many slots of the type the trial takes: several if it reserves more than one slot.
        has_started: Whether the trial runs.
        worker_nodes: The nodes of its Train workers in the placement of the slot.
    """

    slot: TrialSlot
    slot_type: int | None
    node_id: str | None
    num_slots: int = 1
    has_started: bool = True
    worker_nodes: WorkerNodes = ()

    @property
    def place(self) -> Hashable:
        """The result of :func:`place_of` for the placement of the slot."""
        return self.slot_type, self.node_id, self.worker_nodes


def place_of(placement: Placement) -> Hashable:
    """Return a key of a placement among those of a plan, which does not depend on its number of slots."""
    return placement.slot_type, placement.node_id, placement.worker_nodes


def _devices_of(slot: TrialSlot) -> tuple[frozenset[str], str | None, str]:
    """Return the type of the devices that a trial keeps when it is paused and resumed; the amount may change.

    CPUs without devices are a type too.
    """
    devices = DEVICE_RESOURCES & slot.worker.ticks.keys()
    return devices, slot.accelerator_type, format_selector(slot.label_selector)


def free_slots(placements: Sequence[Placement], assignments: Iterable[SlotAssignment]) -> list[int]:
    """Return the number of free slots of each placement.

    A trial takes a slot of its assigned placement. If the plan has changed and has fewer slots there, the trial takes a
    slot of the same type elsewhere. A trial of a type that the plan no longer has takes no slot, so Ray lets others
    wait until it ends.

    A placement has no free slots while a trial that takes several of them has not started, because that many must
    become free on one device.
    """
    free = [placement.count for placement in placements]
    index_of = {place_of(placement): index for index, placement in enumerate(placements)}
    blocked: set[int] = set()
    elsewhere: Counter[int] = Counter()
    for assignment in assignments:
        if assignment.slot_type is None:
            continue
        index = index_of.get(assignment.place)
        here = 0 if index is None else min(assignment.num_slots, free[index])
        if index is not None:
            free[index] -= here
            if assignment.num_slots > 1 and not assignment.has_started:
                blocked.add(index)
        elsewhere[assignment.slot_type] += assignment.num_slots - here
    for index, placement in enumerate(placements):
        taken = min(elsewhere[placement.slot_type], free[index])
        free[index] -= taken
        elsewhere[placement.slot_type] -= taken
    return [0 if index in blocked else count for index, count in enumerate(free)]


class SlotTypes:
    """The slot types of a plan, and which of them match the slots of earlier plans.

    Args:
        slots: The slots of the plan.
    """

    def __init__(self, slots: Sequence[TrialSlot]) -> None:
        self.slots = tuple(slots)
        self._matches: dict[int, tuple[TrialSlot, int | None, tuple[int, ...]]] = {}

    def type_of(self, slot: TrialSlot) -> int | None:
        """Return the type that a trial in ``slot`` counts as, or ``None`` if the plan has no similar type.

        This is the type with the same resources and labels, else a type with the same devices, because a trial keeps
        its slot when the plan changes.
        """
        return self._match(slot)[0]

    def allowed_types(self, last_slot: TrialSlot | None) -> tuple[int, ...]:
        """Return the types in which a trial may run: those with the devices of ``last_slot``, in which it ran last.

        All types are allowed for a trial that has not run, and if the plan no longer has such devices, for instance
        because their node died.
        """
        return tuple(range(len(self.slots))) if last_slot is None else self._match(last_slot)[1]

    def _match(self, slot: TrialSlot) -> tuple[int | None, tuple[int, ...]]:
        """Compare each slot object once, because each step of a run needs the result."""
        if id(slot) not in self._matches:
            alike = _without_count_and_speed(slot)
            same_slot = [i for i, each in enumerate(self.slots) if _without_count_and_speed(each) == alike]
            same_devices = [i for i, each in enumerate(self.slots) if _devices_of(each) == _devices_of(slot)]
            slot_type = next(iter([*same_slot, *same_devices]), None)
            self._matches[id(slot)] = slot, slot_type, tuple(same_devices or range(len(self.slots)))
        return self._matches[id(slot)][1:]


def _without_count_and_speed(slot: TrialSlot) -> TrialSlot:
    return slot.model_copy(update={"max_concurrent_trials": 1, "speed": None})


_SHORTEST_S: Final = 1e-6
"""The shortest duration of a trial, because code divides by durations."""

_ENOUGH_TRIALS: Final = 5
"""With this many trials of a type, their median is better than an estimate from the ratio of speeds."""

_NUM_QUANTILES: Final = 20
"""The number of equally likely durations that represent all measured ones."""


class TrialDurations:
    """The durations of trials in each slot type: as measured, or else estimated from the speeds.

    Args:
        speeds: The speed of a trial in each type, all in the same unit; ``None``: not known.
    """

    def __init__(self, speeds: Sequence[float | None]) -> None:
        self._speeds = tuple(speeds)
        self._measured_s: tuple[list[float], ...] = tuple([] for _ in self._speeds)

    def add(self, slot_type: int, seconds: float) -> None:
        """Add the duration of a trial that completed in a slot of this type."""
        insort(self._measured_s[slot_type], max(seconds, _SHORTEST_S))

    def typical_s(self, slot_type: int) -> float | None:
        """Return the typical duration of a trial in a slot of this type in seconds, or ``None`` if it is not known.

        This is the median, because a few outliers do not change it. The shortest trials end first. So while a type has
        few measured trials, the duration is estimated from the type with the most, and from the ratio of both speeds.
        """
        here, speed = self._measured_s[slot_type], self._speeds[slot_type]
        _, reference = max(
            (len(times) if self._speeds[other] else 0, -other) for other, times in enumerate(self._measured_s)
        )
        there, its_speed = self._measured_s[-reference], self._speeds[-reference]
        if len(here) < _ENOUGH_TRIALS and speed is not None and its_speed is not None and there:
            return max(_SHORTEST_S, _median(there) * its_speed / speed)
        return _median(here) if here else None

    def by_speed(self, slot_type: int) -> float | None:
        """Return the relative duration of a trial in this type from the speed alone, or ``None`` if it is not known."""
        speed = self._speeds[slot_type]
        return None if speed is None else 1 / speed

    def is_known(self, slot_type: int) -> bool:
        """Return whether this type has a speed or a measured trial."""
        return self._speeds[slot_type] is not None or bool(self._measured_s[slot_type])

    def quantiles(self) -> list[float]:
        """Return equally likely durations of a trial, each relative to the median.

        They come from the type with the most measured trials. If these are many, the longest is left out, because it
        may have hung. Until a trial has ended, all trials count as equally long.
        """
        times = max(self._measured_s, key=len)
        ranks = [(2 * i + 1) * len(times) // (2 * _NUM_QUANTILES) for i in range(_NUM_QUANTILES)]
        return [times[rank] / _median(times) for rank in ranks] if times else [1.0]


def _median(sorted_s: Sequence[float]) -> float:
    """Return the median of sorted durations. ``statistics.median`` would sort them again for each trial."""
    middle = len(sorted_s) // 2
    return sorted_s[middle] if len(sorted_s) % 2 else (sorted_s[middle - 1] + sorted_s[middle]) / 2


class RunningTrial(NamedTuple):
    """The slot type of a running trial, and for how many seconds it has run."""

    slot_type: int
    elapsed_s: float


def should_idle(
    slot_type: int,
    *,
    durations: TrialDurations,
    slots: Sequence[int],
    running: Sequence[RunningTrial],
    num_waiting: int,
) -> bool:
    """Return whether a free slot of ``slot_type`` is better left idle than given to one more waiting trial.

    A trial in this slot leaves one trial less for the faster types, so they finish a little earlier. But if it ends
    after them, it makes the run longer. The slot is used if the gain is larger than the mean loss over the measured
    durations of trials.

    If all trials of a type take equally long, the slot is used exactly if its trial would end before the faster types
    finish all waiting trials. Decided again at each free slot, this gives the shortest run: of all times at which a
    slot could end a trial, the run uses the earliest ones, as many as there are trials.

    Until a trial has ended in a type with a speed, types are compared by their speeds alone. Running trials then count
    as just started, because their progress is not known.

    A slot of the fastest type is never left idle, nor one of a type without a known duration. Other types without a
    known duration are ignored.

    Args:
        slot_type: The type of the free slot.
        durations: How long trials take.
        slots: How many slots there are of each type, used and free.
        running: The trials that run now, in slots of any type.
        num_waiting: How many trials have no slot yet and may take one of any type. Do not count a trial that needs this
            slot type, because no other slot can run it.
    """
    is_measured = durations.typical_s(slot_type) is not None
    each = [(durations.typical_s if is_measured else durations.by_speed)(other) for other in range(len(slots))]
    here_s = each[slot_type]
    if here_s is None or num_waiting <= 0:
        return False
    free_s: list[tuple[float, float]] = []
    for other, num_slots in enumerate(slots):
        each_s = each[other]
        if each_s is not None and each_s < here_s:
            elapsed = [trial.elapsed_s if is_measured else 0.0 for trial in running if trial.slot_type == other]
            free_s += [(at_s, each_s) for at_s in _seconds_until_free(each_s, elapsed, num_slots)]
    if not free_s:
        return False
    gain_s = 1 / sum(1 / each_s for _, each_s in free_s)
    ends_s = [here_s * quantile for quantile in durations.quantiles()]
    # The others take gain_s or more for each trial. This bound avoids a long loop if the search has no end.
    if (num_waiting - 1) * gain_s >= max(ends_s):
        return False
    others_end_s = _makespan_s(num_waiting, free_s)
    late_s = [max(0, end_s - (others_end_s - gain_s)) for end_s in ends_s]
    return sum(late_s) / len(late_s) >= gain_s


def _makespan_s(num_trials: int, slots: list[tuple[float, float]]) -> float:
    """Return when the slots have run all trials. Each slot has the time when it is free, and its trials' duration."""
    ends = [(free_s + each_s, each_s) for free_s, each_s in slots]
    heapq.heapify(ends)
    for _ in range(num_trials - 1):
        end_s, each_s = ends[0]
        heapq.heapreplace(ends, (end_s + each_s, each_s))
    return ends[0][0]


def _seconds_until_free(each_s: float, elapsed: Sequence[float], num_slots: int) -> list[float]:
    """Return in how many seconds each slot of a type becomes free.

    A late trial is expected to run for as long as it is already late, so a slot with a hanging trial counts less and
    less. If more trials run than there are slots, the trials that end first free no slot.
    """
    left = [abs(each_s - so_far) for so_far in elapsed]
    free = [0.0] * (num_slots - len(left))
    return sorted(left + free, reverse=True)[:num_slots]


class TrialTimer:
    """Measures the durations of the trials of a run, without their pauses.

    Args:
        slot_types: The slot types of the plan.
    """

    def __init__(self, slot_types: SlotTypes) -> None:
        self._finished: list[tuple[TrialSlot, float]] = []
        self._ran_s: dict[Any, float] = {}
        self._since_s: dict[Any, float] = {}
        self.change_types(slot_types)

    def change_types(self, slot_types: SlotTypes) -> None:
        """Continue with the types of another plan, and keep the durations of types that are in both."""
        self._slot_types = slot_types
        self._durations = TrialDurations([slot.speed for slot in slot_types.slots])
        finished, self._finished = self._finished, []
        for slot, seconds in finished:
            self._add(slot, seconds)

    def _add(self, slot: TrialSlot, seconds: float) -> None:
        self._finished.append((slot, seconds))
        slot_type = self._slot_types.type_of(slot)
        if slot_type is not None:
            self._durations.add(slot_type, seconds)

    def start(self, trial: Any, now_s: float) -> None:
        """Start the clock of a running trial, unless it was started before."""
        self._since_s.setdefault(trial, now_s)

    def stop(self, trial: Any, now_s: float) -> None:
        """Stop the clock of a trial that does not run."""
        since_s = self._since_s.pop(trial, None)
        if since_s is not None:
            self._ran_s[trial] = self._ran_s.get(trial, 0.0) + now_s - since_s

    def finish(self, trial: Any, slot: TrialSlot, now_s: float) -> None:
        """Add the duration of a trial that ended in ``slot``."""
        if trial in self._since_s:
            self.stop(trial, now_s)
            self._add(slot, self._ran_s[trial])

    def should_idle(
        self,
        slot_type: int,
        placements: Sequence[Placement],
        assignments: Mapping[Any, SlotAssignment],
        num_waiting: int,
        now_s: float,
    ) -> bool:
        """Return whether a free slot of a type is better left idle than given to one of ``num_waiting`` trials."""
        if not self._durations.is_known(slot_type):
            return False
        slots = [0] * len(self._slot_types.slots)
        for placement in placements:
            slots[placement.slot_type] += placement.count
        running = [
            RunningTrial(
                slot_type=assignment.slot_type,
                elapsed_s=self._ran_s.get(trial, 0.0) + now_s - self._since_s.get(trial, now_s),
            )
            for trial, assignment in assignments.items()
            if assignment.slot_type is not None
        ]
        return should_idle(slot_type, durations=self._durations, slots=slots, running=running, num_waiting=num_waiting)
