"""How long the trials of a run take in each kind of slot: kept while the plan, and so its kinds, may change."""

from collections import Counter
from collections.abc import Mapping, Sequence

from ray.tune.experiment import Trial

from tune_policies.placement.layout import Placement
from tune_policies.slot import TrialSlot

from .pace import Pace, Running, leave_idle
from .seating import Kinds, Seat


class RunPace:
    """The times of a run's trials.

    Args:
        kinds: The kinds of slots of the plan.
    """

    def __init__(self, kinds: Kinds) -> None:
        self._seen: list[tuple[TrialSlot, float]] = []
        self._ran_s: dict[Trial, float] = {}
        self._since_s: dict[Trial, float] = {}
        self.change_kinds(kinds)

    def change_kinds(self, kinds: Kinds) -> None:
        """Go on with the kinds of another plan; what was seen of those that are in both stays."""
        self._kinds = kinds
        self._pace = Pace([slot.speed for slot in kinds.slots])
        for slot, seconds in self._seen:
            self._take(slot, seconds)

    def _take(self, slot: TrialSlot, seconds: float) -> None:
        kind = self._kinds.of(slot)
        if kind is not None:
            self._pace.finished(kind, seconds)

    def runs(self, trial: Trial, now_s: float) -> None:
        """Take note that a trial runs now."""
        self._since_s.setdefault(trial, now_s)

    def rests(self, trial: Trial, now_s: float) -> None:
        """Take note that a trial does not run now."""
        since_s = self._since_s.pop(trial, None)
        if since_s is not None:
            self._ran_s[trial] = self._ran_s.get(trial, 0.0) + now_s - since_s

    def finished(self, trial: Trial, slot: TrialSlot, now_s: float) -> None:
        """Take note that a trial ended in ``slot``."""
        if trial in self._since_s:
            self.rests(trial, now_s)
            self._seen.append((slot, self._ran_s[trial]))
            self._take(*self._seen[-1])

    def is_better_idle(
        self, kind: int, places: Sequence[Placement], seats: Mapping[Trial, Seat], num_waiting: int, now_s: float
    ) -> bool:
        """Return whether a free slot of ``kind`` is better left idle than given to one of ``num_waiting`` trials."""
        if not self._pace.is_known(kind):
            return False
        counts = Counter(dict.fromkeys(range(len(self._kinds.slots)), 0))
        for place in places:
            counts[place.kind] += place.count
        running = [
            Running(kind=seat.kind, elapsed_s=self._elapsed_s(trial, now_s))
            for trial, seat in seats.items()
            if seat.kind is not None
        ]
        return leave_idle(kind, pace=self._pace, slots=list(counts.values()), running=running, num_waiting=num_waiting)

    def _elapsed_s(self, trial: Trial, now_s: float) -> float:
        return self._ran_s.get(trial, 0.0) + now_s - self._since_s.get(trial, now_s)
