"""Detects when nodes are added, removed or changed, and whether a trial was lost with its node.

Tune's loop must not wait for Ray, so a thread reads the nodes with a timeout.
"""

import logging
import socket
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import ray

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import NodeCapacity
from tune_policies.probe.probe_cluster import probe_cluster
from tune_policies.ray_compat.background import BackgroundTask, answer_within
from tune_policies.ray_compat.gcs import READ_TIMEOUT_S, dead_actors, node_of_actor, read_cluster_state
from tune_policies.values.errors import ProbeError

_logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S: Final = 5.0
_CONNECT_TIMEOUT_S: Final = 2.0


T = TypeVar("T")


class NodeWatch:
    """Detects when nodes are added, removed or changed.

    Args:
        interval_s: The minimum time between two changes, in seconds.
        probes: Whether each change starts a full probe, which also reads the devices on the nodes. Otherwise, the watch
            returns the nodes as Ray's GCS describes them.
        known: The nodes at the start of the run.
    """

    def __init__(self, interval_s: float, *, probes: bool, known: ClusterCapacity) -> None:
        self._interval_s = interval_s
        self._probes = probes
        self._known_ids = frozenset(node.node_id for node in known.nodes)
        self._known: Hashable = None
        self._next_at_s = 0.0
        self._probing: BackgroundTask[ClusterCapacity] = BackgroundTask()

    def changed(self, nodes: Sequence[NodeCapacity] | None) -> ClusterCapacity | None:
        """Return the cluster if its nodes have changed, else ``None``. This method does not wait.

        Args:
            nodes: The latest nodes in Ray's GCS, or ``None`` if they are not known.
        """
        match self._probing.take():
            case ClusterCapacity() as capacity:
                return capacity
            case Exception() as error:
                self._known = None  # probe again
                self._known_ids = frozenset()
                _logger.warning("the nodes of the cluster could not be read, and will be read again: %s", error)
        now_s = time.monotonic()
        if nodes is None or now_s < self._next_at_s or not self._is_new(nodes):
            return None
        if not self._probes:
            self._remember(nodes, now_s)
            return ClusterCapacity(nodes=tuple(nodes))
        # A probe runs tasks on the nodes and takes far longer than reading the GCS, so only a change starts a probe.
        if self._probing.start(probe_cluster):
            self._remember(nodes, now_s)
        return None

    def _is_new(self, nodes: Sequence[NodeCapacity]) -> bool:
        if self._known is not None:
            return _signature_of(nodes) != self._known
        # The nodes at the start may come from a full probe, which describes them differently, so only the IDs are
        # compared.
        if {node.node_id for node in nodes} != self._known_ids:
            return True
        self._known = _signature_of(nodes)
        return False

    def _remember(self, nodes: Sequence[NodeCapacity], now_s: float) -> None:
        self._known = _signature_of(nodes)
        self._next_at_s = now_s + self._interval_s


def _signature_of(nodes: Sequence[NodeCapacity]) -> Hashable:
    """Return a value that changes if any node in Ray's GCS changes."""
    return frozenset(
        (node.node_id, tuple(sorted(node.resources.ticks.items())), tuple(sorted(node.labels.items())))
        for node in nodes
    )


def nodes_in_gcs() -> ClusterCapacity:
    """Return the nodes as Ray's GCS describes them, or no nodes if they cannot be read in time."""
    try:
        return ClusterCapacity(nodes=read_cluster_state(READ_TIMEOUT_S).nodes)
    except ProbeError as error:
        _logger.warning("the nodes of the cluster could not be read: %s", error)
        return ClusterCapacity()


def lost_node(error: object) -> str | None:
    """Return the ID of the dead node on which a trial or one of its Train workers ran, or ``None``.

    Ray takes seconds to mark a killed node as dead (``health_check_period_ms``), but the node's trials fail
    immediately. Therefore, if Ray still reports the node as alive, this function tries to connect to its raylet.
    """
    actor_ids = [*dead_actors(error)]
    if not actor_ids:
        return None
    # If Ray does not answer in time, the failure counts as a failure of the trial, as in Tune.
    return _read_or_none(lambda: _dead_node_of(actor_ids), "whether a trial was lost with its node")


def _read_or_none(read: Callable[[], T], what: str) -> T | None:
    try:
        return answer_within(_ANSWER_TIMEOUT_S, read)
    except Exception as error:  # noqa: BLE001  # Ray may be busy or restarting, and the run continues without the answer
        _logger.warning("could not determine %s: %s", what, error)
        return None


def _dead_node_of(actor_ids: Iterable[str]) -> str | None:
    node_ids = {node_of_actor(actor_id) for actor_id in actor_ids}
    return next((str(node["NodeID"]) for node in ray.nodes() if node["NodeID"] in node_ids and _is_dead(node)), None)


def _is_dead(node: Mapping[str, Any]) -> bool:
    if node["Alive"]:
        address = node["NodeManagerAddress"], node["NodeManagerPort"]
        with suppress(OSError), socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S):
            return False  # the node's raylet accepts connections
    return True
