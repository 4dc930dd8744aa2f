"""The tables of proofs."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, TextTable, line
from tune_policies.values.sanitize import one_line

from .proof import COVERED, GOALS, Coverage, ProofRecord, ProofRun, wilson_interval

_Item = TypeVar("_Item")


def print_proof(record: ProofRecord) -> bool:
    """Print how many verdicts were right, ambiguous and wrong; return whether the goal is met."""
    goal = GOALS[record.name]
    table = TextTable(title=f"{record.name}: {goal.says}")
    for heading in ("Truth", "Runs", "Found", "Ambiguous", "Wrong", "Found, 95 %", "Wrong, 95 %", "Longest run (s)"):
        table.add_column(heading, justify="left" if heading == "Truth" else "right")
    for truth in dict.fromkeys(run.truth for run in record.runs):
        runs = [run for run in record.runs if run.truth is truth]
        found, wrong = count(runs, lambda run: run.is_found), count(runs, lambda run: run.is_wrong)
        counts = [len(runs), found, len(runs) - found - wrong, wrong]
        bounds = [_bounds(found, len(runs)), _bounds(wrong, len(runs))]
        longest = max(run.seconds for run in runs)
        table.add_row(truth.value, *map(str, counts), *bounds, f"{longest:.1f}")
    console = TextConsole(width=120)
    console.print(table)
    for reason, number in _reasons(record.runs).items():
        console.print(line(f"* {number} times: {reason}"), soft_wrap=True, highlight=False)
    is_met = bool(record.runs) and goal.is_met(record.runs)
    console.print(line(f"{'met' if is_met else 'not met'}. {record.machine}"), soft_wrap=True, highlight=False)
    print(one_line(f"command: {record.command}"))
    return is_met


def print_coverage(rows: Sequence[Coverage]) -> bool:
    """Print which part of the intervals holds the truth; return whether all keep what they promise."""
    table = TextTable(
        title=f"Intervals of 95 % on a machine that drifts: {COVERED[0]:.0%} to {COVERED[1]:.0%} hold the truth"
    )
    for heading in ("Rounds", "Draws", "Hold the truth", "95 %", "Equal arms pass for different", "95 %"):
        table.add_column(heading, justify="right")
    for row in rows:
        number = row.num_draws
        false = f"{row.false_verdicts / number:.2%}"
        covered = f"{row.covered / number:.1%}"
        bounds = (_bounds(row.covered, number), _bounds(row.false_verdicts, number))
        table.add_row(str(row.num_rounds), str(number), covered, bounds[0], false, bounds[1])
    TextConsole(width=120).print(table)
    print(describe_machine("numpy"))
    print(f"command: {own_command()}")
    return all(row.is_met for row in rows)


def count(items: Sequence[_Item], holds: Callable[[_Item], bool]) -> int:
    """Return of how many items it holds."""
    return sum(holds(item) for item in items)


def _bounds(hits: int, number: int) -> str:
    low, high = wilson_interval(hits, number)
    return f"{low:.1%} to {high:.1%}"


def _reasons(runs: Sequence[ProofRun]) -> dict[str, int]:
    """Return how often each kind of doubt came up: by its words up to the first figure."""
    found: dict[str, int] = {}
    for run in runs:
        for reason in run.comparison.reasons:
            words = reason.split()
            kind = " ".join(words[: next((i for i, word in enumerate(words) if word[:1].isdigit()), len(words))])
            found[kind] = found.get(kind, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))
