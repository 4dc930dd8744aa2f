"""The clusters that files describe: a head, and worker groups that an autoscaler can resize."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator

from tune_policies.cluster.capacity import DEFAULT_AUTOSCALER, AutoscalerVersion, ClusterCapacity
from tune_policies.cluster.node import GpuDevice, NodeCapacity, NodeTypeCapacity
from tune_policies.cluster.tpu_slices import POD_TYPE, SLICE_NAME, TOPOLOGIES, TOPOLOGY, WORKER_ID, SliceShape
from tune_policies.kuberay.design.catalog_file import NodeCatalog, NodeType
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import Count, PositiveCount, Resources
from tune_policies.values.value import Value
from tune_policies.values.wording import counted

MOST_NODES: Final = 10_000
"""The maximum number of nodes in a plan. KubeRay's default limit of 2147483647 means "no limit"."""


class WorkerGroup(Value):
    """A group of identical worker nodes.

    Attributes:
        resources: The resources that Ray counts on one node.
        start_nodes: The number of nodes at the start; ``None`` for ``min_nodes``.
        num_hosts: The number of nodes that are added and removed together, such as the hosts of a TPU slice. All
            numbers of nodes are multiples of this number.
        accelerator_type: Ray's name of the device type, if known.
        devices: The GPUs of one node, if their memory is known.
        is_type_counted: Whether the autoscaler adds nodes for trials that request the device type.
        needs_start_params: Whether the manifest can state further amounts only in ``rayStartParams``, because KubeRay
            or Ray accepts no ``resources`` in the group.
        labels: Ray's node labels.
        topology: The topology of TPU slices.
        price_per_hour: The price of one node, if known.
        idle_timeout_s: Seconds after which an idle node is removed; ``None`` for the cluster's timeout.
    """

    name: str
    resources: Resources
    min_nodes: Count = 0
    max_nodes: Count
    start_nodes: Count | None = None
    num_hosts: PositiveCount = 1
    accelerator_type: str | None = None
    devices: tuple[GpuDevice, ...] | None = None
    is_type_counted: bool = True
    needs_start_params: bool = False
    labels: dict[str, str] = Field(default_factory=dict)
    topology: str | None = None
    price_per_hour: Annotated[float, Field(ge=0)] | None = None
    idle_timeout_s: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _numbers_must_agree(self) -> Self:
        if self.min_nodes > self.max_nodes:
            raise InvalidResourcesError(
                f"min_nodes={self.min_nodes} exceeds max_nodes={self.max_nodes}: raise max_nodes or lower min_nodes"
            )
        return self

    @classmethod
    def of(cls, node_type: NodeType, **numbers: int) -> Self:
        """Return a group of nodes of one type. ``numbers`` are fields such as ``max_nodes``."""
        return cls(
            name=node_type.name,
            resources=node_type.resources,
            accelerator_type=node_type.accelerator_type,
            labels=node_type.ray_labels,
            devices=node_type.known_gpus,
            topology=node_type.topology,
            price_per_hour=node_type.price_per_hour,
            **{"num_hosts": node_type.num_hosts, **numbers},
        )

    @property
    def nodes_at_start(self) -> int:
        """The number of nodes before an autoscaler changes it. A suspended group has none."""
        if self.start_nodes is None:
            return self.min_nodes
        return self.start_nodes

    def nodes(self, number: int, *, is_expected: bool = False) -> Iterator[NodeCapacity]:
        """Yield nodes of the group with the resources that Ray counts.

        The hosts of a TPU slice have the labels of GKE and Ray that a plan uses to find whole slices.

        Args:
            number: The number of nodes.
            is_expected: Whether the nodes do not exist yet.
        """
        alike = NodeCapacity(
            node_id=self.name,
            resources=self.resources,
            accelerator_type=self.accelerator_type,
            labels=self.labels,
            devices=self.devices,
            is_expected=is_expected,
        )
        # The hosts of a slice differ in their labels, and in the resource of the first host. All other nodes are alike.
        shape = slice_shape_of(self)
        for at in range(number):
            changes = {} if shape is None else self._host_of(shape, at)
            yield alike.model_copy(update={"node_id": f"{self.name}-{at}", **changes})

    def _host_of(self, shape: SliceShape, at: int) -> dict[str, Any]:
        slice_number, host = divmod(at, self.num_hosts)
        labels = {
            SLICE_NAME: f"{self.name}-slice-{slice_number}",
            TOPOLOGY: shape.topology,
            WORKER_ID: str(host),
            POD_TYPE: shape.pod_type,
        }
        custom = dict(self.resources.custom)
        if host == 0:  # Train reserves a slice by a resource that only its first host has
            custom[shape.head_resource] = 1
        return {"labels": {**labels, **self.labels}, "resources": self.resources.replaced(custom=custom)}


def slice_shape_of(group: WorkerGroup) -> SliceShape | None:
    """Return the shape of a group's TPU slices, or ``None`` if it has none or Ray does not support their topology."""
    if group.accelerator_type is None or group.topology is None:
        return None
    is_known = group.topology in TOPOLOGIES.get(group.accelerator_type, ())
    if is_known:
        return SliceShape(group.topology, group.accelerator_type)
    return None


