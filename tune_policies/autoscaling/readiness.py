"""Returns a plan as soon as it can run, and says within seconds what the cluster will never have.

Each choice of a policy is asked for in turn. What becomes of it is heard from the autoscaler, so that nobody waits for
a node that does not come.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

import ray

from tune_policies.autoscaling.capacity_request import CapacityRequest
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.placement.scale_up import GPU_MEMORY, fewest_nodes, plan_on_smallest_node, types_that_hold
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import Bundle
from tune_policies.policies import AutoscalingPolicy, FirstFeasiblePolicy
from tune_policies.policies.first_feasible import why_not
from tune_policies.policies.gpu_selection import GpuTypesPolicy
from tune_policies.policies.policy import ResourcePolicy, with_inner
from tune_policies.probe.probe_cluster import probe_cluster
from tune_policies.ray_compat.autoscaler import Autoscaler, Launch, LaunchReport, find_autoscaler, ray_errors
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError, ProbeError
from tune_policies.values.resources import Resources, check_count

logger = logging.getLogger(__name__)

_POLL_S: Final = 0.2

_SILENT_REPORTS: Final = 3
"""So many reports in a row without any launch mean that none will come.

One is not enough: between a launch and the node's first sign of life, neither version of the autoscaler reports it.
"""


def plan_when_ready(
    policy: ResourcePolicy,
    *,
    timeout_s: float = 300.0,
    num_trials: int = 1,
    probe: Callable[[], ClusterCapacity] = probe_cluster,
    on_progress: Callable[[str], None] | None = None,
) -> TrialPlan:
    """Return a plan that can run now, with nodes that are added for it if need be.

    The choices of a policy (a ``FirstFeasiblePolicy``, several device types) are tried in turn. A choice that fits the
    alive nodes is taken at once. Otherwise the autoscaler is asked for the nodes of ``num_trials`` trials. The next
    choice is tried as soon as it is known that this one cannot be met: no autoscaler, no such node type, a launch that
    failed. While nodes may still come, this waits. If the node of an earlier choice comes late, that choice is taken.

    When this returns or raises, by Ctrl-C too, it withdraws its request. New nodes stay until they have been idle for
    ``idle_timeout_minutes`` of the cluster, 1 to 5 minutes by default. So start the run at once, or hold them with
    :func:`request_capacity`. A program that is killed meanwhile leaves its request behind: see there.

    Autoscaler v1 does not say that it can never meet a request. If the node types are not known, three reports (15 s)
    in which it launches nothing count as a refusal.

    Args:
        policy: What to plan. An ``AutoscalingPolicy`` may count more nodes than are there when this returns.
        timeout_s: The longest wait for the nodes of each choice, in seconds.
        num_trials: How many trials must be able to run.
        probe: Reads the cluster: ``probe_cluster``, or a function that calls it with arguments.
        on_progress: Gets a line for each step; the module's logger gets them too, at ``INFO``.

    Raises:
        InvalidResourcesError: ``timeout_s`` or ``num_trials`` is not above 0.
        InfeasibleRequestError: No choice can be met. It says why for each.
        ProbeError: The program is not connected to Ray, or Ray went away.

    Warns:
        ProbeWarning: As ``probe_cluster`` does.
    """
    if not timeout_s > 0:
        raise InvalidResourcesError(f"timeout_s must be above 0 seconds, got {timeout_s!r}")
    num_trials = check_count(num_trials, least=1, name="num_trials")
    if not ray.is_initialized():
        raise ProbeError("this program is not connected to a Ray: call ray.init() before")
    return _Search(policy, num_trials, probe, on_progress).run(timeout_s)


class _Search:
    """One call of :func:`plan_when_ready`."""

    def __init__(
        self,
        policy: ResourcePolicy,
        num_trials: int,
        probe: Callable[[], ClusterCapacity],
        on_progress: Callable[[str], None] | None,
    ) -> None:
        self._choices = policy.choices
        self._num_trials = num_trials
        self._probe = probe
        self._on_progress = on_progress
        self._autoscaler: Autoscaler | None = None
        self._node_ids: frozenset[str] = frozenset()
        self._given_up: list[str] = []

    def run(self, timeout_s: float) -> TrialPlan:
        self._read()
        errors: list[InfeasibleRequestError] = []
        for choice in self._choices:
            plan = self._first_that_runs(len(errors) + 1)
            if plan is None:
                if not errors:
                    self._autoscaler = find_autoscaler()
                plan, why = self._wait_for(choice, len(errors) + 1, timeout_s)
            if plan is not None:
                return plan
            error = self._shortfall(choice)
            errors.append(error.told(offered=f"{error.offered}, and {why}"))
            self._given_up.append(why_not(choice, errors[-1]))
            self._tell(f"{type(choice).__name__} is given up: {why}")
        raise InfeasibleRequestError.of_each(errors)

    def _wait_for(self, choice: ResourcePolicy, number: int, timeout_s: float) -> tuple[TrialPlan | None, str]:
        """Return the plan of this choice, or of a better one, as soon as it can run; or why this one will not."""
        autoscaler = self._autoscaler
        if autoscaler is None:
            return None, "nothing adds nodes to this cluster"
        try:
            bundles, node_types = needs(choice, self._capacity, self._num_trials)
        except InfeasibleRequestError as error:
            return None, f"no nodes that can be added would do: {error.offered}"
        watch = LaunchWatch(autoscaler.report() or LaunchReport(0, answers=False), node_types)
        self._tell(f"{type(choice).__name__} does not fit the alive nodes: asking for {_listed(bundles)}")
        before = self._node_ids
        with CapacityRequest(autoscaler, bundles):
            deadline = time.monotonic() + timeout_s
            told = Counter[str]()
            while True:
                if self._read_if_changed() and (plan := self._first_that_runs(number)) is not None:
                    return plan, ""
                report = autoscaler.report()
                if report is not None:
                    if report.answers and report.pending != told:
                        told = report.pending
                        self._tell(f"the autoscaler is starting {_counted(told)}")
                    if (why := watch.verdict(report)) is not None:
                        return None, why
                if time.monotonic() >= deadline:
                    came = len(self._node_ids - before)
                    return None, f"{came or 'no'} {'node' if came == 1 else 'nodes'} came within {timeout_s:g} s"
                time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))

    def _first_that_runs(self, number: int) -> TrialPlan | None:
        """Return the plan of the best choice, of the first ``number``, that runs on the alive nodes."""
        for i, choice in enumerate(self._choices[:number]):
            try:
                plan = plan_now(choice, self._capacity, self._num_trials)
            except InfeasibleRequestError:
                continue
            self._tell(f"{type(choice).__name__} can run: {plan.max_concurrent_trials} at once")
            return plan.with_reasons(*self._given_up[:i])
        return None

    def _shortfall(self, choice: ResourcePolicy) -> InfeasibleRequestError:
        """Return why the choice does not run now, without advice to ask the autoscaler: it has been asked."""
        for capacity in (self._capacity.model_copy(update={"node_types": ()}), self._capacity):
            try:
                plan_now(choice, capacity, self._num_trials)
            except InfeasibleRequestError as error:
                return error
        raise AssertionError("a choice that runs is not given up")

    def _read(self) -> None:
        self._node_ids = _alive_nodes()
        self._capacity = self._probe()

    def _read_if_changed(self) -> bool:
        alive = _alive_nodes()
        if alive == self._node_ids:
            return False
        self._tell(f"{len(alive)} nodes are alive now, {len(self._node_ids)} were before")
        self._read()
        return True

    def _tell(self, line: str) -> None:
        logger.info(line)
        if self._on_progress is not None:
            self._on_progress(line)


class LaunchWatch:
    """Follows the reports after a request, until one means that the request will not be met."""

    def __init__(self, before: LaunchReport, node_types: frozenset[str] | None = None) -> None:
        """Start to watch.

        Args:
            before: A report from before the request: what was launched or failed then is none of this request's.
            node_types: The types that hold a trial, if they are known.
        """
        self._before = before
        self._node_types = node_types
        self._last = before.number
        self._silent = 0

    def verdict(self, report: LaunchReport) -> str | None:
        """Return why the request will not be met; ``None``: it still may be."""
        if not report.answers or report.number == self._last:
            return None
        self._last = report.number
        if report.refused:
            return "the autoscaler says that no node which it may add meets this"
        failures = [each for each in report.failures - self._before.failures if self._is_ours(each)]
        failed = {each.node_type for each in failures}
        self._silent = 0 if report.pending else self._silent + 1
        if failed and self._no_other_type(failed, report):
            return " and ".join(sorted({_told(each) for each in failures}))
        if self._silent >= _SILENT_REPORTS:
            return "the autoscaler launches nothing more for it"
        return None

    def _is_ours(self, failure: Launch) -> bool:
        """Return whether the launch may have been made for the request: of a type that helps, and not before it."""
        before = self._before
        if self._node_types is not None and failure.node_type not in self._node_types:
            return False
        if before.time is not None and failure.started_at < before.time:
            return False
        return all(failure[:2] != launch[:2] for launch in before.launches)

    def _no_other_type(self, failed: set[str], report: LaunchReport) -> bool:
        """Return whether nothing is left to hope for: the autoscaler itself retries what failed for ever."""
        if self._node_types is not None and self._node_types <= failed:
            return True
        others = (report.pending.keys() & (self._node_types or report.pending.keys())) - failed
        # In the round of the failure, v1 has not tried another type yet.
        return not others and (bool(report.pending) or self._silent > 1)


def _told(failure: Launch) -> str:
    return f"the launch of {failure.node_type!r} failed{failure.error and ': '}{failure.error}"


class Needs(NamedTuple):
    """What a choice would need.

    Attributes:
        bundles: What its trials reserve.
        node_types: The names of the types of nodes that hold a worker; ``None``: not known.
    """

    bundles: list[Bundle]
    node_types: frozenset[str] | None


def plan_now(choice: ResourcePolicy, capacity: ClusterCapacity, num_trials: int) -> TrialPlan:
    """Return the plan, if ``num_trials`` of its trials can run on the alive nodes.

    Raises:
        InfeasibleRequestError: They cannot.
    """
    plan = choice.plan(capacity)
    if plan.min_concurrent_trials < num_trials:
        raise _too_few(plan, num_trials, f"only {plan.min_concurrent_trials} fit at once")
    first = plan.capped(num_trials, limited_by="num_trials")
    if plan.nodes_to_add and fewest_nodes(first, capacity, plan.nodes_to_add):
        raise _too_few(plan, num_trials, "the alive nodes do not hold them yet")
    return plan


def needs(choice: ResourcePolicy, capacity: ClusterCapacity, num_trials: int) -> Needs:
    """Return what ``num_trials`` trials of ``choice`` need, or its own ``min_trials``, so that it can be asked for.

    Raises:
        InfeasibleRequestError: No nodes that can be added would do.
    """
    with_least = (each for each in with_inner((choice,)) if isinstance(each, FirstFeasiblePolicy | GpuTypesPolicy))
    num_trials = max([num_trials, *(each.min_trials for each in with_least)])
    if capacity.node_types is None:
        return Needs(_imagined(choice, capacity, num_trials).bundles(num_trials), None)
    growing = choice if _counts_additions(choice) else AutoscalingPolicy(choice)
    try:
        plan = growing.plan(capacity)
    except InfeasibleRequestError as error:
        with_gpus = frozenset(each.name for each in capacity.node_types if each.resources.gpus > 0)
        if error.short_of != GPU_MEMORY or not with_gpus:
            raise
        # How much GPU memory a node will have is known when it is there.
        return Needs(_imagined(choice, capacity, num_trials).bundles(num_trials), with_gpus)
    if plan.min_concurrent_trials < num_trials:
        raise _too_few(plan, num_trials, f"only {plan.min_concurrent_trials} would fit at once")
    types = types_that_hold(plan.common_slot, capacity, num_trials)
    return Needs(plan.bundles(num_trials), frozenset(each.name for each in types if each.max_nodes_to_add))


def _imagined(choice: ResourcePolicy, capacity: ClusterCapacity, num_trials: int) -> TrialPlan:
    plan = plan_on_smallest_node(choice.plan)
    if plan is None:
        plan_now(choice, capacity, num_trials)  # which raises
        raise AssertionError("what fits the alive nodes needs nothing")
    return plan


def _too_few(plan: TrialPlan, num_trials: int, offered: str) -> InfeasibleRequestError:
    asked = f"{plan.common_slot}, {num_trials} times at once" if num_trials > 1 else str(plan.common_slot)
    return InfeasibleRequestError(asked, offered, plan.limited_by, "Ask for fewer trials at once, or add nodes.")


def _counts_additions(policy: ResourcePolicy) -> bool:
    """Return whether the policy, or one within it, has its own limit for what is added."""
    return isinstance(policy, AutoscalingPolicy) or any(map(_counts_additions, policy.inner_policies))


def _alive_nodes() -> frozenset[str]:
    with ray_errors():
        return frozenset(node["NodeID"] for node in ray.nodes() if node["Alive"])


def _listed(bundles: list[Bundle]) -> str:
    counts = Counter(_written(bundle.resources) for bundle in bundles)
    return " and ".join(f"{count} of {text}" if count > 1 else text for text, count in counts.items())


def _written(amounts: dict[str, float]) -> str:
    named = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_bytes"}
    fields = {named[name]: amount for name, amount in amounts.items() if name in named}
    custom = {name: amount for name, amount in amounts.items() if name not in named}
    return str(Resources(**fields, custom=custom))


def _counted(pending: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(pending.items())) or "nothing"
