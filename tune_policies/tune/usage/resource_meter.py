"""Meters what trials use of a cluster and what stands idle, and counts how trials end.

Time is counted in whole milliseconds and amounts in ticks, so that what was used and what was idle add up exactly to
what there was.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal

from tune_policies.oom import OutOfMemory
from tune_policies.values.resources import TICKS
from tune_policies.values.value import Value

from .idle_reasons import AvailableResources, TrialQueue, TrialReservation, idle_by_reason
from .resource_usage import IdleHours, OutOfMemoryCounts, ResourceHours, ResourceUsage, SlotHours, TrialCounts

_TICK_MS_PER_HOUR: Final = TICKS * 3_600_000
"""Ticks times milliseconds in one unit times one hour."""
_MS_PER_HOUR: Final = 3_600_000

_Slot = tuple[str, str | None]
"""A kind of slot as text, and its device type."""


class ResourceMeter:
    """Meters what is used and what is idle.

    Each change counts from the last moment that was metered: call :meth:`count_until` before you report a change.

    Args:
        before: What was metered before the run was restored; ``None``: the run is new.
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
        self._available = AvailableResources({}, {}, ())
        self._queue = TrialQueue()
        self._running: dict[str, TrialReservation] = {}
        self._rates: tuple[Counter[str], Counter[tuple[str, str]]] | None = None

    @property
    def elapsed_s(self) -> float:
        """How long the run was metered, in seconds, with the time before it was restored."""
        return (self._began_ms + self._now_ms) / 1000

    def count_until(self, now_s: float) -> None:
        """Meter the time up to ``now_s``, in seconds since this meter began. An earlier time changes nothing."""
        passed = max(0, round(now_s * 1000) - self._now_ms)
        if not passed:
            return
        self._now_ms += passed
        if self._rates is None:
            self._rates = self._current_rates()
        total, idle = self._rates
        for name, ticks in total.items():
            self._total[name] += ticks * passed
        for part, ticks in idle.items():
            self._idle[part] += ticks * passed
        for reservation in self._running.values():
            slot = (reservation.slot, reservation.accelerator_type)
            self._trial_ms[slot] += passed
            for name, ticks in reservation.amounts.items():
                self._used[slot, name] += ticks * passed

    def set_available(self, available: AvailableResources) -> None:
        """Set what trials can use from now on."""
        self._available, self._rates = available, None

    def set_queue(self, queue: TrialQueue) -> None:
        """Set which trials do not run from now on."""
        if queue != self._queue:
            self._queue, self._rates = queue, None

    def start_trial(self, trial_id: str, reservation: TrialReservation) -> None:
        """Meter a trial that runs, and what it reserves."""
        self._running[trial_id] = reservation
        self._starts[reservation.slot, reservation.accelerator_type] += 1
        self._max_at_once = max(self._max_at_once, len(self._running))
        self._rates = None

    def end_trial(self, trial_id: str) -> None:
        """Stop metering a trial, if it was metered."""
        if self._running.pop(trial_id, None) is not None:
            self._rates = None

    def _current_rates(self) -> tuple[Counter[str], Counter[tuple[str, str]]]:
        running = self._running.values()
        held: Counter[str] = Counter()
        for reservation in running:
            held.update(reservation.amounts)
        # A trial may still run on a node that was read as gone: what it holds is there.
        return Counter(self._available.total) | held, idle_by_reason(self._available, running, self._queue)

    def record(self) -> ResourceUsage:
        """Return what was metered; callers fill in the rest of the value."""
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
            total_hours=self._total[name] / _TICK_MS_PER_HOUR,
            used_hours=sum(ticks for (_, used), ticks in self._used.items() if used == name) / _TICK_MS_PER_HOUR,
            idle=tuple(
                IdleHours(reason=reason, hours=-negated / _TICK_MS_PER_HOUR) for negated, reason in sorted(idle)
            ),
        )

    def _slot(self, slot: _Slot) -> SlotHours:
        used = {
            name: ticks / _TICK_MS_PER_HOUR
            for (where, name), ticks in sorted(self._used.items(), key=str)
            if where == slot
        }
        return SlotHours(
            slot=slot[0],
            accelerator_type=slot[1],
            num_starts=self._starts[slot],
            trial_hours=self._trial_ms[slot] / _MS_PER_HOUR,
            hours=used,
        )


