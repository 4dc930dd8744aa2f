"""What a process used of its share of GPU memory; and what a run's trials used, by the files of Ray Tune or Ray Train.

A trial gets one record for all its results: the most of each figure that grows, and the last of all others. A trial
that was started again with a larger share gets a record for each share. Files that were cut off as their run ended, and
lines that are no record, are skipped.
"""

import io
import json
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import BeforeValidator, Field

from tune_policies.files.reading import MAX_BYTES, UnreadableFileError, read_bytes
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Bytes, Count, GpuAmount, UsedBytes
from tune_policies.values.sanitize import LEFT_OUT, Redacted
from tune_policies.values.units import MIB
from tune_policies.values.value import ShownValue, Value

GPU_MEMORY_KEY: Final = "gpu_memory"
"""The one key under which a trial's result says what it used."""

USAGE_NOTE: Final = f"{GPU_MEMORY_KEY}: "
"""How the line of an error begins that says what its trial had used, in JSON."""

WORKER_FILES: Final = f"{GPU_MEMORY_KEY}-*.json"
"""The files in the folder of a run or a trial that have each a process's record."""

ASSUMED: Final = "the reserved peak and an overhead that is only assumed"
"""What ``share_kept`` rests on where the driver does not count by process, and nobody measured the overhead."""


def _from_lines(value: object) -> object:
    return tuple(value.splitlines()) if isinstance(value, str) else value


def _from_named_lines(value: object) -> object:
    if not isinstance(value, str):
        return value
    parts = [line.partition(": ") for line in value.splitlines()]
    return {name: int(text) if text.isdecimal() else text for name, _, text in parts}


_Texts = Annotated[tuple[str, ...], BeforeValidator(_from_lines)]
"""Texts; in a result they are the lines of one."""


class GpuMemoryUsage(Value):
    """What a process used of its share of GPU memory, all its devices together.

    Attributes:
        pid: The number of the process.
        gpus: GPUs that Ray gave the process: a share of one, or whole ones; ``None``: not known.
        device_bytes: The memory of one of its devices; ``None``: not known.
        share_bytes: What the process may use in all; ``None``: whole GPUs, or a share whose size is not known.
        limit_bytes: What its frameworks' allocators were limited to, by framework.
        peak_allocated_bytes: The most that tensors took; ``None``: no framework can tell.
        peak_reserved_bytes: The most that allocators held; ``None``: no framework can tell.
        process_bytes: What the process holds on the device by the driver's own count, all included; ``None``: the
            driver cannot say.
        overhead_bytes: What the frameworks use outside their allocators; ``None``: not known.
        num_ooms: How often an allocation was refused for want of memory.
        share_kept: Whether the process stayed within its share; ``None``: not known.
        left_over_bytes: What an earlier trial in this process had left behind and did not release.
        isolation: What holds the process to its share, such as ``"framework"`` or ``"mps"``; ``None``: nothing does.
        not_enforceable: Frameworks in use that know no limit.
        warnings: What makes a limit void although you asked to run on; and what else a reader should know.
        sources: How each figure was measured, by its field.
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
    warnings: Annotated[tuple[Redacted, ...], BeforeValidator(_from_lines)] = ()
    sources: Annotated[dict[str, str], BeforeValidator(_from_named_lines)] = Field(default_factory=dict)

    def to_result(self) -> dict[str, Any]:
        """Return the record as a part of a result: always the same keys, with a number or a text each.

        TensorBoard's logger wants to draw each list, and warns where it holds texts. ``progress.csv`` has a column for
        each key of a mapping, and has those of the first result, also where a trial goes on with another share.
        """
        lines = {
            "limit_bytes": [f"{name}: {amount}" for name, amount in self.limit_bytes.items()],
            "not_enforceable": self.not_enforceable,
            "warnings": self.warnings,
            "sources": [f"{name}: {text}" for name, text in self.sources.items()],
        }
        texts = {name: "\n".join(" ".join(line.splitlines()) for line in each) for name, each in lines.items()}
        return {**self.model_dump(mode="json"), **texts}


def needed_bytes(usage: GpuMemoryUsage) -> int | None:
    """Return the most that the whole process took on a device, its frameworks' own use included; ``None``: not known.

    The allocator's peak alone would be too little where the driver does not count: memory outside the allocator counts.
    """
    peak = usage.peak_allocated_bytes if usage.peak_reserved_bytes is None else usage.peak_reserved_bytes
    amounts = [peak + (usage.overhead_bytes or 0)] if peak else []
    if usage.process_bytes is not None:
        amounts.append(usage.process_bytes)
    return max(amounts, default=None)


def rests_on_assumption(usage: GpuMemoryUsage) -> bool:
    """Return whether it is only likely that the share was kept."""
    return usage.sources.get("share_kept") == ASSUMED


def worker_file(rank: int, pid: int) -> str:
    """Return the name of a process's file; a worker that was started again has another process."""
    return WORKER_FILES.replace("*", f"{rank}-{pid}")


