"""Counts what trials used of a cluster and what stood idle, from what happened and when.

Time is counted in whole milliseconds and amounts in ticks, so that all that was used and all that was idle add up
to all that there was, exactly.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal

from tune_policies.oom import OutOfMemory
from tune_policies.values.resources import TICKS
from tune_policies.values.value import Value

from .idle_reasons import Holding, Offer, Queue, why_idle
from .resource_usage import IdleHours, OutOfMemoryCounts, ResourceHours, ResourceUsage, SlotHours, TrialCounts

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


Ending = Literal["finished", "stopped_early", "failed", "cut_off"]
"""How a trial ends."""


class Tally:
    """What became of the trials of a run.

    Args:
        before: What was counted before the run was restored; ``None``: it is new.
    """

    def __init__(self, before: ResourceUsage | None = None) -> None:
        before = before or ResourceUsage()
        self._before = before.trials
        self._num_retries = before.trials.num_retries
        self._out_of_memory = before.out_of_memory
        self._endings: dict[str, Ending] = {}
        self._amounts: dict[str, Mapping[str, float]] = {}
        self._ran_out_with: dict[str, Mapping[str, float]] = {}
        self._refused: dict[tuple[str, object], int] = {}

    def started(self, trial_id: str, amounts: Mapping[str, float]) -> None:
        """Count a start with so much; one with more than the trial had when its memory ran out as raised, too."""
        self._endings.pop(trial_id, None)
        had = self._ran_out_with.pop(trial_id, None)
        if had is not None and any(amount > had.get(name, 0) for name, amount in amounts.items()):
            self._add(num_raised=1)
        self._amounts[trial_id] = amounts

    def ended(self, trial_id: str, ending: Ending) -> None:
        """Count an end, of which the first is true."""
        self._endings.setdefault(trial_id, ending)

    def failed(self, trial_id: str, out_of_memory: OutOfMemory, *, goes_back: bool) -> None:
        """Count a failure, for want of memory or not."""
        if goes_back:
            self._num_retries += 1
        else:
            self.ended(trial_id, "failed")
        if out_of_memory.kind == "none":
            return
        self._ran_out_with[trial_id] = self._amounts.get(trial_id, {})
        self._add(
            num_gpu_errors=int(out_of_memory.kind == "accelerator"),
            num_host_errors=int(out_of_memory.kind == "host"),
            num_neighbours=int(out_of_memory.cause == "neighbour"),
        )

    def refused(self, trial_id: str, process: object, num_so_far: int) -> None:
        """Count the allocations that were refused to one process of a trial, which says how many there were so far."""
        known = self._refused.get((trial_id, process), 0)
        if num_so_far > known:
            self._refused[trial_id, process] = num_so_far
            self._add(num_refused_allocations=num_so_far - known)

    def _add(self, **counts: int) -> None:
        now = self._out_of_memory
        self._out_of_memory = OutOfMemoryCounts(
            **{**now.model_dump(), **{name: getattr(now, name) + count for name, count in counts.items()}}
        )

    @property
    def out_of_memory(self) -> OutOfMemoryCounts:
        """How often memory ran out."""
        return self._out_of_memory

    @property
    def num_begun(self) -> int:
        """How many trials have begun and not come to an end of their own."""
        return sum(self._endings.get(trial_id, "cut_off") == "cut_off" for trial_id in self._amounts)

    def trials(self, num_by_status: "NumByStatus") -> TrialCounts:
        """Return what became of the trials, of which Tune says how many have which status.

        Which of those that Tune calls terminated were stopped early, or cut off, was told here; of a restored run also
        before, as their record says. The others finished.
        """
        endings = list(self._endings.values())
        cut_off = min(self._before.num_cut_off + endings.count("cut_off"), num_by_status.terminated)
        stopped_early = self._before.num_stopped_early + endings.count("stopped_early")
        terminated = num_by_status.terminated - cut_off
        stopped_early = min(stopped_early, terminated)
        return TrialCounts(
            num_finished=terminated - stopped_early,
            num_stopped_early=stopped_early,
            num_failed=num_by_status.error,
            num_cut_off=cut_off,
            num_unfinished=num_by_status.others,
            num_retries=self._num_retries,
        )


class NumByStatus(Value):
    """How many trials there are by what Tune says of them."""

    terminated: int = 0
    error: int = 0
    others: int = 0
