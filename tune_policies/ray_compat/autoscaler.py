"""Talks to Ray's autoscaler: whether there is one, what it is asked for, and what it reports.

Ray has a public way to ask (``request_resources``), and none to hear the answer. Autoscaler v2 reports to Ray's control
store (GCS), where ``ray status`` reads it; v1 leaves a JSON text in Ray's internal key-value store. This module alone
reads them. It is the same in Ray 2.50 and 2.60 unless said.
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

from tune_policies.plan.trial_slot import Bundle
from tune_policies.ray_compat.connection import is_through_client
from tune_policies.ray_compat.gcs import MIRRORED_TYPE
from tune_policies.ray_compat.version import Gone, version_error
from tune_policies.values.errors import ProbeError

_FEATURE: Final = "asking the autoscaler for nodes"

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
"""Both versions report every 5 s (``AUTOSCALER_UPDATE_INTERVAL_S``), the first time soon after the cluster starts."""
_RPC_TIMEOUT_S: Final = 10


class Launch(NamedTuple):
    """The launch of one node.

    Attributes:
        node_type: The name of the type.
        started_at: When it was asked for, in seconds of the head node's clock.
        error: Why it failed, as far as the autoscaler says; empty where it did not fail.
    """

    node_type: str
    started_at: float
    error: str = ""


class LaunchReport(NamedTuple):
    """What one round of the autoscaler did.

    Attributes:
        number: Differs from round to round.
        answers: Whether the round knew what was asked for.
        pending: Nodes that are being launched, by the name of their type.
        launches: Those that are being launched, where it is said when they were started.
        failures: Those that failed: the autoscaler keeps them for as long as it runs, or for half an hour.
        refused: Whether it says that what was asked for can never be met.
        time: When this was written, in seconds of the head node's clock; ``None``: not said.
    """

    number: float
    answers: bool
    pending: Counter[str] = Counter()  # noqa: RUF012 - never changed
    launches: frozenset[Launch] = frozenset()
    failures: Counter[Launch] = Counter()  # noqa: RUF012 - never changed
    refused: bool = False
    time: float | None = None


class Autoscaler(ABC):
    """The autoscaler of the cluster that the program is connected to."""

    version: int

    def __init__(self) -> None:
        self._request: Counter[str] = Counter()

    def request(self, bundles: list[Bundle]) -> None:
        """Ask for nodes that hold all bundles at once, instead of what anybody asked for before; empty: for none.

        Raises:
            ProbeError: Ray went away.
        """
        arguments: dict[str, Any] = {"bundles": [bundle.resources for bundle in bundles]}
        if any(bundle.label_selector for bundle in bundles):
            if self.version == 1 or "bundle_label_selectors" not in inspect.signature(request_resources).parameters:
                logger.warning("this autoscaler takes no label selectors: it may add nodes without the labels")
            else:
                arguments["bundle_label_selectors"] = [bundle.label_selector for bundle in bundles]
        with ray_errors():
            try:
                request_resources(**arguments)
            except TypeError:
                # Those before 2.56 take whole numbers only, and hand them to this, which takes fractions.
                commands.request_resources(**arguments)
        self._request = counted(bundles)
        self._asked()

    @abstractmethod
    def requested(self) -> Counter[str]:
        """Return what is asked for now, by whomever, as :func:`counted` does.

        Raises:
            ProbeError: Ray went away.
        """

    @abstractmethod
    def report(self) -> LaunchReport | None:
        """Return what the autoscaler said last; ``None``: nothing yet.

        Raises:
            ProbeError: Ray went away.
        """

    @abstractmethod
    def _asked(self) -> None:
        """Remember from when on a report answers the request."""


class AutoscalerV2(Autoscaler):
    """Says what it launches, which launches failed, and which requests it can never meet."""

    version = 2
    _version_asked = 0

    def requested(self) -> Counter[str]:
        """Return what is asked for now; see :meth:`Autoscaler.requested`."""
        return _constraints(_status().cluster_resource_state.cluster_resource_constraints)

    def report(self) -> LaunchReport | None:
        """Return what the autoscaler said last; see :meth:`Autoscaler.report`."""
        state = _status().autoscaling_state
        if not state.last_seen_cluster_resource_state_version:
            return None
        pending: Counter[str] = Counter()
        for waiting in state.pending_instance_requests:
            pending[waiting.ray_node_type_name] += waiting.count
        for starting in state.pending_instances:
            pending[starting.ray_node_type_name] += 1
        failures = Counter(
            Launch(each.ray_node_type_name, each.start_ts, each.reason) for each in state.failed_instance_requests
        )
        return LaunchReport(
            number=state.last_seen_cluster_resource_state_version,
            answers=state.last_seen_cluster_resource_state_version > self._version_asked,
            pending=pending,
            launches=frozenset(
                Launch(each.ray_node_type_name, each.request_ts) for each in state.pending_instance_requests
            ),
            failures=failures,
            # What was asked for before may still stand there.
            refused=bool(self._request)
            and _constraints(state.infeasible_cluster_resource_constraints) == self._request,
        )

    def _asked(self) -> None:
        # Each reading of the cluster's state has a number: a round that read a later one knows the request.
        self._version_asked = _status().cluster_resource_state.cluster_resource_state_version


class AutoscalerV1(Autoscaler):
    """Says what it launches; of failures only those that its provider explains, and of refusals nothing."""

    version = 1

    def requested(self) -> Counter[str]:
        """Return what is asked for now; see :meth:`Autoscaler.requested`."""
        return Counter(_name_of(bundle) for bundle in json.loads(_read(AUTOSCALER_RESOURCE_REQUEST_CHANNEL) or b"[]"))

    def report(self) -> LaunchReport | None:
        """Return what the autoscaler said last; see :meth:`Autoscaler.report`."""
        status = json.loads(_read(DEBUG_AUTOSCALING_STATUS) or b"{}")
        said = status.get("autoscaler_report")
        if not said:
            return None
        asked = Counter({_name_of(bundle): count for bundle, count in status["load_metrics_report"]["request_demand"]})
        pending = Counter(said["pending_launches"])
        pending.update(node_type for _, node_type, _ in said["pending_nodes"])
        known = said.get("node_availability_summary", {}).get("node_availabilities", {})
        failures = Counter(
            Launch(node_type, record["last_checked_timestamp"], why["description"])
            for node_type, record in known.items()
            if (why := record["unavailable_node_information"]) is not None
        )
        return LaunchReport(
            number=status["time"],
            answers=asked == self._request,
            pending=pending,
            failures=failures,
            time=status["time"],
        )

    def _asked(self) -> None:
        """Do nothing: each report names the request that it knows."""


def find_autoscaler(wait_s: float = _FIRST_REPORT_S) -> Autoscaler | None:
    """Return the autoscaler of the cluster that the program is connected to; ``None``: nothing adds nodes there.

    A cluster that has just started may not say yet; then it is given ``wait_s`` seconds.

    Raises:
        ProbeError: The program is not connected to Ray, or Ray went away.
    """
    if not ray.is_initialized():
        raise ProbeError("this program is not connected to a Ray: call ray.init() before")
    if is_through_client():
        logger.warning("a Ray Client cannot reach the autoscaler, so no nodes are asked for")
        return None
    with ray_errors():
        started_here = ray._private.worker._global_node
        if started_here is not None and started_here.head and not started_here._ray_params.autoscaling_config:
            return None  # a Ray of this program alone
        # Asked anew: Ray remembers the answer of the first cluster that a process was connected to.
        autoscaler: Autoscaler = AutoscalerV2() if is_autoscaler_v2(fetch_from_server=True) else AutoscalerV1()
    deadline = time.monotonic() + wait_s
    while (is_one := _adds_nodes(autoscaler)) is None:
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.1)
    return autoscaler if is_one else None


def _adds_nodes(autoscaler: Autoscaler) -> bool | None:
    """Return whether it is more than Ray's monitor, which looks on where there is no autoscaler; ``None``: unsaid."""
    if autoscaler.version == 2:
        # Only what an autoscaler launches, and its head, has a number or a type in the cloud.
        nodes = _status().cluster_resource_state.node_states
        return any(node.instance_id or node.ray_node_type_name for node in nodes)
    said = json.loads(_read(DEBUG_AUTOSCALING_STATUS) or b"{}").get("autoscaler_report") or {}
    types = said.get("node_type_mapping")
    return any(not MIRRORED_TYPE.fullmatch(name) for name in types.values()) if types else None


