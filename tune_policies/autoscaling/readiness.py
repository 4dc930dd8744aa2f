"""Waits until a plan can run, and raises an error within seconds if the cluster can never provide the nodes.

The nodes for each choice of a policy are requested in turn. The autoscaler's reports show whether the nodes will be
added.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from tune_policies.autoscaling.capacity_request import CapacityRequest
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.placement.request import Limit
from tune_policies.placement.scale_up import fewest_nodes, plan_on_smallest_node, types_with_room
from tune_policies.placement.trial_slot import Bundle
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies import AutoscalingPolicy, FirstFeasiblePolicy
from tune_policies.policies.first_feasible import why_not
from tune_policies.policies.free_capacity import FreeCapacityPolicy
from tune_policies.policies.gpu_selection import GpuTypesPolicy
from tune_policies.policies.policy import ResourcePolicy, check_policy_object, with_inner
from tune_policies.probe.probe_cluster import probe_cluster
from tune_policies.probe.reservation_holders import describe_holders, read_holders
from tune_policies.ray_compat.autoscaler import Autoscaler, Launch, LaunchReport, find_autoscaler, ray_errors
from tune_policies.ray_compat.gcs import read_records
from tune_policies.values.errors import InfeasibleRequestError, ProbeError
from tune_policies.values.resources import Resources, check_count
from tune_policies.values.units import check_seconds
from tune_policies.values.wording import counted

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.2

_RESERVE_TIMEOUT_S: Final = 5.0
"""The timeout for reserving free resources, in seconds."""

_SILENT_REPORTS: Final = 3
"""The number of consecutive reports without a launch after which no further nodes are expected.

