"""Watches, beside a run, whether tasks wait for what its trials have reserved; one thread in the program that began it.

One call to Ray's GCS every two seconds, whatever the number of trials: the trials' own processes ask nothing.
"""

import atexit
import logging
import threading
import time
from typing import Final

import ray
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply, NodeStatus
from ray.util.client import ray as ray_client

from tune_policies.probing.cluster_state import fetch

from .starved_tasks import StarvedTasks, starved_requests

_logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 2.0
_READ_TIMEOUT_S: Final = 10.0
_IDLE_S: Final = 600.0
"""So long after the last group of the program the watch ends; trials may wait for others until they get theirs."""
_END_S: Final = 2.0

_lock = threading.Lock()
_watch: "_TaskWatch | None" = None


def watch_tasks() -> None:
    """Begin to watch as a run begins, or is about to; nothing where that is done already. Does not wait."""
    global _watch
    with _lock:
        if _watch is None or not _watch.keeps_on():
            _watch = _TaskWatch()
            _watch.start()


def _end_watch() -> None:
    """End it before the interpreter ends: a thread that is in Ray's own code then ends the process with an error."""
    if _watch is not None:
        _watch.stop.set()
        _watch.join(_END_S)


atexit.register(_end_watch)


class _TaskWatch(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="tune-policies-task-watch", daemon=True)
        self.stop = threading.Event()
        self._needed_until_s = time.monotonic() + _IDLE_S

    def keeps_on(self) -> bool:
        """Watch on for a while; ``False``: it has ended."""
        self._needed_until_s = time.monotonic() + _IDLE_S
        return self.is_alive() and not self.stop.is_set()

    def run(self) -> None:
        tasks = StarvedTasks()
        while not self.stop.wait(_INTERVAL_S):
            with _lock:
                if time.monotonic() > self._needed_until_s:
                    self.stop.set()
                    return
            if not ray.is_initialized() or ray_client.is_connected():  # a Ray Client cannot reach the GCS
                continue
            try:
                if not self._read(tasks):
                    tasks = StarvedTasks()  # the next run is told anew
            except Exception as error:  # noqa: BLE001  # Ray is busy, or ends just now: no reason to trouble the run
                _logger.debug("which tasks wait could not be read: %s", error)

    def _read(self, tasks: StarvedTasks) -> bool:
        """Read once; return whether a run of the program goes on: it has groups."""
        context = ray.get_runtime_context()
        job_id = context.get_job_id()
        status, _ = fetch(context.gcs_address, _READ_TIMEOUT_S)
        reply = GetClusterStatusReply.FromString(status)
        state, autoscaling = reply.cluster_resource_state, reply.autoscaling_state
        alive = [node for node in state.node_states if node.status != NodeStatus.DEAD]
        if not any(name.endswith(job_id) and "_group_" in name for node in alive for name in node.total_resources):
            return False
        self._needed_until_s = time.monotonic() + _IDLE_S
        waiting = [dict(each.request.resources_bundle) for each in state.pending_resource_requests]
        if autoscaling.pending_instance_requests or autoscaling.pending_instances:
            waiting = []  # nodes for them are on their way
        nodes = [dict(node.total_resources) for node in alive] if waiting else []
        for text in tasks.read(starved_requests(nodes, waiting, job_id), time.monotonic()):
            _logger.warning("%s", text)
        return True
