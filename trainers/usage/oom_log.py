"""Counts the out-of-memory errors of a run, and what the retried trials got and used afterwards.

This module reads no clock and does not import Tune or Ray.
"""

from collections import Counter
from collections.abc import Mapping

from tune_policies.oom import OutOfMemory

from .gpu_memory_records import GpuMemoryUsage, bytes_to_plan, device_bytes
from .process_usage import ProcessUsage
from .resource_usage import OutOfMemoryCounts, RaisedMemory, ResourceUsage


class OutOfMemoryLog:
    """The out-of-memory errors of one run.

    Args:
        before: The earlier record of a restored run. The counts continue from this record.

    Attributes:
        raised: What the trials that were retried with more memory reserved and used.
    """

    raised: RaisedMemory

    def __init__(self, before: ResourceUsage) -> None:
        self.raised = before.raised
        self._counts = Counter(before.out_of_memory.model_dump())
        self._ran_out_with = dict(before.ran_out_with)
        self._raised_names = {trial_id: frozenset(names) for trial_id, names in before.raised_trials.items()}
        self._refused: Counter[tuple[str, int | None]] = Counter()  # keyed by trial and process

    @property
    def counts(self) -> OutOfMemoryCounts:
        """The number of events of each kind."""
        return OutOfMemoryCounts(**self._counts)

    @property
    def ran_out_with(self) -> dict[str, dict[str, float]]:
        """The amounts that trials reserved when they ran out of memory, until they start again."""
        return {trial_id: dict(amounts) for trial_id, amounts in self._ran_out_with.items()}

    @property
    def raised_trials(self) -> dict[str, tuple[str, ...]]:
        """The resources that were increased for each retried trial, by Ray's name."""
        return {trial_id: tuple(sorted(names)) for trial_id, names in self._raised_names.items()}

    def note_error(self, trial_id: str, error: OutOfMemory, amounts: Mapping[str, float]) -> None:
        """Record that a trial which reserved ``amounts`` ran out of memory."""
        self._ran_out_with[trial_id] = dict(amounts)
        counter = "num_gpu_errors" if error.kind == "accelerator" else "num_host_errors"
        self._counts[counter] += 1
        if error.cause_with(amounts.get("GPU", 1.0)) == "neighbour":
            self._counts["num_neighbours"] += 1

    def note_start(self, trial_id: str, amounts: Mapping[str, float]) -> None:
        """Record the amounts of a trial that starts, if it ran out of memory with less."""
        # The amounts that remain in the mapping belong to trials that did not start again.
        had = self._ran_out_with.pop(trial_id, None)
        if had is None:
            return
        raised = {name: amount for name, amount in amounts.items() if amount > had.get(name, 0)}
        if not raised:
            return
        self._counts["num_raised"] += 1
        self._raised_names[trial_id] = self._raised_names.get(trial_id, frozenset()) | raised.keys()
        most = {
            "gpus": max(self.raised.gpus, raised.get("GPU", 0.0)),
            "memory_bytes": max(self.raised.memory_bytes, int(raised.get("memory", 0))),
        }
        self.raised = self.raised.model_copy(update=most)

    def note_use(self, trial_id: str, process: ProcessUsage | None, memory: GpuMemoryUsage | None) -> None:
        """Record failed allocations, and what a trial used if it was retried with more memory."""
        if memory is not None:
            self._count_refused(trial_id, memory)
        raised, known = self._raised_names.get(trial_id, frozenset()), self.raised
        changes: dict[str, int] = {}
        if process is not None and "memory" in raised:
            changes["host_memory_bytes"] = max(known.host_memory_bytes or 0, process.host_memory_bytes)
        if memory is not None and "GPU" in raised:
            changes["gpu_memory_bytes"] = max(known.gpu_memory_bytes or 0, bytes_to_plan(memory) or 0)
            size = device_bytes(memory)
            if size:
                changes["device_bytes"] = min(known.device_bytes or size, size)
        if changes:
            self.raised = known.model_copy(update=changes)

    def _count_refused(self, trial_id: str, memory: GpuMemoryUsage) -> None:
        # A record contains all failed allocations of a process so far, so only the increase is added.
        more = memory.num_ooms - self._refused[trial_id, memory.pid]
        if more > 0:
            self._refused[trial_id, memory.pid] += more
            self._counts["num_refused_allocations"] += more
