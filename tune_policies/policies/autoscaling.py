"""A policy whose plans include the nodes that the autoscaler can still add."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import NodeTypeCapacity
from tune_policies.placement.count_trials import largest, with_rounded_memory
from tune_policies.placement.launch_forecast import about_launches, format_nodes, has_choice, launched_for_pending
from tune_policies.placement.scale_up import (
    fewest_nodes,
    most_for_devices,
    nodes_within_limits,
    types_with_room,
    uses_devices,
)
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.gpu_selection import off_small_gpus
from tune_policies.policies.policy import ResourcePolicy, WrappingPolicy
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import Count
from tune_policies.values.value import Value

_MOST_COUNTED: Final = 10_000
"""The maximum number of nodes that a plan adds. A limit is needed because KubeRay's default is 2147483647."""


class AutoscalingPolicy(WrappingPolicy):
    """Plans on the alive nodes and on the nodes that the autoscaler can still add.

    In the plan, ``nodes_to_add`` contains only as many nodes as the trials need. A trial without devices uses a node
    with devices only if it fits no other node type. The autoscaler adds the nodes when trials are pending, or when you
    call ``request_capacity``. If trials fit several node types, ``nodes_to_add`` contains the types that Ray's
    autoscaler chooses while the trials are pending, even if another type needs fewer nodes. The plan then says so.

    Attributes:
        inner: The policy that plans on the alive nodes and the nodes that can be added.
        max_nodes_to_add: The maximum number of nodes to add, of all types together. If ``None``, only the limits of
            the cluster apply.

    Raises:
        InvalidResourcesError: A field is invalid.
    """

    max_nodes_to_add: Count | None = None

    def __init__(self, inner: ResourcePolicy, max_nodes_to_add: int | None = None) -> None:
        Value.__init__(self, inner=inner, max_nodes_to_add=max_nodes_to_add)

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        if capacity.node_types is None:
            unknown = "the node types of the autoscaler are unknown, so the plan adds no nodes"
            return self.inner.plan(capacity).with_reasons(unknown)
        limits = (capacity.max_nodes_to_add, self.max_nodes_to_add, _MOST_COUNTED)
        limit = min(most for most in limits if most is not None)
        most = {node_type.name: min(limit, node_type.max_nodes_to_add) for node_type in capacity.node_types}
        if not any(most.values()):
            return self.inner.plan(capacity)
        # Plan first as if all nodes were added, and then find the fewest nodes for this plan.
        try:
            plan, most = self._plan_with(capacity, most, limit)
        except InfeasibleRequestError as error:
            return self._plan_without(capacity, error)
        plan = _off_other_types(plan, capacity, most)
        launched, nodes_to_add = self._as_launched(plan, capacity, most, limit)
        reasons = [_counted(capacity.node_types, limit), *_about_fewer_trials(plan, launched, capacity, nodes_to_add)]
        return launched.with_reasons(*reasons).model_copy(update={"nodes_to_add": nodes_to_add})

    def _as_launched(
        self, plan: TrialPlan, capacity: ClusterCapacity, most: Mapping[str, int], limit: int
    ) -> tuple[TrialPlan, dict[str, int]]:
        """Return the plan on the nodes that Ray's autoscaler launches for its trials, and these nodes.

        The result is ``plan`` and the fewest nodes if there is no choice of node types, or if the trials do not fit on
        the launched nodes although more nodes can be added. In this case, the inner policy leaves resources for other
        work.
        """
        fewest = fewest_for_plan(self.inner, plan, capacity, most)
        if not fewest or not has_choice(plan.slots, capacity):
            return plan, fewest
        launched = launched_for_pending(plan.slots, capacity, limit)
        if launched.nodes == fewest:
            return plan, fewest
        if launched.is_enough and has_room_for_plan(self.inner, plan, capacity, launched.nodes):
            return plan.with_reasons(*about_launches(plan.slots, capacity, launched.nodes, fewest)), launched.nodes
        if launched.is_enough and any(slot.num_workers for slot in plan.slots):
            # The plan assumes the worst case for the nodes of trial drivers, so it may need more nodes of these types.
            of_these = {name: max(number, most.get(name, 0)) for name, number in launched.nodes.items()}
            more = fewest_for_plan(self.inner, plan, capacity, of_these)
            if has_room_for_plan(self.inner, plan, capacity, more):
                return plan, more
        if launched.is_enough or sum(launched.nodes.values()) < limit:
            return plan, fewest
        # Ray reaches the limit with nodes on which not all trials fit, so the plan must be made for these nodes.
        try:
            return self.inner.plan(capacity.with_nodes_added(launched.nodes)), launched.nodes
        except InfeasibleRequestError:
            return plan, fewest

    def _plan_with(
        self, capacity: ClusterCapacity, most: dict[str, int], limit: int
    ) -> tuple[TrialPlan, dict[str, int]]:
        """Return the plan for the cluster with added nodes, and the number of added nodes by node type."""
        plan = self.inner.plan(capacity.with_nodes_added(most))
        found, chosen = self._plan_within(plan, capacity, most, most, limit)
        # Nodes with devices are expensive, so trials without devices use other nodes, unless fewer trials with devices
        # then run.
        fewer = most_for_devices(plan.slots, capacity, most)
        if fewer != most:
            with suppress(InfeasibleRequestError):
                sparing, of_those = self._plan_within(plan, capacity, most, fewer, limit)
                if _trials_with_devices(sparing) >= _trials_with_devices(found):
                    return sparing, of_those
        return found, chosen

    def _plan_within(
        self, plan: TrialPlan, capacity: ClusterCapacity, most: dict[str, int], wanted: dict[str, int], limit: int
    ) -> tuple[TrialPlan, dict[str, int]]:
        """Return the plan with at most ``limit`` of the ``wanted`` nodes added, and the number of added nodes by type.

        ``plan`` is the plan for the cluster with all nodes in ``most`` added.
        """
        chosen = wanted
        if sum(wanted.values()) > limit:
            # Node types with room for the most trials of ``plan`` come first.
            by_slot = (types_with_room(slot, capacity, slot.max_concurrent_trials) for slot in plan.slots)
            order = dict.fromkeys(node_type.name for types in by_slot for node_type in types)
            chosen = nodes_within_limits(wanted, order, limit)
        if chosen != most:
            plan = self.inner.plan(capacity.with_nodes_added(chosen))
        return plan, chosen

    def _plan_without(self, capacity: ClusterCapacity, error: InfeasibleRequestError) -> TrialPlan:
        """Return the plan for only the alive nodes. It can be feasible even if the plan with added nodes is not."""
        try:
            plan = self.inner.plan(capacity)
        except InfeasibleRequestError:
            raise error.with_texts(offered=f"with all nodes that can be added, {error.offered}") from error
        return plan.with_reasons(
            f"the plan adds no nodes, because no trial would fit the cluster with added nodes: {error.offered}"
        )


