"""A report as one HTML page, or as Markdown with its figures beside it. All that comes from data is escaped."""

import os
import re
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from tune_policies.files.reading import read_value
from tune_policies.files.writing import check_new
from tune_policies.plan.decision import Decision
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.sanitize import one_line

from ..record.packing_record import read_throughput
from ..record.run_set_file import read_run_set, write_view
from .content import Content, Picture, build_content
from .images import ON_DARK, colour_variable, inline_svg, save_figure

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
    """Return a text in one line, without what turns the direction of writing; autoescaping does the rest."""
    return one_line(value) if isinstance(value, str) and not isinstance(value, Markup) else value


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
    return Markup(f"{fence}\n{one_line(text)}\n{fence}")  # noqa: S704


def write_report(
    file: Path,
    output: Path,
    *,
    decision: Path | None = None,
    packing: Path | None = None,
    images: str | None = None,
    force: bool = False,
) -> Path:
    """Write the report on a run, and return its file.

    Args:
        file: Of the run.
        output: The page to write; with ``images``, the folder.
        decision: File of what was decided from the run.
        packing: File of a benchmark of throughput.
        images: Suffix of the figures beside Markdown; ``None``: one HTML page.
        force: Whether to replace files that are there.

    Raises:
        InvalidResourcesError: A file cannot be read, or is another one than it should be, or ``output`` cannot be
            written, or is one of the others.
    """
    sources = [each for each in (file, decision, packing) if each is not None]
    # Of a link to itself realpath says nothing; who reads or writes it does.
    if os.path.realpath(output) in map(os.path.realpath, sources):
        raise InvalidResourcesError(f"{output} is what the report is made of, and would be lost: name another output")
    if images is None:
        check_new(output, force=force)
    hint = "`tune-policies bench decide` writes one"
    content = build_content(
        read_run_set(file),
        read_value(decision, Decision, "decision", hint=hint) if decision else None,
        read_throughput(packing) if packing else None,
    )
    if images is not None:
        return write_markdown(content, output, images, force=force)
    write_view(output, html_page(content), force=force)
    return output
