"""The resources that a run used: the record in the experiment's folder, and its tables for the terminal."""

from pathlib import Path
from typing import Final, Literal

from pydantic import AliasChoices, Field
from rich.console import Group, RenderableType

from tune_policies.cluster.accelerators import public_text
from tune_policies.files.terminal import empty_table, line
from tune_policies.plan.headroom import memory_to_write
from tune_policies.plan.trial_observation import SHORTEST_S
from tune_policies.values.field_types import Many
from tune_policies.values.resources import Count, UsedBytes
from tune_policies.values.sanitize import LEFT_OUT, WithoutSecrets
from tune_policies.values.units import format_request
from tune_policies.values.value import ShownValue, Value
from tune_policies.values.wording import counted

from .advised_memory import gpu_memory_to_write, gpus_to_write
from .process_usage import SlotUse

STARTING: Final = "trials were starting, or waited for Ray to place them"
"""The reason for idle resources while trials start. Records contain this text."""

MUCH_IDLE: Final = 0.2
"""The fraction of a resource that must be idle for one reason before the advice mentions the reason."""

USAGE_FILE: Final = "resource_usage.json"
"""The name of the file with the usage record, in the experiment's folder."""

DASHBOARD: Final = Path(__file__).with_name("grafana_dashboard.json")
"""A Grafana dashboard for the metrics of ``run_metrics``."""


class IdleHours(Value):
    """The idle time of a resource for one reason.

    Attributes:
        reason: The reason why no trial used the resource.
        hours: The idle time in unit-hours. For example, 2 CPUs that are idle for half an hour count as 1.
    """

    reason: str
    hours: float


class ResourceHours(Value):
    """The used and idle time of one resource, which add up to the total time.

    Attributes:
        resource: Ray's name of the resource.
        total_hours: The total time of the resource in the cluster, in unit-hours, such as CPU-hours.
        used_hours: The time reserved by running trials and their planned workers, in unit-hours.
        idle: The idle time for each reason, largest first.
    """

    resource: str
    total_hours: float
    used_hours: float
    idle: Many[IdleHours] = ()


class SlotHours(Value):
    """The resources that the trials in one slot type reserved and used.

    Attributes:
        slot: The slot type, as text.
        accelerator_type: Ray's name of its device type, or ``None`` if it has no device or the type is not known.
        num_starts: The number of times that a trial started or resumed in a slot of this type.
        trial_hours: The total time that trials ran in such slots, in hours.
        hours: The reserved time of each resource, in unit-hours.
        use: The resources that the trials used. ``None`` if no trial that ran for at least 2 s reported its use.
        advice: A sentence that suggests a policy to run more of these trials concurrently, or an empty string.
    """

    slot: str
    accelerator_type: str | None = None
    num_starts: Count = 0
    trial_hours: float = 0.0
    hours: dict[str, float] = Field(default_factory=dict)
    use: SlotUse | None = None
    advice: str = ""

    @property
    def use_text(self) -> str:
        """What the trials used, as a sentence without a full stop."""
        if self.use is not None and self.use.num_workers:
            return f"workers used {self.use} (trials with {self.slot})"
        text = f"trials with {self.slot} used {self.use}"
        if self.use is not None and self.use.num_trials < self.num_starts:
            text += f" (according to {counted(self.use.num_trials, 'trial')} that ran for at least {SHORTEST_S:g} s)"
        return text


class TrialCounts(Value):
    """Counts of the trials of a run, by how they ended.

    The first six fields count each trial once. The other fields count retries and fallbacks.

    Attributes:
        num_finished: Trials that reached their end, ``stop={…}``, or the ``max_t`` of the run's ``PolicyScheduler``.
            They include class-trainable trials that a scheduler stopped, because Tune does not distinguish them.
        num_stopped_early: Trials of a function trainable that a scheduler or a stopper ended earlier.
        num_failed: Trials that ended with an error.
        num_cut_off: Trials that ended early because the whole run ended.
        num_never_started: Trials that had not started when the whole run ended.
        num_unfinished: Trials that wait, run or are paused.
        num_retries: The number of times that a trial failed and was retried.
        num_fallbacks: Trials that could not use their device and resumed without one.
    """

    num_finished: Count = 0
    num_stopped_early: Count = 0
    num_failed: Count = 0
    num_cut_off: Count = 0
    num_never_started: Count = 0
    num_unfinished: Count = 0
    num_retries: Count = 0
    num_fallbacks: Count = 0

    @property
    def were_interrupted(self) -> bool:
        """Whether the run ended before all of its trials."""
        return self.num_cut_off + self.num_never_started + self.num_unfinished > 0


