"""Ends a Train run whose workers can never start, with the sum of who holds what, where Ray would retry for ever.

The decision is ``tune_policies.placement.deadlock``'s. Here who holds what is read from Ray's GCS for as long as the
workers wait: in a thread of Train's controller, whose own thread is blocked meanwhile.
"""

import logging
import math
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

import ray
from ray.exceptions import RayError
from ray.train import RunConfig

from tune_policies.cluster.capacity import HEAD_RESOURCE, ClusterCapacity
from tune_policies.placement.deadlock import (
    ClusterOccupancy,
    Gang,
    NodeTotals,
    Reservation,
    WaitingRun,
    deadlock_error,
    stuck_runs,
)
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
from tune_policies.ray_compat.train_run import (
    CONTROLLER_CLASS,
    ControllerCallback,
    ControllerError,
    WorkerGroupCallback,
    with_run_config,
    worker_amounts,
)
from tune_policies.values.errors import InfeasibleRequestError, ProbeError, RayVersionError
from tune_policies.values.resources import ray_ticks, to_ticks

_READ_TIMEOUT_S: Final = 10.0
_FRESH_S: Final = 20.0
"""So long what was read of an autoscaler holds, in seconds. A node that came since counts twice, which is safe."""
_STARTING_S: Final = 30.0
"""So long a run that asks for nothing may take to begin, in seconds."""


class OccupancyReader:
    """Reads what a cluster has and what holds on, for the controller of one Train run: its actor, and its workers.

    Of an elastic run, Ray asks for the workers' room only once there is enough of it. A program that is no controller
    has no ``gang``.
    """

    def __init__(self, own_id: str, gang: Gang | None, *, is_elastic: bool) -> None:
        self.own_id = own_id
        self._gang = gang
        self._is_elastic = is_elastic
        self._job_id = ray.get_runtime_context().get_job_id()

    def read(self) -> ClusterOccupancy:
        """Return what the cluster has and what in it holds on."""
        actors, groups = living_actors(), placement_groups()
        groups_of = defaultdict(list)
        for group in groups:
            groups_of[group.creator_id].append(group)
        by_process = {actor.process_id: actor for actor in actors}
        controllers = [actor for actor in actors if actor.class_name == CONTROLLER_CLASS]
        driver_of = {each.actor_id: by_process.get(each.owner_process_id) for each in controllers}
        drivers = {each.actor_id for each in driver_of.values() if each}
        by_group = {group.group_id: group for group in groups}
        waiting = [
            WaitingRun(
                run_id=controller.actor_id,
                started_at=controller.started_at,
                driver_id=driver.actor_id if (driver := driver_of[controller.actor_id]) else "",
                driver=_reserved_by_driver(driver, by_group),
                gang=self._gang_of(controller, groups_of[controller.actor_id]),
            )
            for controller in controllers
            # The others' workers have their room, and will end.
            if all(group.is_pending or group.is_removed for group in groups_of[controller.actor_id])
        ]
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
        pending = [group for group in groups if group.is_pending]
        if pending:
            bundles = pending[-1].bundles  # Train makes them all alike, but each may have a node of its own
            selectors = [each.label_selector for each in bundles]
            return Gang(
                worker=ray_ticks(bundles[0].resources),
                num_workers=len(bundles),
                strategy=pending[-1].strategy,
                label_selector=selectors[0] if all(each == selectors[0] for each in selectors) else {},
            )
        has_begun = time.time() - controller.started_at > _STARTING_S and not groups
        is_alike = self._is_elastic and controller.job_id == self._job_id
        return self._gang if has_begun and is_alike else None


def _nodes() -> Iterable[NodeTotals]:
    for node in ray.nodes():
        if node["Alive"]:
            amounts = {"memory": 0} | ray_ticks(node["Resources"])  # Ray leaves out what a node has none of
            labels, is_head = node.get("Labels") or {}, HEAD_RESOURCE in amounts
            yield NodeTotals(node_id=node["NodeID"], amounts=amounts, labels=labels, may_go=not is_head)


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
    """Remove the placement groups of a Train controller, or only those that it waits for.

    Ray keeps the groups of an actor that was killed until its whole program ends. Where Ray itself has gone away, this
    raises its ``RayError`` or a ``RuntimeError``; so does all else here that asks Ray.
    """
    for group in placement_groups():
        is_left = group.is_pending or (not only_pending and not group.is_removed)
        if is_left and group.creator_id == controller_id:
            remove_group(group.group_id)


def remove_abandoned_groups() -> None:
    """Remove the placement groups of Train controllers that are dead: of runs whose process was killed.

    Their workers are dead, too. Ray's own helper for this needs a dashboard, and so does nothing in a plain install.
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


_logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.5
_LONGEST_INTERVAL_S: Final = 5.0
_PATIENCE_S: Final = 4.0
"""How long the same runs must be stuck before the youngest of them gives way, and then the next.

A reading is one moment, in which one run may have ended and another not yet begun.
"""


class GangDeadlockError(InfeasibleRequestError, ControllerError):  # type: ignore[misc]  # Ray is not followed
    """An ``InfeasibleRequestError`` that Ray Train passes on as it is: it wraps whatever is no error of its own."""

    @property
    def controller_failure(self) -> Exception:
        """What Ray Train asks an error of its controller for, to know whether to try again."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.args)


class _HasRunConfig(Protocol):
    run_config: Any


TrainerT = TypeVar("TrainerT", bound=_HasRunConfig)


