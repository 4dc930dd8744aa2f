"""Reads what each trial of a run used of its GPU memory, from the folder that Ray Tune or Ray Train wrote.

A trial gets one record for all its results: the most of each figure that grows, and the last of all others. A trial
that was started again with a larger share gets a record for each share. Files that were cut off as their run ended, and
lines that are no record, are skipped.
"""

import json
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tune_policies.files.reading import MAX_RECORD_BYTES, UnreadableFileError, read_text
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import Value

from .gpu_memory_usage import GPU_MEMORY_KEY, USAGE_NOTE, WORKER_FILES, GpuMemoryUsage

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


class RunUsage(Value):
    """What the trials of one run used.

    Attributes:
        trials: In the order of their names.
    """

    trials: tuple[TrialUsage, ...]


def read_usage(folder: Path) -> RunUsage:
    """Return what the trials below ``folder`` used: an experiment of Tune, one trial of it, or a run of Train.

    Raises:
        InvalidResourcesError: ``folder`` is none of these.
    """
    if not folder.is_dir():
        raise InvalidResourcesError(f"{folder} is no folder: name the one that a run of Tune or Train wrote")
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
    changes["num_ooms"] = _num_ooms(found)
    changes["warnings"] = tuple(dict.fromkeys(warning for usage in found for warning in usage.warnings))
    return found[-1].model_copy(update=changes)


def _num_ooms(usages: Sequence[GpuMemoryUsage]) -> int:
    """Return the sum over all processes: a trial that was started again had several, and each counts its own."""
    of_process: dict[int | None, int] = defaultdict(int)
    for usage in usages:
        of_process[usage.pid] = max(of_process[usage.pid], usage.num_ooms)
    return sum(of_process.values())


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
        result = _parse_json(line)
        yield from _records(result.get(GPU_MEMORY_KEY) if isinstance(result, dict) else None)
    yield from _usages_in_worker_files(trial)


def _usages_in_checkpoints(file: Path) -> Iterator[GpuMemoryUsage]:
    snapshot = _parse_json("\n".join(_lines(file)))
    results = snapshot.get("checkpoint_results") if isinstance(snapshot, dict) else None
    for result in results if isinstance(results, list) else []:
        metrics = result.get("metrics") if isinstance(result, dict) else None
        yield from _records(metrics.get(GPU_MEMORY_KEY) if isinstance(metrics, dict) else None)


def _usages_in_worker_files(folder: Path) -> Iterator[GpuMemoryUsage]:
    for file in sorted(folder.glob(WORKER_FILES)):
        found = _parse_json("\n".join(_lines(file)))
        yield from _records(found.get(GPU_MEMORY_KEY) if isinstance(found, dict) else None)


def _lines(file: Path) -> list[str]:
    try:
        return read_text(file, max_bytes=MAX_RECORD_BYTES, errors="replace").splitlines()
    except UnreadableFileError as error:
        if not error.is_missing:
            warnings.warn(f"{error}; what it says of the trial is not counted", stacklevel=2)
        return []


def _parse_json(text: str) -> Any:
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
