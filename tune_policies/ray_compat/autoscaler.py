"""Finds Ray's autoscaler, requests nodes from it, and reads its reports.

Ray has a public API for requests (``request_resources``), but none for reports. Autoscaler v2 reports to the GCS, where
``ray status`` reads the report. Autoscaler v1 writes JSON to Ray's internal key-value store. The private APIs used
here are the same in Ray 2.50 and 2.60 unless a comment states a difference.
"""

import inspect
import json
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import ray
from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError

from tune_policies.placement.trial_slot import Bundle
from tune_policies.ray_compat.connection import is_through_client
from tune_policies.ray_compat.gcs import MIRRORED_TYPE
from tune_policies.ray_compat.version import Gone, version_error
from tune_policies.values.errors import ProbeError

_FEATURE: Final = "requesting nodes from the autoscaler"

try:
    from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL, DEBUG_AUTOSCALING_STATUS
    from ray.autoscaler._private import commands
    from ray.autoscaler.v2.utils import is_autoscaler_v2
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
    from ray.experimental.internal_kv import _internal_kv_get
except ImportError as error:
    AUTOSCALER_RESOURCE_REQUEST_CHANNEL = DEBUG_AUTOSCALING_STATUS = commands = Gone(error, _FEATURE)
    is_autoscaler_v2 = GetClusterStatusReply = _internal_kv_get = Gone(error, _FEATURE)

logger = logging.getLogger(__name__)

_FIRST_REPORT_S: Final = 6.0
"""The timeout for the first report, in seconds. The autoscaler reports every 5 s (``AUTOSCALER_UPDATE_INTERVAL_S``)."""
_RPC_TIMEOUT_S: Final = 10


class Launch(NamedTuple):
    """The launch of a node. ``started_at`` is a Unix timestamp, and ``error`` is the reason for a failure, if known."""

    node_type: str
    started_at: float
    error: str = ""


class LaunchReport(NamedTuple):
    """The autoscaler's report of one update.

    Attributes:
        number: A number that differs between updates.
        answers: Whether the update took this program's last request into account.
        pending: The number of nodes that are being launched, by node type.
        launches: The launches in progress, if the report contains their start times.
        failures: The failed launches. Reports of autoscaler v1 contain only failures of the last half hour.
        refused: Whether the autoscaler reports that the request is infeasible.
        time: The Unix timestamp of the report, or ``None`` if the report does not contain it.
    """

    number: float
    answers: bool
    pending: Counter[str] = Counter()  # noqa: RUF012 - never changed
    launches: frozenset[Launch] = frozenset()
    failures: Counter[Launch] = Counter()  # noqa: RUF012 - never changed
    refused: bool = False
    time: float | None = None


class Autoscaler(ABC):
    """The autoscaler of the cluster. All methods raise a ``ProbeError`` if Ray cannot be reached."""

    version: int

    def __init__(self) -> None:
        self._request: Counter[str] = Counter()

    def request(self, bundles: list[Bundle]) -> None:
        """Request nodes for all bundles together, and replace the last request, even if another program made it."""
        arguments: dict[str, Any] = {"bundles": [bundle.resources for bundle in bundles]}
        if any(bundle.label_selector for bundle in bundles):
            if self.version == 1 or "bundle_label_selectors" not in inspect.signature(request_resources).parameters:
                logger.warning("this autoscaler ignores label selectors, so it may add nodes with other labels")
            else:
                arguments["bundle_label_selectors"] = [bundle.label_selector for bundle in bundles]
        with ray_errors():
            try:
                request_resources(**arguments)
            except TypeError:
                # Before Ray 2.56, only the private function accepts fractions.
                commands.request_resources(**arguments)
        self._request = counted(bundles)
        self._remember_request()

    @abstractmethod
    def requested(self) -> Counter[str]:
        """Return the cluster's current request, by any program, in the format of :func:`counted`."""

    @abstractmethod
    def report(self) -> LaunchReport | None:
        """Return the last report, or ``None`` if there is none yet."""

    def _remember_request(self) -> None:  # noqa: B027  # version 1 reports the request itself
        """Store the version of the cluster state, to recognize the reports that take the request into account."""


class AutoscalerV2(Autoscaler):
    """Autoscaler v2, which reports launches, failed launches and infeasible requests."""

    version = 2
    _version_at_request = 0

    def requested(self) -> Counter[str]:
        """Return the current request; see :meth:`Autoscaler.requested`."""
        return _constraints(_status().cluster_resource_state.cluster_resource_constraints)

    def report(self) -> LaunchReport | None:
        """Return the last report; see :meth:`Autoscaler.report`."""
        state = _status().autoscaling_state
        if not state.last_seen_cluster_resource_state_version:
            return None
        pending: Counter[str] = Counter()
        for requested in state.pending_instance_requests:
            pending[requested.ray_node_type_name] += requested.count
        for starting in state.pending_instances:
            pending[starting.ray_node_type_name] += 1
        failed, waiting = state.failed_instance_requests, state.pending_instance_requests
        # The infeasible request in the report may be older than the current request.
        infeasible = _constraints(state.infeasible_cluster_resource_constraints)
        return LaunchReport(
            number=state.last_seen_cluster_resource_state_version,
            answers=state.last_seen_cluster_resource_state_version > self._version_at_request,
            pending=pending,
            launches=frozenset(Launch(launch.ray_node_type_name, launch.request_ts) for launch in waiting),
            failures=Counter(Launch(launch.ray_node_type_name, launch.start_ts, launch.reason) for launch in failed),
            refused=bool(self._request) and infeasible == self._request,
        )

    def _remember_request(self) -> None:
        # An update that reads a later version of the cluster state also reads the request.
        self._version_at_request = _status().cluster_resource_state.cluster_resource_state_version


