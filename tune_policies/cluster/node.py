"""A node of a cluster with its devices, and a type of node that can be added."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import Field

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX, gpu_memory_of_type
from tune_policies.cluster.labels import NODE_ID
from tune_policies.values.field_types import FrozenDict, Many
from tune_policies.values.resources import TICKS, Amount, Amounts, Bytes, Count, PositiveCount, Resources, amount_of
from tune_policies.values.value import Value

Shape = tuple[int | None, tuple[Any, ...]]
"""The properties of a node that affect plans: its host memory in bytes, and the other properties."""


class GpuDevice(Value):
    """A physical GPU, or a MIG device.

    Attributes:
        index: The number of the GPU on the node, starting at 0.
        name: The model name that the driver reports.
        memory_bytes: The total GPU memory, in bytes.
        uuid: The UUID that the driver reports, or ``None`` if HAMi or KAI Scheduler gives the node a part of the GPU.
        shared_by: The number of nodes that report this UUID. ``ClusterCapacity`` counts them. Each of these nodes gets
            an equal part of the memory.
    """

    index: Count
    name: str
    memory_bytes: Bytes
    uuid: str | None = None
    shared_by: PositiveCount = 1


class NodeCapacity(Value):
    """A node of a cluster.

    Attributes:
        node_id: The ID of the node in Ray, in hexadecimal.
        resources: The total resources of the node, including reserved resources.
        accelerator_type: Ray's name of the device type, such as ``"A100"``, or ``None`` if Ray reports no type.
        labels: Ray's node labels.
        devices: The physical GPUs, or ``None`` if they were not read.
        has_simulated_gpus: Whether the GPUs that Ray counts do not exist: they were declared on a node without a
            driver, a device file or a GPU on its PCI bus.
        address: The IP address.
        is_head: Whether the node is the cluster's head node.
        usable_cpus: The number of CPUs that the cgroup quota, the CPU affinity and ``SLURM_CPUS_PER_TASK`` allow, or
            ``None`` if it was not read. It can be lower than the number of CPUs that Ray counts.
        cpu_model: The CPU model that the operating system reports. It does not affect plans.
        is_expected: Whether the autoscaler still has to add the node.
        in_use: The resources that were reserved when the node was read. Only plans of ``FreeCapacityPolicy`` use them.
        held: The resources that the program itself reserves for as long as it runs, such as those of its entrypoint,
            by holder. ``resources`` and ``in_use`` exclude them.
        problem: The reason why trials cannot run on the node, such as "tune-policies is not installed", or ``None``.
    """

    node_id: str
    resources: Resources
    accelerator_type: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    devices: Many[GpuDevice] | None = None
    has_simulated_gpus: bool = False
    address: str | None = None
    is_head: bool = False
    usable_cpus: Amount | None = None
    cpu_model: str | None = None
    is_expected: bool = False
    in_use: Resources | None = None
    held: dict[str, Resources] = Field(default_factory=dict)
    problem: str | None = None

    @cached_property
    def amounts(self) -> Amounts:
        """The node's resources and one unit of its device type, in ticks, and its host memory in bytes, if known."""
        return _amounts(self.resources, self.accelerator_type)

    @cached_property
    def smallest_gpu_memory_bytes(self) -> int | None:
        """The GPU memory of the smallest device in bytes, or ``None`` if it is unknown.

        If the devices were not read, the memory of the device type is returned. The memory is unknown if Ray counts
        more GPUs than were read, because several of Ray's GPUs would then share a device.
        """
        if self.resources.gpus == 0:
            return None
        if self.devices is None:
            return gpu_memory_of_type(self.accelerator_type)
        if len(self.devices) < self.resources.gpus:
            return None
        return min([device.memory_bytes // device.shared_by for device in self.devices], default=None)

    def with_less(self, resources: Resources) -> "NodeCapacity":
        """Return the node with its resources reduced to ``resources``. Unknown GPU memory remains unknown."""
        devices = self.devices
        if devices is not None and len(devices) < self.resources.gpus:
            devices = ()
        # The usable CPUs are a part of all CPUs of the node, and say nothing about the rest of them.
        return self.model_copy(update={"resources": resources, "devices": devices, "usable_cpus": None})

    @property
    def ray_labels(self) -> Mapping[str, str]:
        """The labels that Ray's selectors match, including the node's identifier."""
        if NODE_ID in self.labels:
            return self.labels
        return {NODE_ID: self.node_id, **self.labels}

    @cached_property
    def shape(self) -> Shape:
        """The host memory of the node in bytes, and the other properties that affect plans."""
        has = self.resources
        custom = tuple(has.custom.items()) if has.custom else ()
        # Plans mention memory that was not read and simulated GPUs, so both distinguish shapes.
        gpu_memory = (self.smallest_gpu_memory_bytes, self.devices is None, self.has_simulated_gpus) if has.gpus else ()
        others = (has.cpus, has.gpus, custom, self.accelerator_type, gpu_memory, self.usable_cpus, self.is_expected)
        return has.memory_bytes, others

    @cached_property
    def sort_key(self) -> tuple[object, ...]:
        """A key that orders nodes of similar shapes by everything else that a policy may read, and then by identifier.

        Nodes that differ only in their names are interchangeable. If the names came first, a plan could depend on them.
        """
        labels = sorted((key, value) for key, value in self.labels.items() if key != NODE_ID)
        in_use = () if self.in_use is None else sorted(self.in_use.ticks.items())
        return (
            self.resources.memory_bytes or 0,
            self.is_head,
            tuple(labels),
            tuple(in_use),
            self.cpu_model or "",
            self.node_id,
        )

    def __str__(self) -> str:
        has = self.resources
        gpus = amount_of(has.gpus, "GPU")
        if self.accelerator_type:
            gpus += f" ({self.accelerator_type})"
        parts = [amount_of(has.cpus, "CPU"), gpus]  # both are shown even if they are 0
        rest = has.replaced(cpus=0, gpus=0)
        if rest.memory_bytes is not None or rest.custom:
            parts.append(str(rest))
        return ", ".join(parts)


def _amounts(resources: Resources, accelerator_type: str | None) -> Amounts:
    if accelerator_type is None:
        return FrozenDict(resources.ticks)
    return FrozenDict(resources.ticks | {ACCELERATOR_TYPE_PREFIX + accelerator_type: TICKS})


class NodeGroup(NamedTuple):
    """One node of a shape, and the number of nodes with this shape."""

    node: NodeCapacity
    num_nodes: int


class NodeTypeCapacity(Value):
    """A type of node that the autoscaler can add.

    Attributes:
        name: The name of the type in the cluster's configuration.
        max_nodes_to_add: The maximum number of nodes that can be added, including pending nodes.
        accelerator_type: Ray's name of the device type, or ``None`` if the node type specifies none.
        devices: The GPUs, or ``None`` if they are unknown until a node is added.
        is_type_counted: Whether the autoscaler counts the device type as a resource of a node.
    """

    name: str
    resources: Resources
    max_nodes_to_add: Count
    accelerator_type: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    devices: Many[GpuDevice] | None = None
    is_type_counted: bool = True

    @cached_property
    def amounts(self) -> Amounts:
        """The resources of a node of this type, in ticks; see :attr:`NodeCapacity.amounts`."""
        return _amounts(self.resources, self.accelerator_type)

    def as_node(self) -> NodeCapacity:
        """Return a node of this type that the autoscaler has not added yet."""
        return NodeCapacity(
            node_id=self.name,
            resources=self.resources,
            accelerator_type=self.accelerator_type,
            labels=self.labels,
            devices=self.devices,
            is_expected=True,
        )