def _off_other_types(plan: TrialPlan, capacity: ClusterCapacity, most: Mapping[str, int]) -> TrialPlan:
    """Return the plan restricted to nodes with enough GPU memory.

    Because of a limit, the inner policy may have seen only the types in ``most``, but Ray's autoscaler may add others.
    """
    types = [node_type for node_type in capacity.node_types or () if node_type.max_nodes_to_add]
    others = {node_type.as_node().shape for node_type in types if not most.get(node_type.name)}
    if not others:
        return plan
    every = capacity.with_nodes_added({node_type.name: 1 for node_type in types})
    return plan.with_slots(lambda slot: off_small_gpus(slot, every, others))


def fewest_for_plan(
    policy: ResourcePolicy, plan: TrialPlan, capacity: ClusterCapacity, most: Mapping[str, int]
) -> dict[str, int]:
    """Return the smallest number of nodes of each type to add so that ``policy`` has room for the trials of ``plan``.

    If the policy leaves resources free for other work, nodes are also added for these resources. The numbers of nodes
    in ``most`` must be enough.
    """
    seen = capacity
    if not any(slot.worker.memory_bytes or slot.label_selector for slot in plan.slots):
        # With rounded host memory, the nodes have few shapes, so each step of the search is fast.
        seen = with_rounded_memory(capacity, memory=None, num_workers=max(slot.num_workers for slot in plan.slots))
    fewest = fewest_nodes(plan.slots, seen, most)
    if fewest == most or has_room_for_plan(policy, plan, capacity, fewest):
        return fewest
    # The policy leaves resources free, so the trials alone do not determine the number of nodes.
    # The nodes are put in a fixed order, first the types that the trials need, and bisection finds how many are enough.
    steps = [name for name in {**fewest, **most} for _ in range(most[name])]
    first = {name: steps.index(name) for name in dict.fromkeys(steps)}

    def some(number: int) -> dict[str, int]:
        return {name: min(most[name], number - at) for name, at in first.items() if number > at}

    few = largest(0, len(steps), lambda number: not has_room_for_plan(policy, plan, capacity, some(number)))
    return some(few + 1)


def has_room_for_plan(
    policy: ResourcePolicy, plan: TrialPlan, capacity: ClusterCapacity, nodes_to_add: Mapping[str, int]
) -> bool:
    """Return whether ``policy`` plans as many trials as ``plan`` on the cluster with added nodes."""
    try:
        found = policy.plan(capacity.with_nodes_added(nodes_to_add))
    except InfeasibleRequestError:
        return False
    return found.max_concurrent_trials >= plan.max_concurrent_trials and (
        _trials_with_devices(found) >= _trials_with_devices(plan)
    )


def _about_fewer_trials(
    plan: TrialPlan, launched: TrialPlan, capacity: ClusterCapacity, nodes: Mapping[str, int]
) -> list[str]:
    if launched.max_concurrent_trials >= plan.max_concurrent_trials:
        return []
    return [
        f"{plan.max_concurrent_trials} trials would fit on other nodes, but Ray's autoscaler (version "
        f"{capacity.autoscaler_version}) reaches the limit with {format_nodes(nodes)} for pending trials. To get other "
        "nodes, select a label of their node type"
    ]


def _trials_with_devices(plan: TrialPlan) -> int:
    return sum(slot.max_concurrent_trials for slot in plan.slots if uses_devices(slot))


def _counted(node_types: tuple[NodeTypeCapacity, ...], limit: int) -> str:
    by_name = sorted(node_types, key=lambda node_type: node_type.name)
    types = ", ".join(f"{min(node_type.max_nodes_to_add, _MOST_COUNTED)} {node_type.name}" for node_type in by_name)
    text = f"the plan may use nodes that the autoscaler can add: up to {types}"
    if limit < sum(node_type.max_nodes_to_add for node_type in node_types):
        text += f", at most {limit} in total"
    return text
