"""How the figures look: one width, text that stays readable when a figure is shown at that width, colours for all.

The colours are after Okabe and Ito, which the colour-blind tell apart, darker on white and lighter on near black, so
that each keeps a contrast of 3 (WCAG 2, 1.4.11). A marker and a dash of its own tells each line apart without them.
"""

import io
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import suggest

from ..record.run_set_file import write_view
from .statistics import digits

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


_SVG: Final = "http://www.w3.org/2000/svg"
_XLINK: Final = "http://www.w3.org/1999/xlink"
_DOTS_PER_INCH: Final = {"png": 144}
_COLOUR: Final = re.compile(r"#[0-9a-fA-F]{6}\b")
_LINK: Final = re.compile(r"url\(#([\w-]+)\)")


def inline_svg(figure: Figure, *, name: str, label: str) -> str:
    """Return the figure as an ``<svg>`` element for the inside of a page.

    Args:
        figure: What is drawn.
        name: Begins every id in it, so that those of two figures in a page differ.
        label: What it shows, for those who do not see it.
    """
    # matplotlib has just written it, so its XML needs no distrust.
    root = ElementTree.fromstring(_svg(figure, name))  # noqa: S314
    for size in ("width", "height"):  # the page says how wide
        del root.attrib[size]
    root.set("role", "img")
    root.set("aria-label", label)
    for parent in list(root.iter()):
        for child in list(parent):
            # A style within a page would be one for the whole page.
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        for key, value in element.attrib.items():
            element.set(key, _in_page(key, value, name))
    return ElementTree.tostring(root, encoding="unicode")


def _in_page(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == f"{{{_XLINK}}}href":
        return f"#{name}-{value.removeprefix('#')}"
    if key in ("style", "clip-path", "fill", "stroke"):
        return _COLOUR.sub(_colour_of_page, _LINK.sub(rf"url(#{name}-\1)", value))
    return value


def _colour_of_page(found: re.Match[str]) -> str:
    colour = found[0].upper()
    if colour == INK.upper():
        return "currentColor"
    return f"var({colour_variable(colour)})" if colour in ON_DARK else found[0]


def colour_variable(colour: str) -> str:
    """Return the name under which a page keeps the colour of a line."""
    return f"--line-{colour.lstrip('#').lower()}"


def _svg(figure: Figure, salt: str) -> str:
    buffer = io.StringIO()
    with mpl.rc_context(LOOK | {"svg.hashsalt": salt}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator")))
    return buffer.getvalue()


def save_figure(figure: Figure, path: Path, *, force: bool = False) -> None:
    """Write the figure to a file; its suffix names the format, such as ``.svg`` or ``.png``.

    Raises:
        InvalidResourcesError: The format is not known, or the file is in the way or cannot be written.
    """
    kind = check_ending(path)
    # No date, and ids that do not change: the same figure is the same file.
    metadata = {"Date": None} if kind == "svg" else None
    picture = io.BytesIO()
    try:
        with mpl.rc_context(LOOK | {"svg.hashsalt": "figure"}):
            figure.savefig(picture, format=kind, dpi=_DOTS_PER_INCH.get(kind, "figure"), metadata=metadata)
    except (OSError, RuntimeError, ValueError) as error:  # such as .pgf without LaTeX
        raise InvalidResourcesError(f"matplotlib cannot draw {path}: {error}. Try .svg or .png") from error
    write_view(path, picture.getvalue(), force=force)


def check_ending(path: Path) -> str:
    """Return the format that the name of a picture asks for.

    Raises:
        InvalidResourcesError: It is not known.
    """
    known = FigureCanvasBase.get_supported_filetypes()
    ending = path.suffix.removeprefix(".").lower()
    if ending not in known:
        raise InvalidResourcesError(
            f"nothing can be drawn to {path}: unknown ending {path.suffix!r}{suggest(ending, known)} "
            f"(known: {', '.join(sorted(known))})"
        )
    return ending


ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _XLINK)
