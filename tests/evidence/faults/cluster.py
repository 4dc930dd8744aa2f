"""A Ray cluster of small nodes on this machine. Ray is configured to detect a dead node within seconds."""

import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import psutil
import ray
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import DrainNodeReason

_QUICK_HEALTH: Final = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 2000,
    "health_check_failure_threshold": 2,
    "gcs_rpc_server_reconnect_timeout_s": 5,
}
_NODE: Final = {"num_cpus": 2, "num_gpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
_NUM_NODES: Final = 3
_IDLE_WORKERS: Final = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::_AutoscalingCoordinator")
"""Worker processes of Ray that exist without a program. The last one belongs to Ray Train."""

FREE_BYTES: Final = 2 * 2**30
"""Host memory that processes may allocate before Ray's memory monitor kills a worker on the watched node."""


class FaultCluster:
    """A head node without resources for trials, and three worker nodes.

    ``folder`` is the value of ``RAY_TMPDIR``, which identifies the cluster's processes.
    """

    def __init__(self, folder: str) -> None:
        logging.getLogger("ray").setLevel(logging.CRITICAL)  # it warns about each dead node
        self._folder = folder
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": _QUICK_HEALTH}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.watched = ""
        self.replenish()

    @property
    def address(self) -> str:
        """The address of the cluster, as for ``ray.init``."""
        return str(self._cluster.address)

    def end(self) -> None:
        """Kill all processes of the cluster."""
        self._cluster.shutdown()
        for process in self._workers():  # workers whose raylet is dead
            with suppress(psutil.Error):
                process.kill()

    def replenish(self) -> None:
        """Add nodes until there are three worker nodes again."""
        while len(self._cluster.worker_nodes) < _NUM_NODES:
            self._cluster.add_node(**_NODE)

    def _node(self, node_id: str) -> Any:
        return next(each for each in self._cluster.worker_nodes if each.node_id == node_id)

    def kill_node(self, node_id: str) -> None:
        """Kill the raylet with SIGKILL, and then the other processes of the node."""
        node = self._node(node_id)
        node.all_processes["raylet"][0].process.kill()
        self._cluster.remove_node(node, allow_graceful=False)

    def drain(self, node_id: str, notice_s: float) -> bool:
        """Announce the removal of the node in ``notice_s`` seconds. Return whether Ray accepts the request."""
        deadline_ms = int((time.time() + notice_s) * 1000)
        reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
        gcs = ray._raylet.GcsClient(address=self.address)
        return bool(gcs.drain_node(node_id, reason, "the fault matrix", deadline_ms)[0])

    def watch_memory(self) -> None:
        """Replace a node with one that has Ray's memory monitor.

        Only one node has the monitor, because all nodes share this machine's memory.
        """
        memory = psutil.virtual_memory()
        threshold = (memory.total - memory.available + FREE_BYTES) / memory.total
        variables = {"RAY_memory_usage_threshold": f"{threshold:.4f}", "RAY_memory_monitor_refresh_ms": "250"}
        self.kill_node(next(iter(self._cluster.worker_nodes)).node_id)
        with patch.dict(os.environ, variables):
            self.watched = str(self._cluster.add_node(**_NODE).node_id)

    def left_within(self, timeout_s: float) -> tuple[str, ...]:
        """Return the workers and placement groups that still exist after ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left

    def _left(self) -> tuple[str, ...]:
        groups = self._cluster.global_state.placement_group_table()
        left = [f"placement group {key[:8]}" for key, each in groups.items() if each["state"] != "REMOVED"]
        return (*left, *(f"process {process.pid}" for process in self._workers()))

    def _workers(self) -> list[psutil.Process]:
        """Return the cluster's worker processes, including those whose raylet is dead."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                command = " ".join(process.cmdline())
                if command.startswith("ray::") and not command.startswith(_IDLE_WORKERS):
                    environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                    if f"RAY_TMPDIR={self._folder}".encode() in environment:
                        found.append(process)
        return found
