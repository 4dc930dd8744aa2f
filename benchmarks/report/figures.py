"""Draws figures of measurements, without files and without the state of pyplot.

All figures have one width, at which their text is readable. The colours are after Okabe and Ito, for colour-blind
readers, but darker on white and lighter on near black, for a contrast of 3 (WCAG 2, 1.4.11). Each line also has its own
marker and dash.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import AutoLocator, FuncFormatter, LogLocator, NullLocator

from tune_policies.plan.decision import WorkloadDecision
from tune_policies.values.units import GIB, MIB

from ..compare.verdicts import Verdict
from ..record.packing_record import ThroughputRecord
from ..record.run_set import Arm, Phase, RunSet
from ..record.summary import digits, in_words, multiple_text, time_of, time_text

PHASE_TITLES: Final = {
    Phase.COMPUTE: "compute only",
    Phase.TRANSFERS: "with transfers",
    Phase.FIRST_EPOCH: "first epoch",
}

WIDTH: Final = 420 / 72
"""Width of a figure in inches: 420 px if an SVG is shown in its own size."""

_TITLE: Final = 40
"""Characters of a title that fit into this width."""

_SIZES_HELD: Final = 38
"""Characters of tick labels that fit on the x axis."""

INK: Final = "#24292f"
"""Colour of text, axes and grids. In a page it becomes the colour of the surrounding text."""

SMALL: Final = 11.5
"""Font size of the many small texts. On a screen of 400 px, where a figure has 340, it is still more than 9 px."""

LOOK: Final[Any] = {
    "svg.fonttype": "none",
    # A dollar sign in a name does not start a formula.
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
    """The style of a line on white."""

    color: str
    marker: str
    linestyle: str


STROKES: Final = (
    Stroke("#0072B2", "o", "-"),
    Stroke("#D55E00", "s", "--"),
    Stroke("#008A65", "^", "-."),
    Stroke("#B8578D", "D", ":"),
    Stroke("#8A7A00", "v", "-"),
    Stroke("#707070", "P", "--"),
)


def strokes(names: Iterable[Any]) -> dict[Any, Stroke]:
    """Return a stroke for each name, from the beginning again after the sixth."""
    return {name: STROKES[index % len(STROKES)] for index, name in enumerate(names)}


_LOG: Final = "(log scale)"

_IN_ONE_LINE: Final = 18
"""Characters of the longest y label with room for ``_LOG`` in the same line."""


def put_sizes(axes: Any, sizes: Iterable[int], what: str = "size") -> None:
    """Make the x axis logarithmic, with a label, and with as many sizes as tick labels as do not overlap."""
    ordered = sorted(sizes)
    low, high = ordered[0] / 1.5, ordered[-1] * 1.5
    characters = _SIZES_HELD / math.log(high / low)
    written: dict[int, str] = {}
    end = -math.inf
    for size in ordered:
        label = f"{size:,}" if size >= 10_000 else str(size)
        middle = characters * math.log(size / low)
        if middle - len(label) / 2 >= end:
            written[size] = label
            end = middle + len(label) / 2 + 1
    axes.set_xscale("log", base=2)
    axes.set_xticks([*written], labels=[*written.values()])
    axes.set_xticks([], minor=True)
    axes.set_xlim(low, high)
    axes.set_xlabel(f"{what} {_LOG}")


_LOG_TICKS: Final = {100: (1, 2, 5), 10_000: (1, 3)}
"""The places of ticks in a decade, up to each ratio of the largest value to the smallest."""


def put_log_amounts(axis: Any, values: Iterable[float], label: str, write: Any = digits) -> None:
    """Make an axis logarithmic, with a label, and with amounts as tick labels on any range."""
    known = list(values)
    span = max(known) / min(known)
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    if span == 1:
        axis.axes.set(**{f"{axis.axis_name}lim": (known[0] / 1.5, known[0] * 1.5)})
    if span < 5:
        axis.set_major_locator(AutoLocator())
    else:
        places = next((subs for most, subs in _LOG_TICKS.items() if span < most), (1,))
        axis.set_major_locator(LogLocator(subs=places, numticks=9))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
    axis.set_label_text(f"{label} {_LOG}" if len(label) <= _IN_ONE_LINE else f"{label}\n{_LOG}")


def put_legend(figure: Any, axes: Iterable[Any]) -> None:
    """Put one legend below all panels, with each name once."""
    handles: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    longest = max(map(len, handles), default=0)
    columns = max(1, min(3, 56 // (longest + 6)))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)


def cut(text: str, most: int) -> str:
    """Return the text in one line of at most ``most`` characters, without its middle if it is longer.

    Characters that cannot be printed are replaced, because XML, and therefore SVG, must not contain them.
    """
    line = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in " ".join(text.split()))
    return line if len(line) <= most else f"{line[: most // 2]}…{line[len(line) + most // 2 + 1 - most :]}"


def title(name: str, about: str = "") -> str:
    """Return a title that fits into the width of a figure."""
    return cut(name, _TITLE - len(about)) + about


@mpl.rc_context(LOOK)
def crossover_figure(run_set: RunSet, phase: Phase) -> Figure | None:
    """Draw time against size with intervals: a line per device, a panel per workload; ``None`` without times."""
    times = {
        workload: {
            device: {
                size: (time.median, time.low, time.high)
                for size in run_set.sizes(workload)
                if (time := time_of(run_set, Arm(workload=workload, size=size, device=device), phase))
            }
            for device in run_set.measured_devices
        }
        for workload in sorted(run_set.workloads)
    }
    shown = [workload for workload, lines in times.items() if any(lines.values())]
    if not shown:
        return None
    figure, panels = _panels(len(shown))
    looks = _looks(run_set)
    for axes, workload in zip(panels, shown, strict=True):
        points = {device: line for device, line in times[workload].items() if line}
        for device, line in points.items():
            _line(axes, line, looks[device], cut(in_words(device), 16))
        put_sizes(axes, {size for line in points.values() for size in line})
        what = "first epoch" if phase is Phase.FIRST_EPOCH else "time of a step"
        ends = [end for line in points.values() for time in line.values() for end in time]
        put_log_amounts(axes.yaxis, ends, what, time_text)
        axes.set(title=title(workload, f", {PHASE_TITLES[phase]}"))
    put_legend(figure, panels)
    return figure


@mpl.rc_context(LOOK)
def speedup_figure(verdicts: Sequence[Verdict]) -> Figure:
    """Draw how many times as fast one device is as another, with intervals and the band that counts as the same.

    The verdicts are of one workload and two devices, with all phases to draw, and not empty.
    """
    figure, (axes,) = _panels(1)
    within = max(each.comparison.same_within for each in verdicts)
    band = (1 / (1 + within), 1 + within)
    axes.axhspan(*band, color=INK, alpha=0.15, linewidth=0, label=f"the same within {within:.0%}")
    axes.axhline(1, color=INK, linewidth=0.8)
    looks = strokes(PHASE_TITLES)
    for phase in dict.fromkeys(each.phase for each in verdicts):
        points = {
            each.size: (each.comparison.ratio, each.comparison.low, each.comparison.high)
            for each in verdicts
            if each.phase is phase
        }
        _line(axes, points, looks[phase], PHASE_TITLES[phase])
    put_sizes(axes, {each.size for each in verdicts})
    ends = (end for each in verdicts for end in (each.comparison.low, each.comparison.high))
    first, second = (cut(in_words(device), 12) for device in (verdicts[0].first, verdicts[0].second))
    put_log_amounts(axes.yaxis, [*band, *ends], f"times as fast as {first}", multiple_text)
    axes.set(title=title(verdicts[0].workload, f": {second}"))
    put_legend(figure, [axes])
    return figure


@mpl.rc_context(LOOK)
def memory_figure(run_set: RunSet, workload: str) -> Figure | None:
    """Draw the peak host and GPU memory of a process against size, or return ``None`` if it is unknown."""
    lines: dict[tuple[str, str], dict[int, int]] = {}
    for size in run_set.sizes(workload):
        for device in run_set.measured_devices:
            runs = run_set.of(Arm(workload=workload, size=size, device=device))
            peaks = {"host": [each.peak_host_bytes for each in runs], "GPU": [each.peak_gpu_bytes for each in runs]}
            for kind, values in peaks.items():
                # A CPU arm uses 0 bytes of GPU memory, which is not drawn.
                if most := max((value for value in values if value is not None), default=0):
                    lines.setdefault((device, kind), {})[size] = most
    if not lines:
        return None
    figure, (axes,) = _panels(1)
    looks = _looks(run_set)
    most = max(value for line in lines.values() for value in line.values())
    unit, name = (GIB, "GiB") if most >= GIB else (MIB, "MiB")
    for (device, kind), line in lines.items():
        color, marker, _ = looks[device]
        style, fill = ("-", color) if kind == "host" else (":", "none")
        label = f"{cut(in_words(device), 16)}: {kind} memory"
        heights = [value / unit for value in line.values()]
        axes.plot([*line], heights, color=color, marker=marker, linestyle=style, markerfacecolor=fill, label=label)
    put_sizes(axes, {size for line in lines.values() for size in line})
    axes.set(title=title(workload), ylabel=f"peak memory, {name}")
    axes.set_ylim(0, most / unit * 1.08)
    put_legend(figure, [axes])
    return figure


@mpl.rc_context(LOOK)
def distribution_figure(run_set: RunSet, workload: str, phase: Phase) -> Figure | None:
    """Draw every sample by its distance from the arm's median, each process on its own line; ``None`` without times."""
    devices = run_set.devices_in_order
    arms = sorted(
        (arm for arm in run_set.arms if arm.workload == workload and run_set.times_s(arm, phase)),
        key=lambda arm: (arm.size, devices.index(arm.device), arm.is_control),
    )
    if not arms:
        return None
    figure = Figure(figsize=(WIDTH, 1.3 + 0.36 * len(arms)), layout="constrained")
    axes = figure.subplots()
    looks = _looks(run_set)
    sizes = run_set.sizes(workload)
    furthest = 0.0
    for row, arm in enumerate(arms):
        by_process = list(run_set.times_s(arm, phase).values())
        median = statistics.median(time for times in by_process for time in times)
        points = [
            (100 * (time / median - 1), row + 0.7 * ((place + 0.5) / len(by_process) - 0.5))
            for place, times in enumerate(by_process)
            for time in times
        ]
        furthest = max(furthest, *(abs(distance) for distance, _ in points))
        color, marker, _ = looks[arm.device]
        distances, heights = zip(*points, strict=True)
        axes.scatter(distances, heights, s=12, color=color, marker=marker, alpha=0.55, linewidths=0)
        axes.text(1.01, row, time_text(median), transform=axes.get_yaxis_transform(), va="center", fontsize=SMALL)
        if sizes.index(arm.size) % 2 == 0:
            axes.axhspan(row - 0.5, row + 0.5, color=INK, alpha=0.06, linewidth=0)
    axes.axvline(0, color=INK, linewidth=0.8)
    names = [f"{arm.size} {cut(in_words(arm.device), 16)}{' (control)' if arm.is_control else ''}" for arm in arms]
    axes.set_yticks(range(len(arms)), labels=names, fontsize=SMALL)
    axes.set_ylim(len(arms) - 0.4, -0.6)
    distance = "from the median of the arm (right)"
    if furthest > 60:
        axes.set_xscale("symlog", linthresh=20)
        distance += "\n(log scale beyond ±20%)"
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+.3g}%" if value else "0")
    axes.set(title=title(workload, f", {PHASE_TITLES[phase]}"), xlabel=distance)
    axes.grid(axis="y", visible=False)
    return figure


