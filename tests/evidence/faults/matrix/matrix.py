"""Each kind of fault under each way to run trials, one run after the other on one cluster, and the table of what came.

A kind of fault is a :class:`~tests.evidence.faults.matrix.program.Fault` in one of the modules ``faults_of_…``.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from operator import add
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.values.sanitize import one_line

from . import faults_of_nodes, faults_of_programs, faults_of_workers
from .cluster import fault_cluster
from .judge import Verdict
from .program import Fault, run_under
from .ways import RAY_ALONE

FAULTS: Final[Mapping[str, Fault]] = {
    **faults_of_workers.FAULTS,
    **faults_of_nodes.FAULTS,
    **faults_of_programs.FAULTS,
}
NUM_NODES: Final = 3


class Cell(NamedTuple):
    """One kind of fault under one way, and what it did."""

    fault: str
    way: str
    verdict: Verdict
    seconds: float


def measure_faults(
    faults: Sequence[str], ways: Sequence[str], number: int | None, seed: int, record: Path | None
) -> bool:
    """Run the cells, print the table, and return whether nothing was lost, disturbed or left under a plan.

    Args:
        faults: The kinds of faults by their names.
        ways: The ways by their names.
        number: How often each fault strikes in a run; ``None``: as often as it says.
        seed: Of what is hit, and when.
        record: Where to write what each cell came to, as JSON; ``None``: nowhere.
    """
    cells: list[Cell] = []
    began_s = time.monotonic()
    for cell in _run_cells(faults, ways, number, seed):
        cells.append(cell)
        text = f"{cell.fault}, {cell.way}: {cell.seconds:.0f} s, {_counts(cell.verdict)}"
        print(f"{time.monotonic() - began_s:.0f} s: {text}", file=sys.stderr, flush=True)
        for why in _failures(cell):
            print(f"  * {one_line(why)}", file=sys.stderr, flush=True)
        if record is not None:
            told = {"machine": describe_machine(), "command": own_command()}
            rows = [{"fault": each.fault, "way": each.way, **asdict(each.verdict)} for each in cells]
            record.write_text(json.dumps({**told, "cells": rows}, indent=1))
    print(table_of(cells))
    for cell in cells:
        for why in _failures(cell):
            print(f"* {cell.fault}, {cell.way}: {one_line(why)}")
    print(f"\n{describe_machine()}\ncommand: {own_command()}\n{time.monotonic() - began_s:.0f} s in all")
    return not any(_failures(cell) for cell in cells if cell.way not in RAY_ALONE)


def _run_cells(faults: Sequence[str], ways: Sequence[str], number: int | None, seed: int) -> Iterator[Cell]:
    with fault_cluster(NUM_NODES) as cluster:
        for name in faults:
            fault = FAULTS[name]
            for way in ways:
                if way not in fault.ways:
                    continue
                began_s = time.monotonic()
                with tempfile.TemporaryDirectory(prefix="f", ignore_cleanup_errors=True) as folder:
                    times = number or fault.number_under(way)
                    verdict = run_under(fault, way, cluster, Path(folder), times, seed)
                yield Cell(name, way, verdict, time.monotonic() - began_s)


def _failures(cell: Cell) -> tuple[str, ...]:
    found = cell.verdict
    return (*found.lost, *found.disturbed, *(f"left: {each}" for each in found.left))


def _counts(found: Verdict) -> str:
    return (
        f"{found.num_faults} struck, {len(found.lost)} lost, {len(found.disturbed)} disturbed, {len(found.left)} left, "
        f"at most {max(found.repeated, default=0)} repeated, {_times(found.recovery_s)}"
    )


def _times(seconds: Sequence[float]) -> str:
    """Return the median and the 95th percentile."""
    if not seconds:
        return ""
    return "{:.1f}, {:.1f}".format(*np.percentile(seconds, (50, 95)))


def table_of(cells: Sequence[Cell]) -> str:
    """Return the table: for each kind of fault a row for the ways under a plan, and one for Ray alone."""
    head = (
        "Fault",
        "Ways",
        "Struck",
        "Lost",
        "Most steps twice",
        "Disturbed",
        "Goes on after (s)",
        "Told after (s)",
        "Left",
    )
    lines = [_row(head), "|---|---|" + "---:|" * (len(head) - 2)]
    for name in dict.fromkeys(cell.fault for cell in cells):
        for is_ray in (False, True):
            its = [cell for cell in cells if cell.fault == name and (cell.way in RAY_ALONE) == is_ray]
            if not its:
                continue
            found = reduce(add, (cell.verdict for cell in its))
            told = [each for each in found.told_s if each is not None]
            told_text = f"{_times(told)}; {len(told)} of {len(found.told_s)}" if found.told_s and not is_ray else ""
            ended = f"ends: {_times(found.ended_s)}" if found.ended_s else ""
            lines.append(
                _row(
                    (
                        FAULTS[name].title,
                        "Ray alone" if is_ray else ", ".join(cell.way for cell in its),
                        str(found.num_faults),
                        str(len(found.lost)),
                        str(max(found.repeated, default=0)),
                        str(len(found.disturbed)),
                        _times(found.recovery_s) or ended,
                        told_text,
                        str(len(found.left)),
                    )
                )
            )
    return "\n".join(lines)


def _row(parts: Sequence[str]) -> str:
    return "| " + " | ".join(parts) + " |"
