"""Reads nodes, their resources, pending nodes, actors and placement groups from Ray's GCS.

The GCS does not contain the nodes that an autoscaler *could* add. Autoscaler v1 reports the nodes that it started, and
v2 reports pending nodes. In Ray 2.60, neither version reports its configuration (``report_cluster_config``).

Ray's public API for actors and placement groups, ``ray.util.state``, does not report owners. It requires the
dashboard, which is not part of a default install. The GCS tables that the dashboard reads are not available through Ray
Client.

All protobuf messages are the same in Ray 2.50 and 2.60.
"""

import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import PlacementGroup, remove_placement_group

from tune_policies.cluster.capacity import DEFAULT_AUTOSCALER, AutoscalerVersion
from tune_policies.cluster.node import NodeCapacity
from tune_policies.cluster.ray_totals import HEAD_RESOURCE, accelerator_type_of, in_use, to_resources
from tune_policies.ray_compat.background import answer_within
from tune_policies.ray_compat.connection import is_through_client, sent_by_value
from tune_policies.ray_compat.this_process import ThisProcess, parents_in_ray, this_process
from tune_policies.ray_compat.version import Gone, needs_of_ray
from tune_policies.values.errors import ProbeError
from tune_policies.values.value import collector_paused

_STATUS: Final = "reading the state of a cluster"
_TABLES: Final = "reading the actors and placement groups of a cluster"

try:
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply, NodeStatus
except ImportError as error:
    GetClusterStatusReply = NodeStatus = Gone(error, _STATUS)
try:
    from ray._private.state import actors as actors_as_dicts
    from ray._private.state import available_resources_per_node, jobs
    from ray._private.state import state as ray_state
    from ray.core.generated.gcs_pb2 import ActorTableData, PlacementGroupTableData
except ImportError as error:
    actors_as_dicts = available_resources_per_node = jobs = ray_state = Gone(error, _TABLES)
    ActorTableData = PlacementGroupTableData = Gone(error, _TABLES)

READ_TIMEOUT_S: Final = 10.0
"""The timeout for reading the state of a cluster during a run, in seconds."""

MIRRORED_TYPE: Final = re.compile(r"node_[0-9a-f]{56}")
"""Matches the node type that Ray's monitor derives from a node's identifier in a cluster without an autoscaler
(``format_readonly_node_type`` in ``ray.autoscaler._private.util``). A user's own type may be called ``node_1``."""


@dataclass(frozen=True)
class ClusterState:
    """The state of a cluster in the GCS.

    Attributes:
        session: The name of the cluster's session.
        nodes: The alive nodes that accept work.
        draining: The alive nodes that accept no more work.
        workers_by_type: The number of running worker nodes, by the autoscaler's node type.
        num_workers: The number of running worker nodes.
        has_autoscaler: Whether an autoscaler reports node types.
        may_have_autoscaler: Whether the cluster may have an autoscaler. If the head node was started by hand,
            autoscaler v2 reports no types until it adds a node.
        autoscaler_version: The version of the autoscaler, or the default if the cluster has none.
    """

    session: str
    nodes: tuple[NodeCapacity, ...]
    draining: tuple[NodeCapacity, ...]
    workers_by_type: Counter[str]
    num_workers: int
    has_autoscaler: bool
    may_have_autoscaler: bool
    autoscaler_version: AutoscalerVersion


def read_cluster_state(timeout_s: float) -> ClusterState:
    """Read the state of the program's cluster from the GCS.

    The resources of nodes exclude what the program itself holds outside its runs (``held_by_program``), and the
    resources in use exclude those of the program's removed placement groups. Through Ray Client, both are unknown.

    Raises:
        ProbeError: The GCS does not answer within ``timeout_s`` seconds.
    """
    holdings: list[Holding] = []
    removed: set[str] = set()
    try:
        with needs_of_ray(_STATUS):
            if is_through_client():
                status, report = _fetch_by_task(timeout_s)
                reply = GetClusterStatusReply.FromString(status)
            else:  # Ray retries the connection to a dead GCS for a minute, regardless of the timeout
                context = ray.get_runtime_context()
                # Read in this thread, because another thread does not know the placement group of a task.
                process = this_process()
                status, report = answer_within(timeout_s, partial(fetch, context.gcs_address, timeout_s))
                reply = GetClusterStatusReply.FromString(status)
                holdings = answer_within(timeout_s, partial(held_by_program, process))
                removed = answer_within(timeout_s, partial(_removed_groups, reply, process.job_id))
    except (RayError, OSError, RuntimeError) as error:
        why = str(error).strip() or f"no answer within {timeout_s:g} s"
        raise ProbeError(
            f"could not read the cluster from Ray: {why}. Check that Ray is running, and try again"
        ) from error
    return to_cluster_state(reply, json.loads(report or b"{}"), holdings, removed)


