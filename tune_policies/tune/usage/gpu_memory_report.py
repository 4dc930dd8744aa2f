"""How the GPU memory of a run looks: a line and a bar for each trial on the shell, or a picture (by matplotlib)."""

import io
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from tune_policies.files.terminal import empty_table, line
from tune_policies.files.writing import write_new
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import GIB, format_bytes
from tune_policies.values.value import counted

from .gpu_memory_advice import advise, device_bytes, needed_bytes
from .gpu_memory_of_run import RunUsage
from .gpu_memory_usage import GpuMemoryUsage, rests_on_assumption

_BAR: Final = 40
"""Characters of a bar that fills the share."""


def usage_view(run: RunUsage) -> RenderableType:
    """Return the tables and the lines that ``tune-policies usage`` shows."""
    view = empty_table(counted(len(run.trials), "trial"), "Trial", "Share", "Limit", "Peak", "Process", "Kept", "OOMs")
    for trial in run.trials:
        cells: list[RenderableType] = _cells(trial.usage) if trial.usage else ["-"] * 6
        view.add_row(trial.name, *cells)
    return Group(view, *_bars(run), *(line(f"- {text}") for text in advise(run)))


def _bars(run: RunUsage) -> list[RenderableType]:
    """Return the picture of what was used against the shares; nothing, where nothing is known."""
    view = empty_table("Used of the share", "Trial", "", "")
    for trial in run.trials:
        had = trial.usage and (trial.usage.share_bytes or device_bytes(trial.usage))
        need = trial.usage and needed_bytes(trial.usage)
        if had and need:
            filled = min(round(need / had * _BAR), _BAR)
            view.add_row(trial.name, "#" * filled + "." * (_BAR - filled), f"{need / had:.0%}")
    return ["", view] if view.row_count else []


def _cells(usage: GpuMemoryUsage) -> list[RenderableType]:
    peak = usage.peak_allocated_bytes if usage.peak_reserved_bytes is None else usage.peak_reserved_bytes
    gpus = f"{usage.gpus:g} GPU" if usage.gpus else "not known"
    return [
        format_bytes(usage.share_bytes) if usage.share_bytes else gpus,
        # Each framework has its own limit; nobody uses two, as a rule.
        Text("\n".join(_one_limit(*limit, usage) for limit in sorted(usage.limit_bytes.items())) or "none"),
        _known(peak),
        _known(usage.process_bytes),
        _kept(usage),
        str(usage.num_ooms),
    ]


def _kept(usage: GpuMemoryUsage) -> str:
    if usage.share_kept is None:
        return "-" if usage.share_bytes is None else "not known"
    return ("likely" if rests_on_assumption(usage) else "yes") if usage.share_kept else "no"


def _one_limit(framework: str, amount: int, usage: GpuMemoryUsage) -> str:
    return format_bytes(amount) if len(usage.limit_bytes) == 1 else f"{one_line(framework)} {format_bytes(amount)}"


def _known(amount: int | None) -> str:
    return "not known" if amount is None else format_bytes(amount)


_MOST_NAMES: Final = 60
"""Names of more trials than that would overlap, so none is written."""

_COLOURS: Final = {"within its share": "#4878a8", "beyond its share": "#c44e52", "ran out of memory": "#dd8452"}


def plot_usage(run: RunUsage, file: Path, *, force: bool = False) -> None:
    """Write the plot to ``file``; the format is that of its suffix, such as ``.png`` or ``.svg``.

    Args:
        run: What is plotted.
        file: A file in a folder that is there.
        force: Whether to replace a file that is there.

    Raises:
        InvalidResourcesError: There is no matplotlib, or nothing to plot, or ``file`` is in the way or cannot be
            written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidResourcesError("a plot needs matplotlib: pip install 'tune-policies[bench]'") from error
    rows = [(trial.name, trial.usage) for trial in run.trials if trial.usage and needed_bytes(trial.usage)]
    if not rows:
        raise InvalidResourcesError("no trial says what it used, so there is nothing to plot")
    height = min(1.5 + 0.3 * len(rows), 20)
    figure = Figure(figsize=(9, height), layout="constrained")
    axes = figure.subplots()
    _draw(axes, rows)
    picture = io.BytesIO()
    try:
        figure.savefig(picture, format=file.suffix.removeprefix(".") or "png", dpi=120)
    except (OSError, RuntimeError, ValueError) as error:  # such as a suffix that matplotlib does not know
        raise InvalidResourcesError(f"cannot write the plot to {file}: {error}") from error
    write_new(file, picture.getvalue(), force=force)


def _draw(axes: Any, rows: list[tuple[str, GpuMemoryUsage]]) -> None:
    from matplotlib.patches import Patch

    places = range(len(rows))
    shares = [(usage.share_bytes or device_bytes(usage) or 0) / GIB for _, usage in rows]
    verdicts = [_verdict(usage) for _, usage in rows]
    axes.barh(places, shares, color="none", edgecolor="0.3", linewidth=1)
    used = [(needed_bytes(usage) or 0) / GIB for _, usage in rows]
    axes.barh(places, used, height=0.55, color=[_COLOURS[verdict] for verdict in verdicts])
    axes.invert_yaxis()
    # A pair of dollars would be read as a formula.
    names = [one_line(name).replace("$", r"\$") for name, _ in rows]
    named = [name if len(name) <= 48 else f"{name[:47]}…" for name in names] if len(rows) <= _MOST_NAMES else []
    axes.set_yticks(list(places)[: len(named)], named, fontsize=8)
    axes.margins(y=0.01)
    axes.set_ylabel("" if named else counted(len(rows), "trial"))
    axes.set_xlabel("GPU memory of a trial, GiB")
    handles = [Patch(facecolor=colour, label=name) for name, colour in _COLOURS.items() if name in verdicts]
    share = Patch(facecolor="none", edgecolor="0.3", label="its share")
    axes.figure.legend(handles=[*handles, share], loc="outside upper center", ncols=4, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _verdict(usage: GpuMemoryUsage) -> str:
    if usage.num_ooms:
        return "ran out of memory"
    return "beyond its share" if usage.share_kept is False else "within its share"