def with_deadlock_check(trainer: TrainerT) -> TrainerT:
    """Return a copy of one of Ray Train's trainers that fails within seconds where its workers can never start.

    Without it, Ray Train waits and retries for ever. This package's trainers and those of ``as_trainable`` have it.
    These count as held for good: the resources of each driver whose own workers wait, and actors outside of trials and
    Train runs, of this program or detached. Workers of other runs, trials and programs will end at some time. Nodes
    that an autoscaler can add count as room.

    Args:
        trainer: Of Ray Train's version 2; it is left untouched.

    Raises:
        InfeasibleRequestError: From ``fit()``: the workers cannot all start beside what is held. Ray 2.50 wraps it in
            a ``ControllerError``, as its ``controller_failure``.
    """
    watched: TrainerT = with_run_config(trainer, with_deadlock_watch(trainer.run_config))
    return watched


def with_deadlock_watch(run_config: RunConfig | None) -> RunConfig:
    """Return the run config with the watch among its callbacks, once."""
    run_config = run_config or RunConfig()
    if not isinstance(run_config, RunConfig):  # Tune's, for instance: Ray says itself what is wrong with it
        return run_config
    if any(isinstance(each, DeadlockWatch) for each in run_config.callbacks):
        return run_config
    return replace(run_config, callbacks=[*run_config.callbacks, DeadlockWatch()])


class DeadlockWatch(ControllerCallback, WorkerGroupCallback):  # type: ignore[misc]  # Ray is not followed
    """Watches, in Train's controller, whether the workers that are waited for can start."""

    def __init__(self) -> None:
        self._gang: Gang | None = None
        self._is_elastic = False
        self._wait: _Wait | None = None
        self._nodes: dict[str, NodeTotals] = {}

    def after_controller_start(self, train_run_context: Any) -> None:
        """Begin to watch."""
        scaling_config = train_run_context.scaling_config
        self._gang = gang_of(scaling_config)
        self._is_elastic = isinstance(scaling_config.num_workers, tuple)
        self._begin()

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        """Fail, where it is known that there is no room: after a group was given up, Train tries the next."""
        self._raise_verdict()
        self._begin()

    def after_worker_group_start(self, worker_group: Any) -> None:
        """End the watch: the workers run."""
        self._end()

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        """Fail here where the run is elastic, as Train waits for enough room before it starts a group."""
        if current_state.is_terminal():
            self._end()
        elif self._is_elastic:
            self._raise_verdict()

    def _begin(self) -> None:
        if self._wait is None and self._gang is not None:
            reader = OccupancyReader(ray.get_runtime_context().get_actor_id(), self._gang, is_elastic=self._is_elastic)
            self._wait = _Wait(reader, self._nodes)

    def _end(self) -> None:
        if self._wait is not None:
            self._wait.stop.set()
            self._wait = None  # with its verdict: in the same moment the workers may have started after all

    def _raise_verdict(self) -> None:
        if self._wait is not None and self._wait.verdict is not None:
            raise self._wait.verdict


class _Wait:
    """One wait for workers, in which a thread reads the cluster until they start, or are known never to."""

    def __init__(self, reader: OccupancyReader, nodes: dict[str, NodeTotals]) -> None:
        self.stop = threading.Event()
        self.verdict: GangDeadlockError | None = None
        self._reader = reader
        self._nodes = nodes
        self._stuck: list[str] = []
        self._stuck_since_s = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        addable, began_s = AddableNodes(), time.monotonic()
        # Often at first, then less and less: a run may wait for hours while others train.
        while not self.stop.wait(min(_LONGEST_INTERVAL_S, max(_INTERVAL_S, (time.monotonic() - began_s) / 20))):
            try:
                remove_abandoned_groups()
                error = self._find_deadlock(addable)
                if error is not None and not self.stop.is_set():
                    self.verdict = GangDeadlockError(*error.args)
                    remove_groups(self._reader.own_id, only_pending=True)  # ends the wait, in which nothing is called
                    return
            except RayVersionError as failure:
                _logger.warning("whether the workers can ever start is not watched: %s", failure)
                return
            except (RayError, ProbeError, OSError, RuntimeError) as failure:
                _logger.debug("the cluster could not be read: %s", failure)

    def _find_deadlock(self, addable: AddableNodes) -> InfeasibleRequestError | None:
        """Return why the workers can never start, once it is this run's turn to give way."""
        view = self._reader.read()
        # Nodes that were there before count: a run that lost one waits until it is replaced.
        self._nodes |= {node.node_id: node for node in view.nodes}
        view = view.model_copy(update={"nodes": tuple(self._nodes.values())})
        stuck = stuck_runs(view)
        ids = [run.run_id for run in stuck]
        if ids != self._stuck:
            self._stuck, self._stuck_since_s = ids, time.monotonic()
        own = next((run for run in stuck if run.run_id == self._reader.own_id), None)
        if own is None:
            return None
        with_more = addable.added_to(view)  # asked before patience is over, as the first answer takes a while
        # The youngest run gives way first, so that the others can have its driver's share.
        patience_s = _PATIENCE_S * (len(ids) - ids.index(own.run_id))
        if with_more is None or time.monotonic() - self._stuck_since_s < patience_s:
            return None
        return deadlock_error(with_more, own) if own in stuck_runs(with_more) else None


def gang_of(scaling_config: Any) -> Gang:
    """Return the workers that must start together: of an elastic run, the fewest."""
    num_workers = scaling_config.num_workers
    selector = getattr(scaling_config, "label_selector", None)
    amounts = worker_amounts(scaling_config)
    return Gang(
        worker={name: int(each) if name == "memory" else to_ticks(each) for name, each in amounts.items()},
        num_workers=num_workers[0] if isinstance(num_workers, tuple) else num_workers,
        strategy=scaling_config.placement_strategy,
        label_selector=selector if isinstance(selector, dict) else {},  # a list has one for each worker
    )