One report is not enough, because neither version of the autoscaler reports a node between its launch and its
registration.
"""


def plan_when_ready(
    policy: ResourcePolicy,
    *,
    timeout_s: float = 300.0,
    num_trials: int = 1,
    only_free: bool = False,
    probe: Callable[[], ClusterCapacity] = probe_cluster,
    on_progress: Callable[[str], None] | None = None,
) -> TrialPlan:
    """Return a plan that can run now, and request nodes for it if necessary.

    The function tries the choices of the policy in turn, such as the policies of a ``FirstFeasiblePolicy`` or several
    device types. If a choice fits the alive nodes, the function returns its plan immediately. Otherwise, it requests
    the nodes for ``num_trials`` trials from the autoscaler. If these nodes cannot be added, because the cluster has no
    autoscaler or no suitable node type, or because a launch failed, the function tries the next choice. If a node for
    an earlier choice is added late, the function returns the plan of that choice.

    When this function returns or raises an error, or on Ctrl-C, it withdraws its request. New nodes remain until they
    have been idle for the cluster's ``idle_timeout_minutes``, 1 to 5 minutes by default. Therefore, start the run
    immediately, or keep the nodes with :func:`request_capacity`. If the program is killed, its request remains
    until :func:`release_capacity` is called.

    Autoscaler v1 does not report that it can never satisfy a request. Therefore, if the node types are unknown, three
    reports without a launch, which take 15 s, count as a rejection.

    Args:
        policy: The policy. With an ``AutoscalingPolicy``, the plan may include nodes that are still to be added.
        timeout_s: The time to wait for the nodes of each choice, in seconds.
        num_trials: The number of trials that must be able to run concurrently.
        only_free: Whether to plan only on free resources, as ``FreeCapacityPolicy`` does. The function then briefly
            reserves the resources of ``num_trials`` trials to check that they are free. If other programs use these
            resources, it waits up to ``timeout_s`` seconds for their release before it tries the next choice.
        probe: The function that reads the cluster: ``probe_cluster``, or a function that calls it with arguments.
        on_progress: A function that is called with a line of text for each step. The line is also logged at level
            ``INFO``.

    Raises:
        InvalidResourcesError: ``policy`` is no policy, ``timeout_s`` is not a number above 0, or ``num_trials`` is not
            a whole number above 0.
        InfeasibleRequestError: The cluster cannot provide the nodes of any choice.
        ProbeError: The program is not connected to Ray, or the connection is lost.

    Warns:
        ProbeWarning: ``probe_cluster`` could not read a part of the cluster.
    """
    check_policy_object(policy)
    check_seconds(timeout_s, name="timeout_s")
    num_trials = check_count(num_trials, least=1, name="num_trials")
    if not ray.is_initialized():
        raise ProbeError("this program is not connected to a Ray cluster. Call ray.init() first")
    if only_free:
        policy = FreeCapacityPolicy(policy)
    return _Search(policy, num_trials, probe, on_progress, only_free).run(timeout_s)


@dataclass
class _Search:
    """The state of one call of :func:`plan_when_ready`."""

    policy: ResourcePolicy
    num_trials: int
    probe: Callable[[], ClusterCapacity]
    on_progress: Callable[[str], None] | None
    only_free: bool
    _autoscaler: Autoscaler | None = None
    _node_ids: frozenset[str] = frozenset()
    _given_up: list[str] = field(default_factory=list)

    def run(self, timeout_s: float) -> TrialPlan:
        self._read()
        errors: list[InfeasibleRequestError] = []
        for choice in self.policy.choices:
            # The choices before this one may have become possible in the meantime, and they are preferred.
            plan = self._first_that_runs(len(errors) + 1)
            if plan is None:
                if not errors:  # the first choice does not run yet, and only then is an autoscaler needed
                    self._autoscaler = find_autoscaler()
                of_totals = self._plan_of_totals(choice)
                if of_totals is not None:
                    plan, why = self._wait_until_free(of_totals, len(errors) + 1, timeout_s)
                else:
                    plan, why = self._wait_for(choice, len(errors) + 1, timeout_s)
            if plan is not None:
                return plan
            error = self._shortfall(choice)
            errors.append(error.with_texts(offered=f"{error.offered}, and {why}"))
            self._given_up.append(why_not(choice, errors[-1]))
            self._log(f"{_name(choice)} is not possible: {why}")
        raise InfeasibleRequestError.of_each(errors)

    def _wait_for(self, choice: ResourcePolicy, number: int, timeout_s: float) -> tuple[TrialPlan | None, str]:
        """Wait until ``choice`` or an earlier choice can run. Return its plan, or ``None`` and the reason."""
        autoscaler = self._autoscaler
        if autoscaler is None:
            return None, "this cluster has no autoscaler"
        try:
            bundles, node_types = needs(choice, self._capacity, self.num_trials)
        except InfeasibleRequestError as error:
            return None, f"the nodes that can be added are not sufficient: {error.offered}"
        # Read before the request, so that launches for earlier requests are not counted.
        watch = LaunchWatch(autoscaler.report() or LaunchReport(0, answers=False), node_types)
        self._log(f"{_name(choice)} does not fit the alive nodes. Requesting nodes for {_listed(bundles)}")
        before = self._node_ids
        with CapacityRequest(autoscaler, bundles):
            deadline = time.monotonic() + timeout_s
            logged = Counter[str]()
            while True:
                # A probe runs tasks on nodes, so the cluster is probed only when its nodes have changed.
                plan = self._first_that_runs(number) if self._read_if_changed() else None
                if plan is not None:
                    return plan, ""
                report = autoscaler.report()
                if report is not None:
                    if report.answers and report.pending != logged:
                        logged = report.pending
                        nodes = ", ".join(f"{count} {name}" for name, count in sorted(logged.items()))
                        self._log(f"the autoscaler is starting {nodes or 'no nodes'}")
                    why = watch.verdict(report)
                    if why is not None:
                        return None, why
                if time.monotonic() >= deadline:
                    came = len(self._node_ids - before)
                    started = counted(came, "node") if came else "no nodes"
                    return None, f"{started} started within {timeout_s:g} s"
                time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))

    def _plan_of_totals(self, choice: ResourcePolicy) -> TrialPlan | None:
        """Return the plan of a choice that fits the alive nodes but not their free resources, else ``None``."""
        if isinstance(choice, FreeCapacityPolicy) and self.only_free:
            with suppress(InfeasibleRequestError):
                return plan_now(choice.inner, self._capacity, self.num_trials)
        return None

    def _wait_until_free(self, plan: TrialPlan, number: int, timeout_s: float) -> tuple[TrialPlan | None, str]:
        """Wait until the resources of ``plan`` are free. Return a plan that can run, or ``None`` and the reason."""
        self._log(f"waiting up to {timeout_s:g} s for other programs to release {plan.common_slot}")
        bundles = plan.bundles(self.num_trials)
        if _can_reserve(bundles, timeout_s):
            deadline = time.monotonic() + _RESERVE_TIMEOUT_S
            while time.monotonic() < deadline:  # Ray reports free resources with a delay
                self._read()
                free = self._first_that_runs(number)
                if free is not None:
                    return free, ""
                time.sleep(_POLL_S)
        with ray_errors():
            holders = describe_holders([bundle.resources for bundle in bundles], read_holders(read_records()))
        return None, f"the resources were not released within {timeout_s:g} s{holders and ': '}{holders}"

    def _first_that_runs(self, number: int) -> TrialPlan | None:
        """Return the plan of the first of ``number`` choices that can run on the alive nodes, or ``None``."""
        for i, choice in enumerate(self.policy.choices[:number]):
            try:
                plan = plan_now(choice, self._capacity, self.num_trials)
            except InfeasibleRequestError:
                continue
            if self.only_free and not _can_reserve(plan.bundles(self.num_trials), _RESERVE_TIMEOUT_S):
                continue
            self._log(f"{_name(choice)} can run {counted(plan.max_concurrent_trials, 'trial')} at once")
            return plan.with_reasons(*self._given_up[:i])
        return None

    def _shortfall(self, choice: ResourcePolicy) -> InfeasibleRequestError:
        """Return the error that the choice raises on the alive nodes, without the suggestion to request nodes."""
        for capacity in (self._capacity.model_copy(update={"node_types": ()}), self._capacity):
            try:
                plan_now(choice, capacity, self.num_trials)
            except InfeasibleRequestError as error:
                return error
        return InfeasibleRequestError(
            str(choice.plan(self._capacity).common_slot),
            "Ray could not reserve these resources in time",
            "time",
            "Try again.",
        )

    def _read(self) -> None:
        # The IDs come first. If a node joins between both readings, the next check reads again.
        self._node_ids = _alive_nodes()
        self._capacity = self.probe()

    def _read_if_changed(self) -> bool:
        alive = _alive_nodes()
        if alive == self._node_ids:
            return False
        joined, left = len(alive - self._node_ids), len(self._node_ids - alive)
        self._log(
            f"{counted(joined, 'node')} joined and {counted(left, 'node')} left the cluster, which has {len(alive)}"
        )
        self._read()
        return True

    def _log(self, line: str) -> None:
        logger.info(line)
        if self.on_progress is not None:
            self.on_progress(line)


def _name(choice: ResourcePolicy) -> str:
    if isinstance(choice, FreeCapacityPolicy):
        choice = choice.inner
    return type(choice).__name__


def _can_reserve(bundles: list[Bundle], timeout_s: float) -> bool:
    """Reserve all bundles, release them, and return whether Ray could reserve them within the timeout."""
    # Ray reserves the bundles of a placement group together, or none of them.
    # Ray refuses bundles without resources.
    asked = [bundle for bundle in bundles if bundle.resources]
    options = {}
    if any(bundle.label_selector for bundle in asked):
        options["bundle_label_selector"] = [bundle.label_selector for bundle in asked]
    with ray_errors():
        group = placement_group([bundle.resources for bundle in asked], **options)
        try:
            return bool(group.wait(math.ceil(timeout_s)))  # Ray truncates the timeout to whole seconds
        finally:
            remove_placement_group(group)


class LaunchWatch:
    """Detects from the autoscaler's reports that a request will not be satisfied."""

    def __init__(self, before: LaunchReport, node_types: frozenset[str] | None = None) -> None:
        """Start to watch the reports.

        Args:
            before: A report from before the request. Its launches and failures are ignored.
            node_types: The node types with room for a trial, or ``None`` if they are unknown.
        """
        self._before = before
        self._node_types = node_types
        self._last = before.number
        self._silent = 0

    def verdict(self, report: LaunchReport) -> str | None:
        """Return the reason why the request will not be satisfied, or ``None`` if it may still be satisfied."""
        # A report from before the request says nothing about it, and each report counts once.
        if not report.answers or report.number == self._last:
            return None
        self._last = report.number
        if report.refused:
            return "the autoscaler reports that it cannot add a node that satisfies the request"
        failures = [failure for failure in report.failures - self._before.failures if self._is_ours(failure)]
        failed = {failure.node_type for failure in failures}
        self._silent += 1
        if report.pending:
            self._silent = 0
        if failed and self._no_other_type(failed, report):
            return " and ".join(sorted({_describe_failure(failure) for failure in failures}))
        if self._silent >= _SILENT_REPORTS:
            return "the autoscaler launches no further nodes for the request"
        return None

    def _is_ours(self, failure: Launch) -> bool:
        """Return whether a failed launch may be for the request, according to its node type and its start time."""
        before = self._before
        if self._node_types is not None and failure.node_type not in self._node_types:
            return False
        if before.time is not None and failure.started_at < before.time:
            return False
        # A launch that was in progress before the request has the same type and start time.
        return all(failure[:2] != launch[:2] for launch in before.launches)

    def _no_other_type(self, failed: set[str], report: LaunchReport) -> bool:
        """Return whether no launch of another node type can satisfy the request.

        The autoscaler retries failed launches indefinitely.
        """
        if self._node_types is not None and self._node_types <= failed:
            return True
        others = (report.pending.keys() & (self._node_types or report.pending.keys())) - failed
        # When autoscaler v1 reports the failure, it has not tried another type yet.
        return not others and (bool(report.pending) or self._silent > 1)


