"""Counts what trials used of a cluster and what stood idle, from what happened and when.

Time is counted in whole milliseconds and amounts in ticks, so that all that was used and all that was idle add up
to all that there was, exactly.
"""

from collections import Counter
from typing import Final

from tune_policies.resources import TICKS

from .idle_reasons import Holding, Offer, Queue, why_idle
from .record import IdleHours, ResourceHours, ResourceUsage, SlotHours

_PER_HOUR: Final = TICKS * 3_600_000
"""Ticks times milliseconds in one unit times one hour."""
_MS_PER_HOUR: Final = 3_600_000

_Slot = tuple[str, str | None]
"""A kind of slot as text, and its device type."""


class Account:
    """What was used and what was idle, up to the last moment that was counted.

    What is told holds from the moment that was counted last; so count up to the moment of a change before it is told.

    Args:
        before: What was counted before the run was restored; ``None``: it is new.
    """

    def __init__(self, before: ResourceUsage | None = None) -> None:
        before = before or ResourceUsage()
        self._began_ms = round(before.elapsed_s * 1000)
        self._now_ms = 0
        self._total = Counter({each.resource: _ticks(each.total_hours) for each in before.resources})
        self._idle = Counter(
            {(each.resource, idle.reason): _ticks(idle.hours) for each in before.resources for idle in each.idle}
        )
        self._used: Counter[tuple[_Slot, str]] = Counter()
        self._trial_ms: Counter[_Slot] = Counter()
        self._starts: Counter[_Slot] = Counter()
        for each in before.slots:
            slot = (each.slot, each.accelerator_type)
            self._used.update({(slot, name): _ticks(hours) for name, hours in each.hours.items()})
            self._trial_ms[slot] += round(each.trial_hours * _MS_PER_HOUR)
            self._starts[slot] += each.num_starts
        self._max_at_once = before.max_trials_at_once
        self._offer = Offer({}, {}, ())
        self._queue = Queue()
        self._running: dict[str, Holding] = {}
        self._rates: tuple[Counter[str], Counter[tuple[str, str]]] | None = None

    @property
    def elapsed_s(self) -> float:
        """What was counted, in seconds, with what was before the run was restored."""
        return (self._began_ms + self._now_ms) / 1000

    def count_until(self, now_s: float) -> None:
        """Count the time up to ``now_s``, in seconds since this account began; not back."""
        passed = max(0, round(now_s * 1000) - self._now_ms)
        if not passed:
            return
        self._now_ms += passed
        if self._rates is None:
            self._rates = self._rates_now()
        total, idle = self._rates
        for name, ticks in total.items():
            self._total[name] += ticks * passed
        for part, ticks in idle.items():
            self._idle[part] += ticks * passed
        for holding in self._running.values():
            slot = (holding.slot, holding.accelerator_type)
            self._trial_ms[slot] += passed
            for name, ticks in holding.amounts.items():
                self._used[slot, name] += ticks * passed

    def offer(self, offer: Offer) -> None:
        """Tell what there is to use from now on."""
        self._offer, self._rates = offer, None

    def queue(self, queue: Queue) -> None:
        """Tell which trials do not run."""
        if queue != self._queue:
            self._queue, self._rates = queue, None

    def start(self, trial_id: str, holding: Holding) -> None:
        """Tell that a trial runs, and what it holds."""
        self._running[trial_id] = holding
        self._starts[holding.slot, holding.accelerator_type] += 1
        self._max_at_once = max(self._max_at_once, len(self._running))
        self._rates = None

    def end(self, trial_id: str) -> None:
        """Tell that a trial runs no more, if it did."""
        if self._running.pop(trial_id, None) is not None:
            self._rates = None

    def _rates_now(self) -> tuple[Counter[str], Counter[tuple[str, str]]]:
        running = self._running.values()
        held: Counter[str] = Counter()
        for holding in running:
            held.update(holding.amounts)
        # A trial that still runs on a node that was read as gone has what it has.
        return Counter(self._offer.total) | held, why_idle(self._offer, running, self._queue)

    def record(self) -> ResourceUsage:
        """Return what was counted; the rest of the value is for others to fill in."""
        return ResourceUsage(
            elapsed_s=self.elapsed_s,
            resources=tuple(
                self._resource(name) for name in sorted(self._total, key=lambda name: (name != "CPU", name))
            ),
            slots=tuple(self._slot(slot) for slot in self._starts),
            max_trials_at_once=self._max_at_once,
        )

    def _resource(self, name: str) -> ResourceHours:
        idle = [(-ticks, reason) for (resource, reason), ticks in self._idle.items() if resource == name and ticks]
        return ResourceHours(
            resource=name,
            total_hours=self._total[name] / _PER_HOUR,
            used_hours=sum(ticks for (_, used), ticks in self._used.items() if used == name) / _PER_HOUR,
            idle=tuple(IdleHours(reason=reason, hours=-negated / _PER_HOUR) for negated, reason in sorted(idle)),
        )

    def _slot(self, slot: _Slot) -> SlotHours:
        used = {
            name: ticks / _PER_HOUR for (where, name), ticks in sorted(self._used.items(), key=str) if where == slot
        }
        return SlotHours(
            slot=slot[0],
            accelerator_type=slot[1],
            num_starts=self._starts[slot],
            trial_hours=self._trial_ms[slot] / _MS_PER_HOUR,
            hours=used,
        )


def _ticks(hours: float) -> int:
    return round(hours * _PER_HOUR)