@dataclass(frozen=True)
class Demand:
    """The resources of a cluster, and the demand for them.

    Attributes:
        node_totals: The resources of each alive node by node ID, including the resources of placement groups.
        waiting: The distinct resource requests of waiting tasks and actors.
        is_growing: Whether the autoscaler is launching nodes.
    """

    node_totals: Mapping[str, dict[str, float]]
    waiting: tuple[dict[str, float], ...]
    is_growing: bool


def read_demand(timeout_s: float) -> Demand:
    """Read the resources and the demand from the GCS. The call may hang, and does not work through Ray Client.

    ``ray status`` prints the same values, but Ray has no public API for them.
    """
    with needs_of_ray(_STATUS):
        status, _ = fetch(ray.get_runtime_context().gcs_address, timeout_s)
    reply = GetClusterStatusReply.FromString(status)
    state, autoscaling = reply.cluster_resource_state, reply.autoscaling_state
    alive = [node for node in state.node_states if node.status != NodeStatus.DEAD]
    return Demand(
        node_totals={node.node_id.hex(): dict(node.total_resources) for node in alive},
        waiting=tuple(dict(pending.request.resources_bundle) for pending in state.pending_resource_requests),
        is_growing=bool(autoscaling.pending_instance_requests or autoscaling.pending_instances),
    )


def fetch(gcs_address: str | None, timeout_s: float) -> tuple[bytes, bytes | None]:
    """Return the serialized status of the cluster, and the report of autoscaler v1 or ``None`` if v1 does not run.

    Through Ray Client (``ray://``), this function runs as a task because only the cluster can reach the GCS, so it
    imports everything itself. ``ray.nodes()`` reports neither the resources in use nor draining nodes.
    """
    import ray
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # as in ray.autoscaler.v2.sdk

    gcs = GcsClient(address=gcs_address or ray.get_runtime_context().gcs_address)
    status = gcs.get_cluster_status(timeout_s=timeout_s)
    return status, gcs.internal_kv_get(b"__autoscaling_status", None, timeout=timeout_s)


def _fetch_by_task(timeout_s: float) -> Any:
    with sent_by_value(sys.modules[__name__]):
        # The task reserves no CPU, so that it also starts on a busy cluster.
        task = ray.remote(num_cpus=0, max_retries=0)(fetch).remote(None, timeout_s)
    return ray.get(task, timeout=timeout_s)


@collector_paused()
def to_cluster_state(
    reply: Any, report: dict[str, Any], holdings: Iterable["Holding"] = (), removed_groups: Collection[str] = ()
) -> ClusterState:
    """Convert a ``GetClusterStatusReply`` and autoscaler v1's report (``{}`` without v1) to a ``ClusterState``.

    ``holdings`` are subtracted from the nodes, and the resources of ``removed_groups`` do not count as in use.
    """
    held_on: dict[str, list[Holding]] = defaultdict(list)
    for holding in holdings:
        held_on[holding.node_id].append(holding)

    def to_node(node: Any) -> NodeCapacity:
        return _to_node(node, held_on.get(node.node_id.hex(), ()), removed_groups)

    alive = [node for node in reply.cluster_resource_state.node_states if node.status != NodeStatus.DEAD]
    workers = [node for node in alive if HEAD_RESOURCE not in node.total_resources]
    running = Counter(node.ray_node_type_name for node in workers if node.ray_node_type_name)
    heads = [node.node_ip_address for node in alive if HEAD_RESOURCE in node.total_resources]
    reported = _joined_under_v1(report.get("autoscaler_report") or {}, heads)
    is_v2 = reply.autoscaling_state.autoscaler_state_version > 0
    has_v1 = _contains_type_names(report.get("autoscaler_report") or {})
    return ClusterState(
        session=reply.cluster_resource_state.cluster_session_name,
        nodes=tuple(to_node(node) for node in alive if node.status != NodeStatus.DRAINING),
        draining=tuple(to_node(node) for node in alive if node.status == NodeStatus.DRAINING),
        # With autoscaler v1, only its report contains the types of nodes.
        workers_by_type=Counter(running | reported),
        num_workers=len(workers),
        has_autoscaler=has_v1 or (is_v2 and any(node.ray_node_type_name for node in alive)),
        may_have_autoscaler=has_v1 or is_v2,
        autoscaler_version=1 if has_v1 else DEFAULT_AUTOSCALER,
    )


