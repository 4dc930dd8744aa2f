"""Reads who holds what in a cluster: its nodes, actors and placement groups, as Ray's GCS knows them.

All of Ray's that is private about it is behind :func:`_accessor`. ``ray.util.state`` says the same and less, and only
where a dashboard runs.
"""

import math
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import ray
from ray._private.state import state as ray_state
from ray.core.generated.gcs_pb2 import ActorTableData, PlacementGroupTableData
from ray.util.placement_group import PlacementGroup, remove_placement_group

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.ray_totals import HEAD_RESOURCE
from tune_policies.placement.deadlock import ClusterOccupancy, Gang, NodeTotals, Reservation, WaitingRun
from tune_policies.probe.probe_cluster import ProbeWarning, probe_cluster
from tune_policies.ray_compat.gcs import read_cluster_state
from tune_policies.values.resources import ray_ticks

_CONTROLLER: Final = "TrainController"
_READ_TIMEOUT_S: Final = 10.0
_FRESH_S: Final = 20.0
"""So long what was read of an autoscaler holds, in seconds. A node that came since counts twice, which is safe."""
_STARTING_S: Final = 30.0
"""So long a run that asks for nothing may take to begin, in seconds."""
_STRATEGIES: Final = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
"""By the numbers in Ray's ``PlacementStrategy``."""
_GROUP: Final = PlacementGroupTableData


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
        actors, groups = _tables()
        groups_of = defaultdict(list)
        for group in groups:
            groups_of[group.creator_actor_id].append(group)
        by_process = {actor.address.worker_id: actor for actor in actors}
        controllers = [actor for actor in actors if actor.class_name == _CONTROLLER]
        drivers = {each.actor_id for one in controllers if (each := by_process.get(one.owner_address.worker_id))}
        by_group = {group.placement_group_id: group for group in groups}
        waiting = [
            WaitingRun(
                run_id=controller.actor_id.hex(),
                started_at=controller.start_time / 1000,
                driver=_reserved_by_driver(by_process.get(controller.owner_address.worker_id), by_group),
                gang=self._gang_of(controller, groups_of[controller.actor_id]),
            )
            for controller in controllers
            if all(group.state in (_GROUP.PENDING, _GROUP.REMOVED) for group in groups_of[controller.actor_id])
        ]  # the others' workers have their room
        return ClusterOccupancy(
            nodes=tuple(_nodes()),
            permanent=tuple(_permanent(actors, groups, drivers, self._job_id)),
            waiting=tuple(waiting),
        )

    def _gang_of(self, controller: Any, groups: Iterable[Any]) -> Gang | None:
        """Return the workers that a run waits for, as far as is known.

        Of an elastic run that asks for nothing yet nobody else knows them. It is taken to be like this one, which is of
        the same program and elastic too: two such trials of Tune can starve each other.
        """
        if controller.actor_id.hex() == self.own_id:
            return self._gang
        asked = _gang([group for group in groups if group.state == _GROUP.PENDING])
        has_begun = time.time() - controller.start_time / 1000 > _STARTING_S and not groups
        is_alike = self._is_elastic and controller.job_id.hex() == self._job_id
        return self._gang if asked is None and has_begun and is_alike else asked


def _accessor() -> Any:
    if hasattr(ray_state, "_connect_and_get_accessor"):
        return ray_state._connect_and_get_accessor()
    ray_state._check_connected()  # before Ray 2.60
    return ray_state.global_state_accessor


def _tables() -> tuple[list[Any], list[Any]]:
    """Return the actors that are alive, and the placement groups."""
    accessor = _accessor()
    actors = [ActorTableData.FromString(each) for each in accessor.get_actor_table(None, "ALIVE")]
    return actors, [_GROUP.FromString(each) for each in accessor.get_placement_group_table()]


def _nodes() -> Iterable[NodeTotals]:
    for node in ray.nodes():
        if node["Alive"]:
            amounts = {"memory": 0} | ray_ticks(node["Resources"])  # Ray leaves out what a node has none of
            labels, is_head = node.get("Labels") or {}, HEAD_RESOURCE in amounts
            yield NodeTotals(node_id=node["NodeID"], amounts=amounts, labels=labels, may_go=not is_head)


