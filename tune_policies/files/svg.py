"""Draws pictures as SVG: columns of texts and boxes for notebooks, and bars over an axis for HTML pages.

A :class:`Column` is as wide as a phone screen and has its own background, so that it is readable in dark notebooks and
on white pages. A :class:`Drawing` is a part of a page, and has the page's colors and font. The colors are from Okabe
and Ito, for color-blind readers. All texts are escaped. Text widths are estimated for DejaVu Sans, which is wider than
most system fonts.

Pictures that consist of boxes and lines are drawn here: a plan, and the slots and GPU memory on the page of a run. A
plan is drawn without optional packages, and a page can contain thousands of bars, each with a tooltip, which matplotlib
does not write. Pictures with logarithmic axes and error bars, and pictures in other formats such as PNG, are drawn with
matplotlib, which places ticks and legends: the figures of benchmarks, and the plot of ``tune-policies usage --plot``.
"""

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Final

from rich.cells import cell_len, set_cell_size

from tune_policies.values.sanitize import one_line

WIDTH: Final = 360
"""The width of a picture in pixels. On a screen that is 320 pixels wide, text of size 12.5 is 11 pixels high."""

MARGIN: Final = 12
INNER: Final = WIDTH - 2 * MARGIN

SMALL: Final = 12.5
LARGE: Final = 15.0

PAGE_WIDTH: Final = 420
"""The width of a picture in a page, in pixels at its original size."""

PAGE_FONT: Final = 11.5
"""The size of small text in a page. On a screen 400 px wide, a picture is 340 px wide, and this text is 9 px high."""

LETTER: Final = 6.6
"""An upper bound of the mean width of a letter of the size ``PAGE_FONT``, in pixels."""

COLORS: Final = ("#0072B2", "#D55E00", "#008A65", "#B8578D", "#8A7A00", "#707070")
DARK_COLORS: Final = ("#56B4E9", "#F5894A", "#33C79B", "#E59BC6", "#D8C44A", "#B0B0B0")


def _style() -> str:
    fills = "".join(f".tp-c{i}{{fill:{color}}}" for i, color in enumerate(COLORS))
    dark = "".join(f".tp-c{i}{{fill:{color}}}" for i, color in enumerate(DARK_COLORS))
    return (
        ".tp text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif;fill:#1b2129}"
        ".tp .tp-soft{fill:#4d5863}.tp .tp-bold{font-weight:600}"
        ".tp-ground{fill:#fff}.tp-card{fill:#f6f7f9;stroke:#8a949e}"
        ".tp-free{fill:none;stroke:#707a84;stroke-dasharray:3 2}"
        f".tp-expected{{stroke-dasharray:6 4}}{fills}"
        "@media (prefers-color-scheme:dark){"
        ".tp text{fill:#e6e9ed}.tp .tp-soft{fill:#aeb8c2}"
        f".tp-ground{{fill:#12161b}}.tp-card{{fill:#1b2129;stroke:#6b7681}}.tp-free{{stroke:#8d98a3}}{dark}}}"
    )


