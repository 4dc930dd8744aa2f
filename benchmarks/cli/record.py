"""The commands that show the record of a run: ``show``, ``export``, ``plot``, ``compare`` and ``report``."""

import json as json_text
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune_policies.cli.options import Force, Json, Redact
from tune_policies.files.reading import read_value
from tune_policies.files.terminal import print_to_stderr
from tune_policies.files.writing import check_new, write_new
from tune_policies.plan.benchmark_decision import Decision
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.sanitize import LEFT_OUT

from ..record.missing_measurements import problems_of
from ..record.run_set import Phase, RunSet
from ..record.run_set_file import csv_text, file_text, read_run_set
from ..record.summary import how_to_measure_a_gpu, summarize

if TYPE_CHECKING:
    from ..compare.compare_devices import Verdict

app = typer.Typer(add_completion=False)

File = Annotated[Path, typer.Argument(help="The file that `run` wrote.")]


def print_measured(run_set: RunSet, file: Path, *, as_json: bool) -> None:
    """Print the measurements in ``file``, and the problems, warnings and noise of the run, as a table or as JSON."""
    if as_json:
        measured = {
            "configurations": [summary.model_dump(mode="json") for summary in summarize(run_set)],
            "problems": list(problems_of(run_set, file)),
            "warnings": [str(warning) for warning in run_set.warnings()],
            # The readings instead of the sentences of the table, because a program compares numbers.
            "noise": [reading.model_dump(mode="json") for reading in run_set.noise],
        }
        print(json_text.dumps(measured, indent=2, ensure_ascii=False))
    else:
        # Imported here because the tables require more packages than JSON.
        from ..report.tables import print_run_set

        print_run_set(run_set, file=file)


@app.command()
def show(file: File, *, json: Json = False) -> None:
    """Show the results of a run in a table, and the failures and disturbances of the run."""
    print_measured(read_run_set(file), file, as_json=json)


class Format(StrEnum):
    """The file formats of ``export``."""

    CSV = "csv"
    JSON = "json"


@app.command()
def export(
    file: File,
    *,
    format_: Annotated[Format, typer.Option("--format", help="csv: the times of all blocks; json: the whole file.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead of stdout.")] = None,
    redact: Redact = False,
    force: Force = False,
) -> None:
    """Write the measured times as CSV, or the whole run as JSON."""
    if output is not None:
        check_new(output, force=force, inputs=(file,))
    run_set = read_run_set(file)
    if redact:
        run_set = run_set.redacted()
    match format_:
        case Format.CSV:
            text = csv_text(run_set)
        case Format.JSON:
            text = file_text(run_set)
    if output is None:
        print(text, end="")
    else:
        write_new(output, text, force=force)


@app.command()
def plot(
    file: File,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the plot to this file; its suffix determines the format.")
    ],
    phase: Annotated[Phase, typer.Option(help="Phase to plot.")] = Phase.TRANSFERS,
    force: Force = False,
) -> None:
    """Plot time against size, with a line for each device and a panel for each workload."""
    from ..report.figures import crossover_figure
    from ..report.page import check_ending, save_figure

    # Check the output before the input is read, because a large record takes seconds.
    check_ending(output)
    check_new(output, force=force, inputs=(file,))
    run_set = read_run_set(file)
    figure = crossover_figure(run_set, sorted(run_set.workloads), phase)
    if figure is None:
        raise InvalidResourcesError(
            f"no times of the phase {phase} were measured, so there is nothing to draw. Choose another --phase"
        )
    save_figure(figure, output, force=force)


@app.command()
def compare(
    file: File,
    *,
    phase: Annotated[list[Phase] | None, typer.Option(help="Phase to compare; may be repeated.")] = None,
    same_within: Annotated[
        float, typer.Option(help="Maximum relative difference of times that count as the same.")
    ] = 0.05,
    as_json: Json = False,
) -> None:
    """Compare the devices of a run: show which device is faster in each phase, with confidence intervals."""
    from ..compare.compare_devices import verdicts
    from ..decide.device_decision import UndecidedError
    from ..report.tables import print_verdicts

    run_set = read_run_set(file)
    problems = list(problems_of(run_set, file))
    found: list[Verdict] = []
    # Without ``--phase``, all phases are compared.
    for compared_phase in phase or Phase:
        found += verdicts(run_set, compared_phase, same_within)
    if not found:
        measured = ", ".join(run_set.measured_devices) or "no device"
        # A GPU can only be suggested if the CPU alone was measured. Otherwise, the problems say why a device is
        # missing.
        lines = [
            f"nothing to compare: the run measured {measured}, but a comparison needs two devices with times of the "
            "same workload and size.",
            *problems,
        ]
        if run_set.measured_devices == ("cpu",):
            lines.append(how_to_measure_a_gpu(run_set, file=file))
        raise UndecidedError("\n".join(lines))
    for problem in problems:
        print_to_stderr(problem)
    if as_json:
        compared = [{**verdict.model_dump(mode="json"), "word": verdict.word} for verdict in found]
        print(json_text.dumps(compared, indent=2))
    else:
        print_verdicts(found)


@app.command()
def report(
    file: File,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="Write the HTML page to this file.")],
    decision: Annotated[Path | None, typer.Option(help="The file that `decide` wrote.")] = None,
    packing: Annotated[Path | None, typer.Option(help="The file that `packing` wrote.")] = None,
    redact: Redact = False,
    force: Force = False,
) -> None:
    """Write the results as an HTML page: the verdict first, then curves, costs, all times and the machine."""
    from ..record.packing_record import read_throughput
    from ..report.content import build_content
    from ..report.page import html_page

    check_new(output, force=force, inputs=(file, decision, packing))
    hint = "create a decision with `tune-policies bench decide run.json --steps-per-trial 5000 --output decision.json`"
    run = read_run_set(file)
    throughput = decided = None
    shown: Path | None = file
    if packing is not None:
        throughput = read_throughput(packing)
    if decision is not None:
        decided = read_value(decision, Decision, "decision", hint=hint)
    if redact:
        run = run.redacted()
        shown = None  # names of files can contain the name of a company or project
        if throughput is not None:
            throughput = throughput.redacted()
        if decided is not None and decided.price_source:
            decided = decided.model_copy(update={"price_source": LEFT_OUT})
    content = build_content(run, decided, throughput, file=shown)
    write_new(output, html_page(content), force=force)
    print(output)
