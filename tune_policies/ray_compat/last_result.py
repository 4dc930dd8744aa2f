"""Keeps the latest resource usage in the last result of a trial, although most results do not contain the usage.

Tune saves the last result with the trial, and returns it as the metrics of the trial. Tune also computes 8 statistics
of each number in a result and saves them. They cost about 500 bytes per number and trial, so the records of resource
usage are omitted from them.
"""

from typing import Any, Final

from ray.tune.experiment import Trial

_RECORDS: Final = {"usage": "host_memory_bytes", "gpu_memory": "peak_reserved_bytes"}
"""The keys of records, and a field that distinguishes each record from a user's metrics with the same key."""


class UsageKeepingTrial(Trial):  # type: ignore[misc]  # Ray has no types
    """A trial whose last result always contains the latest usage."""

    def update_last_result(self, result: dict[str, Any]) -> None:
        """Set the last result. Loggers and callbacks have already received ``result``."""
        earlier = self.run_metadata.last_result  # the property may call the process of the trial
        records: dict[str, Any] = {}
        if "usage" not in result:
            records = {key: earlier[key] for key in _RECORDS if key in earlier and key not in result}
        for key, field in _RECORDS.items():
            value = result.get(key)
            if isinstance(value, dict) and field in value:
                records[key] = result.pop(key)
        super().update_last_result(result)
        result.update(records)