class Picture:
    """An SVG picture that notebooks display. ``svg`` is its source text."""

    def __init__(self, svg: str) -> None:
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the picture to a file whose name ends in ``.svg``. With ``force``, replace an existing SVG file.

        Raises:
            InvalidResourcesError: The name has another ending, the file exists and may not be replaced, or the file
                cannot be written.
        """
        # Imported here because notebooks that only show the picture do not need these modules.
        from tune_policies.files.writing import write_new
        from tune_policies.values.errors import InvalidResourcesError

        file = Path(path)
        if file.suffix.lower() != ".svg":
            raise InvalidResourcesError(
                f"{file.name!r} does not end in .svg, but pictures are SVG files. Choose a name that ends in .svg"
            )
        write_new(file, self.svg, force=force)


def _element(name: str, attributes: Mapping[str, str | float], content: str = "") -> str:
    """Return an SVG element. ``content`` consists of elements, or of a text that is already escaped."""
    parts = [name]
    for key, value in attributes.items():
        text = f"{value:g}" if isinstance(value, float | int) else escape(value)
        parts.append(f'{key}="{text}"')
    start = " ".join(parts)
    if not content:
        return f"<{start}/>"
    return f"<{start}>{content}</{name}>"


class Column:
    """A column that is drawn from top to bottom. ``y`` is the top of the next part, in pixels."""

    def __init__(self) -> None:
        self.y = float(MARGIN)
        self._parts: list[str] = []

    def text(self, x: float, text: str, *, size: float = SMALL, style: str = "", at_end: bool = False) -> None:
        """Draw a string in the line at ``y``, without changing ``y``."""
        attributes: dict[str, str | float] = {"x": x, "y": self.y + size, "font-size": size}
        if at_end:
            attributes["text-anchor"] = "end"
        self._parts.append(_element("text", attributes | {"class": style}, escape(one_line(text))))

    def lines(self, text: str, *, x: float = MARGIN, size: float = SMALL, style: str = "", most: int = 6) -> None:
        """Draw a string in up to ``most`` lines, and move ``y`` below it."""
        for line in wrapped(text, WIDTH - MARGIN - x, size, most):
            self.text(x, line, size=size, style=style)
            self.y += size * 1.35

    def box(self, x: float, width: float, height: float, style: str, *, radius: float = 2) -> None:
        """Draw a box whose top is at ``y``, without changing ``y``."""
        place = _rectangle(x, self.y, max(width, 0.5), height)
        self._parts.append(_element("rect", {**place, "rx": radius, "class": style}))

    def mark(self) -> int:
        """Return the current position in the drawing order, for :meth:`add_background_box`."""
        return len(self._parts)

    def add_background_box(self, mark: int, top: float, style: str) -> None:
        """Draw a box as wide as the column, from ``top`` down to ``y``, behind everything drawn since ``mark``."""
        place = _rectangle(MARGIN / 2, top, WIDTH - MARGIN, self.y - top)
        self._parts.insert(mark, _element("rect", {**place, "rx": 5, "class": style}))

    def picture(self, label: str) -> Picture:
        """Return the picture, with a label for screen readers."""
        height = self.y + MARGIN
        size: dict[str, str | float] = {"width": WIDTH, "height": height}
        ground = _element("rect", {"class": "tp-ground", **size, "rx": 6})
        content = "\n".join(["", f"<style>{_style()}</style>", ground, *self._parts, ""])
        attributes = {
            "class": "tp",
            "viewBox": f"0 0 {WIDTH} {height:g}",
            **size,
            "style": "max-width:100%;height:auto",
        }
        return Picture(f"{_root(attributes, label, content)}\n")


class Drawing:
    """A drawing in an HTML page, ``PAGE_WIDTH`` wide and as high as its lowest text. Positions are in pixels."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._height = 0.0

    def text(self, x: float, y: float, text: str, *, most: int = 60, anchor: str = "start") -> None:
        """Draw a string with its base line at ``y``, shortened to ``most`` characters."""
        line = cut_middle(one_line(text), most)
        attributes: dict[str, str | float] = {"x": x, "y": y, "text-anchor": anchor, "font-size": PAGE_FONT}
        self._parts.append(_element("text", _rounded(attributes), escape(line)))
        self._height = max(self._height, y + 6)

    def bar(self, x: float, y: float, width: float, height: float, color: str, tooltip: str) -> None:
        """Draw a filled rectangle."""
        place = _rounded(_rectangle(x, y, width, height))
        self._parts.append(_element("rect", {**place, "fill": color}, _tooltip(tooltip)))

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        """Draw the outline of a rectangle."""
        place = _rounded(_rectangle(x, y, width, height))
        self._parts.append(_element("rect", {**place, "fill": "none", "stroke": "currentColor"}))

    def line(self, x: float, y: float, to_x: float, to_y: float) -> None:
        """Draw a line."""
        self._parts.append(_element("path", {"d": f"M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}", "stroke": "currentColor"}))

    def dashed_line(self, x: float, y: float, to_x: float, to_y: float, tooltip: str) -> None:
        """Draw a dashed line."""
        path = f"M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}"
        attributes = {"d": path, "stroke": "currentColor", "stroke-dasharray": "3 3"}
        self._parts.append(_element("path", attributes, _tooltip(tooltip)))

    def cross(self, x: float, y: float, size: float) -> None:
        """Draw a cross whose right end is at ``x`` and whose center is at the height ``y``."""
        left, top, side = max(0, x - 2 * size), y - size, 2 * size
        path = f"M{left:.1f} {top:.1f}l{side:.1f} {side:.1f}m0 -{side:.1f}l-{side:.1f} {side:.1f}"
        self._parts.append(_element("path", {"d": path, "stroke": "currentColor"}))

    def legend(self, colors: Mapping[str, str], top: float) -> None:
        """Draw a box of each color with its text, in rows of three."""
        for number, (name, color) in enumerate(colors.items()):
            x, y = number % 3 * PAGE_WIDTH / 3, top + number // 3 * 18
            self.bar(x, y, 12, 12, color, name)
            self.text(x + 18, y + 10, name)

    def svg(self, label: str) -> str:
        """Return the ``<svg>`` element, with a label for screen readers."""
        view = {"viewBox": f"0 0 {PAGE_WIDTH} {self._height + 2:.0f}"}
        return _root(view, label, "".join(self._parts))


