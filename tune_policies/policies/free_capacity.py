"""A policy that plans on the free resources of the cluster."""

import math

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import NodeCapacity
from tune_policies.placement.count_trials import subtract
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy, WrappingPolicy
from tune_policies.policies.reserving import added, leaving_free
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import TICKS, Amounts, Resources
from tune_policies.values.value import Value


class FreeCapacityPolicy(WrappingPolicy):
    """Plans on the resources that are free when the cluster is read.

    Without this policy, plans are based on the total resources of the nodes, so trials may stay pending until other
    programs release resources. ``FreeCapacityPolicy(GpuPolicy()) | CpuPolicy()`` falls back to CPUs if actors or other
    programs use all GPUs. A partly used device counts as in use.

    During a run, the plan does not change when other programs release resources.
    ``plan_when_ready(policy, only_free=True)`` also waits until resources are released, and checks with a short
    reservation that they are free.

    Attributes:
        inner: The policy that plans on the free resources.

    Raises:
        InvalidResourcesError: ``inner`` is not a policy.
    """

    def __init__(self, inner: ResourcePolicy) -> None:
        Value.__init__(self, inner=inner)

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        in_use = Resources()
        for node in capacity.nodes:
            in_use = added(in_use, _whole_devices(node))
        if not in_use.ticks:
            return self.inner.plan(capacity)
        try:
            plan = self.inner.plan(free_part(capacity))
        except InfeasibleRequestError as error:
            raise error.with_texts(
                offered=f"with {in_use} in use, {error.offered}",
                suggestion=f"{error.suggestion} Or wait until other programs release resources.",
            ) from error
        return leaving_free(plan, capacity, in_use, [f"resources already in use: {in_use}"])


def free_part(capacity: ClusterCapacity) -> ClusterCapacity:
    """Return the cluster without the resources that are in use on its nodes."""
    changed = {}
    for node in capacity.nodes:
        ticks = _whole_devices(node)
        if ticks:
            changed[node.node_id] = subtract(node, ticks)
    if changed:
        return capacity.replacing(changed)
    return capacity


def _whole_devices(node: NodeCapacity) -> Amounts:
    """Return the resources in use on a node, in ticks, with partly used devices counted as whole devices."""
    if node.in_use is None:
        return {}
    totals = node.resources.ticks
    counted = {}
    for name, ticks in node.in_use.ticks.items():
        if name not in totals:
            continue
        if name in DEVICE_RESOURCES:
            # A trial that gets the free part of such a device would share it with another program.
            ticks = math.ceil(ticks / TICKS) * TICKS
        counted[name] = min(totals[name], ticks)
    return counted
