"""The GPU memory that processes and trials used, read from the files of Tune or Train.

A trial has one record for each GPU fraction that it reserved. A record has the maximum of each peak and the last value
of most other fields. Truncated files and lines that are not records are skipped.
"""

import io
import json
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from tune_policies.cluster.accelerators import public_text
from tune_policies.plan.default_overhead import TORCH_OVERHEAD_BYTES, safe_overhead_bytes
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import TICKS, Bytes, Count, GpuAmount, UsedBytes, to_ticks
from tune_policies.values.sanitize import LEFT_OUT, WithoutSecrets
from tune_policies.values.units import MIB
from tune_policies.values.value import ShownValue, Value

from .process_usage import USAGE_KEY, ProcessUsage

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tune_policies.oom import OutOfMemory

GPU_MEMORY_KEY: Final = "gpu_memory"
"""The key of the GPU memory record in the results of a trial."""

OOM_NOTE: Final = "out_of_memory: "
"""The prefix of the line with the report of an out-of-memory error as JSON (``OomReport``) in an error message."""

_EARLIER_NOTE: Final = f"{GPU_MEMORY_KEY}: "
"""The prefix that earlier versions wrote, with only the GPU memory record."""

WORKER_FILES: Final = f"{GPU_MEMORY_KEY}-*.json"
"""The name pattern of the files with the records of processes, in the folder of a run or a trial."""

ASSUMED: Final = "the reserved peak and an overhead that is only assumed"
"""The source of ``share_kept`` if the driver does not report memory per process and the overhead was not measured."""


def _from_lines(value: object) -> object:
    if isinstance(value, str):
        return tuple(value.splitlines())
    return value


def _from_named_lines(value: object) -> object:
    if not isinstance(value, str):
        return value
    named: dict[str, object] = {}
    for line in value.splitlines():
        name, _, text = line.partition(": ")
        named[name] = int(text) if text.isdecimal() else text
    return named


_Texts = Annotated[tuple[str, ...], BeforeValidator(_from_lines)]
"""Texts that a trial result stores as the lines of one string."""


class GpuMemoryUsage(Value):
    """The GPU memory that a process used, on all its devices together.

    Attributes:
        pid: The ID of the process.
        gpus: The number or fraction of GPUs of the process, or ``None`` if it is not known.
        device_bytes: The memory of one device of the process, in bytes, or ``None`` if it is not known.
        share_bytes: The memory of its GPU fraction, in bytes, or ``None`` for whole GPUs or if it is not known.
        limit_bytes: The limit of each framework's allocator in bytes, keyed by framework.
        peak_allocated_bytes: The peak memory of tensors, in bytes, or ``None`` if it is not known.
        peak_reserved_bytes: The peak memory that allocators reserved, in bytes, or ``None`` if it is not known.
        process_bytes: The memory of the process as reported by the driver, in bytes, or ``None`` if it is not known.
        overhead_bytes: The memory of frameworks outside their allocators, in bytes, or ``None`` if it is not known.
        num_ooms: The number of allocations that failed because memory ran out.
        share_kept: Whether the process stayed within ``share_bytes``, or ``None`` if it is not known.
        left_over_bytes: The memory that an earlier trial in this process did not release, in bytes.
        isolation: The mechanism that enforces the limit, such as ``"framework"`` or ``"mps"``. ``None`` means no limit.
        not_enforceable: The frameworks in use that cannot limit their memory.
        warnings: Notes, such as the reason why a limit is not enforced.
        sources: The source of each value, keyed by field name.
    """

    pid: Count | None = None
    gpus: GpuAmount | None = None
    device_bytes: Bytes | None = None
    share_bytes: Bytes | None = None
    limit_bytes: Annotated[dict[str, Bytes], BeforeValidator(_from_named_lines)] = Field(default_factory=dict)
    peak_allocated_bytes: UsedBytes | None = None
    peak_reserved_bytes: UsedBytes | None = None
    process_bytes: UsedBytes | None = None
    overhead_bytes: UsedBytes | None = None
    num_ooms: Count = 0
    share_kept: bool | None = None
    left_over_bytes: UsedBytes = 0
    isolation: str | None = None
    not_enforceable: _Texts = ()
    warnings: Annotated[tuple[WithoutSecrets, ...], BeforeValidator(_from_lines)] = ()
    sources: Annotated[dict[str, str], BeforeValidator(_from_named_lines)] = Field(default_factory=dict)

    def to_result(self) -> dict[str, Any]:
        """Return the record as a flat dictionary for a trial result. The dictionary always has the same keys.

        Lists are joined into strings, because TensorBoard's logger plots lists and warns about strings in
        them. ``progress.csv`` has columns only for the keys of the first result, even if the trial continues with
        another GPU fraction.
        """
        lines = {
            "limit_bytes": [f"{name}: {amount}" for name, amount in self.limit_bytes.items()],
            "not_enforceable": self.not_enforceable,
            "warnings": self.warnings,
            "sources": [f"{name}: {text}" for name, text in self.sources.items()],
        }
        texts = {name: "\n".join(" ".join(text.splitlines()) for text in of_field) for name, of_field in lines.items()}
        return {**self.model_dump(mode="json"), **texts}


