"""Builds the HTML page of one run: advice, the plan, the trials in each slot over time, failures, and GPU memory.

The pictures are drawn in ``usage_pictures``.
"""

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final

from tune_policies.files.html_page import Content, Picture, Section, Table
from tune_policies.plan.idle import Why
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import format_bytes
from tune_policies.values.wording import counted

from .gpu_memory_records import GpuMemoryUsage, RunUsage, needed_bytes
from .gpu_memory_report import Verdict, is_without_gpus, share_or_device_bytes, share_text
from .reservation_meter import unplanned
from .resource_usage import MUCH_IDLE, STARTING, USAGE_FILE, ResourceUsage, TrialSpan
from .usage_pictures import PEAKS, TIMELINE, lanes_of, memory_svg, time_text, timeline_svg
from .usage_report import CALLBACK, advice_of_run

_NO_RECORD: Final = (
    f"The folder does not contain {USAGE_FILE}. To record the slot of each trial, run again with {CALLBACK}."
)
_MOST_LANES: Final = 300
_MOST_TRIALS: Final = 60
"""The maximum number of trials in the GPU memory picture. It shows the trials with the highest relative use."""


def build_run_page(
    name: str,
    run: RunUsage,
    usage: ResourceUsage | None,
    first_advice: Iterable[str] = (),
    last_advice: Iterable[str] = (),
) -> Content:
    """Return the content of the HTML page of a run.

    ``first_advice`` precedes the advice that follows from the usage, and ``last_advice`` follows it.
    """
    advice = [*first_advice, *advice_of_run(run, usage)]
    details = [counted(len(run.trials), "trial")]
    sections = []
    if usage is None:
        sections.append(Section("Plan and slots", (_NO_RECORD,)))
    else:
        advice += _advise_on_idle(usage)
        details = [_duration(usage), *usage.summary]
        sections += [_plan(usage), _slots(usage), _failures(usage)]
    if not is_without_gpus(run, usage):
        sections.append(_memory(run))
    advice += last_advice
    summary = "There is nothing to change."
    if advice:
        summary = _sentence(advice[0])
    advice_texts = tuple(map(_sentence, advice)) or ("None.",)
    return Content(
        title=f"Run {name}",
        summary=summary,
        details=f"{'; '.join(details)}.",
        sections=(Section("Advice", advice_texts), *sections),
    )


def _duration(usage: ResourceUsage) -> str:
    if usage.is_final:
        return time_text(usage.elapsed_s)
    return f"{time_text(usage.elapsed_s)} so far"


def _advise_on_idle(usage: ResourceUsage) -> Iterator[str]:
    for resource in usage.resources:
        # The largest part is the first one. What the policy leaves free is idle on purpose.
        part = next((part for part in resource.idle if part.reason != unplanned(Why.LEFT_FREE)), None)
        if part is None or part.reason == STARTING or not resource.total_hours:
            continue  # the record advises on the start of trials
        idle = part.hours / resource.total_hours
        if idle >= MUCH_IDLE:
            yield f"{idle:.0%} of the {resource.resource} time was idle for one reason: {part.reason}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _plan(usage: ResourceUsage) -> Section:
    from markupsafe import Markup, escape

    texts = []
    for plan in usage.plans:
        text = plan.text
        if plan.why:
            text = f"At {time_text(plan.at_s)}: {plan.why}\n{text}"
        # Each line is escaped on its own, because ``one_line`` escapes line breaks.
        texts.append(Markup("\n").join(escape(one_line(line)) for line in text.strip().splitlines()))
    return Section("Plan", commands=tuple(texts))


def _slots(usage: ResourceUsage) -> Section:
    tables = []
    if usage.idle_rows:
        columns = ("Resource", "Reason", "Time", "Fraction")
        tables.append(Table("Idle resources", columns, usage.idle_rows, num_texts=2))
    if not usage.spans or not usage.elapsed_s:
        return Section("Slots", ("No trial ran.",), tables=tuple(tables))
    lanes = lanes_of(usage)
    texts = ["Each row is a slot, and each bar is a trial. A cross marks a failure."]
    if len(lanes) > _MOST_LANES:
        texts.append(f"The first {_MOST_LANES} of {len(lanes)} slots are shown.")
    picture = _picture("slots", TIMELINE, timeline_svg(usage, lanes[:_MOST_LANES]))
    return Section("Slots", tuple(texts), pictures=(picture,), tables=tuple(tables))


def _picture(name: str, label: str, svg: str) -> Picture:
    from markupsafe import Markup

    return Picture(name, label, Markup(svg))  # noqa: S704  # a drawing escapes its texts


def _failures(usage: ResourceUsage) -> Section:
    rows = tuple(_failure_row(span) for span in usage.spans if span.end in ("failed", "tried_again"))
    title = "Failures and retries"
    if not rows:
        return Section(title, ("No trial failed.",))
    table = Table("Failures by start time", ("Trial", "Slot", "Error", "Consequence", "At"), rows, num_texts=4)
    return Section(title, tables=(table,))


def _failure_row(span: TrialSpan) -> tuple[str, ...]:
    error = span.error or "unknown error"
    if span.out_of_memory:
        error = f"out of memory; {error}"
    consequence = "retried" if span.end == "tried_again" else "failed"
    return span.trial, span.slot, error, consequence, time_text(span.ended_s or 0)


def _memory(run: RunUsage) -> Section:
    usages = [(trial.name, usage) for trial in run.trials for usage in trial.usages]
    if not usages:
        return Section("GPU memory", ("No trial reported its GPU memory.",))
    rows = tuple(_memory_row(name, usage) for name, usage in usages)
    columns = ("Trial", "Result", "Fraction", "Peak", "Used", "Refused")
    table = Table("GPU memory of each trial", columns, rows, num_texts=2, is_folded=len(rows) > _MOST_TRIALS)
    known = []
    for name, usage in usages:
        needed, has = needed_bytes(usage), share_or_device_bytes(usage)
        if needed and has:
            known.append((needed / has, (name, usage)))
    if not known:
        text = "The peaks of the trials are not known, for instance because the GPUs are simulated."
        tables = []
        if any(usage.num_ooms or usage.share_kept is not None for _, usage in usages):
            tables.append(table)
        return Section("GPU memory", (text,), tables=tuple(tables))
    # The trials that are nearest to an out-of-memory error come first.
    known.sort(key=itemgetter(0), reverse=True)
    nearest = [row for _, row in known]
    texts = ["Each bar shows the peak of a trial, and the frame around it shows the memory of its GPU fraction."]
    if len(nearest) > _MOST_TRIALS:
        texts.append(f"Of {len(nearest)} trials, the {_MOST_TRIALS} with the highest use of their fraction are shown.")
    picture = _picture("memory", PEAKS, memory_svg(nearest[:_MOST_TRIALS]))
    return Section("GPU memory", tuple(texts), pictures=(picture,), tables=(table,))


def _memory_row(name: str, usage: GpuMemoryUsage) -> tuple[str, ...]:
    needed, has = needed_bytes(usage), share_or_device_bytes(usage)
    verdict = peak = "not known"
    if needed or usage.num_ooms or usage.share_kept is not None:
        verdict = Verdict.of(usage).value
    if needed:
        peak = format_bytes(needed)
    part = "-"
    if needed and has:
        part = f"{needed / has:.0%}"
    return name, verdict, share_text(usage), peak, part, str(usage.num_ooms)
