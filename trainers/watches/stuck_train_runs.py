"""Reads the resources of a cluster and the actors that use them, and finds Train runs whose workers can never start.

``tune_policies.placement.gang_deadlock`` decides which runs are stuck. Functions that call Ray raise its ``RayError``,
or a ``RuntimeError`` if Ray has shut down.
"""

import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import ray

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.placement.bundles import BundleGroup
from tune_policies.placement.gang_deadlock import (
    ClusterOccupancy,
    Reservation,
    WaitingRun,
    deadlock_error,
    stuck_runs,
)
from tune_policies.probe.probe_cluster import ProbeWarning, probe_cluster
from tune_policies.probe.reservation_holders import living_nodes
from tune_policies.ray_compat.gcs import (
    READ_TIMEOUT_S,
    ActorRecord,
    GroupRecord,
    Records,
    is_dead_actor_of,
    placement_groups,
    read_cluster_state,
    remove_group,
)
from tune_policies.ray_compat.train_run import CONTROLLER_CLASS
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import ray_ticks

_FRESH_S: Final = 20.0
"""The time for which the autoscaler's node types are cached, in seconds.

A node that is added in this time is counted twice. This cannot cause a false error."""
_STARTING_S: Final = 30.0
"""The time that a run without resource requests may take to start, in seconds."""


class OccupancyReader:
    """Reads the resources of a cluster, and the actors and placement groups that use them.

    ``own_id`` is the actor ID of the calling Train controller, and ``gang`` contains the bundles of its workers.
    Pass ``is_elastic`` for an elastic run, because Ray requests its workers only if resources for them are free.
    """

    def __init__(self, own_id: str = "", gang: BundleGroup | None = None, *, is_elastic: bool = False) -> None:
        self.own_id = own_id
        self._gang = gang
        self._is_elastic = is_elastic
        self._job_id = ray.get_runtime_context().get_job_id()

    def read(self, records: Records) -> ClusterOccupancy:
        """Return the resources of the cluster, the permanent reservations, and the waiting Train runs."""
        actors, groups = records
        groups_of = defaultdict(list)
        for group in groups:
            # Train's controller creates the placement groups of its workers.
            groups_of[group.creator_id].append(group)
        by_process = {actor.process_id: actor for actor in actors}
        controllers = [actor for actor in actors if actor.class_name == CONTROLLER_CLASS]
        by_group = {group.group_id: group for group in groups}
        drivers = set()
        waiting = []
        for controller in controllers:
            # The owner of a controller is the process that has called ``fit``: a trial, another actor or a program.
            driver = by_process.get(controller.owner_process_id)
            driver_id = ""
            if driver is not None:
                driver_id = driver.actor_id
                drivers.add(driver_id)
            of_run = groups_of[controller.actor_id]
            if not all(group.is_pending or group.is_removed for group in of_run):
                continue  # a run with a created placement group has placed its workers, and is expected to end
            waiting.append(
                WaitingRun(
                    run_id=controller.actor_id,
                    started_at=controller.started_at,
                    driver_id=driver_id,
                    driver=_reserved_by_driver(driver, by_group),
                    gang=self._gang_of(controller, of_run),
                )
            )
        return ClusterOccupancy(
            nodes=tuple(living_nodes()),
            permanent=tuple(_permanent(actors, groups, drivers, self._job_id)),
            waiting=tuple(waiting),
        )

    def _gang_of(self, controller: ActorRecord, groups: Sequence[GroupRecord]) -> BundleGroup | None:
        """Return the bundles of the workers that a run waits for, or ``None`` if they are unknown.

        If this run is elastic, other runs of the same program that request no resources are assumed to wait for the
        same bundles, because two such runs can starve each other.
        """
        if controller.actor_id == self.own_id:
            return self._gang
        pending = [group for group in groups if group.is_pending]
        if pending:
            bundles = pending[-1].bundles  # the bundles may have different label selectors
            selectors = [bundle.label_selector for bundle in bundles]
            return BundleGroup([bundle.resources for bundle in bundles], pending[-1].strategy, selectors)
        # A Train run requests its placement group soon after its start. An elastic run that has not done so waits for
        # free resources.
        has_begun = time.time() - controller.started_at > _STARTING_S and not groups
        is_alike = self._is_elastic and controller.job_id == self._job_id
        if has_begun and is_alike:
            return self._gang
        return None


