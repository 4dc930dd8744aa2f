"""A run set for other programs: pyperf's files to compare devices by, a table of all blocks, or the run set alone."""

import csv
import io
import json
from enum import StrEnum
from typing import Final

from .pyperf_suite import name_without_device, pyperf_data
from .run_set import ProcessRun, RunSet

_HEADINGS: Final = (
    *("workload", "size", "device", "is_control", "round", "process", "pid", "node", "started_at"),
    *("num_threads", "dtype", "phase", "is_warmup", "order", "at_s", "num_steps", "seconds"),
)


class Format(StrEnum):
    """What a run set is exported to."""

    PYPERF = "pyperf"
    CSV = "csv"
    JSON = "json"


def pyperf_text(run_set: RunSet, device: str) -> str:
    """Return pyperf's file of one device, in which benchmarks have no device in their names. It has no controls."""
    of_device = [run for run in run_set.runs if run.arm.device == device and not run.arm.is_control]
    chosen = run_set.model_copy(update={"runs": tuple(of_device)})
    return json.dumps(pyperf_data(chosen, name_without_device)) + "\n"


def csv_text(run_set: RunSet) -> str:
    """Return a row for each block, and for each first epoch, which has neither an order nor a beginning."""
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(_HEADINGS)
    for run in run_set.runs:
        rows.writerows(_rows(run))
    return file.getvalue()


def _rows(run: ProcessRun) -> list[tuple[object, ...]]:
    arm = run.arm
    process = (
        *(arm.workload, arm.size, arm.device, arm.is_control, run.round, run.order, run.pid, run.node),
        *(run.started_at.isoformat(), run.num_threads, run.dtype or ""),
    )
    rows: list[tuple[object, ...]] = [
        (*process, block.phase, block.is_warmup, block.order, block.at_s, block.num_steps, block.seconds)
        for block in run.blocks
    ]
    if run.first_epoch_s is not None:
        rows.append((*process, "first-epoch", False, "", "", run.steps_per_epoch, run.first_epoch_s))
    return rows