def head_of(node_type: NodeType) -> NodeCapacity:
    """Return the head node with the resources that Ray counts.

    A head without devices has memory for trial drivers, but no CPUs.
    """
    if not node_type.devices:
        return NodeCapacity(node_id="head", resources=Resources(memory_bytes=node_type.memory), is_head=True)
    (node,) = WorkerGroup.of(node_type, max_nodes=1).nodes(1)
    return node.model_copy(update={"node_id": "head", "is_head": True})


class DesignedGroup(Value):
    """A worker group of a designed cluster: nodes of one type of the catalog.

    Attributes:
        num_hosts: The number of nodes that are added and removed together.
        trials_at_once: The number of trials that fit on all of its nodes.
    """

    node_type: NodeType
    min_nodes: Count = 0
    max_nodes: PositiveCount
    num_hosts: PositiveCount = 1
    trials_at_once: Count = 0

    def __str__(self) -> str:
        nodes = f"{self.node_type.name}: {self.min_nodes} to {counted(self.max_nodes, 'node')}"
        if self.num_hosts > 1:
            nodes += f" in slices of {self.num_hosts}"
        nodes += f" with {self.node_type.resources}"
        if self.node_type.accelerator_type is not None:
            nodes += f" ({self.node_type.accelerator_type})"
        return f"{nodes}, for {counted(self.trials_at_once, 'trial')}"

    @property
    def spec(self) -> WorkerGroup:
        """The group as Ray reads it from the written file."""
        numbers = {"min_nodes": self.min_nodes, "start_nodes": self.min_nodes, "max_nodes": self.max_nodes}
        return WorkerGroup.of(self.node_type, num_hosts=self.num_hosts, **numbers)


class ClusterSpec(Value):
    """A cluster that a file describes.

    Attributes:
        head: The head, with the resources that Ray counts. With 0 CPUs, it runs no trials.
        groups: The worker groups.
        max_nodes: The maximum number of worker nodes of all groups together; ``None`` for no common limit.
        is_autoscaling: Whether an autoscaler adds nodes. Otherwise, the numbers of nodes do not change.
        autoscaler_version: The version of Ray's autoscaler.
        idle_timeout_s: Seconds after which an idle node is removed; ``None`` for Ray's default, 60 s on Kubernetes.
        assumptions: Sentences about defaults that replace missing fields of the file.
    """

    name: str = "cluster"
    head: NodeCapacity = NodeCapacity(node_id="head", resources=Resources(), is_head=True)
    groups: tuple[WorkerGroup, ...] = ()
    max_nodes: Count | None = None
    is_autoscaling: bool = True
    autoscaler_version: AutoscalerVersion = DEFAULT_AUTOSCALER
    idle_timeout_s: Annotated[float, Field(ge=0)] | None = None
    assumptions: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _names_must_differ(self) -> Self:
        names = [group.name for group in self.groups]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidResourcesError(f"the names of groups must be unique, but {twice[0]!r} is used twice")
        return self

    @property
    def capacity(self) -> ClusterCapacity:
        """The nodes that always exist, and the node types that the autoscaler can add."""
        nodes = [self.head]
        rows = []
        for group in self.groups:
            # With an autoscaler, only the minimum is certain, because it removes idle nodes above it.
            always = group.min_nodes
            if not self.is_autoscaling:
                always = group.nodes_at_start
            nodes += group.nodes(always)
            if self.is_autoscaling and group.max_nodes > always:
                rows.append(
                    NodeTypeCapacity(
                        name=group.name,
                        resources=group.resources,
                        max_nodes_to_add=group.max_nodes - always,
                        accelerator_type=group.accelerator_type,
                        labels=group.labels,
                        devices=group.devices,
                        is_type_counted=group.is_type_counted,
                    )
                )
        most = self.max_nodes
        if most is not None:
            most = max(0, most - (len(nodes) - 1))  # the head is not a worker node
        return ClusterCapacity(
            nodes=tuple(nodes),
            node_types=tuple(rows),
            max_nodes_to_add=most,
            autoscaler_version=self.autoscaler_version,
        )


Nodes = ClusterCapacity | NodeCatalog | ClusterSpec
"""The nodes to plan for: an existing cluster, a catalog, or the cluster that a file describes."""


def capacity_of(nodes: Nodes) -> ClusterCapacity:
    """Return the cluster capacity of ``nodes``.

    Raises:
        InvalidResourcesError: A catalog has more than :data:`MOST_NODES` nodes.
    """
    if isinstance(nodes, ClusterCapacity):
        return nodes
    if isinstance(nodes, ClusterSpec):
        return nodes.capacity
    total = sum(node_type.num_nodes for node_type in nodes.nodes)
    if total > MOST_NODES:
        raise InvalidResourcesError(f"the catalog has {total:,} nodes: reduce count to at most {MOST_NODES:,} in total")
    listed: list[NodeCapacity] = []
    for node_type in nodes.nodes:
        listed += WorkerGroup.of(node_type, max_nodes=node_type.num_nodes).nodes(node_type.num_nodes)
    if nodes.head is not None:
        listed.append(head_of(nodes.head).model_copy(update={"node_id": nodes.head.name}))
    return ClusterCapacity(nodes=tuple(listed))
