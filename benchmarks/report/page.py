"""A report as one HTML page, or as Markdown with its figures beside it. All that comes from data is escaped."""

import re
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from tune_policies.errors import InvalidResourcesError
from tune_policies.files.writing import check_new
from tune_policies.text_out import one_line, printable

from ..record.file import write_view
from .content import Content, Picture
from .images import colour_variable, inline_svg, save_figure
from .style import ON_DARK

_TEMPLATES: Final = jinja2.FileSystemLoader(Path(__file__).parent)
_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]#!~$^=@<>&|])|^([-+]|\d+[.)](?!\S))")
"""What Markdown, or a site that shows it, may take for more than itself: anywhere, or at a line's start."""
_ENTITIES: Final = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "|": "&#124;"}
"""Not every reader heeds a backslash before these."""


def html_page(content: Content) -> str:
    """Return the report as one page that needs no other file and no network."""
    environment = jinja2.Environment(
        loader=_TEMPLATES,
        autoescape=True,
        finalize=_for_html,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["svg"] = _inline
    environment.globals["line_colours"] = [(colour_variable(light), light, dark) for light, dark in ON_DARK.items()]
    return environment.get_template("page.html.j2").render(content=content)


def _for_html(value: Any) -> Any:
    """Return a text without what turns the direction of writing, or has no glyph; autoescaping does the rest."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _inline(picture: Picture) -> Markup:
    # matplotlib escapes the texts that it writes, and the label becomes an attribute by ElementTree.
    return Markup(inline_svg(picture.figure, name=picture.name, label=picture.label))  # noqa: S704


def write_markdown(content: Content, folder: Path, images: str, *, force: bool = False) -> Path:
    """Write ``report.md`` and its images into a folder, which is made if it is missing, and return the file.

    Raises:
        InvalidResourcesError: The folder cannot be written, or a file is in the way without ``force``.
    """
    environment = jinja2.Environment(
        loader=_TEMPLATES,
        autoescape=False,  # noqa: S701
        # Escapes what Markdown takes for more than itself, which is not what HTML does.
        finalize=for_markdown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["fenced"] = _fenced
    text = environment.get_template("page.md.j2").render(content=content, images=images)
    file = folder / "report.md"
    make_folder(folder)
    pictures = {
        folder / f"{picture.name}.{images}": picture for section in content.sections for picture in section.pictures
    }
    for each in (file, *pictures):  # before the first of them is written
        check_new(each, force=force)
    for path, picture in pictures.items():
        save_figure(picture.figure, path, force=force)
    write_view(file, text, force=force)
    return file


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it.

    Raises:
        InvalidResourcesError: It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidResourcesError(
            f"{folder} cannot be made a folder: {error.strerror or error}. Name another, which may hold several files"
        ) from error


def for_markdown(value: Any) -> str:
    """Return a text in one line in which no character means more than itself; markup stays as it is."""
    if isinstance(value, Markup):
        return value
    line = one_line(" ".join(str(value).split()))
    return _SPECIAL.sub(_escape, line)


def _escape(found: re.Match[str]) -> str:
    text = found[0]
    return _ENTITIES.get(text, f"{text[:-1]}\\{text[-1]}")


def _fenced(text: str) -> Markup:
    """Return a block of code, with a fence that is longer than any in the text."""
    longest = max((len(found) for found in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    # Within its fence nothing is markup.
    return Markup(f"{fence}\n{printable(text)}\n{fence}")  # noqa: S704