def needed_bytes(usage: GpuMemoryUsage) -> int | None:
    """Return the peak memory of the process, including overhead, in bytes, or ``None`` if it is not known."""
    peak = _peak_bytes(usage)
    # The driver reports the present memory of the process, and the allocators report their peaks. Each may be the
    # larger one.
    amounts = (peak and peak + (usage.overhead_bytes or 0), usage.process_bytes)
    return max((amount for amount in amounts if amount), default=usage.process_bytes)


def bytes_to_plan(usage: GpuMemoryUsage) -> int | None:
    """Return the memory that a plan should give to such a process, in bytes, or ``None`` if it is 0 or not known.

    The limit of a GPU fraction subtracts an overhead from the fraction, so the peak of the allocators must fit in the
    rest. For a process without a limit, this overhead is at least the safe default.
    """
    needed, peak = needed_bytes(usage), _peak_bytes(usage)
    if not needed or not peak:
        return needed or None
    overhead = _subtracted_bytes(usage)
    if overhead is None:
        overhead = max(TORCH_OVERHEAD_BYTES, usage.overhead_bytes or 0)
    return max(needed, peak + overhead)


def _subtracted_bytes(usage: GpuMemoryUsage | None) -> int | None:
    """Return the overhead that the limit of a process subtracted from its GPU fraction, or ``None`` without a limit."""
    if usage is None or not usage.share_bytes or not usage.limit_bytes:
        return None
    return usage.share_bytes - min(usage.limit_bytes.values())


def device_bytes(usage: GpuMemoryUsage) -> int | None:
    """Return the memory of one device in bytes, or ``None`` if it is not known.

    If only the memory of a GPU fraction is known, the result is at most a few bytes less than the memory of the device.
    """
    if usage.device_bytes is not None or usage.share_bytes is None or not usage.gpus:
        return usage.device_bytes
    ticks = to_ticks(usage.gpus)
    num_parts = TICKS // ticks
    if ticks == TICKS // num_parts:  # an equal part: 1/7 of a device is 0.1428 in Ray
        return usage.share_bytes * num_parts
    return int(usage.share_bytes / usage.gpus)


def _peak_bytes(usage: GpuMemoryUsage) -> int | None:
    if usage.peak_reserved_bytes is None:
        return usage.peak_allocated_bytes
    return usage.peak_reserved_bytes


def has_assumed_overhead(usage: GpuMemoryUsage) -> bool:
    """Return whether ``share_kept`` depends on an assumed overhead."""
    return usage.sources.get("share_kept") == ASSUMED


def worker_file(rank: int, pid: int) -> str:
    """Return the name of a worker's file. The name contains the process ID, which changes if the worker restarts."""
    return WORKER_FILES.replace("*", f"{rank}-{pid}")


