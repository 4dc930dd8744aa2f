"""Each kind of fault under each way to run trials, one run after the other on one cluster, and the table of what came.

A kind of fault is a :class:`~tests.evidence.faults.matrix.program.Fault` in one of the modules ``faults_of_…``. Kinds
of one group share a run.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import reduce
from itertools import groupby, product
from operator import add
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.values.sanitize import one_line

from . import faults_of_drivers, faults_of_nodes, faults_of_programs, faults_of_workers
from .cluster import fault_cluster
from .judge import Verdict, Verdicts
from .program import Fault, run_under
from .ways import RAY_ALONE, WITH_TRAIN

FAULTS: Final[Mapping[str, Fault]] = {
    **faults_of_workers.FAULTS,
    **faults_of_nodes.FAULTS,
    **faults_of_programs.FAULTS,
    **faults_of_drivers.FAULTS,
}
NUM_NODES: Final = 3


class Cell(NamedTuple):
    """One kind of fault under one way, and what it did."""

    fault: str
    way: str
    verdict: Verdict


class Run(NamedTuple):
    """What the faults of one run did.

    Attributes:
        cells: Each kind.
        seconds: How long the run took.
        load: How many processes of the machine wanted a CPU in the last minute, on average.
    """

    cells: tuple[Cell, ...]
    seconds: float
    load: float


def measure_faults(
    faults: Sequence[str], ways: Sequence[str], number: int | None, seed: int, record: Path | None
) -> bool:
    """Run the cells, print the table, and return whether nothing was lost, disturbed or left under a plan.

    Args:
        faults: The kinds of faults by their names.
        ways: The ways by their names.
        number: How often each fault strikes in a run; ``None``: as often as it says.
        seed: Of what is hit, and when.
        record: To which file what each run came to is added, as a line of JSON; ``None``: to none.
    """
    runs: list[Run] = []
    began_s = time.monotonic()
    for run in _runs(faults, ways, number, seed):
        runs.append(run)
        for cell in run.cells:
            text = f"{cell.fault}, {cell.way}: {_counts(cell.verdict)}"
            print(f"{time.monotonic() - began_s:.0f} s: {text}", file=sys.stderr, flush=True)
            for why in cell.verdict.failures:
                print(f"  * {one_line(why)}", file=sys.stderr, flush=True)
        if record is not None:
            with record.open("a") as file:
                file.write(json.dumps(_to_json(run)) + "\n")
    print(_report(runs))
    print(f"\n{describe_machine()}\ncommand: {own_command()}")
    return not any(cell.verdict.failures for run in runs for cell in run.cells if cell.way not in RAY_ALONE)


def _runs(faults: Sequence[str], ways: Sequence[str], number: int | None, seed: int) -> Iterator[Run]:
    with fault_cluster(NUM_NODES) as cluster:
        for way in ways:
            for names in _groups(name for name in faults if way in FAULTS[name].ways):
                began_s = time.monotonic()
                with tempfile.TemporaryDirectory(prefix="f", ignore_cleanup_errors=True) as folder:
                    kinds = {name: FAULTS[name] for name in names}
                    verdicts = run_under(kinds, way, cluster, Path(folder), number, seed)
                seconds = time.monotonic() - began_s
                yield Run(tuple(_cells(verdicts, way)), seconds, os.getloadavg()[0])


def _groups(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield the kinds that share a run."""
    by_group = sorted(names, key=lambda name: FAULTS[name].group)
    for _, group in groupby(by_group, key=lambda name: FAULTS[name].group):
        yield list(group)


def _cells(verdicts: Verdicts, way: str) -> Iterator[Cell]:
    for name, verdict in verdicts.items():
        yield Cell(name, way, verdict)


def _to_json(run: Run) -> dict[str, object]:
    rows = [{"fault": cell.fault, "way": cell.way, **asdict(cell.verdict)} for cell in run.cells]
    return {"machine": describe_machine(), "command": own_command(), **run._asdict(), "cells": rows}