TRIAL_STATES: Final = {
    "num_finished": "finished",
    "num_stopped_early": "stopped early",
    "num_failed": "failed",
    "num_cut_off": "cut off",
    "num_never_started": "never started",
    "num_unfinished": "not ended",
}
"""The displayed text of each trial state in ``TrialCounts``. Each trial is in exactly one state."""


class OutOfMemoryCounts(Value):
    """Counts of the events in which memory ran out.

    Attributes:
        num_gpu_errors: Failures because GPU memory ran out.
        num_host_errors: Failures because host memory ran out.
        num_neighbours: Failures because other processes filled the shared device.
        num_raised: The number of retries with more memory.
        num_refused_allocations: Failed allocations that trials reported in results. The trials may have continued.
    """

    num_gpu_errors: Count = 0
    num_host_errors: Count = 0
    num_neighbours: Count = 0
    num_raised: Count = 0
    num_refused_allocations: Count = 0


class RaisedMemory(Value):
    """What the trials that were retried with more memory reserved and used. Each field is the maximum of these trials.

    Attributes:
        gpus: The number or fraction of GPUs of a trial whose GPU fraction was raised, or 0 if no fraction was raised.
        memory_bytes: The reserved host memory of a trial whose host memory was raised, in bytes, or 0.
        gpu_memory_bytes: The GPU memory to plan for a trial whose GPU fraction was raised, in bytes, or ``None`` if it
            is not known.
        device_bytes: The memory of one GPU of these trials, in bytes, or ``None`` if it is not known.
        host_memory_bytes: The peak host memory of a trial whose host memory was raised, in bytes, or ``None`` if it is
            not known.
    """

    gpus: float = 0.0
    memory_bytes: UsedBytes = 0
    gpu_memory_bytes: UsedBytes | None = None
    device_bytes: UsedBytes | None = None
    host_memory_bytes: UsedBytes | None = None


SpanEnd = Literal["finished", "stopped_early", "failed", "tried_again", "paused", "cut_off"]
"""The event that ends a trial's time in a slot."""


class TrialSpan(Value):
    """A trial's time in a slot. A trial that is paused or retried has several spans.

    Attributes:
        trial: The trial's name, as Tune prints it.
        slot: The slot type, as text.
        place: The lowest free index among the slots of the type when the trial started. It does not identify a device.
        began_s: The time when the trial started in the slot, in seconds since the run began, excluding the time between
            the parts of a restored run.
        ended_s: The time when the trial left the slot, in seconds since the run began, or ``None`` if it is running.
        end: The event that ended its time in the slot, or ``None`` if the trial is still running. ``"tried_again"``
            means that the trial failed and was retried, and ``"cut_off"`` means that the whole run ended.
        out_of_memory: Whether the trial failed because memory ran out.
        error: The last line of the trial's error, or an empty string.
    """

    trial: WithoutSecrets
    slot: str
    place: Count
    began_s: float
    ended_s: float | None = None
    end: SpanEnd | None = None
    out_of_memory: bool = False
    error: WithoutSecrets = ""


class PlanInUse(Value):
    """A plan that a run used until its next plan.

    Attributes:
        at_s: The time when the plan began to apply, in seconds since the run began.
        why: The reason for the change of the plan, or an empty string for the first plan.
        text: The plan, as returned by ``TrialPlan.explain``.
        slots: The slot types with their numbers, as text. A plan with equal slots is not a change of the plan.
    """

    at_s: float
    why: str
    text: str
    slots: Many[str] = ()


