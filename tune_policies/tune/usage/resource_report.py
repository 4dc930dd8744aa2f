"""How the use of a cluster looks on the shell when a run has ended."""

from collections.abc import Iterator

from rich.console import Group, RenderableType

from tune_policies.files.terminal import empty_table, line
from tune_policies.values.value import counted

from .resource_usage import OutOfMemoryCounts, ResourceUsage, TrialCounts


def resource_usage_view(usage: ResourceUsage) -> RenderableType:
    """Return the tables and lines that are printed at the end."""
    return Group(_resources(usage), *_slots(usage), *_idle(usage), *(line(text) for text in _summary_lines(usage)))


def _resources(usage: ResourceUsage) -> RenderableType:
    table = empty_table(f"What was used in {format_hours(usage.elapsed_s / 3600)}", "Resource", "There", "Used", "Idle")
    for each in usage.resources:
        used = each.used_fraction
        share = "-" if used is None else f"{1 - used:.0%}"
        table.add_row(each.resource, format_hours(each.total_hours), format_hours(each.used_hours), share)
    return table


def _slots(usage: ResourceUsage) -> Iterator[RenderableType]:
    names = [each.resource for each in usage.resources]
    table = empty_table("In each kind of slot", "Slot", "Type", "Starts", "Trials", *names)
    for each in usage.slots:
        hours = [format_hours(each.hours.get(name, 0)) for name in names]
        device = each.accelerator_type or "-"
        table.add_row(each.slot, device, str(each.num_starts), format_hours(each.trial_hours), *hours)
    if table.row_count:
        yield from ("", table)


def _idle(usage: ResourceUsage) -> Iterator[RenderableType]:
    table = empty_table("What stood idle", "Resource", "Time", "Share", "Reason")
    for each in usage.resources:
        for idle in each.idle:
            share = f"{idle.hours / each.total_hours:.1%}"
            table.add_row(each.resource, format_hours(idle.hours), share, idle.reason)
    if table.row_count:
        yield from ("", table)


def _summary_lines(usage: ResourceUsage) -> Iterator[str]:
    yield ""
    yield f"- trials: {_trials(usage.trials)}"
    yield f"- out of memory: {_out_of_memory(usage.out_of_memory)}"
    planned = "" if usage.num_waves_planned is None else f"{usage.num_waves_planned} planned, "
    at_once = counted(usage.max_trials_at_once, "trial")
    yield f"- waves: {planned}{usage.num_waves} as run, with {at_once} at once at most"
    if len(usage.plans) > 1:
        yield f"- the plan changed {counted(len(usage.plans) - 1, 'time')}"
    for warning in usage.warnings:
        yield f"- {warning}"


def _trials(trials: TrialCounts) -> str:
    counts = {
        "finished": trials.num_finished,
        "stopped early": trials.num_stopped_early,
        "failed": trials.num_failed,
        "cut off with the run": trials.num_cut_off,
        "not ended": trials.num_unfinished,
    }
    text = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "none"
    return f"{text}; {counted(trials.num_retries, 'failure')} tried again" if trials.num_retries else text


def _out_of_memory(counts: OutOfMemoryCounts) -> str:
    parts = []
    if counts.num_gpu_errors:
        parts.append(f"{counted(counts.num_gpu_errors, 'failure')} for want of GPU memory")
    if counts.num_host_errors:
        parts.append(f"{counted(counts.num_host_errors, 'failure')} for want of host memory")
    if counts.num_neighbours:
        parts.append(f"{counts.num_neighbours} of them as neighbours had filled the device")
    if counts.num_raised:
        parts.append(f"{counted(counts.num_raised, 'trial')} started again with more")
    if counts.num_refused_allocations:
        parts.append(f"{counted(counts.num_refused_allocations, 'allocation')} refused, as results tell")
    return "; ".join(parts) or "never"


def format_hours(hours: float) -> str:
    """Return a time, or a resource's units times a time, for people: ``"2.5 h"``, ``"12.3 min"``, ``"8.1 s"``."""
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{hours * 60:.1f} min" if hours >= 1 / 60 else f"{hours * 3600:.1f} s"
