"""A part of a run set: some workloads, devices and phases of it."""

from collections.abc import Collection, Iterable

from tune_policies.errors import InvalidResourcesError
from tune_policies.values import shorten, suggest

from .run_set import Arm, Phase, ProcessRun, RunSet


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
