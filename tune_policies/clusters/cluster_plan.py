"""Which worker groups the trials of a policy need, as few and as cheap as hold them."""

from typing import Annotated

from pydantic import Field

from tune_policies.clusters.catalog import NodeType
from tune_policies.clusters.cluster_spec import ClusterSpec, WorkerGroup
from tune_policies.plan import TrialPlan
from tune_policies.resources import Count, PositiveCount, Resources
from tune_policies.values import Value


class PlannedGroup(Value):
    """Workers of one node type.

    Attributes:
        node_type: Of which.
        min_nodes: So many are always there.
        max_nodes: So many may be there.
        start_nodes: So many are there at first.
        num_hosts: Nodes that come and go together.
        trials_at_once: How many trials all of its nodes hold.
    """

    node_type: NodeType
    min_nodes: Count = 0
    max_nodes: PositiveCount
    start_nodes: Count = 0
    num_hosts: PositiveCount = 1
    trials_at_once: Count = 0

    @property
    def spec(self) -> WorkerGroup:
        """The group as a file of it is to be read again."""
        return WorkerGroup(
            name=self.node_type.name,
            resources=self.node_type.resources,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            start_nodes=self.start_nodes,
            num_hosts=self.num_hosts,
            accelerator_type=self.node_type.accelerator_type,
            labels=self.node_type.ray_labels,
            topology=self.node_type.topology,
            price_per_hour=self.node_type.price_per_hour,
        )


class ClusterPlan(Value):
    """What cluster a policy's trials need.

    Attributes:
        name: Of the cluster: a DNS label.
        head: The head node.
        groups: One for each kind of slot at the least.
        trials: The plan of the trials on it.
        num_trials: How many trials are to run.
        idle_timeout_s: After so many seconds without work a node goes.
        price_per_hour: Of all nodes at their most, with the head; ``None``: a price is not known.
        currency: Of the price.
        reasons: How it came about, a sentence each.
    """

    name: str
    head: NodeType
    groups: tuple[PlannedGroup, ...] = Field(min_length=1)
    trials: TrialPlan
    num_trials: PositiveCount
    idle_timeout_s: Annotated[int, Field(ge=0)] = 60
    price_per_hour: float | None = None
    currency: str = "USD"
    reasons: tuple[str, ...] = ()

    @property
    def spec(self) -> ClusterSpec:
        """The cluster as a file of it is to be read again. Its head has host memory, for Train drivers, and no CPU."""
        return ClusterSpec(
            name=self.name,
            head=Resources(memory_bytes=self.head.memory_bytes),
            groups=tuple(group.spec for group in self.groups),
            idle_timeout_s=self.idle_timeout_s,
        )
