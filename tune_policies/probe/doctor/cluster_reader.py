"""Reads each node of a Ray cluster, or only this machine if Ray is not running.

Every node is read, so that ``doctor`` finds even one node that differs from the others. To avoid overloading a large
cluster, the number of concurrent tasks is limited, and the timeout applies to each node separately.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import ray
from ray.exceptions import RayError

from tune_policies.cluster.ray_totals import accelerator_type_of
from tune_policies.files.child_python import child_python, reason_of_exit
from tune_policies.probe import node_facts
from tune_policies.probe.doctor.node_checks import Diagnosis, NodeFacts, RayCounts, diagnose
from tune_policies.probe.run_on_nodes import run_on_nodes
from tune_policies.ray_compat.connection import connection, find_ray, is_through_client
from tune_policies.ray_compat.gcs import free_by_node
from tune_policies.values.errors import ProbeError
from tune_policies.values.units import check_seconds

_AT_ONCE: Final = 100
"""The maximum number of nodes that are read at the same time."""


def examine(address: str | None = None, *, timeout_s: float = 30.0) -> Diagnosis:
    """Examine all nodes of a Ray cluster, or this machine if Ray is not running, and return the diagnosis.

    The function does not start Ray.

    Args:
        address: The address, as for ``ray.init``. The default is ``RAY_ADDRESS``, then the Ray instance on this
            machine. With ``"local"``, only this machine is examined.
        timeout_s: The timeout for the connection, and for reading each node, in seconds.

    Raises:
        InvalidResourcesError: ``timeout_s`` is not above 0, or ``address`` is empty.
        ProbeError: Ray cannot be reached in time, or stops while the nodes are read.
    """
    check_seconds(timeout_s, name="timeout_s")
    if not ray.is_initialized():
        address = find_ray(address)
    if not ray.is_initialized() and address is None:
        nodes: tuple[NodeFacts, ...] = (_read_this_machine(timeout_s),)
        return Diagnosis(address=None, nodes=nodes, findings=diagnose(nodes))
    with connection(address, timeout_s, local="examines only this machine", uses_working_folder=False):
        try:
            gcs_address = ray.get_runtime_context().gcs_address
            nodes = _read_cluster(timeout_s)
        except RayError as error:
            raise ProbeError(
                f"could not read the cluster from Ray: {error}. Check that Ray is running, and try again"
            ) from error
    return Diagnosis(address=gcs_address, nodes=nodes, findings=diagnose(nodes))


def _read_this_machine(timeout_s: float) -> NodeFacts:
    # Use a separate process, because a hanging call to a driver cannot be interrupted.
    command = child_python("-m", node_facts.__name__)
    name = "this machine"
    try:
        done = subprocess.run(command, timeout=timeout_s, check=True, capture_output=True, text=True)  # noqa: S603
    except subprocess.TimeoutExpired:
        return NodeFacts(name=name, failure=f"no answer within {timeout_s:g} s")
    except subprocess.CalledProcessError as error:
        return NodeFacts(name=name, failure=reason_of_exit(error.returncode, error.stderr))
    # Parse only the last line, because code that Python runs at startup, such as a sitecustomize, can also print.
    return NodeFacts.from_dict({"name": name, **json.loads(done.stdout.splitlines()[-1])})


def _read_cluster(timeout_s: float) -> tuple[NodeFacts, ...]:
    alive = [node for node in ray.nodes() if node["Alive"]]
    if not alive:
        raise ProbeError("the Ray cluster has no alive node. Start a node with `ray start`")
    facts, failures = run_on_nodes(
        node_facts.read_machine,
        {node["NodeID"]: {} for node in alive},
        timeout_s=timeout_s,
        late=f"no answer within {timeout_s:g} s",
        at_once=_AT_ONCE,
    )
    free: Mapping[str, dict[str, float]] = {}
    if not is_through_client():  # Ray Client cannot read the number of reserved GPUs
        free = free_by_node()
    at_address = Counter(node["NodeManagerAddress"] for node in alive)
    nodes = []
    for node in alive:
        node_id, address = node["NodeID"], node["NodeManagerAddress"]
        name = address
        if at_address[address] > 1:  # for instance, several nodes of a test cluster run on one machine
            name = f"{address} ({node_id[:8]})"
        fields = facts.get(node_id) or {"failure": failures[node_id]}
        # If the variable is empty, Ray may have set it for the task, so its value on the node is unknown.
        fields["visible_devices"] = fields.get("visible_devices") or None
        nodes.append(NodeFacts.from_dict({**fields, "name": name, "ray": _counts(node, free.get(node_id))}))
    return tuple(sorted(nodes, key=lambda node: node.name))


def _counts(node: dict[str, Any], free: dict[str, float] | None) -> RayCounts:
    totals: dict[str, float] = node["Resources"]
    gpus = totals.get("GPU", 0)
    gpus_in_use = None
    if free is not None:
        gpus_in_use = gpus - free.get("GPU", 0)
    return RayCounts(
        cpus=totals.get("CPU", 0),
        gpus=gpus,
        gpus_in_use=gpus_in_use,
        accelerator_type=accelerator_type_of(totals),
        object_store_bytes=int(totals.get("object_store_memory", 0)) or None,
    )
