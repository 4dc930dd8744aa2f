"""Which is faster, and how sure that is: the commands ``compare`` and ``check``."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tune_policies.files.terminal import tell

from ..record.run_set import Phase

app = typer.Typer()

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


@app.command()
def compare(
    files: Annotated[list[Path], typer.Argument(help="One run, or two: the earlier first.", metavar="A [B]")],
    *,
    between: Annotated[
        tuple[str, str] | None, typer.Option(help="Two devices of one run; else the CPU and each other.")
    ] = None,
    phase: Annotated[list[Phase] | None, typer.Option(help="What was timed; may be repeated.")] = None,
    same_within: Annotated[
        float | None, typer.Option(help="By what part times may differ and count as the same.", show_default="0.05")
    ] = None,
    fail_above: Annotated[
        float | None, typer.Option(min=1.001, help="End with 1 if B surely takes this many times as long, or more.")
    ] = None,
    any_machine: Annotated[
        bool, typer.Option("--any-machine", help="Compare runs of different machines, too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say which of two devices of a run, or which of two runs, is faster, and how sure that is."""
    from ..compare.compare_files import Question, compare_files, print_verdicts, surely_slower

    question = Question(
        between=between,
        phases=tuple(phase or Phase),
        same_within=_band(same_within, fail_above),
        any_machine=any_machine,
    )
    found = compare_files(files, question)
    for note in found.notes:
        tell(note)
    if as_json:
        print(json.dumps([{**each.model_dump(mode="json"), "word": each.word} for each in found.verdicts], indent=2))
    else:
        print_verdicts(found.verdicts)
    if fail_above is not None and (slower := surely_slower(found.verdicts, fail_above)):
        for each in slower:
            tell(f"slower than the limit of {fail_above:g}: {each}")
        raise typer.Exit(1)


@app.command()
def check(
    *,
    seconds: Annotated[float, typer.Option(min=1, help="How long equal steps are timed, about.")] = 7,
    as_json: Json = False,
) -> None:
    """Say whether this machine is quiet enough to tell a change of 5 % in a step of 0.3 ms; end with 1 if not."""
    from ..compare.equal_steps import measure_equal_steps
    from ..compare.machine_check import print_check

    found = measure_equal_steps(seconds)
    print(found.to_json()) if as_json else print_check(found)
    if not found.is_quiet:
        raise typer.Exit(1)


def _band(same_within: float | None, fail_above: float | None) -> float:
    """Return what counts as the same: never more than the limit, or what is above the limit could count as the same."""
    wanted = 0.05 if same_within is None else same_within
    return wanted if fail_above is None else min(wanted, fail_above - 1)
