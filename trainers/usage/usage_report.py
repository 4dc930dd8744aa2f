"""Combines the usage of a run's slots and of its trials into the report and the advice of ``tune-policies usage``.

``resource_usage.py`` shows CPUs, devices and slots, and ``gpu_memory_report.py`` shows the GPU memory of trials. The
summary at the end of a run contains the same advice.
"""

from typing import Final

from rich.console import Group, RenderableType

from tune_policies.files.terminal import empty_table, line
from tune_policies.values.resources import format_amount
from tune_policies.values.units import format_bytes, two_digits
from tune_policies.values.wording import counted

from .gpu_memory_records import RunUsage
from .gpu_memory_report import about_gpu_memory, advise_on_failures, gpu_memory_view, is_retried_with_larger_share
from .resource_usage import ResourceUsage, facts_view

CALLBACK: Final = "callbacks=[PolicyCallback()]"
"""The argument with which a run records its usage."""


_MOST_ROWS: Final = 20
"""The maximum number of trials without a GPU in the table of processes."""


def usage_view(run: RunUsage, record: ResourceUsage | None = None) -> RenderableType:
    """Return the tables and lines that ``tune-policies usage`` prints."""
    parts: list[RenderableType] = []
    if record is not None:
        parts.append(facts_view(record))
    of_trials = gpu_memory_view(run, record) or _processes_view(run)
    if of_trials is not None:
        if parts:
            parts.append("")
        parts.append(of_trials)
    return Group(*parts, *_advice_lines(run, record))


def summary_view(run: RunUsage, record: ResourceUsage) -> RenderableType:
    """Return what is printed at the end of a run: the same as ``usage_view``, without a row for each trial."""
    return Group(facts_view(record), *_advice_lines(run, record))


def advice_of_run(run: RunUsage, record: ResourceUsage | None = None) -> list[str]:
    """Return advice about the run, one sentence per item, with the most important first."""
    of_trials = [*about_gpu_memory(run, record), *advise_on_failures(run, record)]
    if record is None:
        return of_trials
    after_retries = _without_repetition(run, record).advice_after_retries
    return [*record.advice_for_slots, *after_retries, *of_trials, *record.advice_on_starts]


def _advice_lines(run: RunUsage, record: ResourceUsage | None) -> list[RenderableType]:
    return [line(f"- {text}") for text in advice_of_run(run, record)]


def _processes_view(run: RunUsage) -> RenderableType | None:
    """Return a table of the CPUs and the host memory that trials used, or ``None`` if this is not known."""
    known = [trial for trial in run.trials if trial.process is not None]
    if not known:
        return None
    view = empty_table(counted(len(run.trials), "trial"), "Trial", "CPUs used", "Peak host memory")
    for trial in known[:_MOST_ROWS]:
        process = trial.process
        assert process is not None  # noqa: S101  # only these trials are listed
        cpus = "-"
        if process.elapsed_s > 0:
            cpus = f"{two_digits(process.cpu_s / process.elapsed_s)} of {format_amount(process.cpus)}"
        view.add_row(trial.name, cpus, format_bytes(trial.host_memory_bytes or process.host_memory_bytes))
    below: list[RenderableType] = []
    if len(known) > _MOST_ROWS:
        below.append(line(f"… and {len(known) - _MOST_ROWS} more"))
    without_result = len(run.trials) - len(known)
    if without_result:
        below.append(line(f"… and {counted(without_result, 'trial')} without a result"))
    return Group(view, *below)


def _without_repetition(run: RunUsage, record: ResourceUsage) -> ResourceUsage:
    """Return the record without an advice about GPU memory that the usage of the trials contains in more detail."""
    if not any(map(is_retried_with_larger_share, run.trials)):
        return record
    return record.model_copy(update={"raised": record.raised.model_copy(update={"gpus": 0.0})})
