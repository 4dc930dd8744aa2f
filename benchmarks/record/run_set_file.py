"""The file of a run set: one JSON file that pyperf can read, too.

Its top level has pyperf's ``version``, ``benchmarks`` and ``metadata``, and ``tune_policies``, which pyperf ignores:
the whole run set, from which alone it is read. For pyperf, a benchmark is an arm in a phase, a run is a process, and
a value is the seconds of one step.

``python -m tune_policies.benchmarks.record.run_set_file`` rewrites the JSON schema.
"""

import csv
import io
import json
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from tune_policies.files.plain_data import parse_json
from tune_policies.files.reading import MAX_RECORD_BYTES, UnreadableFileError, read_bytes
from tune_policies.files.writing import replace_file
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.sanitize import one_line
from tune_policies.values.value import shorten, suggest

from .run_set import Arm, Environment, Phase, ProcessRun, RunSet

SCHEMA_FILE: Final = Path(__file__).with_name("run_set.schema.json")


def run_set_schema() -> dict[str, Any]:
    """Return the schema of the part under ``tune_policies``."""
    version = RunSet.model_fields["schema_version"].default
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:tune-policies:run-set:{version}",
        **RunSet.model_json_schema(),
    }


def schema_text() -> str:
    """Return the content of the shipped file."""
    return json.dumps(run_set_schema(), indent=2) + "\n"


def _full_name(arm: Arm, phase: Phase) -> str:
    return f"{arm.workload}[{arm.size}] {arm.where} {phase}"


def pyperf_data(run_set: RunSet, name: Callable[[Arm, Phase], str] = _full_name) -> dict[str, Any]:
    """Return the content of pyperf's file as plain data; each arm and phase needs its own name.

    Raises:
        InvalidResourcesError: pyperf is not installed.
    """
    try:
        import pyperf
    except ImportError as error:
        raise InvalidResourcesError(
            "what is measured is written in pyperf's format: pip install 'tune-policies[bench]'"
        ) from error
    machine = _machine(run_set.environment)
    benchmarks = []
    for arm in run_set.sorted_arms:
        for phase in Phase:
            about = {"name": name(arm, phase), "phase": phase.value, **machine}
            if runs := [_run(each, phase, about) for each in run_set.of(arm) if each.times_s(phase)]:
                benchmarks.append(pyperf.Benchmark(runs))
    if not benchmarks:  # pyperf refuses an empty suite
        return {"version": "1.0", "benchmarks": []}
    file = io.StringIO()
    pyperf.BenchmarkSuite(benchmarks).dump(file)
    data: dict[str, Any] = json.loads(file.getvalue())
    return data


def _run(process: ProcessRun, phase: Phase, about: dict[str, Any]) -> Any:
    import pyperf

    blocks = [block for block in process.blocks if block.phase is phase]
    warmups = [(block.num_steps, block.seconds_per_step) for block in blocks if block.is_warmup]
    # pyperf has one number of loops for all values of a run, from which it warns about values that are too short.
    loops = min((block.num_steps for block in blocks if not block.is_warmup), default=1)
    metadata = {**about, **_about(process), "unit": "second", "loops": loops}
    metadata["duration"] = sum(block.seconds for block in blocks) or process.first_epoch_s
    # pyperf refuses empty values and texts of several lines.
    lines = {key: " ".join(value.split()) if isinstance(value, str) else value for key, value in metadata.items()}
    known = {key: value for key, value in lines.items() if value not in ("", None)}
    return pyperf.Run(process.times_s(phase), warmups, metadata=known, collect_metadata=False)


def _utc(at: datetime) -> str:
    try:
        return at.astimezone(UTC).isoformat(sep=" ")
    except (OverflowError, ValueError) as error:
        raise InvalidResourcesError(
            f"started_at of a run is {at}, which no clock has shown: take the run out of the record, or record it again"
        ) from error


def _about(process: ProcessRun) -> dict[str, Any]:
    arm = process.arm
    return {
        "workload": arm.workload,
        "size": arm.size,
        "device": arm.device,
        "date": _utc(process.started_at),
        "round": process.round,
        # pyperf's own "hostname" must be the same in all runs of a benchmark, but a cluster has several hosts.
        "node": process.node,
        "pid": process.pid,
        "mem_max_rss": process.peak_host_bytes,
        "num_threads": process.num_threads,
        "dtype": process.dtype,
    }


def _machine(environment: Environment) -> dict[str, Any]:
    return {
        "cpu_model_name": environment.cpu_model,
        "cpu_count": environment.num_cpus,
        "gpus": ", ".join(gpu.name for gpu in environment.gpus),
        "platform": environment.platform,
        "python_version": environment.python,
        "commit_id": environment.commit,
        **{f"{name}_version": version for name, version in environment.versions.items()},
    }


KEY: Final = "tune_policies"
"""The key of the run set. It comes first, so that the first bytes of a file show whether it contains one."""

_BEGINS: Final = f'{{"{KEY}":'.encode()
_VERSION: Final = RunSet.model_fields["schema_version"].default
_MOST_MISTAKES: Final = 3
_MEASURE: Final = "`tune-policies bench run … --output FILE` writes one"