@mpl.rc_context(LOOK)
def cost_figure(decided: WorkloadDecision, currency: str | None) -> Figure | None:
    """Draw the cost of a trial against its time, a point for each size, or return ``None`` without prices."""
    lines: dict[str, list[tuple[int, float, float]]] = {}
    for each in decided.sizes:
        for times in (each.cpu, each.gpu):
            if times.cost_per_trial:
                lines.setdefault(times.device, []).append((each.size, times.trial_s, times.cost_per_trial))
    if not lines:
        return None
    figure, (axes,) = _panels(1)
    for (device, line), look in zip(lines.items(), STROKES, strict=False):
        _, xs, ys = zip(*line, strict=True)
        axes.plot(xs, ys, label=cut(in_words(device), 16), **look._asdict())
        for size, x, y in line if len(line) <= 4 else (line[0], line[-1]):
            axes.annotate(str(size), (x, y), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=SMALL)
    cost = f"cost of a trial{f', {cut(currency, 12)}' if currency else ''}"
    put_log_amounts(axes.xaxis, [x for line in lines.values() for _, x, _ in line], "time of a trial", time_text)
    put_log_amounts(axes.yaxis, [y for line in lines.values() for _, _, y in line], cost)
    axes.margins(x=0.1, y=0.12)
    axes.set(title=title(decided.workload, ": by size"))
    put_legend(figure, [axes])
    return figure


