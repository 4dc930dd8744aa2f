"""A process's record as a small file in the folder of its run, or trial: what no result of Ray's says.

Of Train workers, Ray keeps what the first one reported, and that only together with a checkpoint; which of them uses
most, nobody knows before. And what comes up as a trial ends is too late for its last result.
"""

import json
import os
import warnings
from dataclasses import dataclass
from typing import Any, Final

from tune_policies.files.storage import put_text
from tune_policies.usage.record import GPU_MEMORY_KEY, GpuMemoryUsage, worker_file

from .usage import usage_if_known

_TOLD: Final = ("peak_allocated_bytes", "peak_reserved_bytes", "num_ooms", "share_kept", "warnings")
"""What is worth another write: storage may be far away, and a report a second is nothing unusual."""


@dataclass
class RunFolder:
    """Where this process's record is kept.

    Attributes:
        filesystem: Of pyarrow, as Ray writes the run's results.
        path: The run's folder there.
        rank: The worker's; 0 in a trial.
    """

    filesystem: Any
    path: str
    rank: int
    _written: GpuMemoryUsage | None = None

    def keep(self) -> None:
        """Write down what this process has used so far, if there is news; what cannot be written is a warning."""
        usage = usage_if_known()
        if usage is None or _news(usage) == _news(self._written):
            return
        self._written = usage
        text = json.dumps({GPU_MEMORY_KEY: usage.model_dump(mode="json")})
        file = f"{self.path}/{worker_file(self.rank, os.getpid())}"
        try:
            # Tune makes a trial's folder with its first result, which may not be there yet.
            put_text(self.filesystem, file, text)
        except Exception as error:  # noqa: BLE001  # each filesystem has errors of its own, and none is worth the run
            warnings.warn(f"what the worker used is not kept in {file}: {error}", stacklevel=2)


def _news(usage: GpuMemoryUsage | None) -> list[Any]:
    return [getattr(usage, name, None) for name in _TOLD] if usage else []
