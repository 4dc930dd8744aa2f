"""Sends the reader to each node of a Ray cluster; without a Ray, runs it on this machine.

Every node is read, however many there are: that one of a thousand differs is what the doctor is asked for. So that no
cluster is flooded, only so many tasks run at once, and each node has the deadline to itself.
"""

import json
import subprocess
import time
from collections import Counter
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_policies.cluster.capacity import accelerator_type_of
from tune_policies.files.child_python import child_python
from tune_policies.probe import nvml
from tune_policies.probe.doctor import node_reader
from tune_policies.probe.doctor.node_checks import Diagnosis, NodeFacts, RayCounts, diagnose
from tune_policies.ray_compat.connection import connection, find_ray, is_through_client, sent_by_value
from tune_policies.ray_compat.gcs import free_by_node
from tune_policies.values.errors import InvalidResourcesError, ProbeError

_AT_ONCE: Final = 100
"""Nodes that are read at the same time."""


def examine(address: str | None = None, *, timeout_s: float = 30.0) -> Diagnosis:
    """Look at all nodes of a Ray cluster, or at this machine where no Ray runs, and return what is wrong.

    Starts no Ray.

    Args:
        address: As for ``ray.init``; else ``RAY_ADDRESS`` counts, then the Ray that runs on this machine. ``"local"``
            looks at this machine alone.
        timeout_s: Deadline for connecting, and for each node to be read, in seconds.

    Raises:
        InvalidResourcesError: ``timeout_s`` is not above 0, or ``address`` is empty.
        ProbeError: Ray cannot be reached in time, or goes away while it is read.
    """
    if not timeout_s > 0:
        raise InvalidResourcesError(f"timeout_s must be above 0 seconds, got {timeout_s!r}")
    if not ray.is_initialized():
        address = find_ray(address)
    if not ray.is_initialized() and address is None:
        nodes: tuple[NodeFacts, ...] = (_read_this_machine(timeout_s),)
        return Diagnosis(address=None, nodes=nodes, findings=diagnose(nodes))
    with connection(address, timeout_s, local="looks at this machine alone", uses_working_folder=False):
        try:
            gcs_address = ray.get_runtime_context().gcs_address
            nodes = _read_cluster(timeout_s)
        except RayError as error:
            raise ProbeError(f"Ray went away while it was read: {error}. Try again once it is back") from error
    return Diagnosis(address=gcs_address, nodes=nodes, findings=diagnose(nodes))


def _read_this_machine(timeout_s: float) -> NodeFacts:
    # In a process of its own, because a driver that hangs cannot be interrupted.
    command = child_python("-m", node_reader.__name__)
    name = "this machine"
    try:
        done = subprocess.run(command, timeout=timeout_s, check=True, capture_output=True, text=True)  # noqa: S603
    except subprocess.TimeoutExpired:
        return NodeFacts(name=name, failure=f"no answer within {timeout_s:g} s")
    except subprocess.CalledProcessError as error:
        return NodeFacts(name=name, failure=error.stderr.strip().splitlines()[-1])
    # The last line: what Python runs as it starts, such as a sitecustomize, may print, too.
    return NodeFacts.from_dict({"name": name, **json.loads(done.stdout.splitlines()[-1])})


def _read_cluster(timeout_s: float) -> tuple[NodeFacts, ...]:
    alive = [node for node in ray.nodes() if node["Alive"]]
    if not alive:
        raise ProbeError("Ray answers, but has no alive node: start one with `ray start`")
    facts, failures = _read_nodes([node["NodeID"] for node in alive], timeout_s)
    free = _free_gpus()
    at_address = Counter(node["NodeManagerAddress"] for node in alive)
    nodes = []
    for node in alive:
        node_id, address = node["NodeID"], node["NodeManagerAddress"]
        name = address if at_address[address] == 1 else f"{address} ({node_id[:8]})"
        fields: dict[str, Any] = facts.get(node_id) or {"failure": failures[node_id]}
        nodes.append(NodeFacts.from_dict({**fields, "name": name, "ray": _counts(node, free.get(node_id))}))
    return tuple(sorted(nodes, key=lambda node: node.name))


def _read_nodes(node_ids: list[str], timeout_s: float) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the facts of each node, and why the others were not read."""
    facts: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}
    running: dict[Any, tuple[str, float]] = {}  # task → node and deadline
    with sent_by_value(nvml, node_reader):  # so that a node needs nothing but Ray; for as long as tasks are made
        read = ray.remote(num_cpus=0, max_retries=0)(node_reader.read_node)
        waiting = list(node_ids)
        while waiting or running:
            while waiting and len(running) < _AT_ONCE:
                node_id = waiting.pop()
                pinned = NodeAffinitySchedulingStrategy(node_id, soft=False)
                running[read.options(scheduling_strategy=pinned).remote()] = (node_id, time.monotonic() + timeout_s)
            first_deadline = min(deadline for _, deadline in running.values())
            ready, _ = ray.wait(list(running), timeout=max(0.0, first_deadline - time.monotonic()))
            for task in ready:
                node_id, _ = running.pop(task)
                try:
                    facts[node_id] = _of_worker(ray.get(task))
                except RayError as error:
                    failures[node_id] = str(error).strip().splitlines()[-1]
            now = time.monotonic()
            for task in [task for task, (_, deadline) in running.items() if deadline <= now]:
                node_id, _ = running.pop(task)
                ray.cancel(task, force=True)
                failures[node_id] = f"no answer within {timeout_s:g} s"
    return facts, failures


def _of_worker(facts: dict[str, Any]) -> dict[str, Any]:
    # Empty is what Ray sets in a task that asks for no GPUs, under one of its settings: the node's own is not known.
    return facts if facts["visible_devices"] else {**facts, "visible_devices": None}


def _counts(node: dict[str, Any], free_gpus: float | None) -> RayCounts:
    totals: dict[str, float] = node["Resources"]
    gpus = totals.get("GPU", 0)
    return RayCounts(
        cpus=totals.get("CPU", 0),
        gpus=gpus,
        gpus_in_use=None if free_gpus is None else gpus - free_gpus,
        accelerator_type=accelerator_type_of(totals),
        object_store_bytes=int(totals.get("object_store_memory", 0)) or None,
    )


def _free_gpus() -> dict[str, float]:
    """Return the GPUs that are not reserved, by node. Through Ray Client it is not known."""
    if is_through_client():
        return {}
    return {node_id: amounts.get("GPU", 0) for node_id, amounts in free_by_node().items()}
