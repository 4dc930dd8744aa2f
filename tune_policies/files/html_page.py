"""The content of reports, and its rendering as an HTML page.

The page is self-contained: it loads no other files. All texts from data are escaped.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from tune_policies.files.svg import COLORS, DARK_COLORS
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.sanitize import one_line

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

ON_DARK: Final = dict(zip(COLORS, DARK_COLORS, strict=True))
"""The colors of lines on a light page, mapped to their colors on a dark page."""


class Finding(NamedTuple):
    """A card with the result for one workload and one device.

    Attributes:
        workload: The name of the workload, with the device's name if several devices are compared with the first one.
        kind: The kind of result. It selects the color of the badge: ``"gain"`` if the device is better than the first
            device, ``"stay"`` if it is worse, ``"same"`` if both are equal, ``"ambiguous"`` if the times are not
            conclusive, ``"depends"`` if the result depends on the size, or ``"none"`` if nothing was compared.
        badge: A short text for the result.
        sentences: The full description of the result.
        device: The device that is compared with the first device, or ``None`` if no device is compared.
    """

    workload: str
    kind: Literal["gain", "stay", "same", "ambiguous", "depends", "none"]
    badge: str
    sentences: tuple[str, ...]
    device: str | None = None


class Table(NamedTuple):
    """A table with a caption.

    Attributes:
        num_texts: The number of text columns on the left. The other columns contain numbers.
        is_folded: Whether the page shows only the caption until a reader opens the table.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_texts: int = 1
    is_folded: bool = False

    def without_columns(self, *names: str) -> "Table":
        """Return the table without the columns ``names`` and without empty columns."""
        kept = [i for i, name in enumerate(self.columns) if name not in names and any(row[i] for row in self.rows)]
        rows = tuple(tuple(row[i] for i in kept) for row in self.rows)
        return self._replace(columns=tuple(self.columns[i] for i in kept), rows=rows)


class Picture(NamedTuple):
    """A figure.

    Attributes:
        name: The file name without a suffix. It does not depend on data.
        label: The description for screen readers.
        figure: An ``<svg>`` element, or an object that the ``svg`` argument of :func:`html_page` converts to one.
    """

    name: str
    label: str
    figure: Any


class Section(NamedTuple):
    """A section of the page."""

    title: str
    texts: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    commands: tuple[str, ...] = ()


class Content(NamedTuple):
    """The content of the whole page."""

    title: str
    summary: str
    details: str
    sections: tuple[Section, ...]


def html_page(content: Content, svg: Callable[[Picture], "Markup"] = lambda picture: picture.figure) -> str:
    """Return the HTML page. ``svg`` converts a picture to SVG. Raise ``InvalidResourcesError`` if Jinja is missing."""
    colours = [(colour_variable(light), light, dark) for light, dark in ON_DARK.items()]
    page = template(Path(__file__).with_name("page.html.j2"), _for_html, is_html=True, svg=svg, line_colours=colours)
    return page.render(content=content)


def template(file: Path, finalize: Callable[[Any], Any], *, is_html: bool, **globals_: Any) -> "jinja2.Template":
    """Return the Jinja template in ``file``. It passes each value through ``finalize``."""
    try:
        import jinja2
    except ImportError as error:
        raise InvalidResourcesError("pages require Jinja. Run pip install 'tune-policies[bench]'") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(file.parent),
        autoescape=is_html,  # noqa: S701  # `finalize` escapes Markdown
        finalize=finalize,
        # A misspelled name in a template raises an error instead of printing nothing.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(file.name, globals=globals_)


def _for_html(value: Any) -> Any:
    """Return a string as one line with escaped control characters, and any other value unchanged."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return one_line(value)
    return value


def colour_variable(colour: str) -> str:
    """Return the CSS variable for a line's color."""
    return f"--line-{colour.lstrip('#').lower()}"
