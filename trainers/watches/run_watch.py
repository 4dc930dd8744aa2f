"""Reads the cluster during a run of Tune: its nodes, and problems that Ray does not report.

Such problems are lost placement groups, busy devices, stuck workers, and tasks that find no free resources. All parts
of a run, such as its plan and ``PolicyCallback``, use these readings.

A trial's function may start one of Ray's trainers. If the policy reserves no resources for the trainer's workers, the
trials can reserve all resources, so that the workers never start.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from tune_policies.cluster.node import NodeCapacity
from tune_policies.placement.gang_deadlock import WaitingRun
from tune_policies.probe.reservation_holders import (
    describe_holders,
    format_amounts,
    nested_run_error,
    read_holders,
    sum_of,
)
from tune_policies.ray_compat.background import BackgroundTask
from tune_policies.ray_compat.gcs import (
    READ_TIMEOUT_S,
    GroupRecord,
    Records,
    read_cluster_state,
    read_records,
)
from tune_policies.ray_compat.this_process import ThisProcess, this_process
from tune_policies.values.errors import InfeasibleRequestError, RayVersionError

from .stuck_train_runs import OccupancyReader, StuckRuns, remove_abandoned_groups
from .task_watch import warn_about_tasks

_logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 2.0
_REPORT_AFTER_S: Final = 6.0
"""The time in seconds that the same Train runs must be stuck before they are reported. A ``DeadlockWatch`` may end one
of them earlier."""
_MIN_WAIT_S: Final = 4.0
"""The time in seconds that a placement group must wait before the watch logs a warning."""


class ClusterReading(NamedTuple):
    """The state of the cluster, and the problems of a run.

    Attributes:
        nodes: The alive nodes in Ray's GCS.
        draining: The nodes that are draining.
        node_of_actor: The ID of the node of each actor, by the actor's ID.
        lost_groups: The IDs of requested placement groups that have disappeared, or that have lost their node.
        stuck: The error of each trial whose Train workers can never start, keyed by the ID of the trial's actor.
        never: The error if this run runs inside a trial, and its trials can never start, or ``None``.
        busy: A message about the actors and placement groups that use the resources that trials wait for, or ``""``.
    """

    nodes: Sequence[NodeCapacity]
    draining: Sequence[NodeCapacity]
    node_of_actor: Mapping[str, str]
    lost_groups: Collection[str]
    stuck: Mapping[str, InfeasibleRequestError]
    never: InfeasibleRequestError | None
    busy: str


class RunWatch:
    """Reads the cluster every two seconds in a background thread.

    Attributes:
        latest: The latest reading, or ``None`` before the first one.
    """

    def __init__(self) -> None:
        self._reading: BackgroundTask[ClusterReading] = BackgroundTask()
        self._next_at_s = 0.0
        self._stuck = StuckRuns()
        self._watches_tasks = False
        self._process: ThisProcess | None = None
        self._blocked_since_s = time.monotonic()
        self._waits_since_s: dict[str, float] = {}
        self._warned: set[str] = set()
        self.latest: ClusterReading | None = None

    def watch_tasks(self) -> None:
        """Also warn about tasks that wait for resources that this program's trials have reserved."""
        self._watches_tasks = True

    def warn_once(self, what: str, why: str = "") -> None:
        """Log a warning, unless ``what`` was logged before."""
        if what in self._warned:
            return
        self._warned.add(what)
        if why:
            _logger.warning("%s: %s", what, why)
        else:
            _logger.warning("%s", what)

    def read(self, groups: Callable[[], tuple[Collection[str], Collection[str]]]) -> ClusterReading | None:
        """Start a reading if one is due. Return the reading that ended since the last call, or ``None``.

        Args:
            groups: A function that returns the IDs of the placement groups that have no process yet, and of all
                placement groups of the run.
        """
        if self._process is None:
            self._process = this_process()  # only the thread of the run knows its own placement group
        now_s = time.monotonic()
        answer = self._reading.take()
        if now_s >= self._next_at_s:
            requested_groups, own_groups = groups()
            # Copies, because Tune changes the groups while the thread reads.
            if self._reading.start(partial(self._read, frozenset(requested_groups), frozenset(own_groups))):
                self._next_at_s = now_s + _INTERVAL_S
        if isinstance(answer, Exception):  # Ray is busy or is shutting down
            _logger.debug("the cluster could not be read: %s", answer)
            return None
        if answer is not None:
            self.latest = answer
        return answer

    def _read(self, requested_groups: frozenset[str], own_groups: frozenset[str]) -> ClusterReading:
        records = read_records()
        remove_abandoned_groups(records)  # the groups of stopped trials would block this run's trials
        state = read_cluster_state(READ_TIMEOUT_S)
        groups = {group.group_id: group for group in records.groups if not group.is_removed}
        pending = [group for group in map(groups.get, requested_groups) if group is not None and group.is_pending]
        self._warn_about_tasks(records)
        return ClusterReading(
            state.nodes,
            state.draining,
            {actor.actor_id: actor.node_id for actor in records.actors if actor.node_id},
            # Ray never places a group again whose request names the dead node.
            {group_id for group_id in requested_groups if group_id not in groups or groups[group_id].is_rescheduling},
            self._find_stuck(records),
            self._find_nested_error(records, requested_groups, own_groups),
            self._find_holders(records, pending, own_groups),
        )

    def _warn_about_tasks(self, records: Records) -> None:
        if not self._watches_tasks:
            return
        try:
            warn_about_tasks(records.actors)
        except RayVersionError as error:
            self._watches_tasks = False
            self.warn_once("tasks that wait for the resources of trials are not detected", str(error))

    def _find_nested_error(
        self, records: Records, requested_groups: frozenset[str], own_groups: frozenset[str]
    ) -> InfeasibleRequestError | None:
        """Return the error of a run inside a trial that has been blocked by its outer trials for some seconds."""
        assert self._process is not None  # noqa: S101  # ``read`` has set it
        error = nested_run_error(self._process, records, requested_groups, own_groups)
        now_s = time.monotonic()
        if error is None:
            # The time begins again whenever the run is not blocked.
            self._blocked_since_s = now_s
        if now_s - self._blocked_since_s >= _REPORT_AFTER_S:
            return error
        return None

    def _find_holders(self, records: Records, pending: Sequence[GroupRecord], own_groups: frozenset[str]) -> str:
        now_s = time.monotonic()
        self._waits_since_s = {group.group_id: self._waits_since_s.get(group.group_id, now_s) for group in pending}
        waiting = [group for group in pending if now_s - self._waits_since_s[group.group_id] >= _MIN_WAIT_S]
        if not waiting:
            return ""
        # The requests of a run are usually equal, so the first one stands for all.
        request = [bundle.resources for bundle in waiting[0].bundles]
        holders = describe_holders(request, read_holders(records, own_groups))
        if not holders:
            return ""
        waits = f"1 trial waits for {format_amounts(sum_of(request))}"
        if len(waiting) > 1:
            waits = f"{len(waiting)} trials wait for {format_amounts(sum_of(request))} each"
        return (
            f"{waits}: {holders}. Wait until these resources are released, or plan on free resources with "
            "FreeCapacityPolicy(policy)"
        )

    def _find_stuck(self, records: Records) -> dict[str, InfeasibleRequestError]:
        found = self._stuck.errors(OccupancyReader().read(records), lambda _: _REPORT_AFTER_S)
        return {run.driver_id: error.with_texts(suggestion=_suggestion(run)) for run, error in found if run.driver_id}


def _suggestion(run: WaitingRun) -> str:
    num_workers = 1 if run.gang is None else len(run.gang.bundles)
    return (
        f"Set num_workers={num_workers} in the policy. The plan then reserves resources for the workers, and almost "
        "none for the trial driver. Alternatively, add nodes."
    )
