"""From the files of a run to the file of its report."""

from pathlib import Path

from tune_policies.decision import Decision
from tune_policies.errors import InvalidResourcesError
from tune_policies.files.reading import read_value
from tune_policies.files.writing import check_new

from ..packing.packing_record import read_throughput
from ..record.file import read_run_set, write_view
from .content import build_content
from .page import html_page, write_markdown


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
    if output.resolve() in (each.resolve() for each in sources):
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