def _reserved_by_driver(driver: ActorRecord | None, by_group: Mapping[str, GroupRecord]) -> tuple[Reservation, ...]:
    """Return the reservations of the trial or the actor that started a Train run."""
    if driver is None:
        return ()
    group = by_group.get(driver.group_id)
    # A trial reserves its whole placement group, and a plain actor its own resources.
    holders = [driver] if group is None else group.bundles
    return tuple(
        Reservation(node_id=holder.node_id, amounts=ray_ticks(holder.resources), holder="waiting driver")
        for holder in holders
    )


def _permanent(
    actors: Iterable[ActorRecord], groups: Sequence[GroupRecord], drivers: set[str], job_id: str
) -> Iterable[Reservation]:
    """Return the reservations that may never be released.

    Actors in placement groups, such as trials and Train workers, are expected to end.
    """
    in_groups = {group.group_id for group in groups}
    for actor in actors:
        amounts = ray_ticks(actor.resources)
        is_planned = actor.actor_id in drivers or actor.group_id in in_groups
        if amounts and actor.is_lasting(job_id) and not is_planned:
            yield Reservation(node_id=actor.node_id, amounts=amounts, holder=f"actor {actor.class_name}")
    for group in groups:
        if group.is_detached and group.is_created:
            for bundle in group.bundles:
                amounts = ray_ticks(bundle.resources)
                yield Reservation(node_id=bundle.node_id, amounts=amounts, holder="detached placement group")


def remove_groups(controller_id: str, *, only_pending: bool = False) -> None:
    """Remove the placement groups of a Train controller, or only the pending placement groups.

    Ray itself keeps the placement groups of a killed actor until the whole program ends.
    """
    for group in placement_groups():
        is_left = group.is_pending or (not only_pending and not group.is_removed)
        if is_left and group.creator_id == controller_id:
            remove_group(group.group_id)


def remove_abandoned_groups(records: Records) -> None:
    """Remove the placement groups of dead Train controllers, whose workers are dead too.

    Ray's own clean-up requires the dashboard, so it has no effect in a minimal installation.
    """
    alive = {actor.actor_id for actor in records.actors}
    for group in records.groups:
        is_left = not group.is_removed and not group.is_detached and group.creator_id not in alive
        if is_left and is_dead_actor_of(CONTROLLER_CLASS, group.creator_id):
            remove_group(group.group_id)


class StuckRuns:
    """Finds the Train runs that remain stuck even if an autoscaler adds as many nodes as it can."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._since_s = 0.0
        self._capacity: ClusterCapacity | None = None
        self._read_at = -math.inf

    def errors(
        self, view: ClusterOccupancy, patience_s: Callable[[int], float]
    ) -> list[tuple[WaitingRun, InfeasibleRequestError]]:
        """Return the stuck runs and their errors.

        A single reading can fall between the end of one run and the start of the next. Therefore a run is only returned
        after the same runs have been stuck for ``patience_s(place)`` seconds. ``place`` is 1 for the youngest run, 2
        for the second youngest, and so on.

        Raises:
            ProbeError: The cluster cannot be read in time.
        """
        stuck = stuck_runs(view)
        ids = [run.run_id for run in stuck]
        if ids != self._ids:
            self._ids, self._since_s = ids, time.monotonic()
        if not stuck:
            return []
        with_more = self._with_addable_nodes(view)  # read before the waiting time ends, because the first read is slow
        waited_s = time.monotonic() - self._since_s
        if with_more is None or waited_s < patience_s(1):
            return []
        still = stuck_runs(with_more)
        return [
            (run, deadlock_error(with_more, run))
            # ``stuck_runs`` returns the oldest run first.
            for place, run in enumerate(reversed(stuck), start=1)
            if run in still and waited_s >= patience_s(place)
        ]

    def _with_addable_nodes(self, view: ClusterOccupancy) -> ClusterOccupancy | None:
        """Return the view plus the nodes that an autoscaler can add.

        Return ``None`` if these nodes are unknown, or were read after the view.
        """
        if not read_cluster_state(READ_TIMEOUT_S).may_have_autoscaler:
            return view
        if time.monotonic() - self._read_at > _FRESH_S:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ProbeWarning)
                self._capacity = probe_cluster(timeout_s=READ_TIMEOUT_S)
            self._read_at = time.monotonic()
            return None  # the view is older than this reading
        if self._capacity is None or self._capacity.node_types is None:
            return None
        return view.model_copy(
            update={"node_types": self._capacity.node_types, "max_nodes_to_add": self._capacity.max_nodes_to_add}
        )
