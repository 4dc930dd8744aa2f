"""A policy that restricts plans to nodes with selected labels, and excludes nodes."""

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Final

from pydantic import Field

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import NODE_ID, LabelSelector, format_selector, is_none_of, matcher, merged
from tune_policies.placement.request import Limit
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy, WrappingPolicy
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.value import Value
from tune_policies.values.wording import counted

_SHORT_ID: Final = 8
"""The number of characters of a node ID that Ray displays in lists."""


class SelectingPolicy(WrappingPolicy):
    """Plans only on selected nodes, and prevents Ray from placing trials and workers on other nodes.

    ``SelectingPolicy(GpuPolicy(), label_selector={"zone": "!eu"}, exclude_head=True)`` excludes the zone ``eu`` and the
    head node. To exclude individual nodes, requests to Ray contain a condition on the label ``ray.io/node-id``.

    Attributes:
        inner: The policy that plans on the selected nodes.
        label_selector: Conditions on node labels in Ray's syntax: ``"a"``, ``"!a"``, ``"in(a,b)"`` or ``"!in(a,b)"``.
        exclude_nodes: The nodes to exclude: Ray's node IDs, the first 8 digits of node IDs, or IP addresses.
        exclude_head: Whether to exclude the head node.

    Raises:
        InvalidResourcesError: A field is invalid.
    """

    label_selector: LabelSelector = Field(default_factory=dict)
    exclude_nodes: tuple[str, ...] = ()
    exclude_head: bool = False

    def __init__(
        self,
        inner: ResourcePolicy,
        label_selector: Mapping[str, str] | None = None,
        exclude_nodes: Sequence[str] = (),
        exclude_head: bool = False,
    ) -> None:
        selector = {} if label_selector is None else label_selector
        Value.__init__(
            self, inner=inner, label_selector=selector, exclude_nodes=exclude_nodes, exclude_head=exclude_head
        )

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        excluded, notes = self._excluded(capacity)
        selector = dict(self.label_selector)
        if excluded:
            selector = merged(selector, {NODE_ID: is_none_of(excluded)})
        if not selector:
            return self.inner.plan(capacity).with_reasons(*notes)
        # Ray also applies the selector to each request, so the plan must count only the selected nodes.
        is_selected = matcher(selector)
        chosen = capacity.where(lambda node: is_selected(node.ray_labels))
        if capacity.node_types:
            # A node that the autoscaler adds later has the labels of its type, so the selector also applies to types.
            types = tuple(added for added in capacity.node_types if is_selected(added.as_node().ray_labels))
            chosen = chosen.model_copy(update={"node_types": types})
        # For a cluster without nodes, the error of the inner policy is more helpful.
        if capacity.nodes and not chosen.nodes and not chosen.node_types:
            raise _no_node_selected(capacity, selector)
        which = f"nodes with {format_selector(selector)}"
        try:
            plan = self.inner.plan(chosen)
        except InfeasibleRequestError as error:
            offered = f"among {which}, {error.offered}"
            raise error.with_texts(offered=offered, suggestion=f"{error.suggestion} Or select more nodes.") from error
        left_out = len(capacity.nodes) - len(chosen.nodes)
        excludes = f"the plan uses only {which}, and excludes {left_out} of {len(capacity.nodes)} nodes"
        plan = plan.with_reasons(excludes, *notes)
        if plan.common_slot.topology is None:
            return plan.on_nodes(selector)
        return _of_slices(plan, capacity, chosen)

    def _excluded(self, capacity: ClusterCapacity) -> tuple[list[str], list[str]]:
        """Return the IDs of the nodes to exclude, and notes about settings that have no effect."""
        heads = [node.node_id for node in capacity.nodes if node.is_head]
        excluded = list(heads) if self.exclude_head else []
        found: set[str] = set()
        names = {_plain(name): name for name in self.exclude_nodes}
        if names:
            for node in capacity.nodes:
                own_names = {node.node_id, node.node_id[:_SHORT_ID], _plain(node.address or "")}
                if not own_names.isdisjoint(names):
                    excluded.append(node.node_id)
                    found |= own_names & names.keys()
        notes = [
            f"exclude_nodes contains {names[name]!r}, but no alive node has this ID or address"
            for name in sorted(names.keys() - found)
        ]
        if self.exclude_head and not heads:
            notes.append("exclude_head has no effect, because the head node is unknown")
        return excluded, notes


def _plain(name: str) -> str:
    """Return an IP address in its canonical form, and any other text unchanged."""
    # One IPv6 address has several spellings, such as ``::1`` and ``0:0:0:0:0:0:0:1``.
    try:
        return str(ip_address(name))
    except ValueError:
        return name


def _of_slices(plan: TrialPlan, capacity: ClusterCapacity, chosen: ClusterCapacity) -> TrialPlan:
    """Check that no node with TPUs is excluded, and return ``plan``, a plan for whole TPU slices.

    Raises:
        InfeasibleRequestError: A node with TPUs is excluded. Train accepts no label selector for slices.
    """
    kept = {node.node_id for node in chosen.nodes}
    if any(node.resources.custom.get("TPU", 0) > 0 for node in capacity.nodes if node.node_id not in kept):
        raise InfeasibleRequestError(
            f"{plan.slots[0]} on selected nodes",
            "Ray Train chooses the slices itself, and accepts no label selector for them",
            Limit.TPU_SLICES,
            "Omit the selection, or select slices by accelerator_type or topology.",
        )
    return plan


def _no_node_selected(capacity: ClusterCapacity, selector: dict[str, str]) -> InfeasibleRequestError:
    there = [
        f"{key} is {', '.join(sorted({node.ray_labels.get(key, 'not set') for node in capacity.nodes}))}"
        for key in selector
        if key != NODE_ID
    ]
    offered = f"none of the {counted(len(capacity.nodes), 'node')} is selected"
    if there:
        offered += f" ({'; '.join(there)})"
    return InfeasibleRequestError(
        f"a node with {format_selector(selector)}",
        offered,
        Limit.NODES,
        "Select labels of existing nodes, exclude fewer nodes, or add a node with these labels.",
    )
