"""A picture of what the trials of a run used against their shares. Needs matplotlib."""

import io
from pathlib import Path
from typing import Any, Final

from tune_policies.errors import InvalidResourcesError
from tune_policies.files.writing import write_new
from tune_policies.names import counted
from tune_policies.text_out import one_line
from tune_policies.units import GIB

from .advice import device_bytes, needed_bytes
from .record import GpuMemoryUsage
from .trials import RunUsage

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