_RESULTS: Final = "result.json"
_ERROR: Final = "error.txt"
_TRIAL_FILES: Final = (_RESULTS, _ERROR, "params.json")
_TRAIN_RESULTS: Final = "checkpoint_manager_snapshot.json"
_GROWING_FIELDS: Final = (
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "process_bytes",
    "overhead_bytes",
    "left_over_bytes",
)


_MAX_RESULTS_BYTES: Final = 128 * MIB
"""Of what Tune writes of one trial: a hundred thousand results, as a rule."""

_TIME_SUFFIX: Final = re.compile(r"_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d$")


class TrialUsage(Value):
    """What one trial used.

    Attributes:
        name: The trial's, as its folder is called, without the time.
        usage: The most that it used, of the largest share that it had; ``None``: it left no record, as without a GPU.
        of_smaller_shares: What it had used of each smaller share, the smallest first.
    """

    name: str
    usage: GpuMemoryUsage | None = None
    of_smaller_shares: tuple[GpuMemoryUsage, ...] = ()

    @property
    def usages(self) -> tuple[GpuMemoryUsage, ...]:
        """All its records, that of the smallest share first."""
        return self.of_smaller_shares if self.usage is None else (*self.of_smaller_shares, self.usage)


class RunUsage(ShownValue):
    """What the trials of one run used.

    Attributes:
        trials: In the order of their names.
    """

    _view: ClassVar = "tune_policies.tune.usage.gpu_memory_report:usage_view"

    trials: tuple[TrialUsage, ...]

    def redacted(self) -> "RunUsage":
        """Return the same without what warnings say: to be published."""
        return RunUsage(trials=tuple(map(_without_warnings, self.trials)))


def _without_warnings(trial: TrialUsage) -> TrialUsage:
    usages = [each.model_copy(update={"warnings": (LEFT_OUT,) * bool(each.warnings)}) for each in trial.usages]
    last = usages.pop() if trial.usage else None
    return trial.model_copy(update={"usage": last, "of_smaller_shares": tuple(usages)})


def read_usage(folder: Path) -> RunUsage:
    """Return what the trials below ``folder`` used: an experiment of Tune, one trial of it, or a run of Train.

    Raises:
        InvalidResourcesError: ``folder`` is none of these.
    """
    if not folder.is_dir():
        raise InvalidResourcesError(f"{folder} is not a folder: name the one that a run of Tune or Train wrote")
    if not _is_trial(folder) and (any(folder.glob(WORKER_FILES)) or (folder / _TRAIN_RESULTS).is_file()):
        # The folders in it are checkpoints. Ray keeps the metrics of those alone, and of the first worker.
        reported = [*_usages_in_checkpoints(folder / _TRAIN_RESULTS), *_usages_in_worker_files(folder)]
        return RunUsage(trials=(_trial_usage(folder.resolve().name, reported),))
    trials = [child for child in sorted(folder.iterdir()) if _is_trial(child)]
    if not trials and _is_trial(folder):
        trials = [folder]
    if not trials:
        raise InvalidResourcesError(
            f"{folder} holds no results of Tune or Train: name the folder of the run, which has a folder for each trial"
        )
    return RunUsage(trials=tuple(_trial_usage(trial.resolve().name, _usages_of_trial(trial)) for trial in trials))


