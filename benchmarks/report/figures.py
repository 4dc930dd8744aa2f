"""Draws figures of measurements with matplotlib, without pyplot's global state.

All figures have the same width, so that their text is readable. The colors are based on the palette of Okabe and Ito
for color-blind readers. They are darker on white pages and lighter on dark pages, so that the contrast exceeds 3
(WCAG 2, 1.4.11). Each line also has its own marker and dash pattern.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import AutoLocator, LogLocator, NullLocator

from tune_policies.files.html_page import ON_DARK
from tune_policies.files.svg import PAGE_FONT, PAGE_WIDTH, cut_middle
from tune_policies.plan.benchmark_decision import WorkloadDecision

from ..compare.compare_devices import Verdict
from ..record.packing_record import PackingMode, ThroughputRecord
from ..record.run_set import Configuration, Phase, RunSet
from ..record.summary import digits, in_words, ratio_text, time_of, time_text

PHASE_TITLES: Final = {
    Phase.COMPUTE: "compute only",
    Phase.TRANSFERS: "with transfers",
    Phase.FIRST_EPOCH: "first epoch",
}

WIDTH: Final = PAGE_WIDTH / 72
"""The width of a figure in inches. matplotlib writes 72 pixels per inch to an SVG."""

_TITLE: Final = 40
"""The maximum number of characters of a title."""

_CHARACTERS_OF_TICKS: Final = 44
"""The maximum total number of characters of the tick labels of an x axis."""

INK: Final = "#24292f"
"""The color of text, axes and grids. In an HTML page, it is replaced by the color of the surrounding text."""

LOOK: Final[Any] = {
    # Texts stay texts in an SVG, so that they use the font of the page and can be selected.
    "svg.fonttype": "none",
    # A dollar sign in a name must not start a formula.
    "text.parse_math": False,
    "text.usetex": False,
    "font.size": 13,
    "axes.titlesize": 14,
    "axes.labelsize": 13,
    "xtick.labelsize": 13,
    "ytick.labelsize": 13,
    "legend.fontsize": 13,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.18,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "grid.color": INK,
}


class Stroke(NamedTuple):
    """The style of a line on a white background."""

    color: str
    marker: str
    linestyle: str


STROKES: Final = tuple(map(Stroke, ON_DARK, "os^DvP", ("-", "--", "-.", ":", "-", "--")))


def strokes(names: Iterable[Any]) -> dict[Any, Stroke]:
    """Return a line style for each name. The styles repeat after the sixth name."""
    return {name: STROKES[index % len(STROKES)] for index, name in enumerate(names)}


def put_sizes(axes: Any, sizes: Collection[int], what: str = "size") -> None:
    """Make the x axis logarithmic, and set its label and its ticks: powers of two whose labels do not overlap."""
    # Without a margin, the markers of the smallest and the largest size would be cut off.
    low, high = min(sizes) / 1.5, max(sizes) * 1.5
    axes.set_xscale("log", base=2)
    most_ticks = max(2, _CHARACTERS_OF_TICKS // (len(_whole(high)) + 2))
    # Ticks between the labeled powers of two would have no label.
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=most_ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda size, _: _whole(size))
    axes.set_xlim(low, high)
    axes.set_xlabel(f"{what} (log scale)")


def _whole(size: float) -> str:
    if size >= 10_000:
        return f"{size:,.0f}"
    return f"{size:.0f}"


def put_log_amounts(axis: Any, values: Iterable[float], label: str, write: Callable[[float], str] = digits) -> None:
    """Make an axis logarithmic, and set its label and tick labels. ``write`` formats the value of a tick."""
    values = list(values)
    low, high = min(values), max(values)
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    # A logarithmic axis needs two different limits.
    if low == high:
        axis.axes.set(**{f"{axis.axis_name}lim": (low / 1.5, high * 1.5)})
    axis.set_major_locator(_locator(high / low))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: write(value))
    axis.set_label_text(f"{label}\n(log scale)")


def _locator(ratio: float) -> Any:
    """Return the locator of the ticks, given the ratio of the largest to the smallest value."""
    if ratio < 5:  # a logarithmic locator would set too few ticks
        return AutoLocator()
    multiples: tuple[int, ...] = (1,)
    for below, more in _LOG_TICKS.items():
        if ratio < below:
            multiples = more
            break
    return LogLocator(subs=multiples, numticks=9)


_LOG_TICKS: Final = {100: (1, 2, 5), 10_000: (1, 3)}
"""The multiples of each power of ten that get ticks. Each key is an upper limit for the ratio of the largest to the
smallest value."""


def put_legend(figure: Any, axes: Iterable[Any]) -> None:
    """Put one legend below all panels, with each name once."""
    handles: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    longest = max(map(len, handles), default=0)
    # About 56 characters fit into the width of a figure, and the line and the gaps of an entry take about six.
    columns = max(1, min(3, 56 // (longest + 6)))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)


def cut(text: str, most: int) -> str:
    """Return the text as one line of at most ``most`` characters. If it is longer, its middle is omitted.

    Unprintable characters are replaced, because SVG files must not contain them.
    """
    return cut_middle("".join(map(_printable, " ".join(text.split()))), most)


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return "\N{REPLACEMENT CHARACTER}"


def title(name: str, about: str = "") -> str:
    """Return a title that fits into the width of a figure. If it is too long, ``name`` is shortened."""
    return cut(name, _TITLE - len(about)) + about


@mpl.rc_context(LOOK)
def crossover_figure(run_set: RunSet, workloads: Iterable[str], phase: Phase) -> Figure | None:
    """Draw time against size, with quartiles, a line for each device and a panel for each workload.

    Return ``None`` if there are no times of this phase.
    """
    shown = {}
    for workload in workloads:
        lines = {device: _points(run_set, workload, device, phase) for device in run_set.measured_devices}
        if any(lines.values()):
            shown[workload] = {device: line for device, line in lines.items() if line}
    if not shown:
        return None
    figure, panels = _panels(len(shown))
    looks = strokes(run_set.devices_in_order)  # includes missing devices, so that colors agree between figures
    what = "first epoch" if phase is Phase.FIRST_EPOCH else "time of a step"
    for axes, (workload, lines) in zip(panels, shown.items(), strict=True):
        sizes: set[int] = set()
        ends: list[float] = []
        for device, line in lines.items():
            _line(axes, line, looks[device], cut(in_words(device), 16))
            sizes.update(line)
            ends += chain.from_iterable(line.values())
        put_sizes(axes, sizes)
        put_log_amounts(axes.yaxis, ends, what, time_text)
        axes.set(title=title(workload, f", {PHASE_TITLES[phase]}"))
    put_legend(figure, panels)
    return figure


def _points(run_set: RunSet, workload: str, device: str, phase: Phase) -> dict[int, tuple[float, float, float]]:
    """Return the median and the quartiles of the measured times of a workload on a device, by size."""
    points = {}
    for size in run_set.sizes(workload):
        time = time_of(run_set, Configuration(workload=workload, size=size, device=device), phase)
        if time:
            points[size] = (time.median, time.low, time.high)
    return points


@mpl.rc_context(LOOK)
def speedup_figure(verdicts: Sequence[Verdict]) -> Figure:
    """Draw the speedup of one device over another by size, with intervals and the band that counts as the same.

    At least one verdict is required. All verdicts must be for one workload and the same devices, but may be for several
    phases.
    """
    figure, (axes,) = _panels(1)
    within = max(verdict.comparison.same_within for verdict in verdicts)
    band = (1 / (1 + within), 1 + within)
    axes.axhspan(*band, color=INK, alpha=0.15, linewidth=0, label=f"the same within {within:.0%}")
    axes.axhline(1, color=INK, linewidth=0.8)
    looks = strokes(PHASE_TITLES)
    lines: dict[Phase, dict[int, tuple[float, float, float]]] = {}
    for verdict in verdicts:
        found = verdict.comparison
        lines.setdefault(verdict.phase, {})[verdict.size] = (found.ratio, found.low, found.high)
    for phase, points in lines.items():
        _line(axes, points, looks[phase], PHASE_TITLES[phase])
    put_sizes(axes, {verdict.size for verdict in verdicts})
    ends = [*band]
    for verdict in verdicts:
        ends += [verdict.comparison.low, verdict.comparison.high]
    first, second = cut(in_words(verdicts[0].first), 12), cut(in_words(verdicts[0].second), 12)
    put_log_amounts(axes.yaxis, ends, f"times as fast as {first}", ratio_text)
    axes.set(title=title(verdicts[0].workload, f": {second}"))
    put_legend(figure, [axes])
    return figure


@mpl.rc_context(LOOK)
def cost_figure(decided: WorkloadDecision, currency: str | None) -> Figure | None:
    """Draw the cost of a trial against its time, with a point for each size. Return ``None`` if there are no prices."""
    lines: dict[str, list[tuple[int, float, float]]] = {}
    for size in decided.sizes:
        for times in (size.cpu, size.gpu):
            if times.cost_per_trial:
                lines.setdefault(times.device, []).append((size.size, times.trial_s, times.cost_per_trial))
    if not lines:
        return None
    figure, (axes,) = _panels(1)
    for (device, line), look in zip(lines.items(), STROKES, strict=False):
        _, xs, ys = zip(*line, strict=True)
        axes.plot(xs, ys, label=cut(in_words(device), 16), **look._asdict())
        labeled = line
        if len(line) > 4:  # the labels of more points would overlap
            labeled = [line[0], line[-1]]
        for number, x, y in labeled:
            axes.annotate(
                str(number), (x, y), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=PAGE_FONT
            )
    cost = "cost of a trial"
    if currency:
        cost += f", {cut(currency, 12)}"
    points = [*chain.from_iterable(lines.values())]
    put_log_amounts(axes.xaxis, [trial_s for _, trial_s, _ in points], "time of a trial", time_text)
    put_log_amounts(axes.yaxis, [trial_cost for _, _, trial_cost in points], cost)
    axes.margins(x=0.1, y=0.12)
    axes.set(title=title(decided.workload, ": by size"))
    put_legend(figure, [axes])
    return figure


@mpl.rc_context(LOOK)
def packing_figure(record: ThroughputRecord, workload: str) -> Figure:
    """Draw the throughput of a workload against the number of trials per GPU."""
    figure, (axes,) = _panels(1)
    rates = record.rates(workload)
    # The curves contain the requested numbers of trials. A star marks the number that the plan chooses.
    for label, modes, look in (
        ("time-sliced", (PackingMode.ALONE, PackingMode.PACKED), STROKES[0]),
        ("with MPS", (PackingMode.PACKED_WITH_MPS,), STROKES[2]),
    ):
        points = {number: (rate.median, rate.low, rate.high) for (mode, number), rate in rates.items() if mode in modes}
        if points:
            _line(axes, points, look, label)
    for (mode, number), rate in rates.items():
        if mode.is_plan:
            color = STROKES[3].color if mode.uses_mps else STROKES[1].color
            axes.plot(number, rate.median, marker="*", markersize=13, linestyle="", color=color, label=mode.value)
    end = record.stops_paying_at(workload)
    if end:
        axes.axvline(end, linestyle=":", color=INK, label="stops paying")
    put_sizes(axes, {number for _, number in rates}, "trials per GPU")
    axes.set(title=title(workload), ylabel="trials per hour")
    # From 0, so that the heights are in proportion to the throughput.
    axes.set_ylim(0, None)
    put_legend(figure, [axes])
    return figure


def _panels(count: int) -> tuple[Figure, list[Any]]:
    """Return a figure with ``count`` panels in rows of three, and the panels."""
    columns = min(count, 3)
    rows = -(-count // columns)
    # The unit is inches. With the default padding, a title would touch the label above it.
    pads = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
    figure = Figure(figsize=(WIDTH * columns, 4.2 * rows), layout=pads)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for spare in panels[count:]:
        spare.remove()
    return figure, [*panels[:count]]


def _line(axes: Any, points: dict[int, tuple[float, float, float]], look: Stroke, label: str) -> None:
    """Draw a line with error bars. Each point consists of the value and the lower and upper end of its interval."""
    values = [value for value, _, _ in points.values()]
    # matplotlib refuses error bars below 0, which rounding could produce.
    below = [max(value - low, 0) for value, low, _ in points.values()]
    above = [max(high - value, 0) for value, _, high in points.values()]
    axes.errorbar([*points], values, yerr=[below, above], label=label, capsize=3, elinewidth=1.1, **look._asdict())
