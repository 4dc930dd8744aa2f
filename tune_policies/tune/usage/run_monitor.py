"""Follows one run of Tune: meters what its trials use, counts how they end, and builds the record.

This module reads Tune's trials, but imports nothing of Tune or Ray. Callers pass the time in.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import NODE_ID
from tune_policies.oom import OutOfMemory
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import TICKS, amount_of, to_ticks
from tune_policies.values.sanitize import redacted

from .gpu_memory_usage import GpuMemoryUsage, needed_bytes
from .process_usage import ProcessUsage, advice, use_of_slot
from .resource_meter import (
    COUNTED_RESOURCES,
    ResourceMeter,
    TrialQueue,
    TrialReservation,
    available_resources,
    counted_ticks,
)
from .resource_usage import OutOfMemoryCounts, PlanInUse, ResourceUsage, SlotHours, SpanEnd, TrialCounts, TrialSpan

_PENDING: Final = "PENDING"
_PAUSED: Final = "PAUSED"
_RUNNING: Final = "RUNNING"
_TERMINATED: Final = "TERMINATED"

Outcome = Literal["finished", "stopped_early", "failed", "cut_off"]
"""How a trial ends."""

_MOST_SPANS: Final = 2000
"""The record is written every few seconds, perhaps to remote storage, so the number of spans is limited."""


class RunStatus(NamedTuple):
    """What a run uses at one moment.

    Attributes:
        slots: The number of slots of each type, and how many of them have a trial.
        trial_at: The ID of the trial in each place of each slot type.
        available: The total of each resource.
        idle: The amounts that no trial reserves, by resource and reason.
        trials: How the trials ended.
        out_of_memory: How often memory ran out.
    """

    slots: Mapping[str, tuple[int, int]]
    trial_at: Mapping[tuple[str, int], str]
    available: Mapping[str, float]
    idle: Mapping[tuple[str, str], float]
    trials: TrialCounts
    out_of_memory: OutOfMemoryCounts


class _Use(NamedTuple):
    """What the process of a trial has used so far, and the slot type of the trial if it is known."""

    slot: TrialSlot | None
    process: ProcessUsage
    gpu_memory: GpuMemoryUsage | None


@runtime_checkable
class PlanFollower(Protocol):
    """A scheduler whose plan may change while trials run."""

    @property
    def plan(self) -> TrialPlan | None:
        """The plan that applies now."""

    @property
    def changes(self) -> Sequence[Any]:
        """The plans that replaced the first, in turn."""

    def slot_of(self, trial: Any) -> TrialSlot | None:
        """Return the slot that ``trial`` has, or had last."""

    @property
    def num_fallbacks(self) -> int:
        """The number of trials that could not use their device and run without one."""

    def slots_left_idle(self) -> dict[int, int]:
        """Return how many free slots of each type are left idle."""


class RunMonitor:
    """Follows a run from its start, or in a restored run after what was counted ``before``.

    ``num_trials`` is the number of trials of the whole run, if it is known. Without a ``scheduler`` the plan stays.
    """

    def __init__(
        self, plan: TrialPlan, scheduler: PlanFollower | None, num_trials: int | None, before: ResourceUsage | None
    ) -> None:
        self.plan = plan
        self._scheduler = scheduler
        self._num_trials = num_trials
        self._cluster: ClusterCapacity | None = None
        self._outcome_of: dict[str, Outcome] = {}  # the first outcome of each trial, until it starts again
        self._amounts: dict[str, Mapping[str, float]] = {}
        self._refused: Counter[tuple[str, object]] = Counter()
        self._open_spans: dict[str, TrialSpan] = {}
        self._slot_types: dict[str, TrialSlot | None] = {}  # the slot type in which each running trial is
        self._used: dict[tuple[str, str], _Use] = {}  # by the text of the slot type and trial
        self._failures: dict[str, dict[str, Any]] = {}  # how the open span of a trial will end
        self._num_changes = len(scheduler.changes) if scheduler else 0
        # Trials wait before Tune's first step, in which it creates or restores them.
        num_waiting = plan.max_concurrent_trials if num_trials is None else num_trials
        self._queue = TrialQueue(num_waiting if before is None else before.trials.num_unfinished)
        self._known_ids: set[str] = set()
        self._waiting: dict[str, Any] = {}
        self._running: dict[str, Any] = {}
        self._trials: Sequence[Any] = ()
        self.go_on_after(before)

    def go_on_after(self, before: ResourceUsage | None) -> None:
        """Continue from what was counted ``before``, and drop all that was counted so far."""
        first_reason = "" if before is None else "the run was restored"
        self._meter = ResourceMeter(before)
        self._meter.set_queue(self._queue)
        before = before or ResourceUsage()
        self._trials_before = before.trials
        self._num_retries = self._trials_before.num_retries
        self._ooms = Counter(before.out_of_memory.model_dump())
        self._ran_out_with: dict[str, Mapping[str, float]] = dict(before.ran_out_with)
        self._plans, self._warnings = list(before.plans), list(before.warnings)
        cut_off = {"ended_s": before.elapsed_s, "end": "cut_off"}
        self._spans = [span if span.end else span.model_copy(update=cut_off) for span in before.spans]
        self.use_plan(self.plan, first_reason)

    def use_plan(self, plan: TrialPlan, why: str) -> None:
        """Meter by ``plan`` from now on."""
        self.plan = plan
        text = plan.explain()
        if not self._plans or self._plans[-1].text != text:  # a run may be restored under the plan that it had
            self._plans.append(PlanInUse(at_s=self._meter.elapsed_s, why=why, text=text))
        self._meter.set_available(available_resources(plan, self._cluster))
        if any(slot.is_elastic for slot in plan.slots):
            self.warn("of a trial whose Train workers may grow in number, only the fewest workers are counted")

    def read_cluster(self, cluster: ClusterCapacity, now_s: float) -> None:
        """Meter by the resources of ``cluster`` from now on."""
        if self._cluster is None or cluster.nodes != self._cluster.nodes:
            self._meter.count_until(now_s)
            self._cluster = cluster
            self._meter.set_available(available_resources(self.plan, cluster))

    def warn(self, text: str) -> None:
        """Add to the record what could not be counted."""
        if text not in self._warnings:
            self._warnings.append(text)

    def step(self, trials: Sequence[Any], now_s: float) -> Sequence[PlanInUse]:
        """Read the trials after a step of Tune, and return the plans that replaced the last one since."""
        self._find_new(trials)
        ended = [trial for trial in self._running.values() if trial.status != _RUNNING]
        num_plans = len(self._plans)
        if self._scheduler and len(self._scheduler.changes) > self._num_changes:
            self._meter.count_until(now_s)
            for change in self._scheduler.changes[self._num_changes :]:
                self.use_plan(change.plan, change.why)
            self._num_changes = len(self._scheduler.changes)
        if ended:
            self._meter.count_until(now_s)
        for trial in ended:
            self._end_trial(trial)
        queue = self._read_queue(trials)
        if queue != self._queue:
            self._meter.count_until(now_s)
            self._meter.set_queue(queue)
            self._queue = queue
        return self._plans[num_plans:]

    def _find_new(self, trials: Sequence[Any]) -> None:
        self._trials = trials
        # This runs at each step of Tune's loop, perhaps with thousands of trials, so it stops after the new ones.
        num_new = len(trials) - len(self._known_ids)
        for trial in reversed(trials):  # Tune puts new trials, and those that it retries, at the end of its list
            if num_new <= 0:
                return
            if trial.trial_id not in self._known_ids:
                self._known_ids.add(trial.trial_id)
                num_new -= 1
                if trial.status in (_PENDING, _PAUSED):  # of a restored run some have ended
                    self._waiting[trial.trial_id] = trial

    def _end_trial(self, trial: Any) -> None:
        del self._running[trial.trial_id]
        self._meter.end_trial(trial.trial_id)
        self._end_span(trial)
        if trial.status in (_PENDING, _PAUSED):
            self._waiting[trial.trial_id] = trial
        elif trial.status == _TERMINATED:
            self._outcome_of.setdefault(trial.trial_id, "cut_off")  # unless a hook has reported another outcome

    def _end_span(self, trial: Any) -> None:
        span = self._open_spans.pop(trial.trial_id, None)
        failure = self._failures.pop(trial.trial_id, None)
        if span is None:
            return
        end: SpanEnd = "paused"
        if trial.status not in (_PENDING, _PAUSED, _RUNNING):
            end = self._outcome_of.get(trial.trial_id, "cut_off" if trial.status == _TERMINATED else "failed")
        ended = {"ended_s": self._meter.elapsed_s, "end": end, **(failure or {})}
        if len(self._spans) < _MOST_SPANS:
            self._spans.append(span.model_copy(update=ended))
        else:
            self.warn(f"the trials' times in their slots are kept of the first {_MOST_SPANS} only")

    def place_of(self, trial_id: str) -> tuple[str, int] | None:
        """Return the slot type and the place of a trial; ``None``: it does not run."""
        span = self._open_spans.get(trial_id)
        return None if span is None else (span.slot, span.place)

    def _read_queue(self, trials: Sequence[Any]) -> TrialQueue:
        num_waiting = num_paused = 0
        for trial_id, trial in list(self._waiting.items()):
            if trial.status == _PENDING:
                num_waiting += 1
            elif trial.status == _PAUSED:
                num_paused += 1
            elif trial.status != _RUNNING:  # Tune reports a start before it sets the status
                del self._waiting[trial_id]
                if trial.status == _TERMINATED:
                    self._outcome_of.setdefault(trial_id, "cut_off")
        more = self._num_trials is None or self._num_trials > len(trials)
        return TrialQueue(num_waiting, num_paused, more, self._scheduler.slots_left_idle() if self._scheduler else {})

    def start(self, trial: Any, now_s: float) -> None:
        """Meter ``trial``, which starts in a new process or in a reused one."""
        self._meter.count_until(now_s)
        self._end_span(trial)  # it may end and start again within one step
        self._waiting.pop(trial.trial_id, None)
        self._running[trial.trial_id] = trial
        amounts = dict(trial.placement_group_factory.required_resources)
        self._outcome_of.pop(trial.trial_id, None)
        had = self._ran_out_with.pop(trial.trial_id, None)
        if had is not None and any(amount > had.get(name, 0) for name, amount in amounts.items()):
            self._ooms["num_raised"] += 1
        self._amounts[trial.trial_id] = amounts
        reservation = self._reservation_of(trial, amounts)
        self._meter.start_trial(trial.trial_id, reservation)
        taken = {span.place for span in self._open_spans.values() if span.slot == reservation.slot}
        place = next(number for number in range(len(taken) + 1) if number not in taken)
        self._open_spans[trial.trial_id] = TrialSpan(
            trial=str(trial), slot=reservation.slot, place=place, began_s=self._meter.elapsed_s
        )

    def _reservation_of(self, trial: Any, amounts: Mapping[str, float]) -> TrialReservation:
        ticks = {name: to_ticks(amount) for name, amount in amounts.items() if name in COUNTED_RESOURCES and amount > 0}
        text = ", ".join(amount_of(amount, name) for name, amount in sorted(amounts.items())) or "nothing"
        slot = self._slot_of(trial, ticks)
        self._slot_types[trial.trial_id] = slot and _without_node(slot)
        if slot is None:
            return TrialReservation(None, text, None, ticks)
        slot = _without_node(slot)
        grown = slot if slot.num_workers else slot.with_more(amounts)
        if ticks == counted_ticks(grown.trial.ticks):  # else it was given other resources by hand
            text = str(grown)
        for name, each in counted_ticks(slot.per_worker.ticks).items():
            ticks[name] = ticks.get(name, 0) + slot.num_workers * each
        types = [_without_node(each) for each in self.plan.slots]
        slot_type = types.index(slot) if slot in types else None
        return TrialReservation(slot_type, text, slot.accelerator_type or self._only_type(ticks), ticks)

    def _slot_of(self, trial: Any, ticks: Mapping[str, int]) -> TrialSlot | None:
        if self._scheduler is not None:
            return self._scheduler.slot_of(trial)
        if self.plan.by_config is not None:
            try:
                return self.plan.slot_for(trial.config)
            except InfeasibleRequestError:
                return self.plan.by_config.slots[-1]
        if len(self.plan.slots) == 1:
            return self.plan.slots[0]
        known = (*self.plan.slots, self.plan.common_slot)
        return next((slot for slot in known if counted_ticks(slot.trial.ticks) == ticks), None)

    def _only_type(self, ticks: Mapping[str, int]) -> str | None:
        if self._cluster is None or not ticks.keys() - {"CPU"}:
            return None
        types = {node.accelerator_type for node, _ in self._cluster.groups if node.accelerator_type}
        return types.pop() if len(types) == 1 else None

    def complete(self, trial: Any, *, is_stopped: bool, is_at_end: bool = False) -> None:
        """Record that ``trial`` finished, or was stopped: early, unless its last result ``is_at_end``."""
        is_early = not is_at_end and (is_stopped or trial.trial_id in self._waiting)  # a paused one
        self._outcome_of.setdefault(trial.trial_id, "stopped_early" if is_early else "finished")

    def fail(self, trial: Any, out_of_memory: OutOfMemory, error: str = "", *, is_requeued: bool) -> None:
        """Record that ``trial`` failed, with the last line of its error."""
        self._failures[trial.trial_id] = {
            "end": "tried_again" if is_requeued else "failed",
            "out_of_memory": out_of_memory.kind != "none",
            "error": redacted(error),
        }
        if is_requeued:
            self._num_retries += 1
        else:
            self._outcome_of.setdefault(trial.trial_id, "failed")
        if out_of_memory.kind != "none":
            self._ran_out_with[trial.trial_id] = self._amounts.get(trial.trial_id, {})
            self._ooms["num_gpu_errors" if out_of_memory.kind == "accelerator" else "num_host_errors"] += 1
            self._ooms["num_neighbours"] += out_of_memory.cause == "neighbour"

    def count_refused_allocations(self, trial: Any, process: object, num_so_far: int) -> None:
        """Record how many allocations a process of ``trial`` was refused so far."""
        more = num_so_far - self._refused[trial.trial_id, process]
        if more > 0:
            self._refused[trial.trial_id, process] += more
            self._ooms["num_refused_allocations"] += more

    def note_use(self, trial: Any, usage: ProcessUsage, gpu_memory: GpuMemoryUsage | None) -> None:
        """Record what the process of ``trial`` has used so far."""
        if (span := self._open_spans.get(trial.trial_id)) is not None:
            use = _Use(self._slot_types[trial.trial_id], usage, gpu_memory)
            self._used[span.slot, trial.trial_id] = use

    def _with_use(self, slot: SlotHours) -> SlotHours:
        used = [use for (text, _), use in self._used.items() if text == slot.slot]
        use = use_of_slot((each.process, needed_bytes(each.gpu_memory) if each.gpu_memory else None) for each in used)
        if use is None:
            return slot
        types = [each.slot for each in used]
        same = [each for each in self.plan.slots if _without_node(each) in types]
        devices = (each.gpu_memory.device_bytes for each in used if each.gpu_memory)
        text = advice(
            use,
            gpus=max((each.worker.gpus for each in same), default=0),
            device_bytes=min((device for device in devices if device), default=None),
            at_once=sum(each.max_concurrent_trials for each in same),
        )
        return slot.model_copy(update={"use": use, "advice": text if same else ""})

    def end(self, trials: Sequence[Any], now_s: float) -> None:
        """Meter up to the end of the run."""
        self.step(trials, now_s)
        self._meter.count_until(now_s)

    def record(self, now_s: float, *, is_final: bool = False) -> ResourceUsage:
        """Return the record of the run up to now."""
        self._meter.count_until(now_s)
        trials = self._trial_counts()
        counted = self._meter.record()
        num_incomplete = sum(self._outcome_of.get(trial_id, "cut_off") == "cut_off" for trial_id in self._amounts)
        num_ran = trials.num_finished + trials.num_stopped_early + trials.num_failed + num_incomplete
        planned = None if self._num_trials is None else max(self._num_trials, len(self._trials))
        return counted.model_copy(
            update={
                "is_final": is_final,
                "slots": tuple(map(self._with_use, counted.slots)),
                "trials": trials,
                "out_of_memory": OutOfMemoryCounts(**self._ooms),
                "ran_out_with": {trial_id: dict(amounts) for trial_id, amounts in self._ran_out_with.items()},
                "num_rounds_planned": None if planned is None else self.plan.num_rounds(planned),
                "num_rounds": -(-num_ran // max(1, counted.max_trials_at_once)),
                "plans": tuple(self._plans),
                "spans": tuple(sorted((*self._spans, *self._open_spans.values()), key=lambda span: span.began_s)),
                "warnings": tuple(self._warnings),
            }
        )

    def status(self) -> RunStatus:
        """Return what the run uses now, as of its latest step."""
        busy = Counter(span.slot for span in self._open_spans.values())
        slots: Counter[str] = Counter()
        for slot in self.plan.slots:
            slots[str(_without_node(slot))] += slot.max_concurrent_trials
        available, idle = self._meter.current()
        return RunStatus(
            slots={name: (slots[name], busy[name]) for name in slots | busy},
            trial_at={(span.slot, span.place): trial_id for trial_id, span in self._open_spans.items()},
            available={name: ticks / TICKS for name, ticks in available.items()},
            idle={part: ticks / TICKS for part, ticks in idle.items()},
            trials=self._trial_counts(),
            out_of_memory=OutOfMemoryCounts(**self._ooms),
        )

    def _trial_counts(self) -> TrialCounts:
        """Return how many trials ended in which way.

        Tune's status does not show which terminated trials were stopped early or cut off. The hooks and, in a restored
        run, the earlier record do; the others finished.
        """
        statuses = Counter(trial.status for trial in self._trials)
        outcomes = Counter(self._outcome_of.values())
        terminated, failed = statuses[_TERMINATED], statuses["ERROR"]
        cut_off = min(self._trials_before.num_cut_off + outcomes["cut_off"], terminated)
        stopped_early = min(self._trials_before.num_stopped_early + outcomes["stopped_early"], terminated - cut_off)
        return TrialCounts(
            num_finished=terminated - cut_off - stopped_early,
            num_stopped_early=stopped_early,
            num_failed=failed,
            num_cut_off=cut_off,
            num_unfinished=len(self._trials) - terminated - failed,
            num_retries=self._num_retries,
            num_fallbacks=0 if self._scheduler is None else self._scheduler.num_fallbacks,
        )


def _without_node(slot: TrialSlot) -> TrialSlot:
    """Return the type of ``slot``: on any node, because a scheduler may have chosen one, and with a count of one."""
    selector = {name: value for name, value in slot.label_selector.items() if name != NODE_ID}
    changes = {"label_selector": selector, "max_concurrent_trials": 1, "worker_nodes": ()}
    return slot.model_copy(update=changes)
