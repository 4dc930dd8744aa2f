"""Renders a report as one HTML page, and writes figures to files."""

import io
import re
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from tune_policies.files.html_page import ON_DARK, Content, Picture, colour_variable
from tune_policies.files.html_page import html_page as html_page_of
from tune_policies.files.writing import write_new
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import suggest

from .figures import INK, LOOK


def html_page(content: Content) -> str:
    """Return the report as one self-contained HTML page."""
    return html_page_of(content, _inline)


_SVG: Final = "http://www.w3.org/2000/svg"
_XLINK: Final = "http://www.w3.org/1999/xlink"
_DOTS_PER_INCH: Final = {"png": 144}
_COLOUR: Final = re.compile(r"#[0-9a-fA-F]{6}\b")
_LINK: Final = re.compile(r"url\(#([\w-]+)\)")


def _inline(picture: Picture) -> Markup:
    """Return the picture as an ``<svg>`` element for an HTML page."""
    # matplotlib wrote this XML, so it is trusted.
    root = ElementTree.fromstring(_drawn(picture.figure, "svg", salt=picture.name, transparent=True))  # noqa: S314
    for size in ("width", "height"):  # the page determines the width
        del root.attrib[size]
    root.set("role", "img")
    root.set("aria-label", picture.label)
    for parent in list(root.iter()):
        for child in list(parent):
            # A style element would apply to the whole page.
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        for key, value in element.attrib.items():
            element.set(key, _in_page(key, value, picture.name))
    # matplotlib escapes the texts and ElementTree escapes the label, so the markup is safe.
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704


def _in_page(key: str, value: str, name: str) -> str:
    """Return the value of an attribute with the page's colors, and with IDs that are unique in the page."""
    if key == "id":
        return f"{name}-{value}"
    if key == f"{{{_XLINK}}}href":
        return f"#{name}-{value.removeprefix('#')}"
    # Only these attributes contain colors and references in the SVG files of matplotlib.
    if key in ("style", "clip-path", "fill", "stroke"):
        return _COLOUR.sub(_colour_of_page, _LINK.sub(rf"url(#{name}-\1)", value))
    return value


def _colour_of_page(found: re.Match[str]) -> str:
    colour = found[0].upper()
    if colour == INK.upper():
        return "currentColor"
    if colour in ON_DARK:
        return f"var({colour_variable(colour)})"
    return found[0]


def _drawn(figure: Figure, kind: str, *, salt: str, **options: Any) -> bytes:
    metadata = None
    if kind == "svg":  # omit the date and use constant IDs, so that equal figures produce equal files
        metadata = {"Date": None}
    picture = io.BytesIO()
    with mpl.rc_context(LOOK | {"svg.hashsalt": salt}):
        figure.savefig(picture, format=kind, metadata=metadata, **options)
    return picture.getvalue()


def save_figure(figure: Figure, path: Path, *, force: bool = False) -> None:
    """Write the figure to a file whose suffix is the format, such as ``.svg`` or ``.png``.

    Raises:
        InvalidResourcesError: The format is unknown, or the file exists or cannot be written.
    """
    kind = check_ending(path)
    try:
        picture = _drawn(figure, kind, salt="figure", dpi=_DOTS_PER_INCH.get(kind, "figure"))
    except (OSError, RuntimeError, ValueError) as error:  # for example, .pgf requires LaTeX
        raise InvalidResourcesError(f"matplotlib cannot draw {path}: {error}. Try .svg or .png") from error
    write_new(path, picture, force=force)


def check_ending(path: Path) -> str:
    """Return the image format for the suffix of ``path``, or raise ``InvalidResourcesError`` if it is unknown."""
    known = FigureCanvasBase.get_supported_filetypes()
    ending = path.suffix.removeprefix(".").lower()
    if ending not in known:
        raise InvalidResourcesError(
            f"cannot write {path}: unknown file type {path.suffix!r}{suggest(ending, known)} "
            f"(known: {', '.join(sorted(known))})"
        )
    return ending


# Otherwise, ElementTree would write a prefix such as ``ns0:`` before each element, which browsers do not read in HTML.
ElementTree.register_namespace("", _SVG)
ElementTree.register_namespace("xlink", _XLINK)
