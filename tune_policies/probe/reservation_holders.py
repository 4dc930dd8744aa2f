"""Reads the reservations of actors and placement groups in a cluster, and the programs that own them.

A Tune run inside a trial can wait for resources that its own outer trials reserve. ``nested_run_error`` finds such a
run with the banker's algorithm of ``placement.gang_deadlock``.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import ray

from tune_policies.cluster.ray_totals import HEAD_RESOURCE
from tune_policies.placement.bundles import BundleGroup
from tune_policies.placement.gang_deadlock import ClusterOccupancy, NodeTotals, Reservation, WaitingRun, stuck_runs
from tune_policies.probe.probe_cluster import probe_cluster
from tune_policies.ray_compat.gcs import (
    READ_TIMEOUT_S,
    ActorRecord,
    GroupRecord,
    Records,
    free_by_node,
    held_by_program,
    programs,
    read_cluster_state,
)
from tune_policies.ray_compat.this_process import ThisProcess
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import TICKS, Amounts, format_ticks, ray_ticks
from tune_policies.values.sanitize import one_line, without_secrets
from tune_policies.values.wording import counted


class Holders(NamedTuple):
    """The reservations of actors and placement groups, and the free amounts of each node in ticks."""

    held: Sequence[Reservation]
    free: Sequence[Amounts]


def read_holders(records: Records, own_groups: Collection[str] = ()) -> Holders:
    """Return the reservations of actors and placement groups, except those in ``own_groups``, and read what is free.

    Ray Client does not support this function.

    Raises:
        RayError: Ray cannot be reached.
        RuntimeError: Ray cannot be reached.
    """
    own_job, by_job = ray.get_runtime_context().get_job_id(), programs()

    def reservation(what: str, name: str, job_id: str, node_id: str, amounts: Mapping[str, float]) -> Reservation:
        program = "this program"
        if job_id != own_job:
            program = without_secrets(one_line(by_job.get(job_id, "another program")))
        named = f"{what} {one_line(name)!r}" if name else what
        return Reservation(node_id=node_id, amounts=ray_ticks(amounts), holder=f"{named} of {program}")

    # The resources of an actor in a placement group are those of a bundle, which is listed below.
    actors = [
        reservation(f"actor {actor.class_name}", actor.name, actor.job_id, actor.node_id, actor.resources)
        for actor in records.actors
        if actor.resources and not actor.group_id
    ]
    bundles = [
        reservation("placement group", group.name, group.job_id, bundle.node_id, bundle.resources)
        for group in records.groups
        if group.is_created and group.group_id not in own_groups
        for bundle in group.bundles
    ]
    return Holders(actors + bundles, [ray_ticks(node) for node in free_by_node().values()])


def describe_holders(request: Sequence[Mapping[str, float]], holders: Holders) -> str:
    """Return a description of the reservations that block a request for these bundles, or ``""`` if none exist."""
    bundles = [ray_ticks(bundle) for bundle in request]
    names = {name for bundle in bundles for name in bundle}
    # A resource that no node has enough of is what blocks the request. If there is none, the combination is missing,
    # and all requested resources count.
    short = set()
    for bundle in bundles:
        for name, ticks in bundle.items():
            if all(node.get(name, 0) < ticks for node in holders.free):
                short.add(name)
    amounts: dict[str, Counter[str]] = {}
    for reservation in holders.held:
        blocking = {
            name: ticks for name, ticks in reservation.amounts.items() if name in (short or names) and ticks > 0
        }
        if blocking:
            amounts.setdefault(reservation.holder, Counter()).update(blocking)
    return "; ".join(f"{holder} uses {format_amounts(blocking)}" for holder, blocking in sorted(amounts.items()))


def sum_of(request: Iterable[Mapping[str, float]]) -> Amounts:
    """Return the total resources of the bundles, in ticks."""
    total: Counter[str] = Counter()
    for bundle in request:
        total.update(ray_ticks(bundle))
    return total


def format_amounts(ticks: Amounts) -> str:
    """Return amounts in ticks as text, such as ``1 CPU, 0.5 GPU``."""
    return ", ".join(format_ticks(name, amount) for name, amount in sorted(ticks.items()))


_OWN: Final = "own"
"""The identifier of the calling run in a ``ClusterOccupancy``."""


def nested_run_error(
    process: ThisProcess, records: Records, requested_groups: Collection[str], own_groups: Collection[str]
) -> InfeasibleRequestError | None:
    """Return the error for a run inside a trial whose requests can never be granted, or ``None``.

    The trials of an outer run can reserve everything that their inner runs need. Then each inner run waits for an outer
    trial to end, and each outer trial waits for its inner run. A single reading can fall between two states of a run,
    so end a run only if this function returns an error for several seconds.

    Args:
        process: The process of the run, as read by ``this_process`` in the thread of the run.
        records: The actors and placement groups of the cluster.
        requested_groups: The IDs of the placement groups for which the run waits.
        own_groups: The IDs of all placement groups of the run.

    Raises:
        RayError: Ray cannot be reached.
        RuntimeError: Ray cannot be reached.
        ProbeError: The nodes that an autoscaler can add cannot be read in time.
    """
    held = held_by_program(process)
    groups = {group.group_id: group for group in records.groups if not group.is_removed}
    pending = [groups[group_id] for group_id in requested_groups if group_id in groups and groups[group_id].is_pending]
    has_started = any(group_id in groups and groups[group_id].is_created for group_id in own_groups)
    # A trial that has started will end, and then its resources are free for the next one.
    if not held or not pending or has_started:
        return None
    driver = tuple(
        Reservation(node_id=bundle.node_id, amounts=ray_ticks(bundle.resources), holder=bundle.holder)
        for bundle in held
    )
    others = _other_waiting_trials(records.actors, groups, process)
    view = ClusterOccupancy(nodes=tuple(living_nodes()), waiting=tuple(others))
    if read_cluster_state(READ_TIMEOUT_S).may_have_autoscaler:
        capacity = probe_cluster(timeout_s=READ_TIMEOUT_S)
        if capacity.node_types is None:
            return None
        addable = {"node_types": capacity.node_types, "max_nodes_to_add": capacity.max_nodes_to_add}
        view = view.model_copy(update=addable)
    for group in pending:
        own = WaitingRun(run_id=_OWN, started_at=0, driver=driver, gang=_gang([group]))
        # One request that can be granted is enough for the run to proceed.
        if own not in stuck_runs(view.model_copy(update={"waiting": (own, *others)})):
            return None
        is_stuck_alone = own in stuck_runs(view.model_copy(update={"waiting": (own,)}))
    # If the run would be stuck without the other trials as well, they are not the cause.
    if is_stuck_alone:
        others = []
    return _nested_error(pending[0], driver, others)


def living_nodes() -> Iterable[NodeTotals]:
    """Yield the total resources of each living node.

    Raises:
        RayError: Ray cannot be reached.
        RuntimeError: Ray cannot be reached.
    """
    for node in ray.nodes():
        if node["Alive"]:
            amounts = {"memory": 0} | ray_ticks(node["Resources"])  # Ray omits resources that a node does not have
            labels, is_head = node.get("Labels") or {}, HEAD_RESOURCE in amounts
            yield NodeTotals(node_id=node["NodeID"], amounts=amounts, labels=labels, may_go=not is_head)


def _other_waiting_trials(
    actors: Iterable[ActorRecord], groups: Mapping[str, GroupRecord], process: ThisProcess
) -> list[WaitingRun]:
    """Return the other trials whose inner runs have requested placement groups, but have received none."""
    created_by = defaultdict(list)
    for group in groups.values():
        created_by[group.creator_id].append(group)
    waiting = []
    for actor in actors:
        inner, outer = created_by[actor.actor_id], groups.get(actor.group_id)
        if not inner or outer is None or actor.process_id == process.process_id:
            continue
        if all(group.is_pending for group in inner):
            driver = tuple(
                Reservation(node_id=bundle.node_id, amounts=ray_ticks(bundle.resources), holder=actor.class_name)
                for bundle in outer.bundles
            )
            waiting.append(
                WaitingRun(run_id=actor.actor_id, started_at=actor.started_at, driver=driver, gang=_gang(inner))
            )
    return waiting


def _gang(groups: Sequence[GroupRecord]) -> BundleGroup | None:
    """Return the bundles of equal pending placement groups, or ``None`` if the groups differ.

    A run without a gang counts as one that can proceed.
    """
    first = groups[0]
    if any((group.bundles, group.strategy) != (first.bundles, first.strategy) for group in groups):
        return None
    bundles = first.bundles
    if any(bundle != bundles[0] for bundle in bundles):
        bundles = bundles[:1]  # the deadlock check requires equal bundles, and one bundle is a lower bound
    selectors = [bundle.label_selector for bundle in bundles]
    return BundleGroup([bundle.resources for bundle in bundles], first.strategy, selectors)


def _nested_error(
    group: GroupRecord, driver: Sequence[Reservation], others: Sequence[WaitingRun]
) -> InfeasibleRequestError:
    request = sum_of(bundle.resources for bundle in group.bundles)
    reserved = Counter[str]()
    for reservation in (*driver, *(held for run in others for held in run.driver)):
        reserved.update(reservation.amounts)
    of_request = {name: ticks for name, ticks in reserved.items() if name in request and ticks}
    short_of = max(of_request, key=lambda name: (of_request[name], name), default=min(request, default="CPU"))
    if not others:
        return InfeasibleRequestError(
            format_amounts(request),
            f"the trial in which this run runs reserves {format_amounts(of_request)}, and the rest is not enough",
            short_of,
            "Reserve fewer resources for the outer trial, request less in the inner run, or add nodes.",
        )
    fields = {"CPU": "cpus", "GPU": "gpus", "memory": "memory"}
    wished = []
    for name, ticks in request.items():
        if name in fields:
            scale = 1 if name == "memory" else TICKS  # host memory is in bytes
            wished.append(f"{fields[name]}={math.ceil(ticks / scale)}")
    return InfeasibleRequestError(
        format_amounts(request),
        f"{counted(1 + len(others), 'outer trial')}, each waiting for a run inside it, reserve "
        f"{format_amounts(of_request)}",
        short_of,
        f"Reserve resources for the inner runs: use ReservingPolicy(policy, {', '.join(wished)}) in the outer run, or "
        "pass a smaller max_concurrent_trials to it.",
    )
