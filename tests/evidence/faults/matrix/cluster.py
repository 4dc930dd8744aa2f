"""A cluster of small nodes on this machine that counts a node as dead within seconds, and what is left on it."""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import psutil
import ray
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import DrainNodeReason, GetClusterStatusReply

QUICK_HEALTH: Final = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 2,
    "gcs_rpc_server_reconnect_timeout_s": 5,
}
NODE: Final[Mapping[str, int]] = {"num_cpus": 2, "num_gpus": 1, "object_store_memory": 80 * 2**20}
_AGENTS: Final = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::_AutoscalingCoordinator")
"""The last one is what Ray Train leaves on each cluster, once."""
_OF_RAY: Final = ("dashboard/agent", "runtime_env/agent", "log_monitor", "ray-dashboard")
_INTERVAL_S: Final = 0.5


class FaultCluster:
    """A head without room for trials, and nodes that can be hit."""

    def __init__(self, num_nodes: int, node: Mapping[str, Any] = NODE) -> None:
        logging.getLogger("ray").setLevel(logging.CRITICAL)  # it warns of every node that dies
        self._node = node
        self.num_nodes = num_nodes
        self._begin()

    def _begin(self) -> None:
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": QUICK_HEALTH}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._has_gcs = True
        self._seen: dict[tuple[int, float], psutil.Process] = {}
        self._stop = threading.Event()
        self._watch = threading.Thread(target=self._watch_processes, daemon=True)
        self._watch.start()

    @property
    def address(self) -> str:
        """Where a program finds it."""
        return str(self._cluster.address)

    def end(self) -> None:
        """End all its processes."""
        self._stop.set()
        self._watch.join()
        for process in self._seen.values():  # what outlived its raylet
            with suppress(psutil.Error):
                process.kill()
        self._cluster.shutdown()

    def lose_gcs(self) -> None:
        """End the GCS by SIGKILL, and with it the cluster, as nothing outlives it that it knew."""
        self._has_gcs = False
        self._cluster.head_node.all_processes["gcs_server"][0].process.kill()

    def add_node(self, **options: Any) -> str:
        """Add a node, in which ``options`` are not as in others, and wait for it; return its identifier."""
        return str(self._cluster.add_node(include_dashboard=False, **{**self._node, **options}).node_id)

    def restore(self) -> None:
        """Take away or add nodes until there are as many as at first; begin anew where the GCS is lost."""
        if not self._has_gcs:
            self.end()
            self._begin()
        for node_id in self.node_ids()[self.num_nodes :]:
            self.kill_node(node_id)
        self.replenish()

    def replenish(self) -> None:
        """Add nodes until there are as many as at first. None is taken away: trials may run on it."""
        while len(self._cluster.worker_nodes) < self.num_nodes:
            self.add_node()

    def node_ids(self) -> list[str]:
        """The nodes but the head."""
        return sorted(str(node.node_id) for node in self._cluster.worker_nodes)

    def _raylet(self, node_id: str) -> Any:
        node = next(each for each in self._cluster.worker_nodes if each.node_id == node_id)
        return node, node.all_processes["raylet"][0].process

    def kill_node(self, node_id: str) -> None:
        """End its raylet by SIGKILL, and then what is left of it."""
        node, raylet = self._raylet(node_id)
        raylet.kill()
        self._cluster.remove_node(node, allow_graceful=False)

    @contextmanager
    def stopped(self, node_id: str) -> Iterator[None]:
        """Hold its raylet by SIGSTOP in the block, as if no network led to the node."""
        _, raylet = self._raylet(node_id)
        os.kill(raylet.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(raylet.pid, signal.SIGCONT)

    def is_alive(self, node_id: str) -> bool:
        """Whether Ray counts the node as alive."""
        return any(each["NodeID"] == node_id and each["Alive"] for each in self._cluster.global_state.node_table())

    def drain(self, node_id: str, notice_s: float) -> bool:
        """Announce that the node is taken away after so many seconds; return whether Ray takes notice."""
        deadline_ms = int((time.time() + notice_s) * 1000)
        reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        gcs = ray._raylet.GcsClient(address=self.address)
        return bool(gcs.drain_node(node_id, reason, "the fault matrix", deadline_ms)[0])

    def _watch_processes(self) -> None:
        """Know every process that ever ran under a raylet: one that outlives its parent has no parent to name it."""
        while not self._stop.wait(_INTERVAL_S):
            for node in list(self._cluster.worker_nodes):
                with suppress(psutil.Error, KeyError, IndexError):
                    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
                    for child in raylet.children(recursive=True):
                        self._seen.setdefault((child.pid, child.create_time()), child)

    def left_within(self, timeout_s: float) -> tuple[str, ...]:
        """Return what no program should have left here, if it is still there after so many seconds; forget it."""
        deadline = time.monotonic() + timeout_s
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.2)
        for process in self._processes():
            with suppress(psutil.Error):
                process.kill()
        return left

    def _processes(self) -> list[psutil.Process]:
        found = []
        for key, process in list(self._seen.items()):
            try:
                is_there = process.is_running() and process.status() != psutil.STATUS_ZOMBIE
                command = " ".join(process.cmdline())
            except psutil.Error:
                is_there, command = False, ""
            if not is_there:
                del self._seen[key]
            elif not command.startswith(_AGENTS) and not any(each in command for each in _OF_RAY):
                found.append(process)
        return found

    def _left(self) -> tuple[str, ...]:
        left = []
        for process in self._processes():
            with suppress(psutil.Error):
                command = " ".join(process.cmdline())
                left.append(f"process {command.rpartition('site-packages/')[2][:60]}")
        if not self._has_gcs:
            return tuple(left)
        groups = self._cluster.global_state.placement_group_table()
        left += [f"placement group {key[:8]}" for key, each in groups.items() if each["state"] != "REMOVED"]
        reply = GetClusterStatusReply()
        reply.ParseFromString(ray._raylet.GcsClient(address=self.address).get_cluster_status(timeout_s=10))
        for constraint in reply.cluster_resource_state.cluster_resource_constraints:
            left += ["a request for resources"] * len(constraint.resource_requests)
        return tuple(left)


@contextmanager
def fault_cluster(num_nodes: int, node: Mapping[str, Any] = NODE) -> Iterator[FaultCluster]:
    """A cluster with so many nodes beside its head."""
    cluster = FaultCluster(num_nodes, node)
    try:
        cluster.restore()
        yield cluster
    finally:
        cluster.end()