_RESULTS: Final = "result.json"
_ERROR: Final = "error.txt"
_FAILURE: Final = "Failure # "
"""The beginning of each failure in ``error.txt``."""
_TRIAL_FILES: Final = (_RESULTS, _ERROR, "params.json")
# ``CHECKPOINT_MANAGER_SNAPSHOT_FILENAME`` of Ray Train, which this module does not import.
_TRAIN_RESULTS: Final = "checkpoint_manager_snapshot.json"
_GROWING_FIELDS: Final = (
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "process_bytes",
    "overhead_bytes",
    "left_over_bytes",
)


_MOST_FAILURES: Final = 20
"""The maximum number of failures of a trial that are read, starting with the latest."""
_MOST_CHARACTERS: Final = 200_000
"""The maximum length of the text of a failure, which ends with the error."""

_MAX_RESULTS_BYTES: Final = 128 * MIB
"""The maximum size of a trial's results file in bytes, usually enough for a hundred thousand results."""

# Tune appends the time to the name of a trial's folder (``Trial._generate_dirname``).
_TIME_SUFFIX: Final = re.compile(r"_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d$")


class MemoryFailure(Value):
    """A failure of a trial because memory ran out, according to the trial's ``error.txt``.

    Attributes:
        kind: The kind of memory that ran out.
        device: The kind of the device whose memory ran out, such as ``"GPU"`` or ``"NPU"``.
        framework: The framework that raised the error, or ``None`` if it is not known.
        needed_bytes: The least memory with which the trial would have continued, in bytes, or ``None`` if it is not
            known: the memory that its process used, plus the failed request.
        allocator_bytes: The part of ``needed_bytes`` that the framework's allocator needed at least, in bytes, or
            ``None`` if it is not known. A plan must leave this amount after it has subtracted the overhead.
        requested_bytes: The failed request, in bytes, or ``None`` if the error does not contain it.
        device_bytes: The memory of the device, in bytes, or ``None`` if the error does not contain it.
        cause: ``"own_limit"`` if the process reached its limit, ``"neighbour"`` if other processes filled the GPU, or
            ``None`` if it is not known.
        fills_device: Whether the process alone filled the device, so that a whole device of this size is not enough.
    """

    kind: Literal["accelerator", "host"]
    device: str = "GPU"
    framework: str | None = None
    needed_bytes: Bytes | None = None
    allocator_bytes: Bytes | None = None
    requested_bytes: Bytes | None = None
    device_bytes: Bytes | None = None
    cause: Literal["own_limit", "neighbour"] | None = None
    fills_device: bool = False


def failure_bytes_to_plan(failure: MemoryFailure, usage: GpuMemoryUsage | None = None) -> int | None:
    """Return the memory that a plan should give to a trial that failed, in bytes, or ``None`` if it is not known.

    A plan subtracts an overhead from a GPU fraction, which may be more than the process used outside its allocator, so
    what the allocator needed must fit in the rest. If only the failed request is known, the result is a lower bound.

    Args:
        failure: The failure.
        usage: The memory use of the trial, or ``None`` if it is not known.
    """
    allocator_bytes = failure.allocator_bytes
    if not failure.needed_bytes:
        allocator_bytes = failure.requested_bytes
    if not allocator_bytes:
        return failure.needed_bytes
    overhead = _subtracted_bytes(usage)
    if overhead is None:
        overhead = safe_overhead_bytes(failure.framework or "torch")
    return max(failure.needed_bytes or 0, allocator_bytes + overhead)


