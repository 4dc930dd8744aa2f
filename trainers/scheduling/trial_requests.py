"""The requests of a run's trials: what changes them, and what Tune and Ray have made of them.

A request changes when another scheduler gives the trial other resources, or when similar trials run out of memory.
``run_events`` carries the withdrawals out.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial

from tune_policies.cluster.node import NodeCapacity
from tune_policies.ray_compat.run_control import TuneRun
from tune_policies.ray_compat.tune_request import with_own

from .choose_slots import Withdraw
from .run_failures import MemoryRetries
from .trial_record import TrialRecord

_logger = logging.getLogger(__name__)


class TrialRequests:
    """The requests of the trials of one run.

    Args:
        tune: The run of Tune.
        records: The records of all trials, to which the run adds new trials.
    """

    def __init__(self, tune: TuneRun, records: Mapping[Trial, TrialRecord]) -> None:
        self._tune = tune
        self._records = records
        self._num_known_retries = 0

    def set(self, trial: Trial, request: PlacementGroupFactory) -> None:
        """Let Tune request ``request`` for a trial that starts."""
        record = self._records[trial]
        # The trainable's own request travels with the request, because Tune may copy the request to a new trial
        # (``with_own``).
        record.requested = with_own(request, record.own)
        if trial.placement_group_factory is not record.requested:  # otherwise, Tune would save the trial again
            trial.update_resources(record.requested)

    def is_granted(self, trial: Trial) -> bool:
        """Return whether Ray has granted the trial's request, although Tune may be too busy to start its process."""
        requested = self._records[trial].requested
        return requested is not None and self._tune.groups.has_resources_ready(requested)

    def has_process(self, trial: Trial) -> bool:
        """Return whether Tune has started a process for the trial, or resets a kept process for it."""
        is_reset = trial.temporary_state.ray_actor is not None
        return is_reset or self._tune.actors.has_process(trial.trial_id)

    def update(self, record: TrialRecord, retries: MemoryRetries | None, nodes: Sequence[NodeCapacity] | None) -> None:
        """Record what changes the request of a trial that may start now: another scheduler, and similar trials.

        Another scheduler, such as a ``ResourceChangingScheduler``, may have given the trial other resources with
        ``trial.update_resources``. While the trial waited, similar trials may have run out of memory, and a scheduler
        such as PBT may have replaced its config.
        """
        # By identity: the run sets ``record.requested`` itself, so another object was set by another scheduler.
        request = record.trial.placement_group_factory
        if record.requested is not None and request is not record.requested:
            record.changed = request
        if retries is not None and retries.num_records:
            record.needed = retries.floor_of(record, nodes)

    def with_too_little(
        self, retries: MemoryRetries | None, nodes: Sequence[NodeCapacity] | None
    ) -> Iterator[Withdraw]:
        """Yield the requests that have less memory than the newest out-of-memory errors require.

        Args:
            retries: The scheduler that retries trials with more memory, or ``None``.
            nodes: The nodes of the cluster, or ``None`` if they are not known.
        """
        if retries is None:
            return
        # The configs of the first trials are known here, before the first retry.
        retries.check_keys(list(self._records.values()))
        if retries.num_records == self._num_known_retries:
            return  # comparing the configs of all trials takes time
        self._num_known_retries = retries.num_records
        for trial, record in self._records.items():
            # Waiting trials have no request yet, and ``update`` finds out what they need before they start. A process
            # keeps its resources.
            if trial.status != Trial.PENDING or self.has_process(trial):
                continue
            needed = retries.floor_of(record, nodes)
            if needed != record.needed:
                record.needed = needed
                yield Withdraw(trial, f"a similar trial ran out of memory, so it needs {needed}")

    # Placement groups.

    def groups(self) -> tuple[Collection[str], Collection[str]]:
        """Return the IDs of the placement groups in which no process runs yet, and of all groups of the run."""
        # The groups in which a process is starting count, too, because Ray may lose their node before the process runs.
        pending = [trial.trial_id for trial in self._records if trial.status == Trial.PENDING]
        starting = filter(None, map(self._tune.actors.group_of, pending))
        return self._tune.groups.ids_without_process.union(starting), self._tune.groups.own_ids

    def replace_lost(self, lost_groups: Collection[str]) -> Iterator[Withdraw]:
        """Request lost placement groups again, and yield the requests of trials that would start in them.

        A trial that reuses a process keeps its request, because the reset fails with the process. Tune would consider
        the trial as being reset indefinitely if its request was withdrawn (``TuneController._resetting_trials``).
        """
        for amounts in self._tune.groups.replace_lost(lost_groups):
            _logger.warning("a placement group for %s was lost and is requested again", amounts)
        for trial in self._records:
            if trial.status != Trial.PENDING or trial.temporary_state.ray_actor is not None:
                continue
            if self._tune.actors.group_of(trial.trial_id) in lost_groups:
                _logger.warning("the placement group of %s was lost and is requested again", trial)
                yield Withdraw(trial, "its placement group was lost")
