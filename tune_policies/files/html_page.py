"""A page for people: its parts as values, and the one HTML page that shows them.

It needs no other file and no network. All that comes from data is escaped.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.sanitize import one_line

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

ON_DARK: Final = {
    "#0072B2": "#56B4E9",
    "#D55E00": "#F5894A",
    "#008A65": "#33C79B",
    "#B8578D": "#E59BC6",
    "#8A7A00": "#D8C44A",
    "#707070": "#B0B0B0",
}
"""The colours of lines, after Okabe and Ito, and what a page takes in place of each where it is dark."""


class Finding(Protocol):
    """An answer on a card of its own: what it is about, a badge of a few words with its kind, and sentences."""

    @property
    def workload(self) -> str: ...  # noqa: D102
    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def badge(self) -> str: ...  # noqa: D102
    @property
    def sentences(self) -> tuple[str, ...]: ...  # noqa: D102


class Table(NamedTuple):
    """Rows of texts.

    Attributes:
        caption: What they are.
        columns: Their headings.
        rows: The texts.
        num_texts: How many columns from the left hold no numbers.
        is_folded: Whether it is long, and only for those who look for it.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_texts: int = 1
    is_folded: bool = False

    def without_columns(self, *names: str) -> "Table":
        """Return the table without these columns, and without those of which nothing is known."""
        known = [
            index
            for index, name in enumerate(self.columns)
            if name not in names and any(row[index] for row in self.rows)
        ]
        rows = tuple(tuple(row[index] for index in known) for row in self.rows)
        return self._replace(columns=tuple(self.columns[index] for index in known), rows=rows)


class Picture(NamedTuple):
    """A figure.

    Attributes:
        name: Of its file, without a suffix; nothing of it is a user's.
        label: What it shows, for those who do not see it.
        figure: As drawn: an ``<svg>`` element, or what the caller of :func:`html_page` makes one of.
    """

    name: str
    label: str
    figure: Any


class Section(NamedTuple):
    """A part of the page."""

    title: str
    texts: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    commands: tuple[str, ...] = ()


class Content(NamedTuple):
    """All of the page."""

    title: str
    summary: str
    details: str
    sections: tuple[Section, ...]


def html_page(content: Content, svg: Callable[[Picture], "Markup"] = lambda picture: picture.figure) -> str:
    """Return the page; ``svg`` makes the element of a picture whose figure is none.

    Raises:
        InvalidResourcesError: There is no Jinja.
    """
    colours = [(colour_variable(light), light, dark) for light, dark in ON_DARK.items()]
    page = template(Path(__file__).with_name("page.html.j2"), _for_html, is_html=True, svg=svg, line_colours=colours)
    return page.render(content=content)


def template(file: Path, finalize: Callable[[Any], Any], *, is_html: bool, **globals_: Any) -> "jinja2.Template":
    """Return a template, in which ``finalize`` gets each value before it is written."""
    try:
        import jinja2
    except ImportError as error:
        raise InvalidResourcesError("a page needs Jinja: pip install 'tune-policies[bench]'") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(file.parent),
        autoescape=is_html,  # noqa: S701  # Markdown is escaped by its `finalize`, and not as HTML is
        finalize=finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(file.name, globals=globals_)


def _for_html(value: Any) -> Any:
    """Return a text in one line, without what turns the direction of writing; autoescaping does the rest."""
    return one_line(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def colour_variable(colour: str) -> str:
    """Return the name under which a page keeps the colour of a line."""
    return f"--line-{colour.lstrip('#').lower()}"