class TrialGpuMemory(Value):
    """What one trial used: its GPU memory, and the CPU time and host memory of its process.

    Attributes:
        name: The name of the trial's folder, without the time suffix.
        usage: The record for its largest GPU fraction, or ``None`` if the trial has no record.
        of_smaller_shares: The records for smaller fractions, smallest first.
        failures: The failures because memory ran out, in order.
        process: The CPU time, host memory and GPU utilization of its last process, or ``None`` if its results do not
            contain them.
        host_memory_bytes: The peak host memory of all its processes, in bytes, or ``None`` if it is not known.
        slots: The slots in its results. A trial that was retried with more memory has several slots.
    """

    name: str
    usage: GpuMemoryUsage | None = None
    of_smaller_shares: tuple[GpuMemoryUsage, ...] = ()
    failures: tuple[MemoryFailure, ...] = ()
    process: ProcessUsage | None = None
    host_memory_bytes: UsedBytes | None = None
    slots: tuple[WithoutSecrets, ...] = ()

    @property
    def usages(self) -> tuple[GpuMemoryUsage, ...]:
        """The records of the trial for all its GPU fractions, smallest first."""
        if self.usage is None:
            return self.of_smaller_shares
        return (*self.of_smaller_shares, self.usage)


class RunUsage(ShownValue):
    """What the trials of one run used: GPU memory, CPU time and host memory.

    Attributes:
        trials: The trials, sorted by name.
        folder_of: The kind of the folder that was read: of an experiment of Tune, of a single trial, or of a Train run.
    """

    trials: tuple[TrialGpuMemory, ...]
    folder_of: Annotated[Literal["experiment", "trial", "train"], Field(exclude=True)] = "experiment"

    def __rich__(self) -> "RenderableType":
        from .usage_report import usage_view  # the view imports this module

        return usage_view(self)

    def redacted(self) -> "RunUsage":
        """Return a copy without the texts of warnings and errors, and without the names of a cluster's resources."""
        return RunUsage(trials=tuple(map(_redacted, self.trials)), folder_of=self.folder_of)


def _redacted(trial: TrialGpuMemory) -> TrialGpuMemory:
    usages = []
    for usage in trial.usages:
        if usage.warnings:
            usage = usage.model_copy(update={"warnings": (LEFT_OUT,)})
        # The reason why an amount is unknown may contain an error after a colon.
        sources = {name: text.partition(": ")[0] for name, text in usage.sources.items()}
        usage = usage.model_copy(update={"sources": sources})
        usages.append(usage)
    last = None if trial.usage is None else usages.pop()
    slots = tuple(map(public_text, trial.slots))
    return trial.model_copy(update={"usage": last, "of_smaller_shares": tuple(usages), "slots": slots})


def read_usage(folder: Path) -> RunUsage:
    """Return the GPU memory that the trials in ``folder`` used.

    ``folder`` is the folder of a Tune experiment, a single trial, or a Train run.

    Raises:
        InvalidResourcesError: ``folder`` is not one of these folders.
    """
    if not folder.is_dir():
        raise InvalidResourcesError(f"{folder} is not a folder. Pass the results folder of a Tune or Train run")
    if not _is_trial(folder) and (any(folder.glob(WORKER_FILES)) or (folder / _TRAIN_RESULTS).is_file()):
        # The subfolders are checkpoints. Ray stores only the metrics of the first worker, and only for checkpoints.
        reported = [*_usages_in_checkpoints(folder / _TRAIN_RESULTS), *_usages_in_worker_files(folder)]
        return RunUsage(trials=(_trial_usage(folder.resolve().name, reported),), folder_of="train")
    folder_of: Literal["experiment", "trial"] = "experiment"
    trials = [child for child in sorted(folder.iterdir()) if _is_trial(child)]
    if not trials and _is_trial(folder):
        trials, folder_of = [folder], "trial"
    if not trials:
        raise InvalidResourcesError(
            f"{folder} contains no results of Tune or Train. Pass a folder that contains a folder for each trial"
        )
    usages = []
    for trial in trials:
        results = _results_with_usage(trial)
        usage = _trial_usage(trial.resolve().name, _usages_of_trial(trial, results))
        changes = {"failures": tuple(_memory_failures(trial)), **_host_facts(results)}
        usages.append(usage.model_copy(update=changes))
    return RunUsage(trials=tuple(usages), folder_of=folder_of)


