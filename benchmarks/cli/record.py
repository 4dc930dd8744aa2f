"""The commands that show the record of a run: ``show``, ``export``, ``plot`` and ``report``."""

import json as json_text
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tune_policies.cli.options import Force, Json, Redact
from tune_policies.files.writing import check_new, path_within, write_new
from tune_policies.values.errors import InvalidResourcesError

from ..record.run_set import Phase, RunSet
from ..record.run_set_file import Format, csv_text, pyperf_text, read_run_set, select
from ..record.summary import summarize

app = typer.Typer()

File = Annotated[Path, typer.Argument(help="The file that `run` wrote.")]
Workloads = Annotated[list[str] | None, typer.Option("--workload", help="Only this workload; may be repeated.")]


def print_measured(run_set: RunSet, *, as_json: bool) -> None:
    """Print the measurements and the problems of a run as a table or as JSON."""
    if as_json:
        arms = [each.model_dump(mode="json") for each in summarize(run_set)]
        print(json_text.dumps({"arms": arms, "problems": list(run_set.problems())}, indent=2, ensure_ascii=False))
    else:
        from ..report.tables import print_run_set

        print_run_set(run_set)


@app.command()
def show(file: File, *, json: Json = False) -> None:
    """Show what a run measured, a row for each arm, and what was missing, failed or disturbed it."""
    run_set = read_run_set(file)
    print_measured(run_set, as_json=json)


@app.command()
def export(
    file: File,
    *,
    format_: Annotated[
        Format, typer.Option("--format", help="pyperf: a file for each device; csv: all blocks; json: everything.")
    ],
    workload: Workloads = None,
    device: Annotated[list[str] | None, typer.Option(help="Only this device; may be repeated.")] = None,
    phase: Annotated[list[Phase] | None, typer.Option(help="Only this phase; may be repeated.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write to this file, not to stdout; for pyperf, also a folder, with a file for each device.",
        ),
    ] = None,
    redact: Redact = False,
    force: Force = False,
) -> None:
    """Write what was measured for other programs: for pyperf, which compares devices, or as CSV or JSON."""
    if output is not None and not output.is_dir():
        check_new(output, force=force, inputs=(file,))
    chosen = select(read_run_set(file), workloads=workload or (), devices=device or (), phases=phase or ())
    chosen = chosen.redacted() if redact else chosen
    if format_ is Format.PYPERF:
        _export_to_pyperf(chosen, output, file, force=force)
    else:
        text = csv_text(chosen) if format_ is Format.CSV else f"{chosen.to_json()}\n"
        _put(text, output, force=force)


@app.command()
def plot(
    file: File,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture's file; its suffix says which kind.")],
    workload: Workloads = None,
    phase: Annotated[Phase, typer.Option(help="Phase to draw.")] = Phase.TRANSFERS,
    force: Force = False,
) -> None:
    """Draw time against size, a line for each device and a panel for each workload."""
    from ..report.figures import crossover_figure
    from ..report.page import check_ending, save_figure

    check_ending(output)
    check_new(output, force=force, inputs=(file,))
    chosen = select(read_run_set(file), workloads=workload or (), phases=(phase,))
    figure = crossover_figure(chosen, phase)
    if figure is None:
        raise InvalidResourcesError(
            f"no time of {phase} was measured, so there is nothing to draw: choose another --phase"
        )
    save_figure(figure, output, force=force)


def _export_to_pyperf(run_set: RunSet, output: Path | None, source: Path, *, force: bool) -> None:
    devices = sorted({arm.device for arm in run_set.arms})
    if output is not None and output.is_dir():
        files = {device: path_within(output, f"{device}.json") for device in devices}
        for file in files.values():  # before the first of them is written
            check_new(file, force=force, inputs=(source,))
        for device, file in files.items():
            _put(pyperf_text(run_set, device), file, force=force)
    elif len(devices) == 1:
        _put(pyperf_text(run_set, devices[0]), output, force=force)
    else:
        raise InvalidResourcesError(
            f"a file of pyperf's holds one device, and there are {', '.join(devices)}: "
            "choose with --device, or name a folder that is there with --output"
        )


def _put(text: str, output: Path | None, *, force: bool) -> None:
    if output is None:
        print(text, end="")
    else:
        write_new(output, text, force=force)


class Form(StrEnum):
    """The formats of a report."""

    HTML = "html"
    MARKDOWN = "markdown"


class Images(StrEnum):
    """The formats of figures beside Markdown."""

    SVG = "svg"
    PNG = "png"


@app.command()
def report(
    file: Annotated[Path, typer.Argument(help="The file that `run` wrote.")],
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="The file of the page; for Markdown, the folder of the page and its figures."
        ),
    ],
    decision: Annotated[Path | None, typer.Option(help="The file that `decide` wrote.")] = None,
    packing: Annotated[Path | None, typer.Option(help="The file that `packing` wrote.")] = None,
    form: Annotated[Form, typer.Option("--format", help="One HTML page, or Markdown.")] = Form.HTML,
    images: Annotated[Images | None, typer.Option(help="For Markdown: the kind of its figures.")] = None,
    redact: Redact = False,
    force: Force = False,
) -> None:
    """Write a report for whoever decides: the verdict first, then curves, costs, memory, all samples, the machine."""
    if images is not None and form is not Form.MARKDOWN:
        raise typer.BadParameter("--images needs --format markdown: an HTML page has its figures inside")
    from ..report.page import write_report

    suffix = None if form is Form.HTML else images or Images.SVG
    print(write_report(file, output, decision=decision, packing=packing, images=suffix, redact=redact, force=force))
