"""Draws the use of a run: the trials in each slot over time, and the GPU memory of each trial.

Each picture is drawn in two ways that share their colors and words: as SVG for the page of a run, where each bar has a
tooltip, and with matplotlib for a file of any image format.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tune_policies.files.html_page import colour_variable
from tune_policies.files.svg import COLORS, LETTER, PAGE_WIDTH, Drawing, cut_middle
from tune_policies.files.writing import write_new
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import GIB, format_bytes
from tune_policies.values.wording import counted

from .gpu_memory_records import GpuMemoryUsage, RunUsage, needed_bytes
from .gpu_memory_report import Verdict, share_or_device_bytes
from .resource_usage import ResourceUsage, TrialSpan, format_hours
from .usage_report import CALLBACK

TIMELINE: Final = "Trials in each slot over time"
PEAKS: Final = "Peak GPU memory and GPU fraction of each trial"

_BLUE, _ORANGE, _GREEN, _PINK, _OLIVE, _GRAY = COLORS

_COLORS: Final = {Verdict.WITHIN: _BLUE, Verdict.BEYOND: _PINK, Verdict.OUT_OF_MEMORY: _ORANGE}

Lane = tuple[str, int]
"""A slot: the text of its type, and its number among the slots of this type."""


class _Look(NamedTuple):
    """The text of a trial's end in a legend, and the color of its bar on a white background."""

    text: str
    color: str


_OUT_OF_MEMORY: Final = _Look("out of memory", _ORANGE)
_ENDS: Final = {
    "finished": _Look("finished", _BLUE),
    "stopped_early": _Look("stopped early", _GREEN),
    "paused": _Look("paused", _OLIVE),
    "cut_off": _Look("not ended", _GRAY),
    None: _Look("not ended", _GRAY),
    "tried_again": _Look("failed", _PINK),
    "failed": _Look("failed", _PINK),
}
"""The look of a span, keyed by the event that ended it."""


def lanes_of(usage: ResourceUsage) -> list[Lane]:
    """Return the slots in which trials ran, in the order of their rows."""
    return sorted({_lane(span) for span in usage.spans})


def _lane(span: TrialSpan) -> Lane:
    return span.slot, span.place


def _look(span: TrialSpan) -> _Look:
    if span.out_of_memory:
        return _OUT_OF_MEMORY
    return _ENDS[span.end]


def _legend(spans: Iterable[TrialSpan]) -> dict[str, str]:
    """Return the colors of these spans by their text. Out-of-memory errors are first."""
    out_of_memory_first = sorted(spans, key=lambda span: not span.out_of_memory)
    return dict(map(_look, out_of_memory_first))


def _end_s(span: TrialSpan, usage: ResourceUsage) -> float:
    if span.ended_s is None:  # the trial is still running
        return usage.elapsed_s
    return span.ended_s


def timeline_svg(usage: ResourceUsage, lanes: Sequence[Lane]) -> str:
    """Return a drawing with a row for each of these slots, a bar for each trial, and a cross for each failure."""
    row = max(3.0, min(20.0, 480 / len(lanes)))
    drawn = set(lanes)
    spans = [span for span in usage.spans if _lane(span) in drawn]
    drawing, top = Drawing(), 0.0
    top_of: dict[Lane, float] = {}
    slot_above = None
    for lane in lanes:
        slot, _ = lane
        if slot != slot_above:
            drawing.text(0, top + 14, slot)
            top += 20
        slot_above = slot
        top_of[lane] = top
        top += row
    scale = PAGE_WIDTH / usage.elapsed_s
    for span in spans:
        end_s, look = _end_s(span, usage), _look(span)
        tooltip = f"{span.trial}: {time_text(span.began_s)} to {time_text(end_s)}, {look.text} {span.error}"
        # Half a pixel separates a bar from the next one. A trial that ended at once is still visible.
        left, width = span.began_s * scale, max((end_s - span.began_s) * scale - 0.5, 0.8)
        drawing.bar(left, top_of[_lane(span)] + row * 0.1, width, row * 0.8, _page_color(look.color), tooltip)
        if span.end in ("failed", "tried_again"):
            drawing.cross(left + width, top_of[_lane(span)] + row / 2, min(row * 0.3, 4))
    for plan in usage.plans[1:]:
        drawing.dashed_line(plan.at_s * scale, 0, plan.at_s * scale, top, f"the plan changed: {plan.why}")
    _draw_time_axis(drawing, usage.elapsed_s, top)
    drawing.legend({text: _page_color(color) for text, color in _legend(spans).items()}, top + 36)
    return drawing.svg(TIMELINE)


