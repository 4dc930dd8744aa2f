"""Reads who holds what in a cluster: its nodes, actors and placement groups, as Ray's GCS knows them."""

import math
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import ray

from tune_policies.cluster.capacity import HEAD_RESOURCE, ClusterCapacity
from tune_policies.placement.deadlock import ClusterOccupancy, Gang, NodeTotals, Reservation, WaitingRun
from tune_policies.probe.probe_cluster import ProbeWarning, probe_cluster
from tune_policies.ray_compat.gcs import (
    ActorRecord,
    GroupRecord,
    is_dead_actor_of,
    living_actors,
    placement_groups,
    read_cluster_state,
    remove_group,
)
from tune_policies.ray_compat.train_run import CONTROLLER_CLASS
from tune_policies.values.resources import ray_ticks

_READ_TIMEOUT_S: Final = 10.0
_FRESH_S: Final = 20.0
"""So long what was read of an autoscaler holds, in seconds. A node that came since counts twice, which is safe."""
_STARTING_S: Final = 30.0
"""So long a run that asks for nothing may take to begin, in seconds."""


class OccupancyReader:
    """Reads what a cluster has and what holds on, for the controller of one Train run.

    Args:
        own_id: The actor of the controller, in hexadecimal.
        gang: The workers that it waits for.
        is_elastic: Whether Ray asks for their room only once there is enough of it.
    """

    def __init__(self, own_id: str, gang: Gang, *, is_elastic: bool) -> None:
        self.own_id = own_id
        self._gang = gang
        self._is_elastic = is_elastic
        self._job_id = ray.get_runtime_context().get_job_id()

    def read(self) -> ClusterOccupancy:
        """Return what the cluster has and what in it holds on.

        Raises:
            RayError: Ray went away.
            RuntimeError: Ray went away.
        """
        actors, groups = living_actors(), placement_groups()
        groups_of = defaultdict(list)
        for group in groups:
            groups_of[group.creator_id].append(group)
        by_process = {actor.process_id: actor for actor in actors}
        controllers = [actor for actor in actors if actor.class_name == CONTROLLER_CLASS]
        drivers = {each.actor_id for one in controllers if (each := by_process.get(one.owner_process_id))}
        by_group = {group.group_id: group for group in groups}
        waiting = [
            WaitingRun(
                run_id=controller.actor_id,
                started_at=controller.started_at,
                driver=_reserved_by_driver(by_process.get(controller.owner_process_id), by_group),
                gang=self._gang_of(controller, groups_of[controller.actor_id]),
            )
            for controller in controllers
            if all(group.is_pending or group.is_removed for group in groups_of[controller.actor_id])
        ]  # the others' workers have their room
        return ClusterOccupancy(
            nodes=tuple(_nodes()),
            permanent=tuple(_permanent(actors, groups, drivers, self._job_id)),
            waiting=tuple(waiting),
        )

    def _gang_of(self, controller: ActorRecord, groups: Sequence[GroupRecord]) -> Gang | None:
        """Return the workers that a run waits for, as far as is known.

        Of an elastic run that asks for nothing yet nobody else knows them. It is taken to be like this one, which is of
        the same program and elastic too: two such trials of Tune can starve each other.
        """
        if controller.actor_id == self.own_id:
            return self._gang
        asked = _gang([group for group in groups if group.is_pending])
        has_begun = time.time() - controller.started_at > _STARTING_S and not groups
        is_alike = self._is_elastic and controller.job_id == self._job_id
        return self._gang if asked is None and has_begun and is_alike else asked


def _nodes() -> Iterable[NodeTotals]:
    for node in ray.nodes():
        if node["Alive"]:
            amounts = {"memory": 0} | ray_ticks(node["Resources"])  # Ray leaves out what a node has none of
            labels, is_head = node.get("Labels") or {}, HEAD_RESOURCE in amounts
            yield NodeTotals(node_id=node["NodeID"], amounts=amounts, labels=labels, may_go=not is_head)