def counted(bundles: list[Bundle]) -> Counter[str]:
    """Return how often each bundle comes. Without labels, which Ray's versions write in several ways."""
    return Counter(_name_of(bundle.resources) for bundle in bundles)


def _name_of(resources: Mapping[str, float]) -> str:
    return json.dumps({name: round(float(amount), 4) for name, amount in sorted(resources.items())})


@contextmanager
def ray_errors() -> Iterator[None]:
    """Turn what Ray raises when it cannot be reached, or is another one than was tried, into a ``ProbeError``."""
    try:
        yield
    except AttributeError as error:
        raise version_error(error, _FEATURE) from error
    except (RayError, OSError, RuntimeError) as error:
        raise ProbeError(f"the autoscaler could not be asked: {error}. Try again once Ray is back") from error


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
    asked: Counter[str] = Counter()
    for constraint in constraints:
        for group in constraint.resource_requests:
            asked[_name_of(group.request.resources_bundle)] += group.count
    return asked


def start_coordinator_here() -> None:
    """Start Ray Train's ``AutoscalingCoordinator`` on this program's node, if this Ray has one and it does not run yet.

    A Train run starts it on the node of its driver and leaves it there. Where the driver is a trial on a worker node,
    that node is never idle again. A cluster has one such actor, which stays where it was started first, and Ray has no
    public way to say where.
    """
    try:
        from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import (
            get_or_create_autoscaling_coordinator,
        )
    except ImportError:  # before Ray 2.53, whose Train asks the autoscaler for nothing
        return
    get_or_create_autoscaling_coordinator()