def _describe_failure(failure: Launch) -> str:
    return f"the launch of {failure.node_type!r} failed{failure.error and ': '}{failure.error}"


class Needs(NamedTuple):
    """The bundles to request, and the node types with room for a worker (``None`` if the types are unknown)."""

    bundles: list[Bundle]
    node_types: frozenset[str] | None


def plan_now(choice: ResourcePolicy, capacity: ClusterCapacity, num_trials: int) -> TrialPlan:
    """Return the plan for the alive nodes.

    Raises:
        InfeasibleRequestError: Fewer than ``num_trials`` trials fit the alive nodes.
    """
    plan = choice.plan(capacity)
    if plan.min_concurrent_trials < num_trials:
        raise _too_few(plan, num_trials, f"only {plan.min_concurrent_trials} fit at once")
    if plan.nodes_to_add and not _fit_alive_nodes(choice, plan, capacity, num_trials):
        raise _too_few(plan, num_trials, "the alive nodes do not have room for these trials yet")
    return plan


def _fit_alive_nodes(choice: ResourcePolicy, plan: TrialPlan, capacity: ClusterCapacity, num_trials: int) -> bool:
    """Return whether the first ``num_trials`` trials of a plan fit the alive nodes."""
    first = plan.capped(num_trials, limited_by="num_trials")
    # The first trials already need a node that is still to be added.
    if fewest_nodes(first.slots, capacity, plan.nodes_to_add):
        return False
    if not plan.left_free.ticks:
        return True
    # The trials must also fit beside the resources that the policy leaves free.
    alive = capacity.model_copy(update={"node_types": ()})
    try:
        return choice.plan(alive).min_concurrent_trials >= num_trials
    except InfeasibleRequestError:
        return False


