"""The node types among which a plan chooses, and the cluster that so many of each would be.

They are counted in units: a node, or all the hosts of a TPU slice, which come and go together.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Self

from tune_policies.capacity import ClusterCapacity, NodeCapacity
from tune_policies.clusters.catalog import NodeType
from tune_policies.clusters.cluster_plan import PlannedGroup
from tune_policies.errors import InfeasibleRequestError
from tune_policies.plan import TrialPlan
from tune_policies.policy import ResourcePolicy
from tune_policies.resources import Resources

Units = Mapping[str, int]
"""How many units of each node type, by its name."""

_MOST_COUNTED: Final = 10_000
"""No cluster has more nodes of a type, whatever a file says."""

_PER_MONEY: Final = 10**6
"""Prices are added up in whole millionths, so that sums that are the same compare as the same."""


class NodePool(NamedTuple):
    """Node types, and what else the cluster has.

    Attributes:
        node_types: By name.
        head: Without CPUs for trials; its host memory is for Train drivers.
    """

    node_types: Mapping[str, NodeType]
    head: NodeType

    def of(self, holds: Callable[[NodeType], bool]) -> Self:
        """Return the same with some of the node types only."""
        return self._replace(node_types={name: each for name, each in self.node_types.items() if holds(each)})

    @property
    def most(self) -> dict[str, int]:
        """How many units there can be."""
        return {name: min(each.max_nodes, _MOST_COUNTED) // each.num_hosts for name, each in self.node_types.items()}

    @property
    def has_prices(self) -> bool:
        """Whether any node type has a price."""
        return any(each.price_per_hour is not None for each in self.node_types.values())

    def unit(self, name: str) -> tuple[NodeCapacity, ...]:
        """Return the nodes of one unit."""
        return tuple(self.group(name, 1).spec.nodes(self.node_types[name].num_hosts, is_expected=True))

    def group(self, name: str, units: int) -> PlannedGroup:
        """Return the worker group that so many units are."""
        node_type = self.node_types[name]
        hosts = node_type.num_hosts
        return PlannedGroup(node_type=node_type, max_nodes=units * hosts, num_hosts=hosts)

    def capacity(self, units: Units, *, is_expected: bool = True) -> ClusterCapacity:
        """Return the cluster with so many units, which are still to be added unless ``is_expected`` is false."""
        head = NodeCapacity(node_id="head", resources=Resources(memory_bytes=self.head.memory_bytes), is_head=True)
        groups = (self.group(name, number) for name, number in sorted(units.items()) if number)
        nodes = (node for group in groups for node in group.spec.nodes(group.max_nodes, is_expected=is_expected))
        return ClusterCapacity().with_nodes((head, *nodes))

    def plan(self, policy: ResourcePolicy, units: Units) -> TrialPlan | None:
        """Return what the policy plans on so many units; ``None``: not even one trial fits."""
        try:
            return policy.plan(self.capacity(units))
        except InfeasibleRequestError:
            return None

    def cost(self, name: str, *, uses_devices: bool) -> tuple[int, ...]:
        """Return what a unit costs, what counts most first.

        Those are nodes without a price where others have one, the price, devices that stand idle, and nodes.
        """
        node_type = self.node_types[name]
        price = node_type.price_per_hour
        idle = 0 if uses_devices else int(sum(node_type.devices.values()))
        each = (int(self.has_prices and price is None), round((price or 0) * _PER_MONEY), idle, 1)
        return tuple(part * node_type.num_hosts for part in each)

    def price_per_hour(self, units: Units) -> float | None:
        """Return what so many units cost an hour; ``None``: a price is not known."""
        prices = [
            None
            if (price := self.node_types[name].price_per_hour) is None
            else price * self.group(name, number).max_nodes
            for name, number in units.items()
            if number
        ]
        known = [price for price in prices if price is not None]
        return round(sum(known), 6) if len(known) == len(prices) else None