class ResourceUsage(ShownValue):
    """The resources that a run used.

    Attributes:
        version: The version of this format.
        is_final: Whether the run had ended.
        elapsed_s: The duration of the run in seconds, excluding the time between the parts of a restored run.
        resources: The use of CPUs and devices.
        slots: The use of each slot type.
        trials: The number of trials in each state.
        out_of_memory: The number of out-of-memory events of each kind.
        ran_out_with: The amounts that each trial reserved when it ran out of memory, keyed by trial ID. An entry is
            removed when the trial starts again.
        raised_trials: The resources that were increased for each trial after it ran out of memory, keyed by trial ID.
        raised: What the trials that were retried with more memory reserved and used.
        max_trials_at_once: The maximum number of trials that ran concurrently.
        num_rounds_planned: The number of rounds of trials under the last plan if all trials took equally long. ``None``
            if the number of trials is not known.
        num_rounds: The number of rounds under the last plan in which the trials that ran fit. A trial that was
            interrupted and continued, or retried, counts once.
        reuses_processes: Whether a process has run several trials, as with ``reuse_actors=True``.
        forecast: When the run will end, as text, or ``""`` if it has ended or this is not known.
        forecast_at_s: The time of the forecast, in seconds since the run began.
        plans: The plans of the run, in order.
        spans: The first 2000 completed spans and all current spans, in the order of their starts.
        warnings: Warnings about data that could not be counted, with the reasons.
    """

    version: Literal[1] = 1
    is_final: bool = False
    elapsed_s: float = 0.0
    resources: Many[ResourceHours] = ()
    slots: Many[SlotHours] = ()
    trials: TrialCounts = TrialCounts()
    out_of_memory: OutOfMemoryCounts = OutOfMemoryCounts()
    ran_out_with: dict[str, dict[str, float]] = Field(default_factory=dict)
    raised_trials: dict[str, Many[str]] = Field(default_factory=dict)
    raised: RaisedMemory = RaisedMemory()
    max_trials_at_once: Count = 0
    # Records of earlier versions call the rounds waves.
    num_rounds_planned: Count | None = Field(
        default=None, validation_alias=AliasChoices("num_rounds_planned", "num_waves_planned")
    )
    num_rounds: Count = Field(default=0, validation_alias=AliasChoices("num_rounds", "num_waves"))
    reuses_processes: bool = False
    forecast: str = ""
    forecast_at_s: float = 0.0
    plans: Many[PlanInUse] = ()
    spans: Many[TrialSpan] = ()
    warnings: tuple[WithoutSecrets, ...] = ()

    def __rich__(self) -> RenderableType:
        return resource_usage_view(self)

    def redacted(self) -> "ResourceUsage":
        """Return a copy without errors, warnings and names from the cluster, so that it can be published."""
        texts = [*(slot.slot for slot in self.slots), *(span.slot for span in self.spans)]
        slot_names: dict[str, str] = {}
        for number, text in enumerate(dict.fromkeys(texts), 1):
            public = public_text(text)
            if public != text:  # the numbers distinguish slot types whose public texts are equal
                public += f" #{number}"
            slot_names[text] = public
        changes = {
            "resources": tuple(map(_public_resource, self.resources)),
            "slots": tuple(_public_slot(slot, slot_names[slot.slot]) for slot in self.slots),
            "ran_out_with": {},
            "raised_trials": {
                str(number): tuple(map(public_text, names))
                for number, names in enumerate(self.raised_trials.values(), 1)
            },
            "plans": tuple(map(_public_plan, self.plans)),
            "spans": tuple(_public_span(span, slot_names[span.slot]) for span in self.spans),
            "warnings": (LEFT_OUT,) * len(self.warnings),
        }
        return self.model_copy(update=changes)

    @property
    def idle_rows(self) -> tuple[tuple[str, str, str, str], ...]:
        """Rows with a resource, the reason why it was idle, the idle time, and its fraction of the total time.

        Rows whose time or fraction is rounded to 0 are omitted.
        """
        rows = []
        for metered in self.resources:
            for part in metered.idle:
                time, fraction = format_hours(part.hours), _percent(part.hours, metered.total_hours)
                if time != _NO_TIME and fraction != _NO_PART:
                    rows.append((metered.resource, part.reason, time, fraction))
        return tuple(rows)

    @property
    def summary(self) -> tuple[str, ...]:
        """Lines about how the trials ended and how the plan changed."""
        lines = []
        if self.forecast:
            lines.append(f"after {format_hours(self.forecast_at_s / 3600)}: the run {self.forecast}")
        trials = f"trials: {_trials(self.trials)}"
        if self._was_interrupted:
            trials += " (the run was interrupted, for example by Ctrl-C, time_budget_s or fail_fast)"
        lines += [trials, f"out of memory: {_out_of_memory(self)}"]
        lines.append(f"rounds: {self._rounds()}; concurrent trials: {self._concurrency()}")
        num_changes = len(self.plans) - 1
        if num_changes > 0:
            lines.append(f"the plan changed {counted(num_changes, 'time')}")
        return (*lines, *self.warnings)

    @property
    def advice(self) -> tuple[str, ...]:
        """What to change in the next run, according to this record, one sentence per item."""
        return (*self.advice_for_slots, *self.advice_after_retries, *self.advice_on_starts)

    @property
    def advice_for_slots(self) -> tuple[str, ...]:
        """The policies under which more trials would run at once, one sentence per item."""
        return tuple(_use_text(slot).removesuffix(".") for slot in self.slots if slot.advice)

    @property
    def advice_after_retries(self) -> tuple[str, ...]:
        """What to write so that no trial needs a retry with more memory, one sentence per item."""
        lines = []
        raised, counts = self.raised, self.out_of_memory
        # If a trial also failed with the raised amount, no amount is known to be enough.
        if raised.gpus > self._failed_with("GPU"):
            first, *others = [gpus_to_write(raised.gpus)]
            if raised.gpu_memory_bytes:
                first, *others = gpu_memory_to_write(raised.gpu_memory_bytes, raised.device_bytes)
            retried = self._retried("GPU", counts.num_gpu_errors)
            lines.append(f"start with {first}: {retried} because of GPU memory")
            lines += [f"or start with {choice}" for choice in others]
        if self.has_enough_memory_after_retries:
            to_write = format_request(raised.memory_bytes)
            if raised.host_memory_bytes:
                used = [slot.use.host_memory_bytes for slot in self.slots if slot.use is not None]
                to_write = memory_to_write(max([*used, raised.host_memory_bytes]))
            retried = self._retried("memory", counts.num_host_errors)
            lines.append(f'start with memory="{to_write}" in the policy: {retried} because of host memory')
        return tuple(lines)

    @property
    def has_enough_memory_after_retries(self) -> bool:
        """Whether trials were retried with more host memory, and none ran out of memory with as much."""
        return self.raised.memory_bytes > self._failed_with("memory")

    def _failed_with(self, resource: str) -> float:
        """Return the largest amount with which a trial ran out of memory and did not start again, by Ray's name."""
        return max((amounts.get(resource, 0.0) for amounts in self.ran_out_with.values()), default=0.0)

    def _retried(self, resource: str, num_errors: int) -> str:
        """Return how many of the trials were retried with more of a resource."""
        num_trials = sum(getattr(self.trials, name) for name in TRIAL_STATES)
        retried = sum(resource in names for names in self.raised_trials.values())
        if not self.raised_trials:  # a record of an earlier version
            retried = min(num_errors, self.trials.num_retries, num_trials)
        was = "was" if retried == 1 else "were"
        return f"{retried} of {counted(num_trials, 'trial')} {was} retried"

    def _rounds(self) -> str:
        if self.num_rounds_planned is None:
            return f"{self.num_rounds} run"
        return f"{self.num_rounds_planned} planned, {self.num_rounds} run"

    @property
    def _was_interrupted(self) -> bool:
        return self.is_final and self.trials.were_interrupted

    def _concurrency(self) -> str:
        most = f"at most {self.max_trials_at_once}"
        if not self.elapsed_s:
            return most
        trial_s = 3600 * sum(slot.trial_hours for slot in self.slots)
        return f"{most}, on average {trial_s / self.elapsed_s:.1f}"

    @property
    def advice_on_starts(self) -> tuple[str, ...]:
        """A sentence if much of a resource was idle while trials started."""
        if not self.trials.num_finished + self.trials.num_stopped_early:
            return ()  # longer trials do not help if all of them failed
        remedy = "Let each trial run longer"
        num_starts = sum(slot.num_starts for slot in self.slots)
        # Each slot starts at least one process, so only the starts of later rounds can be saved.
        has_later_starts = num_starts > self.max_trials_at_once and self.num_rounds_planned != 1
        if has_later_starts and not self.reuses_processes:
            remedy = (
                "If the run does not reuse processes yet, pass reuse_actors=True to run or TuneConfig. Otherwise, let "
                "each trial run longer"
            )
        for metered in self.resources:
            starting = sum(part.hours for part in metered.idle if part.reason == STARTING)
            if metered.total_hours and starting / metered.total_hours >= MUCH_IDLE:
                idle = starting / metered.total_hours
                return (f"{idle:.0%} of the {metered.resource} time was idle while trials started. {remedy}",)
        return ()