def merge_usages(found: Sequence[GpuMemoryUsage]) -> GpuMemoryUsage:
    """Return one record for several with the same share: the most of each figure that grows, the last of all others."""
    changes: dict[str, Any] = {}
    for name in _GROWING_FIELDS:
        amounts = [amount for amount in (getattr(usage, name) for usage in found) if amount is not None]
        changes[name] = max(amounts, default=None)
    kept = [usage.share_kept for usage in found if usage.share_kept is not None]
    changes["share_kept"] = all(kept) if kept else None
    # A trial that was started again had several processes, and each counts its own.
    of_process: dict[int | None, int] = defaultdict(int)
    for usage in found:
        of_process[usage.pid] = max(of_process[usage.pid], usage.num_ooms)
    changes["num_ooms"] = sum(of_process.values())
    changes["warnings"] = tuple(dict.fromkeys(warning for usage in found for warning in usage.warnings))
    return found[-1].model_copy(update=changes)


def _is_trial(folder: Path) -> bool:
    return folder.is_dir() and any((folder / name).is_file() for name in _TRIAL_FILES)


def _trial_usage(name: str, usages: Iterable[GpuMemoryUsage]) -> TrialUsage:
    by_share: dict[float, list[GpuMemoryUsage]] = defaultdict(list)
    for usage in usages:
        by_share[usage.gpus or 0].append(usage)
    found = [merge_usages(by_share[gpus]) for gpus in sorted(by_share)]
    largest = found.pop() if found else None
    return TrialUsage(name=_TIME_SUFFIX.sub("", name), usage=largest, of_smaller_shares=tuple(found))


def _usages_of_trial(trial: Path) -> Iterator[GpuMemoryUsage]:
    for line in _lines(trial / _ERROR):
        _, note, record = line.partition(USAGE_NOTE)
        if note:
            yield from _records(_parse_json(record))
    for line in _lines(trial / _RESULTS):
        if GPU_MEMORY_KEY in line:  # to parse all others takes seconds
            yield from _records(_field(_parse_json(line), GPU_MEMORY_KEY))
    yield from _usages_in_worker_files(trial)


def _usages_in_checkpoints(file: Path) -> Iterator[GpuMemoryUsage]:
    results = _field(_parse_json("".join(_lines(file))), "checkpoint_results")
    for result in results if isinstance(results, list) else []:
        yield from _records(_field(_field(result, "metrics"), GPU_MEMORY_KEY))


def _usages_in_worker_files(folder: Path) -> Iterator[GpuMemoryUsage]:
    for file in sorted(folder.glob(WORKER_FILES)):
        yield from _records(_field(_parse_json("".join(_lines(file))), GPU_MEMORY_KEY))


def _field(data: Any, name: str) -> Any:
    return data.get(name) if isinstance(data, dict) else None


def _lines(file: Path) -> Iterator[str]:
    try:
        data = read_bytes(file, max_bytes=_MAX_RESULTS_BYTES)
    except UnreadableFileError as error:
        if not error.is_missing:
            warnings.warn(f"{error}; what it says of the trial is not counted", stacklevel=2)
        return
    for line in io.BytesIO(data):
        yield line.decode(errors="replace")


def _parse_json(text: str) -> Any:
    if len(text) > MAX_BYTES:
        return None
    try:
        return json.loads(text)  # a result may hold what JSON does not know, such as Infinity
    except (ValueError, RecursionError):
        return None


def _records(data: Any) -> Iterator[GpuMemoryUsage]:
    """Yield the record that ``data`` is, if it is one: the key may be the user's own."""
    try:
        yield GpuMemoryUsage.from_dict(data)
    except InvalidResourcesError:
        return