def merge_usages(found: Sequence[GpuMemoryUsage]) -> GpuMemoryUsage:
    """Merge the records of one GPU fraction into one record.

    The result contains the maximum of each peak, the sum of failed allocations and, in most other fields, the last
    value.
    """
    changes: dict[str, Any] = {}
    for name in _GROWING_FIELDS:
        amounts = [getattr(usage, name) for usage in found]
        changes[name] = max((amount for amount in amounts if amount is not None), default=None)
    kept = [usage.share_kept for usage in found if usage.share_kept is not None]
    changes["share_kept"] = all(kept) if kept else None
    # A restarted trial had several processes, and each process counts from 0.
    of_process: dict[int | None, int] = defaultdict(int)
    for usage in found:
        of_process[usage.pid] = max(of_process[usage.pid], usage.num_ooms)
    changes["num_ooms"] = sum(of_process.values())
    changes["warnings"] = tuple(dict.fromkeys(warning for usage in found for warning in usage.warnings))
    return found[-1].model_copy(update=changes)


def _is_trial(folder: Path) -> bool:
    return folder.is_dir() and any((folder / name).is_file() for name in _TRIAL_FILES)


def _trial_usage(name: str, usages: Iterable[GpuMemoryUsage]) -> TrialGpuMemory:
    by_share: dict[float, list[GpuMemoryUsage]] = defaultdict(list)
    for usage in usages:
        by_share[usage.gpus or 0].append(usage)
    found = [merge_usages(by_share[gpus]) for gpus in sorted(by_share)]
    largest = None
    if found:
        largest = found.pop()
    return TrialGpuMemory(name=_TIME_SUFFIX.sub("", name), usage=largest, of_smaller_shares=tuple(found))


def _results_with_usage(trial: Path) -> list[dict[str, Any]]:
    """Return the results of a trial that contain its usage: the first one of each process, and some later ones."""
    keys = (f'"{GPU_MEMORY_KEY}"', f'"{USAGE_KEY}"')
    found = []
    for line in _lines(trial / _RESULTS):
        if any(key in line for key in keys):  # parsing all lines would take seconds
            result = _parse_json(line)
            if isinstance(result, dict):
                found.append(result)
    return found