def _gang(pending: Sequence[GroupRecord]) -> Gang | None:
    """Return the workers of a group that waits; Train makes them all alike."""
    if not pending:
        return None
    bundles = pending[-1].bundles
    return Gang(
        worker=ray_ticks(bundles[0].resources),
        num_workers=len(bundles),
        strategy=pending[-1].strategy,
        label_selector=bundles[0].label_selector,
    )


def _reserved_by_driver(driver: ActorRecord | None, by_group: Mapping[str, GroupRecord]) -> tuple[Reservation, ...]:
    """Return what the process that started a Train run holds: a trial's group, or an actor's own; a program nothing."""
    if driver is None:
        return ()
    group = by_group.get(driver.group_id)
    held = [driver] if group is None else group.bundles
    return tuple(
        Reservation(node_id=each.node_id, amounts=ray_ticks(each.resources), holder="waiting driver") for each in held
    )


def _permanent(
    actors: Iterable[ActorRecord], groups: Sequence[GroupRecord], drivers: set[str], job_id: str
) -> Iterable[Reservation]:
    """Return what nothing is known to end.

    An actor in a placement group is a trial, a Train worker, or like those part of something that was planned to end.
    One of another program ends with that, which may be soon, unless it is detached.
    """
    in_groups = {group.group_id for group in groups}
    for actor in actors:
        amounts = ray_ticks(actor.resources)
        is_others = actor.job_id != job_id and not actor.is_detached
        is_ray_data = actor.module.startswith("ray.data.")
        is_planned = actor.actor_id in drivers or actor.group_id in in_groups or is_ray_data
        if is_others or is_planned or not amounts:
            continue
        yield Reservation(node_id=actor.node_id, amounts=amounts, holder=f"actor {actor.class_name}")
    for group in groups:
        if group.is_detached and group.is_created:
            for bundle in group.bundles:
                amounts = ray_ticks(bundle.resources)
                yield Reservation(node_id=bundle.node_id, amounts=amounts, holder="detached placement group")


def remove_groups(controller_id: str, *, only_pending: bool = False) -> None:
    """Remove the placement groups of a Train controller, or only those that it waits for.

    Ray keeps the groups of an actor that was killed until its whole program ends.

    Raises:
        RayError: Ray went away.
        RuntimeError: Ray went away.
    """
    for group in placement_groups():
        is_left = group.is_pending or (not only_pending and not group.is_removed)
        if is_left and group.creator_id == controller_id:
            remove_group(group.group_id)


def remove_abandoned_groups() -> None:
    """Remove the placement groups of Train controllers that are dead: of runs whose process was killed.

    Their workers are dead, too. Ray's own helper for this needs a dashboard, and so does nothing in a plain install.

    Raises:
        RayError: Ray went away.
        RuntimeError: Ray went away.
    """
    alive = {actor.actor_id for actor in living_actors()}
    for group in placement_groups():
        is_left = not group.is_removed and not group.is_detached and group.creator_id not in alive
        if is_left and is_dead_actor_of(CONTROLLER_CLASS, group.creator_id):
            remove_group(group.group_id)


class AddableNodes:
    """What an autoscaler could add, read anew now and then: it takes seconds, in which others may give way."""

    def __init__(self) -> None:
        self._capacity: ClusterCapacity | None = None
        self._read_at = -math.inf

    def added_to(self, view: ClusterOccupancy) -> ClusterOccupancy | None:
        """Return the view with them; ``None``: what could be added is not known, or was read only now.

        Raises:
            ProbeError: The cluster cannot be read in time.
        """
        if not read_cluster_state(_READ_TIMEOUT_S).may_have_autoscaler:
            return view
        if time.monotonic() - self._read_at > _FRESH_S:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ProbeWarning)
                self._capacity = probe_cluster(timeout_s=_READ_TIMEOUT_S)
            self._read_at = time.monotonic()
            return None  # the view is older
        if self._capacity is None or self._capacity.node_types is None:
            return None
        return view.model_copy(
            update={"node_types": self._capacity.node_types, "max_nodes_to_add": self._capacity.max_nodes_to_add}
        )