def _joined_under_v1(report: dict[str, Any], heads: Iterable[str]) -> Counter[str]:
    """Count the running worker nodes that autoscaler v1 started, by type."""
    joined = Counter(report.get("active_nodes") or {})
    # The report counts all nodes that send heartbeats, including the head node (``StandardAutoscaler.summary``).
    for address in heads:
        joined[(report.get("node_type_mapping") or {}).get(address, "")] -= 1
    # The unary plus omits counts of 0 and below.
    return +joined


def _contains_type_names(report: dict[str, Any]) -> bool:
    named = {*(report.get("active_nodes") or {}), *(report.get("node_type_mapping") or {}).values()}
    return any(not MIRRORED_TYPE.fullmatch(name) for name in named)


def _to_node(node: Any, holdings: Iterable["Holding"], removed_groups: Collection[str]) -> NodeCapacity:
    totals, available = dict(node.total_resources), dict(node.available_resources)
    for name, amount in node.total_resources.items():
        # Bundle resources exist twice: with and without the bundle's index.
        group = _OF_GROUP.fullmatch(name)
        if group and group["index"] is None and group["group_id"] in removed_groups:
            available[group["name"]] = available.get(group["name"], 0) + amount
    held: dict[str, Counter[str]] = defaultdict(Counter)
    for holding in holdings:
        for name, amount in holding.resources.items():
            held[holding.holder][name] += amount  # type: ignore[assignment]  # Ray's amounts are floats
            # Rounded to Ray's finest amount, because the differences are floats.
            totals[name] = max(0.0, round(totals.get(name, 0) - amount, 4))
    if held and totals.get("GPU", 0) > 1:
        totals["GPU"] = math.floor(totals["GPU"])  # a partly used device counts as in use
    return NodeCapacity(
        node_id=node.node_id.hex(),
        resources=to_resources(totals),
        accelerator_type=accelerator_type_of(totals),
        labels=dict(node.labels),
        address=node.node_ip_address or None,
        is_head=HEAD_RESOURCE in totals,
        in_use=in_use(totals, available),
        held={holder: to_resources(amounts) for holder, amounts in held.items()},
    )


_OF_GROUP: Final = re.compile(r"(?P<name>.+)_group_((?P<index>\d+)_)?(?P<group_id>[0-9a-f]{36})", re.DOTALL)
"""Matches the name of a bundle's resource, such as ``CPU_group_0_<ID of the group>``."""


def _removed_groups(reply: Any, job_id: str) -> set[str]:
    """Return the IDs of the job's removed placement groups whose bundles still exist on a node.

    After a run has ended, Ray needs some time to return the resources of its bundles.
    """
    names = {name for node in reply.cluster_resource_state.node_states for name in node.total_resources}
    groups = {found["group_id"] for found in map(_OF_GROUP.fullmatch, names) if found}
    own = {group_id for group_id in groups if group_id.endswith(job_id)}  # the last digits are the ID of the job
    if not own:
        return set()
    return own - {group.group_id for group in placement_groups() if not group.is_removed}


_STRATEGIES: Final = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
"""The placement strategies, in the order of Ray's ``PlacementStrategy``."""


@dataclass(frozen=True)
class ActorRecord:
    """A living actor. Identifiers are hexadecimal, or empty if Ray reports none.

    ``started_at`` is a Unix timestamp in seconds. ``process_id`` is Ray's ID of the actor's own worker process,
    ``pid`` is its process ID on the node, and ``owner_process_id`` identifies the process that created the actor.
    """

    actor_id: str
    name: str
    class_name: str
    module: str
    job_id: str
    started_at: float
    pid: int
    process_id: str
    owner_process_id: str
    node_id: str
    group_id: str
    resources: Mapping[str, float]
    is_detached: bool

    def is_lasting(self, job_id: str) -> bool:
        """Return whether the actor may live as long as the program of ``job_id``.

        Another program's actor may end earlier unless it is detached, and Ray Data's actors end with their dataset.
        """
        return (self.is_detached or self.job_id == job_id) and not self.module.startswith("ray.data.")


@dataclass(frozen=True)
class BundleRecord:
    """A bundle of a placement group. ``node_id`` is empty until the bundle is placed."""

    resources: Mapping[str, float]
    node_id: str
    label_selector: Mapping[str, str]


