"""Monitors one Tune run: meters its resource use, counts how its trials end, and builds the usage record.

This module reads Tune's trials, but does not import Tune or Ray. Callers pass the current time.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.oom import OutOfMemory
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_observation import SHORTEST_S
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.resources import MOST, TICKS, amount_of, to_ticks
from tune_policies.values.sanitize import without_secrets

from ..scheduling.slot_board import SlotTypes
from .advice import Advice, advise
from .gpu_memory_records import GpuMemoryUsage, needed_bytes
from .oom_log import OutOfMemoryLog
from .process_usage import ProcessUsage, SlotUse, use_of_slot
from .reservation_meter import (
    COUNTED_RESOURCES,
    ReservationMeter,
    SlotRow,
    TrialQueue,
    TrialReservation,
    available_resources,
    counted_ticks,
)
from .resource_usage import OutOfMemoryCounts, PlanInUse, ResourceUsage, SlotHours, SpanEnd, TrialCounts, TrialSpan
from .run_facts import Machines, RunFacts, TrialFacts
from .run_forecast import SlotTimes
from .trial_outcomes import PAUSED, PENDING, RUNNING, TERMINATED, Outcome, TrialOutcomes

_MOST_SPANS: Final = 2000
"""The maximum number of spans in a record. Records must be small, because they are written every few seconds."""


class RunStatus(NamedTuple):
    """The state of a run at one moment.

    Attributes:
        slots: The number of slots and the number of slots with a trial, keyed by the text of the slot type.
        gpu_memory: The GPU memory record of the trial in each slot, keyed by slot type and slot index.
        available: The total amount of each resource.
        idle: The amounts that no trial reserves, keyed by resource and reason.
        trials: The number of trials in each state.
        out_of_memory: The number of out-of-memory events of each kind.
    """

    slots: Mapping[str, tuple[int, int]]
    gpu_memory: Mapping[tuple[str, int], GpuMemoryUsage]
    available: Mapping[str, float]
    idle: Mapping[tuple[str, str], float]
    trials: TrialCounts
    out_of_memory: OutOfMemoryCounts


@dataclass
class _TrialRun:
    """The latest run of a trial, since it started or resumed in a slot.

    Attributes:
        trial: The trial.
        amounts: The amounts that Tune reserves for the trial, keyed by Ray's resource names.
        num_bundles: The number of bundles of its request.
        row: The row of its slot in the record.
        span: The span of the trial in the slot, without an end.
        failure: The fields to set in the span if the trial has failed.
        gpu_memory: Its latest GPU memory record, or ``None``.
        has_reported: Whether the trial has reported a result in the slot.
    """

    trial: Any
    amounts: Mapping[str, float]
    num_bundles: int
    row: SlotRow
    span: TrialSpan
    failure: dict[str, Any] = field(default_factory=dict)
    gpu_memory: GpuMemoryUsage | None = None
    has_reported: bool = False


@runtime_checkable
class PlanFollower(Protocol):
    """A scheduler whose plan may change while trials run."""

    @property
    def plan(self) -> TrialPlan | None:
        """The current plan."""

    @property
    def changes(self) -> Sequence[Any]:
        """The changes of the plan since the start of the run, in order."""

    def slot_of(self, trial: Any) -> TrialSlot | None:
        """Return the current or last slot of ``trial``."""

    @property
    def num_fallbacks(self) -> int:
        """The number of trials that could not use their device and run without one."""

    def slots_left_idle(self) -> dict[int, int]:
        """Return the number of free slots that are left idle on purpose, keyed by slot type."""


class TrialHandler(Protocol):
    """The core of a run with a scheduler of this package, which parks waiting trials as paused trials."""

    @property
    def waiting(self) -> Collection[Any]:
        """The trials that wait to start. Their status is ``PAUSED``, but the inner scheduler has not paused them."""

    @property
    def holds_trials(self) -> bool:
        """Whether no further trial may start, although slots may be free."""


class RunMonitor:
    """Monitors one run.

    Args:
        plan: The plan at the start of the run. Without ``scheduler``, it does not change.
        scheduler: The scheduler that may change the plan.
        num_trials: The number of trials of the whole run, or ``None`` if it is not known or unlimited.
        before: The earlier record of a restored run. The counts continue from this record.
        handler: The core of a run with a scheduler of this package.

    Attributes:
        plan: The current plan.
        advice: The advice of the latest record, or the reason why there is none.
        forecast: The latest forecast of the end of the run, as text, or ``""``.
        machines: What was measured about the machines, which determines the speed of processes.
    """

    plan: TrialPlan
    advice: Advice | str = ""
    forecast: str = ""
    machines: Machines = Machines()

    def __init__(
        self,
        plan: TrialPlan,
        scheduler: PlanFollower | None,
        num_trials: int | None,
        before: ResourceUsage | None,
        handler: TrialHandler | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._handler = handler
        self._num_trials = num_trials
        self._cluster: ClusterCapacity | None = None
        self._used: defaultdict[SlotRow, dict[str, tuple[ProcessUsage, GpuMemoryUsage | None]]] = defaultdict(dict)
        self._num_workers: dict[SlotRow, int] = {}
        self._num_changes = 0
        if scheduler is not None:
            self._num_changes = len(scheduler.changes)
        self._known_ids: set[str] = set()
        self._waiting: dict[str, Any] = {}
        self._running: dict[str, _TrialRun] = {}
        self._last_runs: dict[str, _TrialRun] = {}
        self._trials: Sequence[Any] = ()
        self._trial_runs: dict[str, TrialFacts] = {}
        self._free_since_s: dict[tuple[str, int], float] = {}
        self._gaps_s: list[float] = []
        self._most_open = 0
        self._has_waited = False
        self._trial_of_process: dict[tuple[Any, Any], str] = {}  # keyed by the node's address and the process ID
        self._forecast_at_s = 0.0
        self._meter = ReservationMeter(before)
        # Before its first step, Tune has not created or restored the trials, so all of them count as waiting.
        num_waiting = plan.max_concurrent_trials if num_trials is None else num_trials
        reason = ""
        self._is_restored = before is not None and before != ResourceUsage()
        if before is None:
            before = ResourceUsage()
        else:
            num_waiting = before.trials.num_unfinished
            reason = "the run was restored"
        self._meter.set_queue(TrialQueue(num_waiting))
        self._outcomes = TrialOutcomes(before.trials)
        self._reuses_processes = before.reuses_processes
        self._out_of_memory = OutOfMemoryLog(before)
        self._earlier_use = {SlotRow(slot.slot, slot.accelerator_type): slot.use for slot in before.slots if slot.use}
        self._plans, self._warnings = list(before.plans), list(before.warnings)
        self._spans: list[TrialSpan] = []
        for span in before.spans:
            if span.end is None:  # the trial ran when the program was killed
                span = span.model_copy(update={"ended_s": before.elapsed_s, "end": "cut_off"})
            self._spans.append(span)
        self._use_plan(plan, reason)

    def _use_plan(self, plan: TrialPlan, why: str) -> None:
        self.plan = plan
        self._slot_types = SlotTypes(plan.slots)
        slots = tuple(f"{number} with {text}" for text, number in plan.rows.items())
        # A run may be restored under the same plan, whose reasons differ, for instance in what other programs use.
        if not self._plans or self._plans[-1].slots != slots:
            self._plans.append(PlanInUse(at_s=self._meter.elapsed_s, why=why, text=plan.explain(), slots=slots))
        self._meter.set_available(available_resources(plan, self._cluster))
        if any(slot.is_elastic for slot in plan.slots):
            self.warn("the number of Train workers may grow, but only the minimum number of workers is counted")

    def read_cluster(self, cluster: ClusterCapacity, now_s: float) -> None:
        """Use the resources of ``cluster`` as the total from now on."""
        if self._cluster is None or cluster.nodes != self._cluster.nodes:
            self._meter.count_until(now_s)
            self._cluster = cluster
            self._meter.set_available(available_resources(self.plan, cluster))

    def warn(self, text: str) -> None:
        """Add a warning to the record about data that could not be counted."""
        if text not in self._warnings:
            self._warnings.append(text)

    def step(self, trials: Sequence[Any], now_s: float) -> Sequence[PlanInUse]:
        """Read the trials after a step of Tune, and return the new plans since the last step."""
        self._find_new(trials)
        # Found first, because the plan below and the end of trials are counted from the same moment.
        ended = [run for run in self._running.values() if run.trial.status != RUNNING]
        num_plans = len(self._plans)
        if self._scheduler and len(self._scheduler.changes) > self._num_changes:
            self._meter.count_until(now_s)
            for change in self._scheduler.changes[self._num_changes :]:
                self._use_plan(change.plan, change.why)
            self._num_changes = len(self._scheduler.changes)
        if ended:
            self._meter.count_until(now_s)
        for run in ended:
            self._end_run(run)
        # After the ended trials, which may wait again.
        queue = self._read_queue(trials)
        if queue != self._meter.queue:
            self._meter.count_until(now_s)
            self._meter.set_queue(queue)
        return self._plans[num_plans:]

    def _find_new(self, trials: Sequence[Any]) -> None:
        self._trials = trials
        # Each step of Tune's loop runs this code, perhaps with thousands of trials, so the search stops early.
        num_new = len(trials) - len(self._known_ids)
        for trial in reversed(trials):  # Tune puts new and retried trials at the end of its list
            if num_new <= 0:
                return
            if trial.trial_id not in self._known_ids:
                self._known_ids.add(trial.trial_id)
                num_new -= 1
                if trial.status in (PENDING, PAUSED):  # some trials of a restored run have ended
                    self._waiting[trial.trial_id] = trial

    def _end_run(self, run: _TrialRun) -> None:
        trial = run.trial
        self._end_span(trial)
        self._meter.end_trial(trial.trial_id)
        if trial.status in (PENDING, PAUSED):
            self._waiting[trial.trial_id] = trial
        elif trial.status == TERMINATED:
            self._outcomes.note(trial.trial_id, "cut_off")  # unless a hook has reported another outcome

    def _end_span(self, trial: Any) -> None:
        run = self._running.pop(trial.trial_id, None)
        if run is None:
            return
        end: SpanEnd = "paused"
        if trial.status not in (PENDING, PAUSED, RUNNING):
            otherwise: Outcome = "cut_off" if trial.status == TERMINATED else "failed"
            end = self._outcomes.of(trial.trial_id, otherwise)
        self._trial_runs[trial.trial_id].ran_s += self._meter.elapsed_s - run.span.began_s
        self._free_since_s[run.span.slot, run.span.place] = self._meter.elapsed_s
        if len(self._spans) < _MOST_SPANS:
            ended = {"ended_s": self._meter.elapsed_s, "end": end, **run.failure}
            self._spans.append(run.span.model_copy(update=ended))
        else:
            self.warn(f"only the first {_MOST_SPANS} periods in which a trial occupied a slot are recorded")

    def _read_queue(self, trials: Sequence[Any]) -> TrialQueue:
        num_waiting = num_paused = num_starting = 0
        parked: Collection[Any] = () if self._handler is None else self._handler.waiting
        for trial_id, trial in list(self._waiting.items()):
            if trial.status == PENDING or (trial.status == PAUSED and trial in parked):
                num_waiting += 1
                num_starting += trial.status == PENDING
            elif trial.status == PAUSED:
                num_paused += 1
            elif trial.status != RUNNING:  # Tune reports a start before it sets the status
                del self._waiting[trial_id]
                if trial.status == TERMINATED:
                    # In a restored run, a trial may have reported before. Tune adds its ID to each last result.
                    if trial_id in self._trial_runs or "training_iteration" in trial.last_result:
                        self._outcomes.note(trial_id, "cut_off")
                    else:
                        self._outcomes.note_never_started()
        more = self._num_trials is None or self._num_trials > len(trials)
        num_running = len(self._running)
        self._most_open = max(self._most_open, num_waiting + num_paused + num_running)
        # Trials that wait while all slots are in use show that the search suggests enough of them.
        self._has_waited |= num_waiting > 0 and num_running >= self.plan.max_concurrent_trials
        left_idle: dict[int, int] = {}
        if self._scheduler is not None:
            left_idle = self._scheduler.slots_left_idle()
        is_held = self._handler is not None and self._handler.holds_trials
        return TrialQueue(num_waiting, num_paused, more, left_idle, is_held, num_starting)

    def start(self, trial: Any, now_s: float) -> None:
        """Start to meter ``trial``, in a new or a reused process."""
        self._meter.count_until(now_s)
        self._end_span(trial)  # the trial may have ended and started again within one step
        self._waiting.pop(trial.trial_id, None)
        self._outcomes.note_start(trial.trial_id)
        amounts = dict(trial.placement_group_factory.required_resources)
        self._out_of_memory.note_start(trial.trial_id, amounts)
        reservation = self._reservation_of(trial, amounts)
        self._meter.start_trial(trial.trial_id, reservation)
        slot = reservation.row.slot
        # The first free place, so that the page of the run has one row per slot.
        taken = {run.span.place for run in self._running.values() if run.span.slot == slot}
        place = next(number for number in range(len(taken) + 1) if number not in taken)
        free_since_s = self._free_since_s.pop((slot, place), None)
        if free_since_s is not None:
            self._gaps_s.append(self._meter.elapsed_s - free_since_s)
        known = self._trial_runs.setdefault(trial.trial_id, TrialFacts(trial.trial_id, trial.config))
        known.gpus = amounts.get("GPU", 0.0)  # a retry may have a larger GPU fraction, or no GPU
        span = TrialSpan(trial=str(trial), slot=slot, place=place, began_s=self._meter.elapsed_s)
        num_bundles = len(trial.placement_group_factory.bundles)
        run = _TrialRun(trial, amounts, num_bundles, reservation.row, span)
        self._running[trial.trial_id] = self._last_runs[trial.trial_id] = run

    def _reservation_of(self, trial: Any, amounts: Mapping[str, float]) -> TrialReservation:
        ticks = {name: to_ticks(amount) for name, amount in amounts.items() if name in COUNTED_RESOURCES and amount > 0}
        text = ", ".join(amount_of(amount, name) for name, amount in sorted(amounts.items())) or "nothing"
        slot = self._slot_of(trial, ticks)
        if slot is None:
            return TrialReservation(None, SlotRow(text), ticks)
        grown = slot
        if not slot.num_workers:  # a retry after an out-of-memory error raises the trial's own request
            grown = slot.with_more(amounts)
        if ticks == counted_ticks(grown.trial.ticks):  # otherwise, other code changed the resources of the trial
            text = str(grown)
        for name, of_worker in counted_ticks(slot.per_worker.ticks).items():
            ticks[name] = ticks.get(name, 0) + slot.num_workers * of_worker
        row = self._row(text, slot, ticks)
        self._num_workers[row] = slot.num_workers
        return TrialReservation(self._slot_types.type_of(slot), row, ticks)

    def _row(self, text: str, slot: TrialSlot, amounts: Mapping[str, int]) -> SlotRow:
        if slot.accelerator_type or self._cluster is None or not DEVICE_RESOURCES & amounts.keys():
            return SlotRow(text, slot.accelerator_type)
        types = {node.accelerator_type for node, _ in self._cluster.groups if node.accelerator_type}
        if len(types) != 1:
            return SlotRow(text)
        return SlotRow(text, types.pop())

    def _slot_of(self, trial: Any, ticks: Mapping[str, int]) -> TrialSlot | None:
        if self._scheduler is not None:
            return self._scheduler.slot_of(trial)
        slots = self.plan.slots
        if len(slots) == 1:
            return slots[0]
        known = (*slots, self.plan.common_slot)
        return next((slot for slot in known if counted_ticks(slot.trial.ticks) == ticks), None)

    def complete(self, trial: Any, *, is_stopped: bool, is_at_end: bool = False) -> None:
        """Record that ``trial`` finished or was stopped early.

        A stopped trial (``is_stopped``) counts as finished if it has reached its stopping criterion (``is_at_end``).
        """
        is_early = not is_at_end and (is_stopped or trial.trial_id in self._waiting)  # a waiting trial was paused
        outcome: Outcome = "stopped_early" if is_early else "finished"
        self._outcomes.note(trial.trial_id, outcome)

    def fail(self, trial: Any, out_of_memory: OutOfMemory, error: str = "", *, is_requeued: bool) -> None:
        """Record that ``trial`` failed, with the last line of its error."""
        is_oom = out_of_memory.kind != "none"
        if trial.trial_id in self._running:
            end = "tried_again" if is_requeued else "failed"
            failure = {"end": end, "out_of_memory": is_oom, "error": without_secrets(error)}
            self._running[trial.trial_id].failure = failure
        if is_requeued:
            self._outcomes.num_retries += 1
        else:
            self._outcomes.note(trial.trial_id, "failed")
        if is_oom:
            run = self._last_runs.get(trial.trial_id)
            amounts = {} if run is None else run.amounts
            self._out_of_memory.note_error(trial.trial_id, out_of_memory, amounts)

    def note_forecast(self, text: str, now_s: float) -> None:
        """Record when the run will end, as text relative to ``now_s``."""
        self._meter.count_until(now_s)
        self.forecast = text
        self._forecast_at_s = self._meter.elapsed_s

    def elapsed_s(self, now_s: float) -> float:
        """Return the duration of the run up to ``now_s`` in seconds, including the time before it was restored."""
        self._meter.count_until(now_s)
        return self._meter.elapsed_s

    def slot_times(self, now_s: float) -> SlotTimes:
        """Return the times that trials spent in slots up to ``now_s``."""
        self._meter.count_until(now_s)
        start_s = 0.0
        if self._gaps_s:
            start_s = median(self._gaps_s)
        if self._free_since_s:  # the next trial takes at least as long to start as it has already taken
            start_s = max(start_s, self._meter.elapsed_s - max(self._free_since_s.values()))
        return SlotTimes(
            total_s={trial_id: known.ran_s for trial_id, known in self._trial_runs.items()},
            current_s={trial_id: self._meter.elapsed_s - run.span.began_s for trial_id, run in self._running.items()},
            reported={trial_id for trial_id, run in self._running.items() if run.has_reported},
            start_s=start_s,
        )

    @property
    def num_nodes(self) -> int:
        """The number of nodes of the cluster, or 0 if it is not known."""
        if self._cluster is None:
            return 0
        return len(self._cluster.nodes)

    def running_trials(self) -> Mapping[str, Any]:
        """Return the running trials by their IDs."""
        return {trial_id: run.trial for trial_id, run in self._running.items()}

    def note_use(self, trial: Any, process: ProcessUsage | None, gpu_memory: GpuMemoryUsage | None) -> None:
        """Record the resources that the process of ``trial`` has used, and the number of its failed allocations."""
        self._out_of_memory.note_use(trial.trial_id, process, gpu_memory)
        run = self._running.get(trial.trial_id)
        if run is None:
            return
        known = self._trial_runs[trial.trial_id]
        if gpu_memory is not None:  # most results contain no usage
            run.gpu_memory = known.gpu_memory = gpu_memory
        if process is not None:
            known.process = process
            self._used[run.row][trial.trial_id] = process, run.gpu_memory

    def note_result(self, trial: Any, result: Mapping[str, Any]) -> None:
        """Record that a trial has reported, and when it has reported twice and has run for long enough to be known."""
        known = self._trial_runs.get(trial.trial_id)
        # Tune adds the address of the node and the process ID to each result, but a user may have reported other
        # values.
        process = result.get("node_ip"), result.get("pid")
        if isinstance(process[0], str) and isinstance(process[1], int):
            first_trial = self._trial_of_process.setdefault(process, trial.trial_id)
            if first_trial != trial.trial_id:
                self._reuses_processes = True
                if known is not None:
                    known.reuses_process = True
        run = self._running.get(trial.trial_id)
        if run is not None:
            run.has_reported = True
        if known is not None and known.told_s is None and result.get("training_iteration", 0) >= 2:
            ran_s = float(result.get("time_total_s", 0))
            if ran_s >= SHORTEST_S:
                known.told_s = ran_s

    def _with_use(self, hours: SlotHours) -> SlotHours:
        row = SlotRow(hours.slot, hours.accelerator_type)
        use, earlier = self._use_of(row), self._earlier_use.get(row)
        if use is not None:
            use = use.model_copy(update={"num_workers": self._num_workers.get(row, 0)})
        if use is not None and earlier is not None:
            use = earlier.combined_with(use)
        return hours.model_copy(update={"use": use or earlier})

    def _use_of(self, row: SlotRow) -> SlotUse | None:
        used = []
        for process, memory in self._used[row].values():
            gpu_memory_bytes = None if memory is None else needed_bytes(memory)
            used.append((process, gpu_memory_bytes))
        return use_of_slot(used)

    def _advise(self, *, is_final: bool) -> Advice | str:
        """Return a policy that runs more trials at once, or the reason why none is suggested."""
        slot = self.plan.common_slot
        is_simple = not slot.num_workers and not slot.trial.custom and slot.trial.gpus <= 1
        if not is_simple or any(run.num_bundles > 1 for run in self._last_runs.values()):
            return "trials with several bundles, Train workers, several GPUs or other devices keep their requests"
        if len(self.plan.slots) > 1 or self.plan.by_config or self.plan.fewer_than_fit:
            return "the policy of the run decides how many trials run at once"
        if self._cluster is None:
            return "the nodes of the cluster are not known"
        at_once = self.plan.max_concurrent_trials
        # Tune asks a search algorithm for one trial more than can run, and a scheduler of this package for none.
        asks_for = at_once if self._scheduler is not None else at_once + 1
        # Tune did not ask for more open trials than this, so the run created them in advance.
        has_more_than_asked = self._most_open > asks_for
        # If slots stayed free although Tune asked for trials, the run had no more of them.
        were_slots_filled = self._has_waited or self._meter.max_at_once >= asks_for
        is_limited = has_more_than_asked or not were_slots_filled
        num_trials = MOST
        if self._num_trials is not None:
            num_trials = max(self._num_trials, len(self._trials))
        elapsed_s = gap_s = 0.0
        # An interrupted run and its trials are shorter than they would have been, so no speed follows from them.
        is_whole = not self._is_restored and not self._trial_counts().were_interrupted
        if is_final and is_whole:
            elapsed_s = self._meter.elapsed_s
        if self._gaps_s:
            gap_s = median(self._gaps_s)
        most_open = MOST
        # A restored run has not observed how many trials of its earlier part could run.
        if is_limited and not self._is_restored:
            most_open = self._most_open
        facts = RunFacts(
            elapsed_s=elapsed_s,
            at_once=at_once,
            num_trials=num_trials,
            most_open=most_open,
            gap_s=gap_s,
            machines=self.machines,
        )
        return advise(list(self._trial_runs.values()), self._cluster, facts)

    def end(self, trials: Sequence[Any], now_s: float) -> None:
        """Meter the run up to its end at ``now_s``."""
        self.step(trials, now_s)
        self._meter.count_until(now_s)

    def record(self, now_s: float, *, is_final: bool = False) -> ResourceUsage:
        """Return the record of the run up to now."""
        self._meter.count_until(now_s)
        trials = self._trial_counts()
        metered = self._meter.record()
        num_incomplete = self._outcomes.num_cut_off(self._last_runs)
        num_ran = trials.num_finished + trials.num_stopped_early + trials.num_failed + num_incomplete
        forecast = "" if is_final else self.forecast
        num_rounds_planned = None
        if self._num_trials is not None:
            num_rounds_planned = self.plan.num_rounds(max(self._num_trials, len(self._trials)))
        spans = (*self._spans, *(run.span for run in self._running.values()))
        self.advice = self._advise(is_final=is_final)
        slots = list(map(self._with_use, metered.slots))
        measured = [number for number, slot in enumerate(slots) if slot.use is not None]
        if isinstance(self.advice, Advice) and measured:
            # The advice is shown once, with the slot type that the trials used most.
            most = max(measured, key=lambda number: slots[number].trial_hours)
            slots[most] = slots[most].model_copy(update={"advice": f"{self.advice}."})
        return metered.model_copy(
            update={
                "is_final": is_final,
                "slots": tuple(slots),
                "trials": trials,
                "out_of_memory": self._out_of_memory.counts,
                "ran_out_with": self._out_of_memory.ran_out_with,
                "raised_trials": self._out_of_memory.raised_trials,
                "raised": self._out_of_memory.raised,
                "num_rounds_planned": num_rounds_planned,
                "num_rounds": self.plan.num_rounds(num_ran),
                "reuses_processes": self._reuses_processes,
                "forecast": forecast,
                "forecast_at_s": self._forecast_at_s,
                "plans": tuple(self._plans),
                "spans": tuple(sorted(spans, key=lambda span: span.began_s)),
                "warnings": tuple(self._warnings),
            }
        )

    def status(self) -> RunStatus:
        """Return the state of the run after its latest step."""
        busy = Counter(run.span.slot for run in self._running.values())
        slots: Counter[str] = Counter()
        for slot in self.plan.slots:
            slots[str(slot)] += slot.max_concurrent_trials
        available, idle = self._meter.current()
        return RunStatus(
            slots={name: (slots[name], busy[name]) for name in slots | busy},
            gpu_memory={
                (run.span.slot, run.span.place): run.gpu_memory for run in self._running.values() if run.gpu_memory
            },
            available={name: ticks / TICKS for name, ticks in available.items()},
            idle={part: ticks / TICKS for part, ticks in idle.items()},
            trials=self._trial_counts(),
            out_of_memory=self._out_of_memory.counts,
        )

    def _trial_counts(self) -> TrialCounts:
        num_fallbacks = 0
        if self._scheduler is not None:
            num_fallbacks = self._scheduler.num_fallbacks
        return self._outcomes.counts(self._trials, num_fallbacks)
