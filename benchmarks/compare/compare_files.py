"""Compares the devices of a run, or two runs, by their files: what the command ``compare`` does."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tune_policies.files.terminal import TextConsole, TextTable
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.sanitize import one_line
from tune_policies.values.value import shorten_names

from ..record.run_set import Phase, RunSet
from ..record.run_set_file import read_run_set
from .judge import Outcome
from .verdicts import Verdict, differences_of_hardware, differences_of_software, verdicts, verdicts_across

NOT_PAIRED = (
    "Two runs have no rounds in common: what changed on the machine between them counts as a difference of the arms."
    " Compare two runs of the same code, too, to see how much that is."
)


class Question(NamedTuple):
    """What is to be compared.

    Attributes:
        between: Two devices of one run; ``None``: the CPU and each other one.
        phases: What was timed.
        same_within: By how much times may differ and still count as the same: 0.05 for 5 %.
        any_machine: Whether two runs may be of different machines.
    """

    between: tuple[str, str] | None = None
    phases: tuple[Phase, ...] = tuple(Phase)
    same_within: float = 0.05
    any_machine: bool = False


class Answer(NamedTuple):
    """What was found, and what must be known to believe it."""

    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()


def compare_files(files: Sequence[Path], question: Question) -> Answer:
    """Compare the devices of one file, or the arms that two files have.

    Raises:
        InvalidResourcesError: A file is no run, there is nothing to compare, or the machines differ.
    """
    if len(files) not in (1, 2):
        raise InvalidResourcesError(f"compare takes one run or two, got {len(files)} files: compare them two by two")
    runs = [read_run_set(path) for path in files]
    if len(runs) == 1:
        return _within(runs[0], question)
    if question.between is not None:
        raise InvalidResourcesError("--between names two devices of one run, got two runs: name one file")
    return _across(runs[0], runs[1], question, _names(files))


def surely_slower(found: Iterable[Verdict], limit: float) -> list[Verdict]:
    """Return those whose second arm surely takes more than ``limit`` times as long as the first."""
    return [each for each in found if each.comparison.outcome is Outcome.FIRST and each.comparison.high < 1 / limit]


def print_verdicts(found: Sequence[Verdict]) -> None:
    """Print a row for each pair of arms, and below the table why some are ambiguous."""
    console = TextConsole(width=None if TextConsole().is_terminal else 120)
    table = TextTable(title="How many times as fast the second is, with its 95 % interval")
    for heading in ("Workload", "Size", "Phase", "First", "Second", "Times as fast", "Interval", "Rounds", "Faster"):
        table.add_column(heading, justify="right" if heading in {"Size", "Times as fast", "Rounds"} else "left")
    for each in found:
        one = each.comparison
        bounds = f"{one.low:.3g} to {one.high:.3g}"
        words = (each.workload, str(each.size), each.phase, each.first, each.second)
        table.add_row(*words, f"{one.ratio:.3g}", bounds, str(one.num_rounds), each.word)
    console.print(table)
    reasons: dict[str, list[str]] = {}
    for each in found:
        for reason in each.comparison.reasons:
            reasons.setdefault(reason, []).append(f"{each.workload}[{each.size}] {each.phase}")
    for reason, arms in reasons.items():
        where = ", ".join(dict.fromkeys(arms)) if len(arms) < len(found) else "all"
        console.print(one_line(f"* {where}: {reason}"), soft_wrap=True, highlight=False)


def _within(run_set: RunSet, question: Question) -> Answer:
    found = tuple(
        verdict
        for phase in question.phases
        for verdict in verdicts(run_set, phase, question.same_within, between=question.between)
    )
    if not found:
        devices = list(dict.fromkeys(arm.device for arm in run_set.arms))
        measured = ", ".join(devices) or "no device"
        why = f"{measured} was measured, and two are needed"
        if len(devices) > 1:
            why = f"no workload and size has times of {_phases(question)} on two of its devices ({measured})"
        raise InvalidResourcesError(f"nothing to compare: {why}. {' '.join(run_set.problems())}".rstrip())
    return Answer(found, tuple(run_set.problems()))


def _across(first: RunSet, second: RunSet, question: Question, names: tuple[str, str]) -> Answer:
    hardware = differences_of_hardware(first.environment, second.environment)
    if hardware and not question.any_machine:
        raise InvalidResourcesError(
            f"the runs are of different machines ({'; '.join(hardware)}), so their times say nothing of the code:"
            " run both on one machine, or compare them with --any-machine"
        )
    doubts = (f"the machines differ ({'; '.join(hardware)})",) if hardware else ()
    found = tuple(
        verdict
        for phase in question.phases
        for verdict in verdicts_across(first, second, phase, question.same_within, names=names, doubts=doubts)
    )
    if not found and set(first.arms) & set(second.arms):
        raise InvalidResourcesError(f"nothing to compare: no arm has times of {_phases(question)} in both runs")
    if not found:
        of_each = [", ".join(map(str, run.arms)) or "nothing" for run in (first, second)]
        raise InvalidResourcesError(
            f"the runs have no arm in common: {names[0]} has {of_each[0]}; {names[1]} has {of_each[1]}."
            " Run the same workloads, sizes and devices"
        )
    software = differences_of_software(first.environment, second.environment)
    notes = [f"The runs differ: {'; '.join(software)}."] if software else []
    return Answer(found, (NOT_PAIRED, *notes, *_not_compared(first, second, names)))


def _not_compared(first: RunSet, second: RunSet, names: tuple[str, str]) -> Iterator[str]:
    """Yield what one run lacks, such as an arm that does not run any more: it has no verdict, and could be missed."""
    for name, run_set, other_name, other in ((names[0], first, names[1], second), (names[1], second, names[0], first)):
        for problem in run_set.problems():
            yield f"{name}: {problem}"
        if lacks := [str(arm) for arm in other.arms if not arm.is_control and arm not in run_set.arms]:
            yield f"{name} has no times of {shorten_names(lacks)}, and {other_name} has: not compared."


def _phases(question: Question) -> str:
    return " or ".join(question.phases)


def _names(files: Sequence[Path]) -> tuple[str, str]:
    first, second = (path.stem for path in files)
    return (first, second) if first != second else (str(files[0]), str(files[1]))
