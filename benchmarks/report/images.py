"""Figures as images: for a page, an SVG that takes its colours from the page; else a file."""

import io
import re
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from tune_policies.errors import InvalidResourcesError
from tune_policies.values import suggest

from ..record.file import write_view
from .style import INK, LOOK, ON_DARK

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
