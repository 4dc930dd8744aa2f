"""Keeps the latest resource usage in the last result of a trial, although most results do not contain the usage.

Tune saves the last result with the trial, and returns it as the metrics of the trial. Tune also computes 8 statistics
of each number in a result and saves them. They cost about 500 bytes per number and trial, so the statistics of the
records of resource usage are removed.
"""

from collections.abc import Mapping
from typing import Any, Final

from ray.tune.experiment import Trial

_SLOT: Final = "slot"
"""The key of the slot in a result. See ``trainers/process/trial_process.py``."""

_RECORDS: Final = {"usage": "host_memory_bytes", "gpu_memory": "peak_reserved_bytes"}
"""The keys of records, and a field that distinguishes each record from a user's metrics with the same key."""


def records_in_last_result(trial: Trial) -> dict[str, Any]:
    """Return the slot and the records of resource usage in the last result of a trial, by their keys."""
    last = trial.run_metadata.last_result  # the public property may call the process of the trial
    found = {}
    for key, field in _RECORDS.items():
        if isinstance(last.get(key), dict) and field in last[key]:
            found[key] = last[key]
    # When Tune restores a trial from a checkpoint, the last result becomes what the trial reported with the checkpoint.
    if isinstance(last.get(_SLOT), str):
        found[_SLOT] = last[_SLOT]
    return found


def complete_last_result(trial: Trial, records: Mapping[str, Any]) -> None:
    """Add the latest records to the last result of a trial that ended, and remove their statistics."""
    metadata = trial.run_metadata
    if not metadata.last_result:
        return
    for key, record in records.items():
        metadata.last_result.setdefault(key, record)
    prefixes = tuple(f"{key}/" for key in records)
    for statistics in (metadata.metric_analysis, metadata.metric_n_steps):
        for name in [name for name in statistics if name.startswith(prefixes)]:
            del statistics[name]
    metadata.invalidate_cache()
