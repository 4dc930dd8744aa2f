"""Counts what became of trials, and how often memory ran out."""

from collections.abc import Mapping
from typing import Literal

from tune_policies.oom import OutOfMemory
from tune_policies.values import Value

from .record import OutOfMemoryCounts, ResourceUsage, TrialCounts

Ending = Literal["finished", "stopped_early", "failed", "cut_off"]
"""How a trial ends."""


class Tally:
    """What became of the trials of a run.

    Args:
        before: What was counted before the run was restored; ``None``: it is new.
    """

    def __init__(self, before: ResourceUsage | None = None) -> None:
        before = before or ResourceUsage()
        self._before = before.trials
        self._num_retries = before.trials.num_retries
        self._out_of_memory = before.out_of_memory
        self._endings: dict[str, Ending] = {}
        self._amounts: dict[str, Mapping[str, float]] = {}
        self._ran_out_with: dict[str, Mapping[str, float]] = {}
        self._refused: dict[tuple[str, object], int] = {}

    def started(self, trial_id: str, amounts: Mapping[str, float]) -> None:
        """Count a start with so much; one with more than the trial had when its memory ran out as raised, too."""
        self._endings.pop(trial_id, None)
        had = self._ran_out_with.pop(trial_id, None)
        if had is not None and any(amount > had.get(name, 0) for name, amount in amounts.items()):
            self._add(num_raised=1)
        self._amounts[trial_id] = amounts

    def ended(self, trial_id: str, ending: Ending) -> None:
        """Count an end, of which the first is true."""
        self._endings.setdefault(trial_id, ending)

    def failed(self, trial_id: str, out_of_memory: OutOfMemory, *, goes_back: bool) -> None:
        """Count a failure, for want of memory or not."""
        if goes_back:
            self._num_retries += 1
        else:
            self.ended(trial_id, "failed")
        if out_of_memory.kind == "none":
            return
        self._ran_out_with[trial_id] = self._amounts.get(trial_id, {})
        self._add(
            num_gpu_errors=int(out_of_memory.kind == "accelerator"),
            num_host_errors=int(out_of_memory.kind == "host"),
            num_neighbours=int(out_of_memory.cause == "neighbour"),
        )

    def refused(self, trial_id: str, process: object, num_so_far: int) -> None:
        """Count the allocations that were refused to one process of a trial, which says how many there were so far."""
        known = self._refused.get((trial_id, process), 0)
        if num_so_far > known:
            self._refused[trial_id, process] = num_so_far
            self._add(num_refused_allocations=num_so_far - known)

    def _add(self, **counts: int) -> None:
        now = self._out_of_memory
        self._out_of_memory = OutOfMemoryCounts(
            **{**now.model_dump(), **{name: getattr(now, name) + count for name, count in counts.items()}}
        )

    @property
    def out_of_memory(self) -> OutOfMemoryCounts:
        """How often memory ran out."""
        return self._out_of_memory

    @property
    def num_begun(self) -> int:
        """How many trials have begun and not come to an end of their own."""
        return sum(self._endings.get(trial_id, "cut_off") == "cut_off" for trial_id in self._amounts)

    def trials(self, num_by_status: "NumByStatus") -> TrialCounts:
        """Return what became of the trials, of which Tune says how many have which status.

        Which of those that Tune calls terminated were stopped early, or cut off, was told here; of a restored run also
        before, as their record says. The others finished.
        """
        endings = list(self._endings.values())
        cut_off = min(self._before.num_cut_off + endings.count("cut_off"), num_by_status.terminated)
        stopped_early = self._before.num_stopped_early + endings.count("stopped_early")
        terminated = num_by_status.terminated - cut_off
        stopped_early = min(stopped_early, terminated)
        return TrialCounts(
            num_finished=terminated - stopped_early,
            num_stopped_early=stopped_early,
            num_failed=num_by_status.error,
            num_cut_off=cut_off,
            num_unfinished=num_by_status.others,
            num_retries=self._num_retries,
        )


class NumByStatus(Value):
    """How many trials there are by what Tune says of them."""

    terminated: int = 0
    error: int = 0
    others: int = 0