def _from_json(line: str) -> Run:
    def verdict(row: Mapping[str, Any]) -> Verdict:
        values: dict[str, Any] = {
            each.name: tuple(value) if isinstance(value := row[each.name], list) else value for each in fields(Verdict)
        }
        return Verdict(**values)

    known = json.loads(line)
    cells = tuple(Cell(row["fault"], row["way"], verdict(row)) for row in known["cells"])
    return Run(cells, known["seconds"], known["load"])


def show_faults(records: Iterable[Path]) -> None:
    """Print the table of the runs that are in records."""
    print(_report([_from_json(line) for record in records for line in record.read_text().splitlines()]))


def _report(runs: Sequence[Run]) -> str:
    cells = [cell for run in runs for cell in run.cells]
    lines = [table_of(cells)]
    for cell in cells:
        lines += [f"* {cell.fault}, {cell.way}: {one_line(why)}" for why in cell.verdict.failures]
    num_faults, seconds = sum(cell.verdict.num_faults for cell in cells), sum(run.seconds for run in runs)
    loads = [run.load for run in runs]
    lines.append(
        f"\n{len(runs)} runs, {num_faults} faults in {seconds:.0f} s; load average {_times(loads)} (median, p95)"
    )
    return "\n".join(lines)


def _counts(found: Verdict) -> str:
    return (
        f"{found.num_faults} struck, {len(found.lost)} lost, {len(found.disturbed)} disturbed, {len(found.left)} left, "
        f"at most {max(found.repeated, default=0)} repeated, {_times(found.recovery_s)}"
    )


def _times(seconds: Sequence[float]) -> str:
    """Return the median and the 95th percentile; all of so few that a percentile means nothing."""
    if len(seconds) <= 2:
        return ", ".join(f"{each:.1f}" for each in sorted(seconds))
    return "{:.1f}, {:.1f}".format(*np.percentile(seconds, (50, 95)))


_HEAD: Final = (
    "Fault",
    "Ways",
    "Struck",
    "Lost",
    "Most steps twice",
    "Disturbed",
    "Goes on after (s)",
    "new process after (s)",
    "Program ends after (s)",
    "Told after (s)",
    "Left",
)


def table_of(cells: Sequence[Cell]) -> str:
    """Return the table: for each kind of fault a row for the ways under a plan, and one for Ray alone.

    Ways with Ray Train have rows of their own: more processes start there, one after the other.
    """
    lines = [_row(_HEAD), "|---|---|" + "---:|" * (len(_HEAD) - 2)]
    for name in dict.fromkeys(cell.fault for cell in cells):
        title = FAULTS[name].title if name in FAULTS else name
        for is_train, is_ray in product((False, True), (False, True)):
            its = [each for each in cells if (each.fault, each.way in WITH_TRAIN) == (name, is_train)]
            its = [each for each in its if (each.way in RAY_ALONE) == is_ray]
            if its:
                alone = "Ray Train in Tune alone" if is_train else "Ray alone"
                ways = alone if is_ray else ", ".join(dict.fromkeys(cell.way for cell in its))
                found = reduce(add, (cell.verdict for cell in its))
                lines.append(_row((title, ways, *_columns(found, is_told=not is_ray))))
    return "\n".join(lines)


def _columns(found: Verdict, *, is_told: bool) -> tuple[str, ...]:
    told = [each for each in found.told_s if each is not None]
    return (
        str(found.num_faults),
        str(len(found.lost)),
        str(max(found.repeated, default=0)),
        str(len(found.disturbed)),
        _times(found.recovery_s),
        _times(found.process_s),
        _times(found.ended_s),
        f"{_times(told)} ({len(told)} of {len(found.told_s)})" if found.told_s and is_told else "",
        str(len(found.left)),
    )


def _row(parts: Sequence[str]) -> str:
    return "| " + " | ".join(parts) + " |"