def _public_resource(metered: ResourceHours) -> ResourceHours:
    idle = tuple(IdleHours(reason=public_text(part.reason), hours=part.hours) for part in metered.idle)
    return metered.model_copy(update={"resource": public_text(metered.resource), "idle": idle})


def _public_slot(slot: SlotHours, name: str) -> SlotHours:
    hours = {public_text(resource): amount for resource, amount in slot.hours.items()}
    type_ = slot.accelerator_type and public_text(slot.accelerator_type)
    return slot.model_copy(update={"slot": name, "accelerator_type": type_, "hours": hours})


def _public_plan(plan: PlanInUse) -> PlanInUse:
    changes = {"why": public_text(plan.why), "text": public_text(plan.text)}
    return plan.model_copy(update={**changes, "slots": tuple(map(public_text, plan.slots))})


def _public_span(span: TrialSpan, slot: str) -> TrialSpan:
    return span.model_copy(update={"slot": slot, "error": span.error and LEFT_OUT})


def resource_usage_view(usage: ResourceUsage) -> RenderableType:
    """Return the tables and lines about a record, with the advice that follows from it."""
    return Group(facts_view(usage), *(line(f"- {text}") for text in usage.advice))


def facts_view(usage: ResourceUsage) -> RenderableType:
    """Return the tables and lines about a record, without advice."""
    names = [metered.resource for metered in usage.resources]
    used = empty_table(
        f"Resources used in {format_hours(usage.elapsed_s / 3600)}", "Resource", "Total", "Reserved", "Idle"
    )
    slots = empty_table("Slot types", "Slot", "Type", "Starts", "Trial time", *names)
    idle = empty_table("Idle resources", "Resource", "Time", "Fraction", "Reason")
    for metered in usage.resources:
        total, idle_part = metered.total_hours, "-"
        if total:
            idle_part = f"{1 - metered.used_hours / total:.0%}"
        used.add_row(metered.resource, format_hours(total), format_hours(metered.used_hours), idle_part)
    for resource, reason, time, fraction in usage.idle_rows:
        idle.add_row(resource, time, fraction, reason)
    for slot in usage.slots:
        hours = [format_hours(slot.hours.get(name, 0)) for name in names]
        device = slot.accelerator_type or "-"
        slots.add_row(slot.slot, device, str(slot.num_starts), format_hours(slot.trial_hours), *hours)
    parts: list[RenderableType] = [used]
    for table in (slots, idle):
        if table.row_count:
            parts += ["", table]
    used_in_slots = [_use_text(slot) for slot in usage.slots if slot.use is not None and not slot.advice]
    texts = [*used_in_slots, *usage.summary]
    return Group(*parts, "", *(line(f"- {text}") for text in texts))