def _draw_time_axis(drawing: Drawing, end_s: float, top: float) -> None:
    drawing.line(0, top + 4, PAGE_WIDTH, top + 4)
    for tick_s in _tick_positions(end_s):
        x = tick_s / end_s * PAGE_WIDTH
        # Ticks and their labels at the ends of the axis must not exceed the width.
        mark = min(max(x, 0.5), PAGE_WIDTH - 0.5)
        drawing.line(mark, top + 4, mark, top + 8)
        label = _tick_label(tick_s)
        half = len(label) * LETTER / 2
        drawing.text(min(max(x, half), PAGE_WIDTH - half), top + 20, label, anchor="middle")


def _tick_positions(end_s: float) -> Iterator[float]:
    """Yield at most five tick positions of a time axis, in seconds, at round numbers of seconds, minutes or hours."""
    unit = 1
    if end_s >= 4 * 3600:
        unit = 3600
    elif end_s >= 240:
        unit = 60
    steps = (unit * step * 10**power for power in range(-3, 9) for step in (1, 2, 5))
    step = next(step for step in steps if end_s / step <= 4)
    yield from (number * step for number in range(int(end_s / step) + 1))


def _tick_label(tick_s: float) -> str:
    if not tick_s:
        return "0"
    return time_text(tick_s)


def time_text(seconds: float) -> str:
    """Return a duration as text, such as ``"2.2 min"``."""
    return format_hours(seconds / 3600)


def memory_svg(rows: Sequence[tuple[str, GpuMemoryUsage]]) -> str:
    """Return a drawing with a bar for the peak of each trial, in a frame for the memory of its GPU fraction.

    The peaks and the memory of the fractions must be known.
    """
    drawing, row, names_end = Drawing(), 22.0, 150.0
    amounts = [(needed_bytes(usage) or 0, share_or_device_bytes(usage)) for _, usage in rows]
    percent_width = 40
    scale = (PAGE_WIDTH - names_end - percent_width) / max(map(max, amounts))
    for number, ((name, usage), (needed, has)) in enumerate(zip(rows, amounts, strict=True)):
        top = number * row
        drawing.text(0, top + 15, name, most=int(names_end / LETTER))
        verdict = Verdict.of(usage)
        tooltip = f"{name}: {format_bytes(needed)} of {format_bytes(has)}, {verdict.value}"
        color = _page_color(_COLORS[verdict])
        drawing.bar(names_end, top + 4, max(needed * scale, 0.8), row - 8, color, tooltip)
        drawing.frame(names_end, top + 2, has * scale, row - 4)
        drawing.text(names_end + max(needed, has) * scale + 5, top + 15, f"{needed / has:.0%}")
    legend = {verdict.value: _page_color(_COLORS[verdict]) for verdict in _verdicts(rows)}
    drawing.legend(legend, len(rows) * row + 6)
    return drawing.svg(PEAKS)


def _verdicts(rows: Iterable[tuple[str, GpuMemoryUsage]]) -> list[Verdict]:
    """Return the verdicts that occur in these rows, in the order of their definition."""
    found = {Verdict.of(usage) for _, usage in rows}
    return [verdict for verdict in Verdict if verdict in found]


def _page_color(color: str) -> str:
    """Return the CSS value of a color that is lighter on a dark page."""
    return f"var({colour_variable(color)})"


_MOST_NAMES: Final = 60
"""The maximum number of rows whose names a plot shows. With more rows, the names would overlap."""


