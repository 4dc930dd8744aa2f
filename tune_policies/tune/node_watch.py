"""Watches the nodes of the cluster beside a Tune run, and tells whether a trial was lost with its node.

Tune's loop must not wait for Ray, so this module reads in a thread of its own, with a deadline.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Hashable
from queue import Empty, SimpleQueue
from typing import Any, Final

import ray
from ray.exceptions import RayActorError

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.probe.probe_cluster import probe_cluster
from tune_policies.ray_compat.gcs import node_of_actor, read_cluster_state
from tune_policies.values.errors import ProbeError

_logger = logging.getLogger(__name__)

_READ_TIMEOUT_S: Final = 10.0
_LOST_NODE_TIMEOUT_S: Final = 5.0
_CONNECT_TIMEOUT_S: Final = 2.0


class NodeWatch:
    """Tells when nodes have come or gone, or have other totals than before.

    Args:
        interval_s: How often the nodes are read, in seconds.
        probes: Whether each change starts a full probe, which also reads the devices on the nodes. Otherwise the watch
            returns what Ray's GCS says.
    """

    def __init__(self, interval_s: float, *, probes: bool) -> None:
        self._interval_s = interval_s
        self._probes = probes
        self._known: Hashable = None
        self._next_at_s = 0.0
        self._answers: SimpleQueue[tuple[Hashable, ClusterCapacity]] | None = None
        self._reader: threading.Thread | None = None

    def read_now(self) -> ClusterCapacity | None:
        """Return the nodes now, against which later changes are told; ``None``: they could not be read in time."""
        try:
            capacity = ClusterCapacity(nodes=read_cluster_state(_READ_TIMEOUT_S).nodes)
        except ProbeError as error:
            _logger.warning("the nodes of the cluster could not be read: %s", error)
            return None
        self._known = _signature(capacity)
        return capacity

    def forget(self) -> None:
        """Count the next reading of the nodes as a change."""
        self._known = None

    def changed(self) -> ClusterCapacity | None:
        """Return the cluster once for each change of its nodes; ``None``: none since the last call. Does not wait."""
        found = self._take_answer()
        if found is not None:
            self._known, capacity = found
            return capacity
        now = time.monotonic()
        is_reading = self._reader is not None and self._reader.is_alive()
        if now >= self._next_at_s and not is_reading:
            self._next_at_s = now + self._interval_s
            self._answers = SimpleQueue()
            self._reader = threading.Thread(target=self._read, args=(self._answers, self._known), daemon=True)
            self._reader.start()
        return None

    def _take_answer(self) -> tuple[Hashable, ClusterCapacity] | None:
        try:
            return None if self._answers is None else self._answers.get_nowait()
        except Empty:
            return None

    def _read(self, answers: "SimpleQueue[tuple[Hashable, ClusterCapacity]]", known: Hashable) -> None:
        try:
            capacity = ClusterCapacity(nodes=read_cluster_state(_READ_TIMEOUT_S).nodes)
            signature = _signature(capacity)
            if signature == known:
                return
            answers.put((signature, probe_cluster() if self._probes else capacity))
        except Exception as error:  # noqa: BLE001  # a thread has nobody to raise to; the next reading may succeed
            _logger.warning("the nodes of the cluster could not be read, and will be again: %s", error)

    def __getstate__(self) -> dict[str, Any]:
        """Return what Tune saves of a scheduler: neither the thread nor its answers."""
        return {**self.__dict__, "_answers": None, "_reader": None}


def _signature(capacity: ClusterCapacity) -> Hashable:
    return frozenset(
        (node.node_id, tuple(sorted(node.resources.ticks.items())), tuple(sorted(node.labels.items())))
        for node in capacity.nodes
    )


def lost_node(error: object) -> str | None:
    """Return the identifier of the dead node with which a trial was lost; ``None``: its node lives, or is not known.

    Ray takes seconds to count a killed node as dead (``health_check_period_ms`` and its like), while the node's trials
    fail at once. So where Ray still counts the node as alive, this calls its raylet: a dead one does not answer.
    """
    actor_id = getattr(error, "actor_id", None)
    if not isinstance(error, RayActorError) or not actor_id:
        return None
    return _call_with_timeout(_LOST_NODE_TIMEOUT_S, lambda: _dead_node_of(actor_id))


def _call_with_timeout(timeout_s: float, read: Callable[[], str | None]) -> str | None:
    answers: SimpleQueue[str | None] = SimpleQueue()

    def answer() -> None:
        try:
            answers.put(read())
        except Exception as error:  # noqa: BLE001  # the failure then counts, as without this scheduler
            _logger.warning("whether a trial was lost with its node could not be told: %s", error)
            answers.put(None)

    threading.Thread(target=answer, daemon=True).start()
    try:
        return answers.get(timeout=timeout_s)
    except Empty:
        _logger.warning("whether a trial was lost with its node could not be told within %g s", timeout_s)
        return None


def _dead_node_of(actor_id: str) -> str | None:
    node_id = node_of_actor(actor_id)
    node = next((each for each in ray.nodes() if each["NodeID"] == node_id), None)
    if node is None:
        return None
    return (
        None if node["Alive"] and _is_reachable(node["NodeManagerAddress"], node["NodeManagerPort"]) else node["NodeID"]
    )


def _is_reachable(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=_CONNECT_TIMEOUT_S):
            return True
    except OSError:
        return False
