"""The node catalogue: which kinds of nodes there could be, as the user writes them down, and what each costs."""

from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, model_validator

from tune_policies.errors import InvalidResourcesError
from tune_policies.resources import Bytes, Count, CustomAmounts, PositiveCount, Resources
from tune_policies.values import Value

NodeTypeName = Annotated[str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""A DNS label, as Kubernetes needs it in the names of pods."""


class Toleration(Value):
    """What lets a pod onto a tainted node; fields as in Kubernetes.

    Attributes:
        key: Of the taint.
        operator: ``"Exists"``, or ``"Equal"`` with a value.
        value: Of the taint.
        effect: ``"NoSchedule"``, ``"PreferNoSchedule"`` or ``"NoExecute"``; ``None``: each of them.
    """

    key: str
    operator: str = "Exists"
    value: str | None = None
    effect: str | None = "NoSchedule"


class NodeType(Value):
    """One kind of node.

    Attributes:
        name: Its name, also of the worker group: a DNS label.
        cpus: CPUs that Ray counts on it: whole, as KubeRay's autoscaler reads no parts.
        memory_bytes: Host memory.
        gpus: Whole GPUs.
        custom: Devices of other families by Ray's resource, such as ``{"TPU": 4}``, and any other resource.
        accelerator_type: Ray's name of its device type; ``None``: it has no devices, or any.
        topology: Of its TPU slices; the nodes of a slice come and go together.
        device_key: Under which name Kubernetes counts its devices; ``None``: as the device plugin of its family does.
            For parts of GPUs: ``"nvidia.com/mig-1g.10gb"``, ``"nvidia.com/gpu.shared"``.
        price_per_hour: Of one node, in the catalogue's currency; ``None``: not told.
        max_nodes: The most that there can be.
        labels: Ray's node labels.
        node_selector: Kubernetes labels of the nodes on which its pods run, beside those of its device type.
        tolerations: Taints that its pods tolerate, beside those of its device family.
        node_config: What Ray's launcher passes to the cloud, such as ``{"InstanceType": "g6.xlarge"}``.
    """

    name: NodeTypeName
    cpus: PositiveCount
    memory_bytes: Bytes
    gpus: Count = 0
    custom: CustomAmounts = Field(default_factory=dict)
    accelerator_type: str | None = None
    topology: str | None = None
    device_key: str | None = None
    price_per_hour: Annotated[float, Field(ge=0)] | None = None
    max_nodes: PositiveCount = 1000
    labels: dict[str, str] = Field(default_factory=dict)
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    node_config: dict[str, Any] = Field(default_factory=dict)

    @property
    def resources(self) -> Resources:
        """What Ray counts on one node."""
        return Resources(cpus=self.cpus, gpus=self.gpus, memory_bytes=self.memory_bytes, custom=self.custom)


class NodeCatalog(Value):
    """All kinds of nodes that there could be.

    Attributes:
        node_types: Each with a name of its own.
        head: The head node, which runs no trials; ``None``: a small one, see :data:`HEAD`.
        currency: Of the prices.
        date: The day on which they were so, as ``2026-11-21``.
    """

    node_types: tuple[NodeType, ...] = Field(min_length=1)
    head: NodeType | None = None
    currency: str = "USD"
    date: str | None = None

    @model_validator(mode="after")
    def _names_must_differ(self) -> Self:
        names = [each.name for each in self.node_types]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidResourcesError(f"each node type needs a name of its own, but {twice[0]!r} comes twice")
        return self


HEAD = NodeType(name="head", cpus=2, memory_bytes=8 * 2**30)
"""A head node that only manages: Ray's own processes need about so much."""
