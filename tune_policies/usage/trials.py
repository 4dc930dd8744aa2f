"""What each trial of a run used of its GPU memory, from the folder that Ray Tune or Ray Train wrote.

A trial has one record for all its results: the most of what grows, and the last of what is stated. Files that were cut
off as their run ended, and lines that are no record, are passed over.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from tune_policies.errors import InvalidResourcesError
from tune_policies.values import Value

from .record import GPU_MEMORY_KEY, GpuMemoryUsage

_RESULTS: Final = "result.json"
_ERROR: Final = "error.txt"
_TRIAL_FILES: Final = (_RESULTS, _ERROR, "params.json")
_TRAIN_RESULTS: Final = "checkpoint_manager_snapshot.json"
_NOTE: Final = f"{GPU_MEMORY_KEY}: "
_GROWING: Final = ("peak_allocated_bytes", "peak_reserved_bytes", "process_bytes", "overhead_bytes", "left_over_bytes")


_TIME: Final = re.compile(r"_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d$")


class TrialUsage(Value):
    """What one trial used.

    Attributes:
        name: The trial's, as its folder is called, without the time.
        usage: The most that it used; ``None``: it left no record, as without a GPU.
    """

    name: str
    usage: GpuMemoryUsage | None = None


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
    if (folder / _TRAIN_RESULTS).is_file():
        # The folders in it are checkpoints. Ray keeps the metrics of those alone.
        return RunUsage(trials=(_trial(folder.name, _reported_with_checkpoints(folder / _TRAIN_RESULTS)),))
    trials = [child for child in sorted(folder.iterdir()) if _is_trial(child)]
    if not trials and _is_trial(folder):
        trials = [folder]
    if not trials:
        raise InvalidResourcesError(
            f"{folder} holds no results of Tune or Train: name the folder of the run, which has a folder for each trial"
        )
    return RunUsage(trials=tuple(_trial(trial.resolve().name, _reported(trial)) for trial in trials))


def most(usages: Iterable[GpuMemoryUsage]) -> GpuMemoryUsage | None:
    """Return one record for all: the most of what grows, and else the last; ``None``: there are none.

    A trial that was started again had several processes; each counts its own.
    """
    found = list(usages)
    if not found:
        return None
    changes: dict[str, Any] = {}
    for name in _GROWING:
        amounts = [amount for amount in (getattr(usage, name) for usage in found) if amount is not None]
        changes[name] = max(amounts, default=None)
    kept = [usage.share_kept for usage in found if usage.share_kept is not None]
    changes["share_kept"] = all(kept) if kept else None
    changes["num_ooms"] = max(usage.num_ooms for usage in found)
    changes["warnings"] = tuple(dict.fromkeys(warning for usage in found for warning in usage.warnings))
    return found[-1].model_copy(update=changes)


def _is_trial(folder: Path) -> bool:
    return folder.is_dir() and any((folder / name).is_file() for name in _TRIAL_FILES)


def _trial(name: str, usages: Iterable[GpuMemoryUsage]) -> TrialUsage:
    return TrialUsage(name=_TIME.sub("", name), usage=most(usages))


def _reported(trial: Path) -> Iterator[GpuMemoryUsage]:
    for line in _lines(trial / _RESULTS):
        result = _parsed(line)
        yield from _records(result.get(GPU_MEMORY_KEY) if isinstance(result, dict) else None)
    for line in _lines(trial / _ERROR):
        _, note, record = line.partition(_NOTE)
        if note:
            yield from _records(_parsed(record))


def _reported_with_checkpoints(file: Path) -> Iterator[GpuMemoryUsage]:
    snapshot = _parsed("\n".join(_lines(file)))
    results = snapshot.get("checkpoint_results") if isinstance(snapshot, dict) else None
    for result in results if isinstance(results, list) else []:
        metrics = result.get("metrics") if isinstance(result, dict) else None
        yield from _records(metrics.get(GPU_MEMORY_KEY) if isinstance(metrics, dict) else None)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _records(data: Any) -> Iterator[GpuMemoryUsage]:
    """Yield the record that ``data`` is, if it is one: the key may be the user's own."""
    try:
        yield GpuMemoryUsage.from_dict(data)
    except InvalidResourcesError:
        return