def _gang(pending: list[Any]) -> Gang | None:
    """Return the workers of a group that waits; Train makes them all alike."""
    if not pending:
        return None
    bundles = pending[-1].bundles
    return Gang(
        worker=ray_ticks(bundles[0].unit_resources),
        num_workers=len(bundles),
        strategy=_STRATEGIES[pending[-1].strategy],
        label_selector=dict(bundles[0].label_selector),
    )


def _reserved_by_driver(driver: Any, by_group: Mapping[bytes, Any]) -> tuple[Reservation, ...]:
    """Return what the process that started a Train run holds: a trial's group, or an actor's own; a program nothing."""
    if driver is None:
        return ()
    group = by_group.get(driver.placement_group_id)
    if group is None:
        node_id = driver.address.raylet_id if hasattr(driver.address, "raylet_id") else driver.address.node_id
        return (
            Reservation(node_id=node_id.hex(), amounts=ray_ticks(driver.required_resources), holder="waiting driver"),
        )
    return tuple(
        Reservation(node_id=each.node_id.hex(), amounts=ray_ticks(each.unit_resources), holder="waiting driver")
        for each in group.bundles
    )


def _permanent(actors: Iterable[Any], groups: Iterable[Any], drivers: set[bytes], job_id: str) -> Iterable[Reservation]:
    """Return what nothing is known to end.

    An actor in a placement group is a trial, a Train worker, or like those part of something that was planned to end.
    One of another program ends with that, which may be soon, unless it is detached.
    """
    in_groups = {group.placement_group_id for group in groups}
    for actor in actors:
        is_ray_data = actor.function_descriptor.python_function_descriptor.module_name.startswith("ray.data.")
        amounts = ray_ticks(actor.required_resources)
        is_others = actor.job_id.hex() != job_id and not actor.is_detached
        is_planned = actor.actor_id in drivers or actor.placement_group_id in in_groups or is_ray_data
        if is_others or is_planned or not amounts:
            continue
        node_id = actor.address.raylet_id if hasattr(actor.address, "raylet_id") else actor.address.node_id
        yield Reservation(node_id=node_id.hex(), amounts=amounts, holder=f"actor {actor.class_name}")
    for group in groups:
        if group.is_detached and group.state == _GROUP.CREATED:
            for bundle in group.bundles:
                amounts = ray_ticks(bundle.unit_resources)
                yield Reservation(node_id=bundle.node_id.hex(), amounts=amounts, holder="detached placement group")


def remove_groups(controller_id: str, *, only_pending: bool = False) -> None:
    """Remove the placement groups of a Train controller, or only those that it waits for.

    Ray keeps the groups of an actor that was killed until its whole program ends.

    Raises:
        RayError: Ray went away.
        RuntimeError: Ray went away.
    """
    for group in _tables()[1]:
        is_left = group.state == _GROUP.PENDING or (not only_pending and group.state != _GROUP.REMOVED)
        if is_left and group.creator_actor_id.hex() == controller_id:
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(group.placement_group_id)))


def remove_abandoned_groups() -> None:
    """Remove the placement groups of Train controllers that are dead: of runs whose process was killed.

    Their workers are dead, too. Ray's own helper for this needs a dashboard, and so does nothing in a plain install.

    Raises:
        RayError: Ray went away.
        RuntimeError: Ray went away.
    """
    actors, groups = _tables()
    alive = {actor.actor_id for actor in actors}
    for group in groups:
        is_left = group.state != _GROUP.REMOVED and not group.is_detached and group.creator_actor_id not in alive
        if is_left and _is_dead_controller(ray.ActorID(group.creator_actor_id)):
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(group.placement_group_id)))


def _is_dead_controller(actor_id: Any) -> bool:
    info = None if actor_id.is_nil() else _accessor().get_actor_info(actor_id)
    if info is None:
        return False
    actor = ActorTableData.FromString(info)
    return bool(actor.state == ActorTableData.DEAD and actor.class_name == _CONTROLLER)


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