def _ticks(hours: float) -> int:
    return round(hours * _TICK_MS_PER_HOUR)


Outcome = Literal["finished", "stopped_early", "failed", "cut_off"]
"""How a trial ends."""


class TrialOutcomes:
    """Counts how the trials of a run end, and how often memory runs out.

    Args:
        before: What was counted before the run was restored; ``None``: the run is new.
    """

    def __init__(self, before: ResourceUsage | None = None) -> None:
        before = before or ResourceUsage()
        self._before = before.trials
        self._num_retries = before.trials.num_retries
        self._out_of_memory = before.out_of_memory
        self._outcome_of: dict[str, Outcome] = {}
        self._amounts: dict[str, Mapping[str, float]] = {}
        self._ran_out_with: dict[str, Mapping[str, float]] = {}
        self._refused: dict[tuple[str, object], int] = {}

    def record_start(self, trial_id: str, amounts: Mapping[str, float]) -> None:
        """Record a start with ``amounts``. It counts as raised where they are more than when memory ran out."""
        self._outcome_of.pop(trial_id, None)
        had = self._ran_out_with.pop(trial_id, None)
        if had is not None and any(amount > had.get(name, 0) for name, amount in amounts.items()):
            self._add(num_raised=1)
        self._amounts[trial_id] = amounts

    def record_end(self, trial_id: str, outcome: Outcome) -> None:
        """Record how a trial ended. The first record of a trial counts, until it starts again."""
        self._outcome_of.setdefault(trial_id, outcome)

    def record_failure(self, trial_id: str, out_of_memory: OutOfMemory, *, is_requeued: bool) -> None:
        """Record a failure, for want of memory or not."""
        if is_requeued:
            self._num_retries += 1
        else:
            self.record_end(trial_id, "failed")
        if out_of_memory.kind == "none":
            return
        self._ran_out_with[trial_id] = self._amounts.get(trial_id, {})
        self._add(
            num_gpu_errors=int(out_of_memory.kind == "accelerator"),
            num_host_errors=int(out_of_memory.kind == "host"),
            num_neighbours=int(out_of_memory.cause == "neighbour"),
        )

    def record_refused_allocations(self, trial_id: str, process: object, num_so_far: int) -> None:
        """Record how many allocations were refused so far to one process of a trial."""
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
    def num_incomplete(self) -> int:
        """How many trials have started and not come to an end of their own."""
        return sum(self._outcome_of.get(trial_id, "cut_off") == "cut_off" for trial_id in self._amounts)

    def counts(self, status_counts: "StatusCounts") -> TrialCounts:
        """Return how many trials ended in which way.

        Tune's status does not tell which terminated trials were stopped early or cut off. Those recorded here, and in
        a restored run those of its earlier record, were. The others finished.
        """
        outcomes = list(self._outcome_of.values())
        cut_off = min(self._before.num_cut_off + outcomes.count("cut_off"), status_counts.terminated)
        stopped_early = self._before.num_stopped_early + outcomes.count("stopped_early")
        terminated = status_counts.terminated - cut_off
        stopped_early = min(stopped_early, terminated)
        return TrialCounts(
            num_finished=terminated - stopped_early,
            num_stopped_early=stopped_early,
            num_failed=status_counts.error,
            num_cut_off=cut_off,
            num_unfinished=status_counts.others,
            num_retries=self._num_retries,
        )


class StatusCounts(Value):
    """How many trials have each of Tune's statuses."""

    terminated: int = 0
    error: int = 0
    others: int = 0
