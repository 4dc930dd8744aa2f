"""A cluster as its file describes it: the head, and groups of workers that grow and shrink. What a plan goes by."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from tune_policies.capacity import ClusterCapacity, NodeCapacity, NodeTypeCapacity
from tune_policies.errors import InvalidResourcesError
from tune_policies.resources import Count, PositiveCount, Resources
from tune_policies.values import Value


class WorkerGroup(Value):
    """Workers of one kind.

    Attributes:
        name: Of the group, or of the node type.
        resources: What Ray counts on one node.
        min_nodes: So many are always there.
        max_nodes: So many may be there.
        start_nodes: So many are there at first; ``None``: as many as always.
        num_hosts: Nodes that come and go together, as the hosts of a TPU slice; the numbers of nodes are its multiples.
        accelerator_type: Ray's name of the device type; ``None``: not known.
        is_type_counted: Whether the autoscaler knows the type, so that work which asks for it makes nodes come.
        labels: Ray's node labels.
        topology: Of its TPU slices.
        price_per_hour: Of one node; ``None``: not known.
        idle_timeout_s: After so many seconds without work a node goes; ``None``: as the cluster says.
    """

    name: str
    resources: Resources
    min_nodes: Count = 0
    max_nodes: Count
    start_nodes: Count | None = None
    num_hosts: PositiveCount = 1
    accelerator_type: str | None = None
    is_type_counted: bool = True
    labels: dict[str, str] = Field(default_factory=dict)
    topology: str | None = None
    price_per_hour: Annotated[float, Field(ge=0)] | None = None
    idle_timeout_s: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _numbers_must_agree(self) -> Self:
        if self.min_nodes > self.max_nodes:
            raise InvalidResourcesError(
                f"the group {self.name!r} has min_nodes={self.min_nodes} above max_nodes={self.max_nodes}"
            )
        return self


class ClusterSpec(Value):
    """A cluster that is to be.

    Attributes:
        name: Of the cluster.
        head: What Ray counts on the head node; 0 CPUs: it takes no work.
        groups: The workers.
        max_nodes: The most workers of all groups together; ``None``: each group's limit is the only one.
        is_autoscaling: Whether an autoscaler adds nodes; else the numbers stay as they are at first.
        idle_timeout_s: After so many seconds without work a node goes; ``None``: as Ray does, 60 s on Kubernetes.
    """

    name: str = "cluster"
    head: Resources = Field(default_factory=Resources)
    groups: tuple[WorkerGroup, ...] = ()
    max_nodes: Count | None = None
    is_autoscaling: bool = True
    idle_timeout_s: Annotated[float, Field(ge=0)] | None = None

    @property
    def capacity(self) -> ClusterCapacity:
        """The cluster with the nodes that are always there, and what its autoscaler could add to them."""
        nodes = [NodeCapacity(node_id="head", resources=self.head, is_head=True)]
        rows = []
        for group in self.groups:
            always = group.min_nodes if self.is_autoscaling else max(group.min_nodes, group.start_nodes or 0)
            nodes += [
                NodeCapacity(
                    node_id=f"{group.name}-{number}",
                    resources=group.resources,
                    accelerator_type=group.accelerator_type,
                    labels=group.labels,
                )
                for number in range(always)
            ]
            if self.is_autoscaling and group.max_nodes > always:
                rows.append(
                    NodeTypeCapacity(
                        name=group.name,
                        resources=group.resources,
                        max_nodes_to_add=group.max_nodes - always,
                        accelerator_type=group.accelerator_type,
                        labels=group.labels,
                    )
                )
        most = None if self.max_nodes is None else max(0, self.max_nodes - (len(nodes) - 1))
        return ClusterCapacity(nodes=tuple(nodes), node_types=tuple(rows), max_nodes_to_add=most)