@dataclass(frozen=True)
class GroupRecord:
    """A placement group. ``creator_id`` is the ID of the actor that created it, or empty for a driver or a task.

    Ray is rescheduling a group (``is_rescheduling``) if a node with a granted bundle has died.
    """

    group_id: str
    name: str
    job_id: str
    creator_id: str
    is_pending: bool
    is_created: bool
    is_rescheduling: bool
    is_removed: bool
    is_detached: bool
    strategy: str
    bundles: tuple[BundleRecord, ...]


def living_actors() -> list[ActorRecord]:
    """Return the living actors of all programs. The functions below raise the same errors.

    Raises:
        RayError: Ray cannot be reached.
        RuntimeError: Ray cannot be reached.
    """
    return [_to_actor(ActorTableData.FromString(row)) for row in _accessor().get_actor_table(None, "ALIVE")]


def placement_groups() -> list[GroupRecord]:
    """Return the placement groups of all programs."""
    table = _accessor().get_placement_group_table()
    return [_to_group(PlacementGroupTableData.FromString(row)) for row in table]


class Records(NamedTuple):
    """The living actors and the placement groups of a cluster, including removed groups."""

    actors: Sequence[ActorRecord]
    groups: Sequence[GroupRecord]


def read_records() -> Records:
    """Read the living actors and the placement groups.

    Raises:
        RayError: Ray cannot be reached.
        RuntimeError: Ray cannot be reached.
        RayVersionError: This Ray version describes actors or placement groups differently.
    """
    return Records(living_actors(), placement_groups())


@dataclass(frozen=True)
class Holding:
    """Resources of a node that stay reserved for as long as this program runs. ``holder`` describes their owner."""

    node_id: str
    resources: Mapping[str, float]
    holder: str


_ENTRYPOINT: Final = "the entrypoint of this Ray job"
_OUTER: Final = "the trial, task or actor in which this program runs"
_SUPERVISOR: Final = "_ray_internal_job_actor_"
"""The beginning of the name of the actor that runs a submitted job (``JOB_ACTOR_NAME_TEMPLATE`` in Ray's dashboard)."""

_last_holdings: Final[list[tuple[ThisProcess, list[Holding]]]] = []
"""The last result of ``held_by_program``. It does not change while a process is connected."""


def held_by_program(process: ThisProcess) -> list[Holding]:
    """Return the reservations outside of this program's runs that last for as long as the program runs.

    These are the entrypoint resources of its Ray job, and the resources of the trial, task or actor in which it runs,
    directly or as a child process. The actors that own this actor count too. If an actor belongs to a placement group,
    the whole group is reserved.

    Raises:
        RayError: Ray cannot be reached.
        RuntimeError: Ray cannot be reached.
    """
    for last, holdings in _last_holdings:
        if last == process:
            return holdings
    holdings = _read_holdings(process)
    _last_holdings[:] = [(process, holdings)]
    return holdings


def _read_holdings(process: ThisProcess) -> list[Holding]:
    actors = living_actors()
    outer = _outer_actors(process, actors)
    # A task has assigned resources, but is not the process of an actor.
    is_task = process.assigned and not any(actor.process_id == process.process_id for actor in actors)
    group_ids = {actor.group_id for actor in outer if actor.group_id}
    holdings = []
    for actor in outer:
        if actor.resources and not actor.group_id:
            by = _ENTRYPOINT if actor.name.startswith(_SUPERVISOR) else _OUTER
            holdings.append(Holding(actor.node_id, actor.resources, by))
    if is_task and process.group_id:
        group_ids.add(process.group_id)
    elif is_task:
        # Ray releases the CPUs of a task, but not its other resources, while the task waits.
        kept = {name: amount for name, amount in process.assigned.items() if name != "CPU"}
        holdings.append(Holding(process.node_id, kept, _OUTER))
    if group_ids:
        for group in placement_groups():
            if group.group_id in group_ids and not group.is_removed:
                holdings += [Holding(bundle.node_id, bundle.resources, _OUTER) for bundle in group.bundles]
    return [holding for holding in holdings if holding.resources]


def _outer_actors(process: ThisProcess, actors: Sequence[ActorRecord]) -> list[ActorRecord]:
    """Return the actors in which the process runs: its own, those of its parent processes, and the owners of these."""
    by_process = {actor.process_id: actor for actor in actors}
    parents = parents_in_ray()
    supervisor = _SUPERVISOR + process.submission_id
    pending = []
    for actor in actors:
        is_own = actor.process_id == process.process_id
        # A process ID is unique only on its node.
        is_parent = actor.pid in parents and actor.node_id == process.node_id
        is_supervisor = bool(process.submission_id) and actor.name == supervisor
        if is_own or is_parent or is_supervisor:
            pending.append(actor)
    outer: list[ActorRecord] = []
    while pending:
        actor = pending.pop()
        if actor in outer:
            continue
        outer.append(actor)
        owner = by_process.get(actor.owner_process_id)
        # A detached actor outlives the actor that created it, so it does not run inside that actor.
        if owner is not None and not actor.is_detached:
            pending.append(owner)
    return outer


