"""Figures of what was measured: values in, a figure out. Nothing is written, and no state of pyplot is used."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from tune_policies.plan.decision import Decision, WorkloadDecision
from tune_policies.values.units import GIB, MIB

from ..compare.judge import Comparison
from ..compare.verdicts import Verdict
from ..record.packing_record import ThroughputRecord
from ..record.run_set import Arm, Phase, RunSet
from .images import INK, LOOK, SMALL, STROKES, WIDTH, cut, put_legend, put_log_amounts, put_sizes, strokes, title
from .statistics import in_words, measured_devices, multiple_text, ordered_devices, step_time, time_text

PHASE_TITLES: Final = {
    Phase.COMPUTE: "compute only",
    Phase.TRANSFERS: "with transfers",
    Phase.FIRST_EPOCH: "first epoch",
}


@mpl.rc_context(LOOK)
def crossover_figure(run_set: RunSet, phase: Phase, workloads: Sequence[str] | None = None) -> Figure | None:
    """Draw time against size on log-log axes with intervals, a line for each device, a panel for each workload.

    Args:
        run_set: What was measured.
        phase: Of which times.
        workloads: Which workloads; all of them if not given, by name.

    Returns:
        ``None``: there is no time of this phase.
    """
    times = {
        workload: {
            device: {
                size: time
                for size in run_set.sizes(workload)
                if (time := step_time(run_set, Arm(workload=workload, size=size, device=device), phase))
            }
            for device in measured_devices(run_set)
        }
        for workload in workloads or sorted(run_set.workloads)
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
        bounds = [value for line in points.values() for time in line.values() for value in time]
        put_log_amounts(axes.yaxis, bounds, time_text)
        what = "first epoch" if phase is Phase.FIRST_EPOCH else "time of a step"
        axes.set(title=title(workload, f", {PHASE_TITLES[phase]}"), xlabel="size", ylabel=what)
    put_legend(figure, panels)
    return figure


@mpl.rc_context(LOOK)
def speedup_figure(verdicts: Iterable[Verdict]) -> Figure | None:
    """Draw how many times as fast each device is as the first one, with intervals and the band of what is the same.

    Args:
        verdicts: Of all phases that are to be shown, a line for each. Each workload and device has a panel.

    Returns:
        ``None``: there are no two devices to compare.
    """
    compared: dict[tuple[str, str, str], dict[Phase, dict[int, Comparison]]] = {}
    for each in verdicts:
        lines = compared.setdefault((each.workload, each.first, each.second), {})
        lines.setdefault(each.phase, {})[each.size] = each.comparison
    if not compared:
        return None
    figure, panels = _panels(len(compared))
    looks = strokes(PHASE_TITLES)
    for axes, ((workload, first, second), lines) in zip(panels, compared.items(), strict=True):
        every = [each for line in lines.values() for each in line.values()]
        within = max(each.same_within for each in every)
        band = (1 / (1 + within), 1 + within)
        axes.axhspan(*band, color=INK, alpha=0.15, linewidth=0, label=f"the same within {within:.0%}")
        axes.axhline(1, color=INK, linewidth=0.8)
        for phase, line in lines.items():
            points = {size: (each.ratio, each.low, each.high) for size, each in line.items()}
            _line(axes, points, looks[phase], PHASE_TITLES[phase])
        put_sizes(axes, {size for line in lines.values() for size in line})
        put_log_amounts(axes.yaxis, [*band, *(end for each in every for end in (each.low, each.high))], multiple_text)
        about = f": {cut(in_words(second), 12)}"
        axes.set(title=title(workload, about), xlabel="size", ylabel=f"times as fast as {cut(in_words(first), 12)}")
    put_legend(figure, panels)
    return figure


@mpl.rc_context(LOOK)
def memory_figure(run_set: RunSet) -> Figure | None:
    """Draw the most host and GPU memory of a process against size, a panel for each workload. ``None``: not known."""
    shown = {workload: lines for workload in sorted(run_set.workloads) if (lines := _memory_lines(run_set, workload))}
    if not shown:
        return None
    figure, panels = _panels(len(shown))
    looks = _looks(run_set)
    for axes, (workload, lines) in zip(panels, shown.items(), strict=True):
        most = max(value for line in lines.values() for value in line.values())
        unit, name = (GIB, "GiB") if most >= GIB else (MIB, "MiB")
        for (device, kind), line in lines.items():
            color, marker, _ = looks[device]
            axes.plot(
                [*line],
                [value / unit for value in line.values()],
                color=color,
                marker=marker,
                linestyle="-" if kind == "host" else ":",
                markerfacecolor=color if kind == "host" else "none",
                label=f"{cut(in_words(device), 16)}: {kind} memory",
            )
        put_sizes(axes, {size for line in lines.values() for size in line})
        axes.set(title=title(workload), xlabel="size", ylabel=f"peak memory, {name}")
        axes.set_ylim(0, most / unit * 1.08)
    put_legend(figure, panels)
    return figure


def _memory_lines(run_set: RunSet, workload: str) -> dict[tuple[str, str], dict[int, int]]:
    lines: dict[tuple[str, str], dict[int, int]] = {}
    for size in run_set.sizes(workload):
        for device in measured_devices(run_set):
            runs = run_set.of(Arm(workload=workload, size=size, device=device))
            peaks = {"host": [each.peak_host_bytes for each in runs], "GPU": [each.peak_gpu_bytes for each in runs]}
            for kind, values in peaks.items():
                # A CPU arm holds 0 bytes of a GPU, which is no line.
                if most := max((value for value in values if value is not None), default=0):
                    lines.setdefault((device, kind), {})[size] = most
    return lines


@mpl.rc_context(LOOK)
def distribution_figure(run_set: RunSet, workload: str, phase: Phase) -> Figure | None:
    """Draw every sample of every arm as its distance from the arm's median, each process on a line of its own.

    ``None``: there is no time of this phase.
    """
    devices = ordered_devices(run_set)
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
    if furthest > 60:
        axes.set_xscale("symlog", linthresh=20)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+.3g}%" if value else "0")
    axes.set(title=title(workload, f", {PHASE_TITLES[phase]}"), xlabel="from the median of the arm (right)")
    axes.grid(axis="y", visible=False)
    return figure


@mpl.rc_context(LOOK)
def cost_figure(decision: Decision, workloads: Sequence[str] | None = None) -> Figure | None:
    """Draw the cost of a trial against its time, a point for each size. ``None``: the decision has no prices."""
    shown = {
        each.workload: lines
        for each in decision.workloads
        if (workloads is None or each.workload in workloads) and (lines := _cost_lines(each))
    }
    if not shown:
        return None
    figure, panels = _panels(len(shown))
    for axes, (workload, lines) in zip(panels, shown.items(), strict=True):
        looks = strokes(lines)
        for device, line in lines.items():
            axes.plot(
                [x for _, x, _ in line],
                [y for _, _, y in line],
                label=cut(in_words(device), 16),
                **looks[device]._asdict(),
            )
            for size, x, y in line if len(line) <= 4 else (line[0], line[-1]):
                axes.annotate(str(size), (x, y), xytext=(0, 6), textcoords="offset points", ha="center", fontsize=SMALL)
        put_log_amounts(axes.xaxis, [x for line in lines.values() for _, x, _ in line], time_text)
        put_log_amounts(axes.yaxis, [y for line in lines.values() for _, _, y in line])
        axes.margins(x=0.1, y=0.12)
        cost = f"cost of a trial{f', {cut(decision.currency, 12)}' if decision.currency else ''}"
        axes.set(title=title(workload, ": by size"), xlabel="time of a trial", ylabel=cost)
    put_legend(figure, panels)
    return figure


def _cost_lines(decided: WorkloadDecision) -> dict[str, list[tuple[int, float, float]]]:
    lines: dict[str, list[tuple[int, float, float]]] = {}
    for each in decided.sizes:
        for times in (each.cpu, each.gpu):
            if times.cost_per_trial:
                lines.setdefault(times.device, []).append((each.size, times.trial_s, times.cost_per_trial))
    return lines


@mpl.rc_context(LOOK)
def packing_figure(record: ThroughputRecord, workloads: Sequence[str] | None = None) -> Figure | None:
    """Draw throughput against trials per GPU, a panel for each workload. ``None``: nothing was measured."""
    shown = [each for each in record.workloads if workloads is None or each in workloads]
    if not shown:
        return None
    figure, panels = _panels(len(shown))
    for axes, workload in zip(panels, shown, strict=True):
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
                look = STROKES[1] if name == "plan" else STROKES[3]
                axes.plot(
                    number, rate.median, marker="*", markersize=13, linestyle="", color=look.color, label=cut(name, 24)
                )
        if end := record.stops_paying_at(workload):
            axes.axvline(end, linestyle=":", color=INK, label="stops paying")
        put_sizes(axes, {number for _, number in arms})
        axes.set(title=title(workload), xlabel="trials per GPU", ylabel="trials per hour")
        axes.set_ylim(0, None)
    put_legend(figure, panels)
    return figure


def _looks(run_set: RunSet) -> dict[str, Any]:
    # Of all devices that were asked for, so that each has its colour in every figure of a run.
    return strokes(ordered_devices(run_set))


def _panels(count: int) -> tuple[Figure, list[Any]]:
    """Return a figure with so many panels, three in a row."""
    columns = min(count, 3)
    rows = -(-count // columns)
    pads = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)  # inches; by default a title touches the label above it
    figure = Figure(figsize=(WIDTH * columns, 4.2 * rows), layout=pads)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for spare in panels[count:]:
        spare.remove()
    return figure, [*panels[:count]]


def _line(axes: Any, points: dict[int, Any], look: Any, label: str) -> None:
    """Draw a line with its intervals; a point is its value, the lower end and the upper end."""
    values = [point[0] for point in points.values()]
    below = [max(point[0] - point[1], 0) for point in points.values()]
    above = [max(point[2] - point[0], 0) for point in points.values()]
    axes.errorbar([*points], values, yerr=[below, above], label=label, capsize=3, elinewidth=1.1, **look._asdict())
