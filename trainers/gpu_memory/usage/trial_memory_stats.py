"""What is counted over a trial from its start on, in the process that runs it."""

import functools
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tune_policies.values.errors import ProbeError

from ..limits.share import SharedDevice
from .counters import FrameworkMemory, Kind, read_counters, release_unused, reset_peaks


@dataclass
class TrialMemoryStats:
    """What is counted over one trial beside the frameworks' own counters.

    Attributes:
        gpus: The devices that Ray gave it.
        device: Ray's name of them.
        left_over_bytes: What an earlier trial had left in the process.
        seen_ooms: Allocations that were refused when each framework was last asked, by its own count.
        num_ooms: Those of this trial.
        peaks: The highest that was read, by kind and framework.
        warnings: What its results warn of, beside those of its limits.
    """

    gpus: float
    device: SharedDevice = "GPU"
    left_over_bytes: int = 0
    seen_ooms: dict[str, int] = field(default_factory=dict)
    num_ooms: int = 0
    peaks: dict[Kind, dict[str, int]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def count_ooms(self, counters: Mapping[str, FrameworkMemory]) -> None:
        """Add what the frameworks have counted since they were last asked."""
        for name, memory in counters.items():
            if memory.num_ooms is None:
                continue
            seen = self.seen_ooms.get(name, 0)
            # The user's own code may reset torch's counter; then it began at 0 again.
            self.num_ooms += memory.num_ooms - seen if memory.num_ooms >= seen else memory.num_ooms
            self.seen_ooms[name] = memory.num_ooms


_stats: TrialMemoryStats | None = None
"""Of the process, as its share is."""


def current_stats() -> TrialMemoryStats | None:
    """Return the counts of the trial that this process runs; ``None``: no plan was applied to it, or it has no GPU."""
    return _stats


def begin_stats(gpus: float, device: SharedDevice = "GPU") -> None:
    """Begin to count for a trial that Ray gave so many devices, and free what an earlier one left in this process.

    What something still refers to cannot be freed: it counts as left over.
    """
    global _stats
    _stats = TrialMemoryStats(gpus=gpus, device=device)
    try:
        release_unused()
        reset_peaks()
        now = read_counters()
    except ProbeError as error:
        warn_of_silence(str(error))
        return
    _stats.left_over_bytes = held_bytes(now)
    _stats.count_ooms(now)
    _stats.num_ooms = 0  # those were an earlier trial's


def rebase_stats() -> None:
    """Begin the peaks anew from what the process holds now: a class was reset, and what it keeps is its own."""
    if _stats is None:
        return
    try:
        release_unused()
        reset_peaks()
    except ProbeError as error:
        warn_of_silence(str(error))
    _stats.left_over_bytes = 0
    _stats.peaks.clear()


def add_warnings(messages: Iterable[str]) -> None:
    """Add warnings to the trial's further results, each once."""
    if _stats is not None:
        _stats.warnings = list(dict.fromkeys([*_stats.warnings, *messages]))


def has_warnings() -> bool:
    """Return whether there is a warning that no result of the trial may have said."""
    return _stats is not None and bool(_stats.warnings)


def held_bytes(counters: Mapping[str, FrameworkMemory] | None = None) -> int:
    """Return what the frameworks of this process hold now, as far as they tell.

    Raises:
        ProbeError: A framework does not answer.
    """
    return sum(memory.held_bytes for memory in (read_counters() if counters is None else counters).values())


@functools.cache  # each reason once a process, not at each report
def warn_of_silence(reason: str) -> None:
    """Say that what the trial used is not known."""
    warnings.warn(f"what the trial used is not known: {reason}", stacklevel=2)
