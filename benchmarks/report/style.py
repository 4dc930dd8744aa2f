"""How the figures look: one width, text that stays readable when a figure is shown at that width, colours for all.

The colours are after Okabe and Ito, which the colour-blind tell apart, darker on white and lighter on near black, so
that each keeps a contrast of 3 (WCAG 2, 1.4.11). A marker and a dash of its own tells each line apart without them.
"""

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from .amounts import digits

WIDTH: Final = 420 / 72
"""Of a figure, in inches: 420 px where an SVG is shown in its own size."""

_TITLE: Final = 40
"""Characters of a title that a figure of that width holds."""

INK: Final = "#24292f"
"""Of text, axes and grids. In a page it becomes the colour of the text around."""

SMALL: Final = 11.5
"""Of texts of which there are many; shown at 340 px, where 400 is all there is, it is still more than 9 px."""

LOOK: Final[Any] = {
    "svg.fonttype": "none",
    # A name may hold a dollar sign, which is no formula.
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
    """How the line of one series is drawn, on white."""

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


ON_DARK: Final = {
    "#0072B2": "#56B4E9",
    "#D55E00": "#F5894A",
    "#008A65": "#33C79B",
    "#B8578D": "#E59BC6",
    "#8A7A00": "#D8C44A",
    "#707070": "#B0B0B0",
}
"""What a page takes in place of each colour where it is dark."""


def strokes(names: Iterable[Any]) -> dict[Any, Stroke]:
    """Return a stroke for each name; after the sixth they repeat."""
    return {name: STROKES[index % len(STROKES)] for index, name in enumerate(names)}


_SIZES_HELD: Final = 38
"""Characters that the x axis of a figure of that width holds."""


def put_sizes(axes: Any, sizes: Iterable[int]) -> None:
    """Make the x axis one of sizes: logarithmic, with as many of them written as stand clear of each other."""
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


_LOG_TICKS: Final = {100: (1, 2, 5), 10_000: (1, 3)}
"""By the ratio of the largest value to the smallest: where a decade has ticks."""


def put_log_amounts(axis: Any, values: Iterable[float], write: Any = digits) -> None:
    """Make a y or x axis logarithmic, with the amounts written out, of which there are some on any range."""
    from matplotlib.ticker import AutoLocator, FuncFormatter, LogLocator, NullLocator

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


def put_legend(figure: Any, axes: Iterable[Any]) -> None:
    """Put one legend below all panels, each name once."""
    handles: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    longest = max(map(len, handles), default=0)
    columns = max(1, min(3, 56 // (longest + 6)))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)


def cut(text: str, most: int) -> str:
    """Return the text in one line, no longer than so many characters; of a longer one the middle goes.

    What cannot be printed is marked: XML, and so an SVG, must not hold it.
    """
    line = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in " ".join(text.split()))
    return line if len(line) <= most else f"{line[: most // 2]}…{line[len(line) + most // 2 + 1 - most :]}"


def title(name: str, about: str = "") -> str:
    """Return a title that is no wider than a figure."""
    return cut(name, _TITLE - len(about)) + about
