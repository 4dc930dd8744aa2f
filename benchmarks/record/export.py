"""A run set for other programs, or a part of it: pyperf's files, and a table of all blocks."""

import csv
import io
import json
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Final

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import shorten, suggest

from .run_set import Arm, Phase, ProcessRun, RunSet
from .run_set_file import name_without_device, pyperf_data


def select(
    run_set: RunSet,
    *,
    workloads: Collection[str] = (),
    devices: Collection[str] = (),
    phases: Collection[Phase] = (),
) -> RunSet:
    """Return what was measured of these; of all, where none is named.

    Raises:
        InvalidResourcesError: A name is unknown, its device is not there, or nothing was measured of it.
    """
    _check("workload", workloads, {arm.workload for arm in _all_arms(run_set)})
    _check("device", devices, {each.device for each in run_set.devices} | {arm.device for arm in run_set.arms})
    for found in run_set.devices:
        if found.device in devices and found.why_missing is not None:
            raise InvalidResourcesError(f"nothing was measured on {found.device!r}: {found.why_missing}")

    def is_meant(arm: Arm) -> bool:
        return (not workloads or arm.workload in workloads) and (not devices or arm.device in devices)

    runs = (_in_phases(run, phases) if phases else run for run in run_set.runs if is_meant(run.arm))
    chosen = run_set.model_copy(
        update={
            "runs": tuple(run for run in runs if any(run.times_s(phase) for phase in Phase)),
            "failures": tuple(failure for failure in run_set.failures if is_meant(failure.arm)),
            "devices": tuple(each for each in run_set.devices if not devices or each.device in devices),
        }
    )
    if not chosen.runs:
        wanted = ", ".join((*workloads, *devices, *(phase.value for phase in phases))) or "this run"
        reasons = "".join(f"\n  {problem}" for problem in chosen.problems())
        raise InvalidResourcesError(f"nothing was measured of {wanted}{':' if reasons else ''}{reasons}")
    return chosen


def _in_phases(run: ProcessRun, phases: Collection[Phase]) -> ProcessRun:
    changes: dict[str, object] = {"blocks": tuple(block for block in run.blocks if block.phase in phases)}
    if Phase.FIRST_EPOCH not in phases:
        changes["first_epoch_s"] = None
    return run.model_copy(update=changes)


def _all_arms(run_set: RunSet) -> Iterable[Arm]:
    return (*run_set.arms, *(failure.arm for failure in run_set.failures))


def _check(kind: str, wanted: Collection[str], known: Collection[str]) -> None:
    for name in wanted:
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise InvalidResourcesError(f"unknown {kind} {shorten(name)}{suggest(name, known)} (there: {there})")


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