class AutoscalerV1(Autoscaler):
    """Autoscaler v1, which reports pending nodes, and failures with a reason, but no infeasible requests."""

    version = 1

    def requested(self) -> Counter[str]:
        """Return the current request; see :meth:`Autoscaler.requested`."""
        return Counter(_name_of(bundle) for bundle in json.loads(_read(AUTOSCALER_RESOURCE_REQUEST_CHANNEL) or b"[]"))

    def report(self) -> LaunchReport | None:
        """Return the last report; see :meth:`Autoscaler.report`."""
        status = json.loads(_read(DEBUG_AUTOSCALING_STATUS) or b"{}")
        details = status.get("autoscaler_report")
        if not details:
            return None
        requested = Counter(
            {_name_of(bundle): count for bundle, count in status["load_metrics_report"]["request_demand"]}
        )
        pending = Counter(details["pending_launches"])
        pending.update(node_type for _, node_type, _ in details["pending_nodes"])
        known = details.get("node_availability_summary", {}).get("node_availabilities", {})
        failures: Counter[Launch] = Counter()
        for node_type, record in known.items():
            why = record["unavailable_node_information"]
            if why is not None:
                failures[Launch(node_type, record["last_checked_timestamp"], why["description"])] += 1
        return LaunchReport(
            number=status["time"],
            answers=requested == self._request,
            pending=pending,
            failures=failures,
            time=status["time"],
        )


def find_autoscaler() -> Autoscaler | None:
    """Return the cluster's autoscaler, or ``None`` if the cluster has none or the program uses Ray Client.

    If the cluster has just started, the function waits a few seconds for the first report.

    Raises:
        ProbeError: The program is not connected to Ray, or Ray cannot be reached.
    """
    if not ray.is_initialized():
        raise ProbeError("this program is not connected to a Ray cluster. Call ray.init() first")
    if is_through_client():
        logger.warning("no nodes are requested, because the autoscaler cannot be reached through Ray Client")
        return None
    with ray_errors():
        started_here = ray._private.worker._global_node
        if started_here is not None and started_here.head and not started_here._ray_params.autoscaling_config:
            return None  # this program started the Ray instance without an autoscaler
        # Ray's cached result may belong to an earlier cluster of this process.
        autoscaler: Autoscaler = AutoscalerV2() if is_autoscaler_v2(fetch_from_server=True) else AutoscalerV1()
    deadline = time.monotonic() + _FIRST_REPORT_S
    adds_nodes = _adds_nodes(autoscaler)
    while adds_nodes is None:
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.1)
        adds_nodes = _adds_nodes(autoscaler)
    if adds_nodes:
        return autoscaler
    return None


def _adds_nodes(autoscaler: Autoscaler) -> bool | None:
    """Return whether the cluster can add nodes, or ``None`` before the first report.

    Ray's monitor writes reports even in a cluster that cannot add nodes.
    """
    if autoscaler.version == 2:
        # In a cluster that cannot add nodes, no node has an instance ID or a type.
        nodes = _status().cluster_resource_state.node_states
        return any(node.instance_id or node.ray_node_type_name for node in nodes)
    report = json.loads(_read(DEBUG_AUTOSCALING_STATUS) or b"{}").get("autoscaler_report") or {}
    types = report.get("node_type_mapping")
    if types:
        return any(not MIRRORED_TYPE.fullmatch(name) for name in types.values())
    return None


def counted(bundles: list[Bundle]) -> Counter[str]:
    """Count equal bundles. Label selectors are ignored, because their format depends on Ray's version."""
    return Counter(_name_of(bundle.resources) for bundle in bundles)


def _name_of(resources: Mapping[str, float]) -> str:
    # Rounded to the finest amount that Ray schedules, because its replies contain amounts that went through floats.
    return json.dumps({name: round(float(amount), 4) for name, amount in sorted(resources.items())})


@contextmanager
def ray_errors() -> Iterator[None]:
    """Raise a ``ProbeError`` if Ray cannot be reached, or lacks a private API that the block uses."""
    try:
        yield
    except AttributeError as error:
        raise version_error(error, _FEATURE) from error
    except (RayError, OSError, RuntimeError) as error:
        raise ProbeError(
            f"the autoscaler could not be reached: {error}. Check that Ray is running, and try again"
        ) from error


def _status() -> Any:
    with ray_errors():
        reply = GetClusterStatusReply()
        reply.ParseFromString(ray._private.worker.global_worker.gcs_client.get_cluster_status(timeout_s=_RPC_TIMEOUT_S))
        return reply


def _read(key: str) -> bytes | None:
    with ray_errors():
        value: bytes | None = _internal_kv_get(key)
        return value


def _constraints(constraints: Any) -> Counter[str]:
    requested: Counter[str] = Counter()
    for constraint in constraints:
        for group in constraint.resource_requests:
            requested[_name_of(group.request.resources_bundle)] += group.count
    return requested


def start_coordinator_here() -> None:
    """Start Ray Train's ``AutoscalingCoordinator`` on this program's node, unless it is running already.

    Otherwise, a Train run starts this actor on the node of the run's driver. If the driver is a trial on a worker node,
    this node never becomes idle. Ray has no public way to choose the node.
    """
    try:
        from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
            get_or_create_autoscaling_coordinator,
        )
    except ImportError:  # before Ray 2.53, Train has no coordinator and requests no nodes
        return
    get_or_create_autoscaling_coordinator()