def needs(choice: ResourcePolicy, capacity: ClusterCapacity, num_trials: int) -> Needs:
    """Return the bundles to request for ``num_trials`` trials, or for ``min_trials`` trials if the choice needs more.

    Raises:
        InfeasibleRequestError: The nodes that can be added do not have room for these trials.
    """
    with_least = (
        policy for policy in with_inner((choice,)) if isinstance(policy, FirstFeasiblePolicy | GpuTypesPolicy)
    )
    num_trials = max([num_trials, *(policy.min_trials for policy in with_least)])
    if capacity.node_types is None:
        return Needs(_hypothetical_plan(choice, capacity, num_trials).bundles(num_trials), None)
    is_growing = any(isinstance(policy, AutoscalingPolicy) for policy in with_inner((choice,)))
    # ``AutoscalingPolicy`` plans on the nodes that can be added, too, which shows what to request.
    growing = choice if is_growing else AutoscalingPolicy(choice)
    try:
        plan = growing.plan(capacity)
    except InfeasibleRequestError as error:
        with_gpus = frozenset(node_type.name for node_type in capacity.node_types if node_type.resources.gpus > 0)
        if error.short_of != Limit.GPU_MEMORY or not with_gpus:
            raise
        # The GPU memory of a node is unknown until it starts.
        return Needs(_hypothetical_plan(choice, capacity, num_trials).bundles(num_trials), with_gpus)
    if plan.min_concurrent_trials < num_trials:
        raise _too_few(plan, num_trials, f"only {plan.min_concurrent_trials} would fit at once")
    types = types_with_room(plan.common_slot, capacity, num_trials)
    return Needs(
        plan.bundles(num_trials), frozenset(node_type.name for node_type in types if node_type.max_nodes_to_add)
    )


def _hypothetical_plan(choice: ResourcePolicy, capacity: ClusterCapacity, num_trials: int) -> TrialPlan:
    plan = plan_on_smallest_node(choice.plan)
    if plan is None:
        plan_now(choice, capacity, num_trials)  # always raises an error, because the choice does not fit
        raise AssertionError("plan_now raised no error, although the choice does not fit the alive nodes")
    return plan


def _too_few(plan: TrialPlan, num_trials: int, offered: str) -> InfeasibleRequestError:
    asked = str(plan.common_slot)
    if num_trials > 1:
        asked += f", with {num_trials} concurrent trials"
    return InfeasibleRequestError(asked, offered, plan.limited_by, "Request fewer concurrent trials, or add nodes.")


def _alive_nodes() -> frozenset[str]:
    with ray_errors():
        return frozenset(node["NodeID"] for node in ray.nodes() if node["Alive"])


def _listed(bundles: list[Bundle]) -> str:
    named = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_bytes"}

    def written(amounts: dict[str, float]) -> str:
        fields = {named[name]: amount for name, amount in amounts.items() if name in named}
        return str(Resources(**fields, custom={name: amount for name, amount in amounts.items() if name not in named}))

    parts = []
    for text, count in Counter(written(bundle.resources) for bundle in bundles).items():
        if count > 1:
            text = f"{count} of {text}"
        parts.append(text)
    return " and ".join(parts)
