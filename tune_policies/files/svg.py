"""Draws pictures as SVG: a column of texts and boxes from top to bottom.

A picture is as wide as a phone screen and has its own background, so that it is readable in dark notebooks and on white
pages. The colors are from Okabe and Ito, for color-blind readers. All texts are escaped. Text widths are estimated for
DejaVu Sans, which is wider than most system fonts.
"""

import re
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


class Column:
    """A column that is drawn from top to bottom. ``y`` is the top of the next part, in pixels."""

    def __init__(self) -> None:
        self.y = float(MARGIN)
        self._parts: list[str] = []

    def text(self, x: float, text: str, *, size: float = SMALL, style: str = "", at_end: bool = False) -> None:
        """Draw a string in the line at ``y``, without changing ``y``."""
        anchor = ' text-anchor="end"' if at_end else ""
        place = f'x="{x:g}" y="{self.y + size:g}" font-size="{size:g}"{anchor}'
        self._parts.append(f'<text {place} class="{style}">{escape(one_line(text))}</text>')

    def lines(self, text: str, *, x: float = MARGIN, size: float = SMALL, style: str = "", most: int = 6) -> None:
        """Draw a string in up to ``most`` lines, and move ``y`` below it."""
        for line in wrapped(text, WIDTH - MARGIN - x, size, most):
            self.text(x, line, size=size, style=style)
            self.y += size * 1.35

    def box(self, x: float, width: float, height: float, style: str, *, radius: float = 2) -> None:
        """Draw a box whose top is at ``y``, without changing ``y``."""
        place = f'x="{x:g}" y="{self.y:g}" width="{max(width, 0.5):g}" height="{height:g}" rx="{radius:g}"'
        self._parts.append(f'<rect {place} class="{style}"/>')

    def mark(self) -> int:
        """Return the current position in the drawing order, for :meth:`add_background_box`."""
        return len(self._parts)

    def add_background_box(self, mark: int, top: float, style: str) -> None:
        """Draw a box as wide as the column, from ``top`` down to ``y``, behind everything drawn since ``mark``."""
        place = f'x="{MARGIN / 2:g}" y="{top:g}" width="{WIDTH - MARGIN:g}" height="{self.y - top:g}" rx="5"'
        self._parts.insert(mark, f'<rect {place} class="{style}"/>')

    def picture(self, label: str) -> Picture:
        """Return the picture, with a label for screen readers."""
        height = self.y + MARGIN
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="tp" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
            f'height="{height:g}" style="max-width:100%;height:auto" role="img" aria-label="{escape(one_line(label))}">'
        )
        ground = f'<rect class="tp-ground" width="{WIDTH}" height="{height:g}" rx="6"/>'
        return Picture("\n".join([head, f"<style>{_style()}</style>", ground, *self._parts, "</svg>", ""]))


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


def wrapped(text: str, width: float, size: float = SMALL, most: int = 6) -> list[str]:
    """Wrap a string at spaces, or within words that are too wide, and return the first ``most`` lines."""
    # An amount and its unit stay on one line, as in "6 GiB".
    joined = re.sub(r"(?<=\d) (?=\w)", _NO_BREAK, one_line(text))
    lines = wrap(joined, max(2, int(width / (_EM * size))), max_lines=most, placeholder="…")
    return [fitted(line.replace(_NO_BREAK, " "), width, size) for line in lines]