def plot_usage(run: RunUsage, file: Path, record: ResourceUsage | None = None, *, force: bool = False) -> None:
    """Plot the GPU memory of each trial to ``file``, in the format of its suffix, such as ``.png`` or ``.svg``.

    If no trial reported its GPU memory, the plot shows the trials in each slot over time, from ``record``.

    Raises:
        InvalidResourcesError: matplotlib is not installed, there is nothing to plot, ``file`` exists and ``force`` is
            false, or ``file`` cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidResourcesError("a plot requires matplotlib. Run: pip install 'tune-policies[bench]'") from error
    rows = [(trial.name, trial.usage) for trial in run.trials if trial.usage and needed_bytes(trial.usage)]
    lanes: list[Lane] = []
    if record is not None:
        lanes = lanes_of(record)
    if not rows and not lanes:
        raise InvalidResourcesError(
            "there is nothing to plot, because no trial reported its GPU memory, and the run had no PolicyCallback. To "
            f"plot the trials in each slot over time, run again with {CALLBACK}. To plot GPU memory, run trials that "
            "have a GPU under a policy: run(train_fn, GpuPolicy(gpus=0.5))"
        )
    height = min(1.5 + 0.3 * (len(rows) or len(lanes)), 20)
    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.subplots()
    if rows:
        _plot_memory(axes, rows)
    elif record is not None:
        _plot_timeline(axes, lanes, record)
    picture = io.BytesIO()
    try:
        figure.savefig(picture, format=file.suffix.removeprefix(".") or "png", dpi=120)
    except (OSError, RuntimeError, ValueError) as error:  # for instance because the suffix is not supported
        raise InvalidResourcesError(f"cannot write the plot to {file}: {error}") from error
    write_new(file, picture.getvalue(), force=force)


def _plot_memory(axes: Any, rows: Sequence[tuple[str, GpuMemoryUsage]]) -> None:
    places = range(len(rows))
    shares = [share_or_device_bytes(usage) / GIB for _, usage in rows]
    axes.barh(places, shares, color="none", edgecolor="0.3", linewidth=1)
    used = [(needed_bytes(usage) or 0) / GIB for _, usage in rows]
    axes.barh(places, used, height=0.55, color=[_COLORS[Verdict.of(usage)] for _, usage in rows])
    _name_rows(axes, [name for name, _ in rows], "trial")
    axes.margins(y=0.01)
    axes.set_xlabel("GPU memory of a trial, GiB")
    axes.spines[["top", "right"]].set_visible(False)
    colors = {verdict.value: _COLORS[verdict] for verdict in _verdicts(rows)}
    _put_legend(axes, colors, frame="its fraction")


def _plot_timeline(axes: Any, lanes: Sequence[Lane], usage: ResourceUsage) -> None:
    row_of = {lane: row for row, lane in enumerate(lanes)}
    for span in usage.spans:
        width_s = _end_s(span, usage) - span.began_s
        axes.barh(row_of[_lane(span)], width_s, left=span.began_s, height=0.7, color=_look(span).color, edgecolor="w")
    _name_rows(axes, [slot for slot, _ in lanes], "slot")
    ticks_s = list(_tick_positions(usage.elapsed_s))
    axes.set_xticks(ticks_s, list(map(_tick_label, ticks_s)))
    axes.set_xlabel("time since the run began")
    _put_legend(axes, _legend(usage.spans))


def _name_rows(axes: Any, names: Sequence[str], what: str) -> None:
    """Put the first row at the top, and show the names of the rows, or only their number if there are too many."""
    axes.invert_yaxis()
    if len(names) <= _MOST_NAMES:
        axes.set_yticks(range(len(names)), [_label(name) for name in names], fontsize=8)
    else:
        axes.set_yticks([])
        axes.set_ylabel(counted(len(names), what))


def _label(name: str) -> str:
    # matplotlib interprets text between two dollar signs as a formula.
    return cut_middle(one_line(name), 48).replace("$", r"\$")


def _put_legend(axes: Any, colors: dict[str, str], *, frame: str = "") -> None:
    """Put a legend above the axes. ``frame`` is the text for an outlined box, or an empty string."""
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=color, label=text) for text, color in colors.items()]
    if frame:
        handles.append(Patch(facecolor="none", edgecolor="0.3", label=frame))
    axes.figure.legend(handles=handles, loc="outside upper center", ncols=4, frameon=False)