def _root(attributes: Mapping[str, str | float], label: str, content: str) -> str:
    about = {"role": "img", "aria-label": one_line(label)}
    return _element("svg", {"xmlns": "http://www.w3.org/2000/svg", **attributes, **about}, content)


def _rectangle(x: float, y: float, width: float, height: float) -> dict[str, float]:
    return {"x": x, "y": y, "width": width, "height": height}


def _rounded(attributes: Mapping[str, str | float]) -> dict[str, str | float]:
    """Round the numbers to 0.1 pixels, because a page can contain thousands of bars."""
    rounded = {}
    for key, value in attributes.items():
        rounded[key] = value if isinstance(value, str) else round(value, 1)
    return rounded


def _tooltip(text: str) -> str:
    return f"<title>{escape(one_line(text))}</title>"


_EM: Final = 0.6
"""The estimated width of a character, as a fraction of the font size."""


_NO_BREAK: Final = "\N{NO-BREAK SPACE}"


def text_width(text: str, size: float) -> float:
    """Return the estimated width of a string, in pixels."""
    return cell_len(text) * _EM * size


def fitted(text: str, width: float, size: float = SMALL) -> str:
    """Return the text as one line, shortened to ``width`` pixels."""
    plain, cells = one_line(text), int(width / (_EM * size))
    if cell_len(plain) <= cells:
        return plain
    return f"{set_cell_size(plain, max(0, cells - 1)).rstrip()}…"


def cut_middle(line: str, most: int) -> str:
    """Return the line without its middle if it is longer than ``most``, because names of trials differ at the end."""
    if len(line) <= most:
        return line
    return f"{line[: most // 2]}…{line[len(line) + most // 2 + 1 - most :]}"


def wrapped(text: str, width: float, size: float = SMALL, most: int = 6) -> list[str]:
    """Wrap a string at spaces, or within words that are too wide, and return the first ``most`` lines."""
    # An amount and its unit stay on one line, as in "6 GiB".
    joined = re.sub(r"(?<=\d) (?=\w)", _NO_BREAK, one_line(text))
    lines = wrap(joined, max(2, int(width / (_EM * size))), max_lines=most, placeholder="…")
    return [fitted(line.replace(_NO_BREAK, " "), width, size) for line in lines]