@mpl.rc_context(LOOK)
def packing_figure(record: ThroughputRecord, workloads: Sequence[str]) -> Figure:
    """Draw throughput against trials per GPU, a panel for each of one or more workloads."""
    figure, panels = _panels(len(workloads))
    for axes, workload in zip(panels, workloads, strict=True):
        arms = record.arms(workload)
        for label, names, look in (
            ("time-sliced", ("alone", "packed"), STROKES[0]),
            ("with MPS", ("packed with mps",), STROKES[2]),
        ):
            points = {
                number: (rate.median, rate.median - rate.iqr / 2, rate.median + rate.iqr / 2)
                for (name, number), rate in arms.items()
                if name in names
            }
            if points:
                _line(axes, points, look, label)
        for (name, number), rate in arms.items():
            if name.startswith("plan"):
                color = STROKES[1 if name == "plan" else 3].color
                axes.plot(
                    number, rate.median, marker="*", markersize=13, linestyle="", color=color, label=cut(name, 24)
                )
        if end := record.stops_paying_at(workload):
            axes.axvline(end, linestyle=":", color=INK, label="stops paying")
        put_sizes(axes, {number for _, number in arms}, "trials per GPU")
        axes.set(title=title(workload), ylabel="trials per hour")
        axes.set_ylim(0, None)
    put_legend(figure, panels)
    return figure


def _looks(run_set: RunSet) -> dict[str, Any]:
    # For all requested devices, so that each has the same colour in every figure of a run.
    return strokes(run_set.devices_in_order)


def _panels(count: int) -> tuple[Figure, list[Any]]:
    """Return a figure with ``count`` panels, three in a row."""
    columns = min(count, 3)
    rows = -(-count // columns)
    pads = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)  # inches; by default, a title touches the label above it
    figure = Figure(figsize=(WIDTH * columns, 4.2 * rows), layout=pads)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for spare in panels[count:]:
        spare.remove()
    return figure, [*panels[:count]]


def _line(axes: Any, points: dict[int, tuple[float, float, float]], look: Stroke, label: str) -> None:
    """Draw a line with its intervals; a point is the value, the lower end and the upper end."""
    values = [value for value, _, _ in points.values()]
    below = [max(value - low, 0) for value, low, _ in points.values()]
    above = [max(high - value, 0) for value, _, high in points.values()]
    axes.errorbar([*points], values, yerr=[below, above], label=label, capsize=3, elinewidth=1.1, **look._asdict())
