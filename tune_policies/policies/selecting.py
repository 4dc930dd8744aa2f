"""Some nodes only: by label, or without some."""

from typing import Any

from pydantic import Field

from tune_policies.capacity import ClusterCapacity
from tune_policies.errors import InfeasibleRequestError
from tune_policies.labels import NODE_ID, LabelSelector, format_selector, is_none_of, matcher, merged
from tune_policies.plan import TrialPlan
from tune_policies.policy import WrappingPolicy


class SelectingPolicy(WrappingPolicy):
    """Plans on some of the nodes, and has Ray place trials and workers on no other.

    ``SelectingPolicy(GpuPolicy(), label_selector={"zone": "!eu"}, exclude_head=True)`` keeps trials off the zone and
    the head node. What is excluded by name reaches Ray as a condition on the label ``ray.io/node-id``.

    Attributes:
        inner: The policy that decides everything else.
        label_selector: Conditions on node labels, in Ray's form: ``"a"``, ``"!a"``, ``"in(a,b)"`` or ``"!in(a,b)"``.
        exclude_nodes: Nodes to keep trials off: Ray's node IDs, or IP addresses.
        exclude_head: Whether to keep trials off the head node, too.

    Raises:
        InvalidResourcesError: A field is wrong.
    """

    label_selector: LabelSelector = Field(default_factory=dict)
    exclude_nodes: tuple[str, ...] = ()
    exclude_head: bool = False

    def __init__(self, /, *args: Any, **data: Any) -> None:
        super().__init__(*args, **data)

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan; see :meth:`ResourcePolicy.plan`."""
        selector = dict(self.label_selector)
        if excluded := self._excluded(capacity):
            selector = merged(selector, {NODE_ID: is_none_of(excluded)})
        if not selector:
            return self.inner.plan(capacity)
        is_selected = matcher(selector)
        chosen = capacity.where(lambda node: is_selected(node.ray_labels))
        left_out = len(capacity.nodes) - len(chosen.nodes)
        if capacity.nodes and not chosen.nodes:
            raise self._nothing_left(capacity, selector)
        reason = f"{left_out} of {len(capacity.nodes)} nodes left out: only those with {format_selector(selector)}"
        return self.inner.plan(chosen).on_nodes(selector).with_reasons(reason)

    def _excluded(self, capacity: ClusterCapacity) -> list[str]:
        if not self.exclude_nodes and not self.exclude_head:
            return []
        names = frozenset(self.exclude_nodes)
        return [
            node.node_id
            for node in capacity.nodes
            if node.node_id in names or node.address in names or (self.exclude_head and node.is_head)
        ]

    def _nothing_left(self, capacity: ClusterCapacity, selector: dict[str, str]) -> InfeasibleRequestError:
        there = [
            f"{key} is {', '.join(sorted({node.ray_labels.get(key, 'not set') for node in capacity.nodes}))}"
            for key in selector
            if key != NODE_ID
        ]
        return InfeasibleRequestError(
            f"a node with {format_selector(selector)}",
            f"of {len(capacity.nodes)} nodes none is left" + (f"; {'; '.join(there)}" if there else ""),
            "nodes",
            "Select by labels that nodes have, exclude fewer, or add such a node.",
        )