def write_run_set(run_set: RunSet, path: Path) -> None:
    """Write ``run_set`` to ``path``, as a whole or not at all. An older run set there is replaced, and keeps its mode.

    The file contains host names and the command; ``RunSet.redacted`` leaves both out.

    Raises:
        InvalidResourcesError: ``path`` is a file of another kind, or cannot be written.
    """
    if path.suffix == ".gz":
        raise InvalidResourcesError(f"{path}: a run set is not compressed, and pyperf would take it for that: drop .gz")
    try:
        beginning = read_bytes(path, max_bytes=len(_BEGINS), is_cut=True)
        if beginning not in (b"", _BEGINS):  # a run set may be cut off, or written by another program
            read_run_set(path)
    except UnreadableFileError:  # no such file, or one that replace_file refuses
        pass
    except InvalidResourcesError as error:
        raise InvalidResourcesError(
            f"{path} exists and is not a run set of these benchmarks: name another file, or delete this one"
        ) from error
    data = {KEY: run_set.model_dump(mode="json"), **pyperf_data(run_set)}
    replace_file(path, json.dumps(data, separators=(",", ":")) + "\n")


def read_run_set(path: Path) -> RunSet:
    """Read the file that :func:`write_run_set` wrote.

    Raises:
        InvalidResourcesError: The file is missing, too large, cut off, not JSON, of pyperf alone, of a newer version,
            or has an invalid field.
    """
    try:
        content = read_bytes(path, what="run set", max_bytes=MAX_RECORD_BYTES)
    except UnreadableFileError as error:
        raise InvalidResourcesError(f"{error}; {_MEASURE}") from error
    if content.startswith(b"\x1f\x8b"):
        raise InvalidResourcesError(f"{path} is compressed: unpack it with gunzip")
    try:
        data = parse_json(content)
    except ValueError as error:
        is_cut = str(error).startswith("EOF")
        what = f"is cut off ({error}): copy it again" if is_cut else f"is not JSON ({error})"
        raise InvalidResourcesError(f"{path} {what}; {_MEASURE}") from error
    if not isinstance(data, dict) or KEY not in data:
        raise InvalidResourcesError(f"{path} {_what_else(data)}; {_MEASURE}")
    own = data[KEY]
    version = own.get("schema_version") if isinstance(own, dict) else None
    if isinstance(version, int) and version > _VERSION:
        raise InvalidResourcesError(
            f"{path} is a run set of version {version}, and this tune-policies reads version {_VERSION}: "
            "read it with a newer one"
        )
    try:
        return RunSet.from_dict(own)
    except InvalidResourcesError as error:
        mistakes = str(error).splitlines()
        more = "\n  and more" if len(mistakes) > _MOST_MISTAKES else ""
        shown = "".join(f"\n  {mistake}" for mistake in mistakes[:_MOST_MISTAKES])
        raise InvalidResourcesError(
            f"{path} has been changed, or is not a run set ({_MEASURE}):{shown}{more}"
        ) from error


def _what_else(data: object) -> str:
    if isinstance(data, dict) and {"version", "benchmarks"} <= data.keys():
        return (
            "is a file of pyperf alone, without devices, rounds and environment: "
            "`python -m pyperf show` and `python -m pyperf compare_to` read it"
        )
    return f"is JSON, but not a run set: it has no {KEY!r} at its top"


def select(
    run_set: RunSet, *, workloads: Collection[str] = (), devices: Collection[str] = (), phases: Collection[Phase] = ()
) -> RunSet:
    """Return the measurements of these workloads, devices and phases, or of all if none is named.

    Raises:
        InvalidResourcesError: A name is unknown, a device is missing, or nothing was measured of them.
    """
    arms = (*run_set.arms, *(failure.arm for failure in run_set.failures))
    _check("workload", workloads, {arm.workload for arm in arms})
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
    """The formats of an export."""

    PYPERF = "pyperf"
    CSV = "csv"
    JSON = "json"


def pyperf_text(run_set: RunSet, device: str) -> str:
    """Return pyperf's file of one device, without controls.

    The names of its benchmarks do not contain the device, because pyperf compares equal names of two files.
    """
    of_device = [run for run in run_set.runs if run.arm.device == device and not run.arm.is_control]
    chosen = run_set.model_copy(update={"runs": tuple(of_device)})
    return json.dumps(pyperf_data(chosen, lambda arm, phase: f"{arm.workload}[{arm.size}] {phase}")) + "\n"


def csv_text(run_set: RunSet) -> str:
    """Return a row for each block, and one for each first epoch, without ``order`` and ``at_s``."""
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(_HEADINGS)
    for run in run_set.runs:
        rows.writerows([_cell(value) for value in row] for row in _rows(run))
    return file.getvalue()


_FORMULA: Final = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""The characters, and their full-width forms, with which a spreadsheet starts a formula."""


def _cell(value: object) -> object:
    """Return a cell: a text is one line, after an apostrophe if a spreadsheet would run it as a formula."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


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


if __name__ == "__main__":
    replace_file(SCHEMA_FILE, schema_text())