def _host_facts(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the process, the peak host memory and the slots in the results of a trial, as fields of its record."""
    found = []
    for result in results:
        with suppress(InvalidResourcesError):  # a user reported other data under this key
            found.append(ProcessUsage.from_dict(result.get(USAGE_KEY)))
    last = None
    if found:
        last = found[-1]
    slots = (result.get("slot") for result in results)
    return {
        "process": last,
        "host_memory_bytes": max((usage.host_memory_bytes for usage in found), default=None),
        "slots": tuple(dict.fromkeys(slot for slot in slots if isinstance(slot, str))),
    }


def _usages_of_trial(trial: Path, results: Iterable[dict[str, Any]]) -> Iterator[GpuMemoryUsage]:
    for line in _lines(trial / _ERROR):
        _, note, report = line.partition(OOM_NOTE)
        if note:
            yield from _records(_field(_parse_json(report), GPU_MEMORY_KEY))
        elif line.startswith(_EARLIER_NOTE):
            yield from _records(_parse_json(line.removeprefix(_EARLIER_NOTE)))
    for result in results:
        yield from _records(result.get(GPU_MEMORY_KEY))
    yield from _usages_in_worker_files(trial)


def _memory_failures(trial: Path) -> Iterator[MemoryFailure]:
    """Yield the failures of a trial because memory ran out."""
    from tune_policies.oom import OutOfMemory, classify_oom_text  # imported here, like the functions that read files

    failures = "".join(_lines(trial / _ERROR)).split(_FAILURE)[-_MOST_FAILURES:]
    for failure in failures:
        text = failure[-_MOST_CHARACTERS:]
        found = None
        for line in text.splitlines():
            if not line.startswith(OOM_NOTE):
                continue
            report = _parse_json(line.removeprefix(OOM_NOTE))
            if report:
                with suppress(InvalidResourcesError):  # a line of the user that looks like a report
                    found = OutOfMemory.from_dict(_field(report, "out_of_memory"))
        found = found or classify_oom_text(text)
        if found.kind == "accelerator":
            yield _accelerator_failure(found, text)
        elif found.kind == "host":
            # A process that reached its limit used about the limit.
            used_bytes = found.used_bytes or found.limit_bytes or 0
            yield MemoryFailure(
                kind="host",
                framework=found.framework,
                needed_bytes=used_bytes + (found.requested_bytes or 0) or None,
                requested_bytes=found.requested_bytes,
                cause=found.cause,
            )


def _accelerator_failure(found: "OutOfMemory", text: str) -> MemoryFailure:
    """Return the failure of an allocation of device memory with the amounts that ``text`` contains."""
    from tune_policies.oom.signatures import (
        device_kind,
        fills_device,
        held_bytes,
        in_use_bytes,
        program_bytes,
        total_bytes,
    )

    requested_bytes = found.requested_bytes
    needed_bytes = program_bytes(text)
    allocator_bytes = needed_bytes
    # A process that reached its limit used about the limit.
    used_bytes = in_use_bytes(text) or found.limit_bytes
    # Without the memory in use, the failed request may be a small part of what the process needed.
    if used_bytes and not needed_bytes:
        needed_bytes = used_bytes + (requested_bytes or 0)
        allocator_bytes = (held_bytes(text) or found.limit_bytes or 0) + (requested_bytes or 0)
    return MemoryFailure(
        kind="accelerator",
        device=device_kind(text),
        framework=found.framework,
        needed_bytes=needed_bytes,
        allocator_bytes=allocator_bytes or None,
        requested_bytes=requested_bytes,
        device_bytes=total_bytes(text),
        cause=found.cause,
        fills_device=fills_device(text, safe_overhead_bytes(found.framework or "torch")),
    )


def _usages_in_checkpoints(file: Path) -> Iterator[GpuMemoryUsage]:
    results = _field(_parse_json("".join(_lines(file))), "checkpoint_results")
    if not isinstance(results, list):  # no checkpoint, or a file of another Ray version
        return
    for result in results:
        yield from _records(_field(_field(result, "metrics"), GPU_MEMORY_KEY))


def _usages_in_worker_files(folder: Path) -> Iterator[GpuMemoryUsage]:
    for file in sorted(folder.glob(WORKER_FILES)):
        yield from _records(_field(_parse_json("".join(_lines(file))), GPU_MEMORY_KEY))


def _field(data: Any, name: str) -> Any:
    if isinstance(data, dict):
        return data.get(name)
    return None


def _lines(file: Path) -> Iterator[str]:
    # Imported here, because trial processes that import this module do not need it.
    from tune_policies.files.reading import UnreadableFileError, read_bytes

    try:
        data = read_bytes(file, max_bytes=_MAX_RESULTS_BYTES)
    except UnreadableFileError as error:
        if not error.is_missing:
            warnings.warn(f"{error}. The trial results in this file are not counted", stacklevel=2)
        return
    for line in io.BytesIO(data):
        yield line.decode(errors="replace")


def _parse_json(text: str) -> Any:
    from tune_policies.files.reading import MAX_BYTES

    if len(text) > MAX_BYTES:
        return None
    try:
        return json.loads(text)  # unlike pydantic, `json` accepts Infinity and NaN, which results may contain
    except (ValueError, RecursionError):
        return None


def _records(data: Any) -> Iterator[GpuMemoryUsage]:
    """Yield ``data`` as a record, unless it is invalid, for instance because a user reported other data."""
    with suppress(InvalidResourcesError):
        yield GpuMemoryUsage.from_dict(data)
