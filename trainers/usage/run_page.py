"""Builds the HTML page of one run: advice, the plan, the trials in each slot over time, failures, and GPU memory.

Its pictures are plain SVG, with the width and font size of the benchmarks' report.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from tune_policies.files.html_page import Content, Picture, Section, Table, colour_variable
from tune_policies.plan.idle import Why
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import format_bytes
from tune_policies.values.value import counted

from .gpu_memory_report import CALLBACK, Verdict, advice_of_run, is_without_gpus, share_or_device_bytes, share_text
from .gpu_memory_usage import GpuMemoryUsage, RunUsage, needed_bytes
from .resource_meter import unplanned
from .resource_usage import MUCH_IDLE, USAGE_FILE, ResourceUsage, TrialSpan, format_hours

if TYPE_CHECKING:
    from markupsafe import Markup

_WIDTH: Final = 420
_FONT: Final = 11.5
_LETTER: Final = 6.6
"""An upper bound of the mean width of a letter in this font size, in pixels."""
_NO_RECORD: Final = (
    f"The folder does not contain {USAGE_FILE}. To record the slot of each trial, run again with {CALLBACK}."
)
_TIMELINE: Final = "Trials in each slot over time"
_MOST_LANES: Final = 300
_PEAKS: Final = "Peak GPU memory and GPU fraction of each trial"
_MOST_TRIALS: Final = 60
"""The maximum number of trials in the GPU memory picture. It shows the trials with the highest relative use."""

_BLUE, _ORANGE, _GREEN, _PINK, _OLIVE, _GREY = (
    f"var({colour_variable(colour)})" for colour in ("#0072B2", "#D55E00", "#008A65", "#B8578D", "#8A7A00", "#707070")
)
_OUT_OF_MEMORY: Final = ("out of memory", _ORANGE)
_COLOURS: Final = {Verdict.WITHIN: _BLUE, Verdict.BEYOND: _PINK, Verdict.OUT_OF_MEMORY: _ORANGE}
_ENDS: Final = {
    "finished": ("finished", _BLUE),
    "stopped_early": ("stopped early", _GREEN),
    "paused": ("paused", _OLIVE),
    "cut_off": ("not ended", _GREY),
    None: ("not ended", _GREY),
    "tried_again": ("failed", _PINK),
    "failed": ("failed", _PINK),
}
"""The text and the colour of a span, keyed by the event that ended it."""


def build_run_page(name: str, run: RunUsage, usage: ResourceUsage | None) -> Content:
    """Return the content of the HTML page of a run."""
    advice = list(advice_of_run(run, usage))
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
        return _time(usage.elapsed_s)
    return f"{_time(usage.elapsed_s)} so far"


def _advise_on_idle(usage: ResourceUsage) -> Iterator[str]:
    for resource in usage.resources:
        # The largest part is the first one. What the policy leaves free is idle on purpose.
        part = next((part for part in resource.idle if part.reason != unplanned(Why.LEFT_FREE)), None)
        if part is None or not resource.total_hours:
            continue
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
            text = f"At {_time(plan.at_s)}: {plan.why}\n{text}"
        texts.append(Markup("\n").join(escape(one_line(line)) for line in text.strip().splitlines()))
    return Section("Plan", commands=tuple(texts))


def _slots(usage: ResourceUsage) -> Section:
    tables = []
    if usage.idle_rows:
        columns = ("Resource", "Reason", "Time", "Fraction")
        tables.append(Table("Idle resources", columns, usage.idle_rows, num_texts=2))
    if not usage.spans or not usage.elapsed_s:
        return Section("Slots", ("No trial ran.",), tables=tuple(tables))
    lanes = list(dict.fromkeys((span.slot, span.place) for span in sorted(usage.spans, key=_lane)))
    texts = ["Each row is a slot, and each bar is a trial. A cross marks a failure."]
    if len(lanes) > _MOST_LANES:
        texts.append(f"The first {_MOST_LANES} of {len(lanes)} slots are shown.")
    picture = Picture("slots", _TIMELINE, _timeline(usage, lanes[:_MOST_LANES]))
    return Section("Slots", tuple(texts), pictures=(picture,), tables=tuple(tables))


def _lane(span: TrialSpan) -> tuple[str, int]:
    return span.slot, span.place


def _look(span: TrialSpan) -> tuple[str, str]:
    """Return the text and the colour of a span."""
    if span.out_of_memory:
        return _OUT_OF_MEMORY
    return _ENDS[span.end]


def _timeline(usage: ResourceUsage, lanes: Sequence[tuple[str, int]]) -> "Markup":
    row = max(3.0, min(20.0, 480 / len(lanes)))
    spans = [span for span in usage.spans if _lane(span) in set(lanes)]
    drawing, top, top_of = _Drawing(), 0.0, {}
    for number, lane in enumerate(lanes):
        if number == 0 or lane[0] != lanes[number - 1][0]:
            drawing.text(0, top + 14, lane[0])
            top += 20
        top_of[lane] = top
        top += row
    scale = _WIDTH / usage.elapsed_s
    for span in spans:
        end_s = usage.elapsed_s if span.ended_s is None else span.ended_s
        kind, colour = _look(span)
        about = f"{span.trial}: {_time(span.began_s)} to {_time(end_s)}, {kind} {span.error}"
        left, width = span.began_s * scale, max((end_s - span.began_s) * scale - 0.5, 0.8)
        drawing.bar(left, top_of[_lane(span)] + row * 0.1, width, row * 0.8, colour, about)
        if span.end in ("failed", "tried_again"):
            drawing.cross(left + width, top_of[_lane(span)] + row / 2, min(row * 0.3, 4))
    for plan in usage.plans[1:]:
        drawing.line(plan.at_s * scale, 0, plan.at_s * scale, top, f"the plan changed: {plan.why}")
    drawing.time_axis(usage.elapsed_s, top)
    kinds = sorted(spans, key=lambda span: not span.out_of_memory)
    drawing.legend(dict(map(_look, kinds)), top + 36)
    return drawing.svg(_TIMELINE)


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
    return span.trial, span.slot, error, consequence, _time(span.ended_s or 0)


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
            known.append((name, usage, needed, has))
    if not known:
        text = "The peaks of the trials are not known, for instance because the GPUs are simulated."
        tables = []
        if any(usage.num_ooms or usage.share_kept is not None for _, usage in usages):
            tables.append(table)
        return Section("GPU memory", (text,), tables=tuple(tables))
    nearest = sorted(known, key=lambda row: row[2] / row[3], reverse=True)
    texts = ["Each bar shows the peak of a trial, and the frame around it shows the memory of its GPU fraction."]
    if len(nearest) > _MOST_TRIALS:
        texts.append(f"Of {len(nearest)} trials, the {_MOST_TRIALS} with the highest use of their fraction are shown.")
    picture = Picture("memory", _PEAKS, _memory_bars(nearest[:_MOST_TRIALS]))
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


def _memory_bars(rows: Sequence[tuple[str, GpuMemoryUsage, int, int]]) -> "Markup":
    drawing, row, names_end = _Drawing(), 22.0, 150.0
    most = max(max(needed, has) for _, _, needed, has in rows)
    scale = (_WIDTH - names_end - 40) / most
    for number, (name, usage, needed, has) in enumerate(rows):
        top = number * row
        drawing.text(0, top + 15, name, most=int(names_end / _LETTER))
        verdict = Verdict.of(usage)
        about = f"{name}: {format_bytes(needed)} of {format_bytes(has)}, {verdict.value}"
        drawing.bar(names_end, top + 4, max(needed * scale, 0.8), row - 8, _COLOURS[verdict], about)
        drawing.frame(names_end, top + 2, has * scale, row - 4)
        drawing.text(names_end + max(needed, has) * scale + 5, top + 15, f"{needed / has:.0%}")
    verdicts = {Verdict.of(usage) for _, usage, _, _ in rows}
    drawing.legend(
        {verdict.value: _COLOURS[verdict] for verdict in Verdict if verdict in verdicts}, len(rows) * row + 6
    )
    return drawing.svg(_PEAKS)


def _time(seconds: float) -> str:
    return format_hours(seconds / 3600)


def _tick_positions(end: float) -> Iterator[float]:
    """Yield at most five tick positions of a time axis, in seconds, at round numbers of seconds, minutes or hours."""
    unit = 1
    if end >= 4 * 3600:
        unit = 3600
    elif end >= 240:
        unit = 60
    steps = (unit * step * 10**power for power in range(-3, 9) for step in (1, 2, 5))
    step = next(step for step in steps if end / step <= 4)
    yield from (number * step for number in range(int(end / step) + 1))


class _Drawing:
    """Builds an SVG drawing with the page's width and colours. It escapes all texts."""

    def __init__(self) -> None:
        self._parts: list[Markup] = []
        self._height = 0.0

    def text(self, x: float, y: float, text: str, *, most: int = 60, anchor: str = "start") -> None:
        line = one_line(text)
        if len(line) > most:  # keep the end, because the names of trials differ at the end
            line = f"{line[: most // 2]}…{line[len(line) + most // 2 + 1 - most :]}"
        self._add('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}">{}</text>', x, y, anchor, _FONT, line)
        self._height = max(self._height, y + 6)

    def bar(self, x: float, y: float, width: float, height: float, colour: str, about: str) -> None:
        size = '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="{}"><title>{}</title></rect>'
        self._add(size, x, y, width, height, colour, one_line(about))

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        size = '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="none" stroke="currentColor"/>'
        self._add(size, x, y, width, height)

    def line(self, x: float, y: float, to_x: float, to_y: float, about: str) -> None:
        path = '<path d="M{:.1f} {:.1f}L{:.1f} {:.1f}" stroke="currentColor" stroke-dasharray="3 3">'
        self._add(path + "<title>{}</title></path>", x, y, to_x, to_y, one_line(about))

    def cross(self, x: float, y: float, size: float) -> None:
        path = '<path d="M{0:.1f} {1:.1f}l{2:.1f} {2:.1f}m0 -{2:.1f}l-{2:.1f} {2:.1f}" stroke="currentColor"/>'
        self._add(path, max(0, x - 2 * size), y - size, 2 * size)

    def time_axis(self, end: float, top: float) -> None:
        self._add('<path d="M0 {0:.1f}H{1}" stroke="currentColor"/>', top + 4, _WIDTH)
        for tick in _tick_positions(end):
            x = tick / end * _WIDTH
            self._add('<path d="M{:.1f} {:.1f}v4" stroke="currentColor"/>', min(max(x, 0.5), _WIDTH - 0.5), top + 4)
            text = _time(tick) if tick else "0"
            half = len(text) * _LETTER / 2
            self.text(min(max(x, half), _WIDTH - half), top + 20, text, anchor="middle")

    def legend(self, colours: dict[str, str], top: float) -> None:
        for number, (name, colour) in enumerate(colours.items()):
            x, y = number % 3 * _WIDTH / 3, top + number // 3 * 18
            self.bar(x, y, 12, 12, colour, name)
            self.text(x + 18, y + 10, name)

    def svg(self, label: str) -> "Markup":
        from markupsafe import Markup

        head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {:.0f}" role="img" aria-label="{}">{}</svg>'
        return Markup(head).format(_WIDTH, self._height + 2, label, Markup("").join(self._parts))  # noqa: S704

    def _add(self, element: str, *values: object) -> None:
        from markupsafe import Markup

        self._parts.append(Markup(element).format(*values))  # noqa: S704  # `format` escapes the values