def is_dead_actor_of(class_name: str, actor_id: str) -> bool:
    """Return whether the actor is of class ``class_name`` and Ray reports that it has died."""
    info = _accessor().get_actor_info(ray.ActorID.from_hex(actor_id)) if actor_id else None
    if info is None:
        return False
    actor = ActorTableData.FromString(info)
    return bool(actor.state == ActorTableData.DEAD and actor.class_name == class_name)


def remove_group(group_id: str) -> None:
    """Remove a placement group of any program. Ray's public API requires a handle that only the creator has."""
    remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(group_id)))


def dead_actors(error: object) -> Iterator[str]:
    """Yield the identifiers of the dead actors that an error reports, such as workers of Ray Train."""
    failures = getattr(error, "worker_failures", None)  # errors by rank in Ray Train's WorkerGroupError
    errors = [error]
    if isinstance(failures, dict):
        errors += failures.values()
    for reported in errors:
        # Ray Train wraps the death of a worker in a ``WorkerHealthCheckFailedError``.
        died = getattr(reported, "health_check_failure", reported)
        actor_id = getattr(died, "actor_id", None)
        if isinstance(died, RayActorError) and actor_id:
            yield actor_id


def node_of_actor(actor_id: str) -> str | None:
    """Return the identifier of the node where an actor runs or ran, or ``None`` if it is unknown.

    A ``RayActorError`` contains the node only in its text, and only after Ray considers the actor dead.
    """
    return actors_as_dicts(actor_id).get("Address", {}).get("NodeID") or None


def free_by_node() -> dict[str, dict[str, float]]:
    """Return the free resources of each node by node ID. Ray's public ``available_resources`` sums over all nodes."""
    free: dict[str, dict[str, float]] = available_resources_per_node()
    return free


def programs() -> dict[str, str]:
    """Return the command and process ID of each program that has connected to the cluster, by job ID."""
    # The title of a Ray process is followed by empty arguments, because it overwrites the command line.
    named = {}
    for job in jobs():
        title = job["Entrypoint"].partition(' ""')[0]
        named[job["JobID"]] = f"{title or 'a program'} (pid {job['DriverPid']})"
    return named


def _accessor() -> Any:
    with needs_of_ray(_TABLES):
        if hasattr(ray_state, "_connect_and_get_accessor"):
            return ray_state._connect_and_get_accessor()
        ray_state._check_connected()  # before Ray 2.52
        return ray_state.global_state_accessor


def _hex(identifier: bytes) -> str:
    """Return an identifier in hexadecimal, or ``""`` if it is missing (empty bytes or 0xff bytes)."""
    if not identifier.strip(b"\xff"):
        return ""
    return identifier.hex()


def _to_actor(actor: Any) -> ActorRecord:
    return ActorRecord(
        actor_id=actor.actor_id.hex(),
        name=actor.name,
        class_name=actor.class_name,
        module=actor.function_descriptor.python_function_descriptor.module_name,
        job_id=actor.job_id.hex(),
        started_at=actor.start_time / 1000,  # milliseconds in the GCS
        pid=actor.pid,
        process_id=_hex(actor.address.worker_id),
        owner_process_id=_hex(actor.owner_address.worker_id),
        node_id=actor.address.node_id.hex(),
        group_id=_hex(actor.placement_group_id),
        resources=dict(actor.required_resources),
        is_detached=actor.is_detached,
    )


def _to_group(group: Any) -> GroupRecord:
    return GroupRecord(
        group_id=group.placement_group_id.hex(),
        name=group.name,
        job_id=group.creator_job_id.hex(),
        creator_id=_hex(group.creator_actor_id),
        is_pending=group.state == PlacementGroupTableData.PENDING,
        is_created=group.state == PlacementGroupTableData.CREATED,
        is_rescheduling=group.state == PlacementGroupTableData.RESCHEDULING,
        is_removed=group.state == PlacementGroupTableData.REMOVED,
        is_detached=group.is_detached,
        strategy=_STRATEGIES[group.strategy],
        bundles=tuple(
            BundleRecord(dict(bundle.unit_resources), bundle.node_id.hex(), dict(bundle.label_selector))
            for bundle in group.bundles
        ),
    )
