"""Reads a Ray cluster for planning: nodes, their GPUs and usable CPUs, and the nodes that can be added.

The state of the cluster comes from the GCS (``ray_compat.gcs``). The facts of nodes come from tasks (``run_on_nodes``)
on the nodes that ``nodes_to_read`` selects. The autoscaler's configuration determines which nodes can be added
(``node_types``). Plans use total resources, because Ray under-reports free resources while placement groups are
pending.
"""

import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from ray.exceptions import RayError

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import GpuDevice, NodeCapacity, NodeTypeCapacity
from tune_policies.placement.request import Limit
from tune_policies.plan.plan_notes import describe_unusable
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy, check_policy_object
from tune_policies.probe.addable_nodes import addable_node_types, addable_nodes, load_cluster_config
from tune_policies.probe.node_facts import read_node, read_package
from tune_policies.probe.nodes_to_read import (
    NodeFacts,
    first_reads,
    group_kinds,
    second_reads,
    spread_facts,
    unread,
    unread_nodes_warnings,
)
from tune_policies.probe.run_on_nodes import Facts, run_on_nodes
from tune_policies.ray_compat.connection import connect, connection
from tune_policies.ray_compat.gcs import ClusterState, read_cluster_state
from tune_policies.ray_compat.this_process import is_started_here
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError, ProbeError
from tune_policies.values.units import check_seconds


class ProbeWarning(UserWarning):
    """Warns that a part of the cluster could not be read. This part is ``None`` in the capacity."""


_INSTALL: Final = (
    "Install it there with pip or in the node's image, or connect with "
    'ray.init(runtime_env={"py_modules": [tune_policies]}).'
)

_warned: Final[set[str]] = set()
"""The warnings issued so far. Python's own record of them is cleared when any code changes the warning filters."""

_printed: Final[list[TrialPlan]] = []
"""The plans that ``plan_on_cluster`` has printed."""


def probe_cluster(
    address: str | None = None, *, timeout_s: float = 30.0, cluster_config: str | Path | None = None
) -> ClusterCapacity:
    """Read the nodes of a Ray cluster, their GPUs and usable CPUs, and the nodes that the autoscaler can add.

    The function uses the program's connection to Ray. Without a connection, it connects to
    ``address``, to ``RAY_ADDRESS``, to the Ray instance on this machine, or to an instance that it starts, and
    disconnects before it returns.

    Args:
        address: The address, as for ``ray.init``: ``host:port``, ``ray://host:port``, ``"auto"``, or ``"local"`` to
            start an instance. Omit it if the program is already connected.
        timeout_s: The timeout of each step, in seconds: to connect, to read the state of the cluster, and to read all
            nodes.
        cluster_config: The autoscaler's configuration: a Ray cluster YAML, or a KubeRay RayCluster. By default, the
            configuration is read on the head node. If the autoscaler runs elsewhere, as with KubeRay, ``node_types`` is
            ``None``.

    Raises:
        InvalidResourcesError: ``timeout_s`` is not above 0, or ``address`` or ``cluster_config`` is invalid.
        ProbeError: Ray cannot be reached in time, stops while the cluster is read, or has no alive node. The error is
            also raised if ``address`` is given although the program is already connected.

    Warns:
        ProbeWarning: A node or the autoscaler's configuration could not be read in time. The unread fields are ``None``
            in the capacity. Each warning is issued once per program.
    """
    check_seconds(timeout_s, name="timeout_s")
    config = None if cluster_config is None else load_cluster_config(cluster_config)
    with connection(
        address, timeout_s, local="starts a temporary Ray instance", uses_working_folder=False
    ) as is_as_in_run:
        state = read_cluster_state(timeout_s)
        try:
            readings = _read_facts(state, timeout_s)
        except RayError as error:
            raise ProbeError(
                f"could not read the cluster from Ray: {error}. Check that Ray is running, and try again"
            ) from error
    if not state.nodes and not state.draining:
        raise ProbeError("the Ray cluster has no alive node. Start a node with `ray start`")
    monitor = readings.monitor
    if config is not None:
        monitor = {"path": str(cluster_config), "config": config, "error": None}
    try:
        node_types, max_nodes_to_add = _addable(state, monitor)
    except InvalidResourcesError as error:
        if config is not None:
            raise
        readings.warnings.append(f"The node types of the autoscaler are unknown: {error}")
        node_types, max_nodes_to_add = None, None
    nodes = [_with_facts(node, readings.facts.get(node.node_id)) for node in state.nodes]
    if not is_as_in_run:  # a run may bring this package to the nodes
        nodes = [node.model_copy(update={"problem": None}) for node in nodes]
    unusable = tuple(node for node in nodes if node.problem is not None)
    if unusable:
        readings.warnings.append(f"plans ignore {describe_unusable(unusable)}. {_INSTALL}")
    for text in readings.warnings:
        if text not in _warned:
            warnings.warn(text, ProbeWarning, stacklevel=2)
            _warned.add(text)
    return ClusterCapacity(
        nodes=tuple(node for node in nodes if node.problem is None),
        draining=state.draining,
        unusable=unusable,
        node_types=node_types,
        max_nodes_to_add=max_nodes_to_add,
        autoscaler_version=state.autoscaler_version,
        is_started_here=is_started_here(),
        read_at=datetime.now(UTC),
    )


def plan_on_cluster(policy: ResourcePolicy, *, timeout_s: float = 30.0) -> TrialPlan:
    """Return and print the policy's plan for the cluster that the program's runs will use.

    If the program is not connected to Ray, the function connects it as Tune and Train do. The program stays connected,
    so that the next run uses the same cluster.

    Args:
        policy: The policy.
        timeout_s: The timeout of each step, in seconds, as for ``probe_cluster``.

    Raises:
        InvalidResourcesError: ``policy`` is no policy, or ``timeout_s`` is not a number above 0.
        InfeasibleRequestError: Not even one trial fits.
        ProbeError: Ray cannot be reached in time, or has no alive node.
    """
    plan, _ = plan_with_capacity(policy, timeout_s=timeout_s)
    return plan