def _use_text(slot: SlotHours) -> str:
    if slot.advice:
        return f"{slot.use_text}. {slot.advice}"
    return slot.use_text


_NO_TIME: Final = "0.0 s"
_NO_PART: Final = "0.0%"


def _percent(part: float, total: float) -> str:
    if total:
        return f"{part / total:.1%}"
    return "-"


def _trials(trials: TrialCounts) -> str:
    counts = [(getattr(trials, field), state) for field, state in TRIAL_STATES.items()]
    text = ", ".join(f"{count} {state}" for count, state in counts if count) or "none"
    if trials.num_retries:
        text += f"; {counted(trials.num_retries, 'failure')} retried"
    if trials.num_fallbacks:
        return f"{text}; {trials.num_fallbacks} resumed without a device"
    return text


def _out_of_memory(usage: ResourceUsage) -> str:
    counts = usage.out_of_memory
    raised = f"{counted(len(usage.raised_trials), 'trial')} retried with more memory"
    if not usage.raised_trials:  # a record of an earlier version
        raised = f"retried {counted(counts.num_raised, 'time')} with more memory"
    gpu, host, refused = counts.num_gpu_errors, counts.num_host_errors, counts.num_refused_allocations
    of_gpu = f"{counted(gpu, 'failure')} because of GPU memory"
    if counts.num_neighbours == gpu:
        of_gpu = f"{counted(gpu, 'failure')} because the GPU was full (other processes used it too)"
    elif counts.num_neighbours:
        of_gpu += f", {counts.num_neighbours} of them because other processes filled the GPU"
    parts = (
        (gpu, of_gpu),
        (host, f"{counted(host, 'failure')} because of host memory"),
        (counts.num_raised, raised),
        (refused, f"{counted(refused, 'failed allocation')} reported in results"),
    )
    return "; ".join(text for count, text in parts if count) or "never"


def format_hours(hours: float) -> str:
    """Return a time in hours, or an amount in unit-hours, as text such as ``"2.5 h"`` or ``"12.3 min"``."""
    if hours >= 1:
        return f"{hours:.1f} h"
    if hours >= 1 / 60:
        return f"{hours * 60:.1f} min"
    return f"{hours * 3600:.1f} s"
