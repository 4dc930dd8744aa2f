"""What people look at: the command ``report``."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .options import Force

app = typer.Typer()


class Form(StrEnum):
    """What a report is written in."""

    HTML = "html"
    MARKDOWN = "markdown"


class Images(StrEnum):
    """What the figures beside Markdown are written in."""

    SVG = "svg"
    PNG = "png"


@app.command()
def report(
    file: Annotated[Path, typer.Argument(help="What a run wrote.")],
    *,
    output: Annotated[Path, typer.Option(help="The page; of Markdown: the folder for it and its figures.")],
    decision: Annotated[Path | None, typer.Option(help="What `decide` wrote.", show_default=False)] = None,
    packing: Annotated[Path | None, typer.Option(help="What `packing` wrote.", show_default=False)] = None,
    form: Annotated[Form, typer.Option("--format", help="One HTML page, or Markdown.")] = Form.HTML,
    images: Annotated[
        Images | None, typer.Option(help="Of Markdown: what its figures are.", show_default=False)
    ] = None,
    force: Force = False,
) -> None:
    """Write a report for who decides: the verdict first, then curves, costs, memory, all samples, and the machine."""
    if images is not None and form is not Form.MARKDOWN:
        raise typer.BadParameter("--images is for --format markdown; a page has its figures in it")
    from ..report.page import write_report

    print(write_report(file, output, decision=decision, packing=packing, images=_images(form, images), force=force))


def _images(form: Form, images: Images | None) -> Images | None:
    return None if form is Form.HTML else images or Images.SVG