def plan_with_capacity(policy: ResourcePolicy, *, timeout_s: float = 30.0) -> tuple[TrialPlan, ClusterCapacity]:
    """Return and print the plan of :func:`plan_on_cluster`, and return the capacity on which it is based."""
    check_policy_object(policy)
    connect(timeout_s)
    capacity = probe_cluster(timeout_s=timeout_s)
    if capacity.unusable and not capacity.nodes and capacity.node_types == ():
        raise InfeasibleRequestError(
            "a node that can run trials",
            f"the cluster has none, but {describe_unusable(capacity.unusable)}",
            Limit.NODES,
            _INSTALL,
        )
    plan = policy.plan(capacity)
    print(plan.explain(capacity))
    if plan not in _printed:
        _printed.append(plan)
    return plan, capacity


def is_printed(plan: TrialPlan) -> bool:
    """Return whether ``plan_on_cluster`` has printed the plan in this program."""
    return plan in _printed


@dataclass
class _Readings:
    """The facts of the read nodes, and the reasons why other nodes were not read, both by node ID.

    ``monitor`` is the result of ``read_monitor``, or ``None``.
    """

    facts: dict[str, NodeFacts] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    monitor: Any = None
    own_version: str | None = field(default_factory=lambda: read_package()["version"])

    def read(self, nodes: Iterable[NodeCapacity], session: str, deadline: float) -> None:
        of_id = {node.node_id: node for node in nodes}
        arguments = {}
        for node_id, node in of_id.items():
            # Only the head node has the log of the autoscaler's monitor.
            of_head = session if node.is_head else None
            arguments[node_id] = {"with_gpus": node.resources.gpus > 0, "session": of_head}
        timeout_s = deadline - time.monotonic()
        found, failures = run_on_nodes(read_node, arguments, timeout_s=timeout_s, late="no answer in time")
        self.failures |= failures
        for node_id, facts in found.items():
            self.monitor = self.monitor or facts["monitor"]
            devices, failure = _to_devices(of_id[node_id], facts)
            others = {name: facts[name] for name in ("usable_cpus", "cpu_model", "has_simulated_gpus")}
            self.facts[node_id] = NodeFacts(devices=devices, problem=self._problem(facts["package"]), **others)
            if failure:
                self.failures[node_id] = failure

    def _problem(self, package: Mapping[str, str | None]) -> str | None:
        """Return the reason why trials cannot run on a node, or ``None``. ``package`` is from ``read_package``."""
        version = package["version"]
        if None not in (version, self.own_version) and version != self.own_version:
            return f"tune-policies {version} is installed, but this program uses {self.own_version}"
        return package["problem"]


def _read_facts(state: ClusterState, timeout_s: float) -> _Readings:
    # First, some nodes of each kind are read, and then the other nodes of the kinds whose nodes differ.
    deadline = time.monotonic() + timeout_s
    kinds = group_kinds(state.nodes)
    readings = _Readings()
    readings.read(first_reads(kinds, [node for node in state.nodes if node.is_head]), state.session, deadline)
    readings.read(second_reads(kinds, readings.facts), state.session, deadline)
    failures = unread(kinds, readings.facts, readings.failures)
    readings.facts = spread_facts(kinds, readings.facts)
    nodes = (_with_facts(node, readings.facts.get(node.node_id)) for node in state.nodes)
    readings.warnings += unread_nodes_warnings(nodes, failures)
    return readings


def _to_devices(node: NodeCapacity, facts: Facts) -> tuple[tuple[GpuDevice, ...] | None, str | None]:
    """Return the GPUs of a node, or ``None`` if they were not read, and a description of the problem, if any."""
    gpus: Any = facts["gpus"]
    if gpus is None and (facts["gpu_error"] is None or facts["has_simulated_gpus"]):
        return None, None
    if gpus is None:
        return None, str(facts["gpu_error"])
    try:
        devices = tuple(GpuDevice(**gpu) for gpu in gpus)
    except InvalidResourcesError as error:
        return None, str(error)
    declared = node.resources.gpus
    if len(devices) < declared:
        return devices, f"Ray counts {declared:g} GPUs, but NVML lists {len(devices)}"
    return devices, None


def _addable(state: ClusterState, monitor: Any) -> tuple[tuple[NodeTypeCapacity, ...], int | None]:
    """Return the node types that can be added, and the maximum number of new nodes of all types together.

    Raises:
        InvalidResourcesError: The configuration of the autoscaler is unknown or invalid.
    """
    if monitor is None:
        if not state.has_autoscaler:
            return (), None
        raise InvalidResourcesError(
            "the cluster configuration is not in Ray's GCS and was not found on the head node. Pass the path of the "
            "cluster YAML as cluster_config (in commands: --cluster-config)"
        )
    if monitor["error"]:
        raise InvalidResourcesError(f"{monitor['path']}: {monitor['error']}")
    # Ray starts the monitor without a configuration in a cluster that cannot add nodes.
    if monitor["config"] is None:
        return (), None
    config, source = monitor["config"], str(monitor["path"])
    node_types = addable_node_types(config, state.workers_by_type, source=source)
    return node_types, addable_nodes(config, state.num_workers, source=source)


def _with_facts(node: NodeCapacity, facts: NodeFacts | None) -> NodeCapacity:
    if facts is None:
        return node
    return node.model_copy(update={name: getattr(facts, name) for name in NodeFacts.model_fields})
