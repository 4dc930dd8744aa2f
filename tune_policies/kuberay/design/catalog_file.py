"""The catalog: a user's list of nodes that exist or can be rented, with their counts and prices.

``plan --nodes`` plans on these nodes, ``kuberay design --nodes`` chooses among them, and
``plan --cluster FILE --nodes`` reads their prices.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator

from tune_policies.cluster.accelerators import (
    ACCELERATOR_TYPE_PREFIX,
    DEVICE_RESOURCES,
    check_accelerator_type,
    check_device_amount,
    check_type_of_resource,
)
from tune_policies.cluster.gpu_sizes import is_nominal, memory_of_nominal
from tune_policies.cluster.labels import ACCELERATOR_TYPE, check_selector, is_label_value
from tune_policies.cluster.node import GpuDevice
from tune_policies.cluster.tpu_slices import SliceShape, check_topology
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import MOST, Count, CustomAmounts, Memory, PositiveCount, Resources, format_amount
from tune_policies.values.units import format_bytes, format_request
from tune_policies.values.value import Value
from tune_policies.values.wording import kind_of, shorten

_DNS_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")

_NAME: Final = re.compile(r"[a-z]([-._a-z0-9]{0,61}[a-z0-9])?")
"""The pattern for the name of a node type. Ray's own names contain dots and underscores (``ray.worker.default``)."""

_DOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KEY: Final = re.compile(r"[a-zA-Z0-9]([-._a-zA-Z0-9]{0,61}[a-zA-Z0-9])?")
"""The patterns for the name of an extended resource: ``_DOMAIN`` before the slash, and ``_KEY`` after it."""


def check_dns_label(name: str) -> str:
    """Return ``name``, or raise :class:`InvalidResourcesError` if it cannot be part of the name of a pod."""
    if not _DNS_LABEL.fullmatch(name):
        message = (
            f"name {shorten(name)} is not valid: use at most 63 lowercase letters, digits and '-', starting with a "
            "letter"
        )
        near = re.sub(r"[^a-z0-9]+", "-", name.lower()).lstrip("-0123456789")[:63].rstrip("-")
        if near:
            message += f", such as {near!r}"
        raise InvalidResourcesError(message)
    return name


def _type_name(name: str) -> str:
    # Names that only a manifest refuses pass this check, because a catalog may be for Ray's launcher. ``_spec`` in
    # ``manifests.py`` checks them.
    if _NAME.fullmatch(name):
        return name
    return check_dns_label(name)


def _labels(labels: dict[str, str]) -> dict[str, str]:
    for key, value in labels.items():
        if not is_label_value(value):
            raise InvalidResourcesError(
                f"{value!r} cannot be the value of the label {key!r}: use at most 63 letters, digits, '.', '_' and '-'"
            )
    return check_selector(labels)


def _node_selector(labels: dict[str, str]) -> dict[str, str]:
    # Kubernetes allows empty label values, unlike Ray, so they are replaced for this check.
    _labels({key: value or "none" for key, value in labels.items()})
    return labels


def _device_key(key: str) -> str:
    domain, slash, name = key.partition("/")
    if not (_DOMAIN.fullmatch(domain) and slash and _KEY.fullmatch(name)):
        raise InvalidResourcesError(
            f"device_key {shorten(key)} is not a Kubernetes resource of devices: use a name such as 'nvidia.com/gpu'"
        )
    return key


def _node_resources(amounts: dict[str, float]) -> dict[str, float]:
    for name, amount in amounts.items():
        if name in ("cpu", "gpu"):
            raise InvalidResourcesError(f"custom resource {name!r} is Tune's name for {name.upper()}. Use {name}s")
        if name.startswith(ACCELERATOR_TYPE_PREFIX):
            raise InvalidResourcesError(
                f"custom resource {name!r} is Ray's name of a device type: use accelerator_type"
            )
        if not float(amount).is_integer():
            # Ray's autoscaler only accepts whole numbers in manifests.
            raise InvalidResourcesError(
                f"the custom resource {name!r} must be a whole number, got {format_amount(amount)}"
            )
    return amounts


class Toleration(Value):
    """A toleration of a pod, with the same fields as in Kubernetes. An ``effect`` of ``None`` matches all effects."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = "NoSchedule"

    @model_validator(mode="after")
    def _value_must_be_compared(self) -> Self:
        if (self.operator == "Equal") != (self.value is not None):
            raise InvalidResourcesError(
                f"the toleration of {self.key!r} has operator={self.operator!r} and value={self.value!r}, but 'Equal' "
                "requires a value, and 'Exists' does not allow a value"
            )
        return self


def _whole_cpus(value: object) -> object:
    """Reject a part of a CPU with the number to write. Kubernetes shows, for example, 3920m allocatable CPUs."""
    cpus = value
    # Fewer than four digits are less than one CPU, for which the number to write would be 0.
    if isinstance(value, str) and re.fullmatch(r"[0-9]{4,9}m", value):
        cpus = int(value.removesuffix("m")) / 1000
    if isinstance(cpus, float) and 1 <= cpus < MOST:
        raise InvalidResourcesError(
            f"cpus must be a whole number of CPUs, got {shorten(value)}. Write cpus: {int(cpus)}, because pods can "
            "request at most what a node has available"
        )
    return value


class NodeType(Value):
    """A node type, and the number of its nodes.

    Attributes:
        count: The number of nodes of this type. If it is ``None``, a plan counts one node or one TPU slice, and a
            design uses as many nodes as the trials need.
        min_nodes: The number of nodes that a designed cluster always keeps. If it is above 0, the cluster has a group
            of this type even if the trials do not need it.
        name: Lowercase letters, digits, ``-``, ``.`` and ``_``. It is also the name of the worker group, which must be
            a DNS label in a manifest. By default, it is derived from the devices.
        cpus: The number of CPUs that Ray counts. It must be a whole number, because Ray's autoscaler cannot read
            fractions.
        memory: The host memory as a string such as ``"32GiB"`` or in bytes. A design requires this field.
        gpu_memory: The memory of each GPU, such as ``"39GiB"``; ``None`` for the smallest memory of the device type.
        custom: Devices of other families by Ray's resource name, such as ``{"TPU": 4}``, and custom resources.
        accelerator_type: Ray's name of the device type; ``None`` for no devices or devices of an unspecified type.
        topology: The topology of its TPU slices, such as ``"4x4"``. The nodes of a slice are added and removed
            together.
        device_key: The Kubernetes resource of its devices; by default, the resource that their device plugin registers.
            For parts of GPUs, use ``"nvidia.com/mig-1g.10gb"`` or ``"nvidia.com/gpu.shared"``.
        price_per_hour: The price of one node in the catalog's currency, if known.
        labels: Ray's node labels, in addition to the label of its device type.
        node_selector: Kubernetes labels that select the nodes for its pods, in addition to the labels of its device
            type.
        tolerations: Tolerations of its pods, in addition to the toleration for its device family.
        node_config: Fields that Ray's launcher passes to the cloud provider, such as ``{"InstanceType": "g6.xlarge"}``.

    Raises:
        InvalidResourcesError: A field is wrong, or the fields contradict each other.
    """

    count: PositiveCount | None = None
    min_nodes: Count = 0
    name: Annotated[str, AfterValidator(_type_name)] = ""
    cpus: Annotated[PositiveCount, BeforeValidator(_whole_cpus)]
    memory: Memory | None = None
    gpus: Count = 0
    gpu_memory: Memory | None = None
    custom: Annotated[CustomAmounts, AfterValidator(_node_resources)] = Field(default_factory=dict)
    accelerator_type: Annotated[str, AfterValidator(check_accelerator_type)] | None = None
    topology: str | None = None
    device_key: Annotated[str, AfterValidator(_device_key)] | None = None
    price_per_hour: Annotated[float, Field(ge=0)] | None = None
    labels: Annotated[dict[str, str], AfterValidator(_labels)] = Field(default_factory=dict)
    node_selector: Annotated[dict[str, str], AfterValidator(_node_selector)] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    node_config: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _devices_must_agree(self) -> Self:
        devices = self.devices
        if len(devices) > 1:
            raise InvalidResourcesError(
                f"{self._title} has devices of several kinds ({', '.join(devices)}), but a pod can only have "
                "devices of one kind. Define a node type for each kind"
            )
        for resource, amount in devices.items():
            if resource != "GPU":
                check_device_amount(amount, resource)
            if self.accelerator_type is not None:
                check_type_of_resource(self.accelerator_type, resource)
        for field in ("accelerator_type", "device_key", "gpu_memory"):
            needs = devices if field != "gpu_memory" else self.gpus
            value = getattr(self, field)
            if not needs and value is not None:
                raise InvalidResourcesError(
                    f"{self._title} has {field}={value!r}, but no devices: set gpus, or custom such as {{'TPU': 4}}"
                )
        return self

    @model_validator(mode="after")
    def _slices_must_be_whole(self) -> Self:
        if self.topology is None:
            return self
        chips = int(self.custom.get("TPU", 0))
        if not chips or self.accelerator_type is None:
            raise InvalidResourcesError(
                f"topology={self.topology!r} is only valid for TPU slices: set custom={{'TPU': 4}} and an "
                "accelerator_type such as 'TPU-V6E'"
            )
        check_topology(self.topology, self.accelerator_type)
        shape = SliceShape(self.topology, self.accelerator_type)
        # The chips of a slice must be spread evenly over its hosts. A slice of one host has all of them there.
        if shape.chips % chips or (shape.has_one_host and shape.chips != chips):
            needed = f"{shape.chips} chips on its only node" if shape.has_one_host else "4 chips on each node"
            raise InvalidResourcesError(
                f"a {self.topology} slice of {self.accelerator_type} has {shape.chips} chips, so TPU: {chips} on each "
                f"node is not valid. Use {needed}"
            )
        if self.num_nodes % self.num_hosts:
            raise InvalidResourcesError(
                f"count={self.count} of {self._title} is not a whole number of {self.topology} slices: use a multiple "
                f"of {self.num_hosts}"
            )
        return self

    @model_validator(mode="after")
    def _minimum_must_be_possible(self) -> Self:
        if self.count is not None and self.min_nodes > self.count:
            raise InvalidResourcesError(
                f"{self._title} has min_nodes={self.min_nodes} above count={self.count}: raise count, or lower "
                "min_nodes"
            )
        if self.min_nodes % self.num_hosts:
            raise InvalidResourcesError(
                f"min_nodes={self.min_nodes} of {self._title} is not a whole number of {self.topology} slices: use a "
                f"multiple of {self.num_hosts}"
            )
        return self

    @property
    def _title(self) -> str:
        if self.name:
            return f"node type {self.name!r}"
        return "a node type"

    @property
    def resources(self) -> Resources:
        """The resources that Ray counts on one node."""
        return Resources(cpus=self.cpus, gpus=self.gpus, memory_bytes=self.memory, custom=self.custom)

    @property
    def num_nodes(self) -> int:
        """The number of nodes in a plan (``count`` or, if it is ``None``, one node or the hosts of one TPU slice)."""
        if self.count is None:
            return self.num_hosts
        return self.count

    @property
    def devices(self) -> dict[str, float]:
        """The number of devices by Ray's resource name, with at most one entry."""
        # Custom resources that are no devices are skipped.
        amounts = {"GPU": self.gpus, **self.custom}
        return {name: amount for name, amount in amounts.items() if amount > 0 and name in DEVICE_RESOURCES}

    @property
    def gpu_parts(self) -> tuple[GpuDevice, ...] | None:
        """The GPU partitions of a node, or ``None`` if it has none. Empty if their memory is unknown."""
        if not self.gpus:
            return None
        keys = () if self.device_key is None else (self.device_key,)
        return parts_of_gpus(keys, self.node_selector, self.gpus)

    @property
    def known_gpus(self) -> tuple[GpuDevice, ...] | None:
        """The GPUs of one node; empty or ``None`` if neither ``gpu_memory`` nor a MIG profile defines their memory."""
        if self.gpu_memory is None or not self.gpus:
            return self.gpu_parts
        name = self.accelerator_type or "GPU"
        return tuple(GpuDevice(index=at, name=name, memory_bytes=self.gpu_memory) for at in range(self.gpus))

    @property
    def caution(self) -> str | None:
        """A sentence about ``gpu_memory`` if it is probably the nominal size. Trials get less than that."""
        # For parts of GPUs, ``gpu_memory`` is not the size of a whole GPU.
        if self.gpu_memory is None or self.gpu_parts is not None:
            return None
        nominal = int(self.gpu_memory)
        if not is_nominal(nominal):
            return None
        text = f"gpu_memory of {self._title} is {format_bytes(nominal)}, the nominal size of its GPUs"
        usable = memory_of_nominal(self.accelerator_type, nominal)
        if usable is None:
            return f"{text}, but drivers report 1 to 8 % less. Write the total that nvidia-smi reports"
        if usable >= nominal:
            return None
        return (
            f"{text}, but a driver may report only {format_bytes(usable)} for {self.accelerator_type}. Write the total "
            f"that nvidia-smi reports, such as gpu_memory: {format_request(usable)}"
        )

    @property
    def num_hosts(self) -> int:
        """The number of nodes that are added and removed together (the hosts of a TPU slice, or 1)."""
        if self.topology is None or self.accelerator_type is None:
            return 1
        return SliceShape(self.topology, self.accelerator_type).chips // int(self.custom["TPU"])

    @property
    def ray_labels(self) -> dict[str, str]:
        """Ray's node labels, including those that Ray adds when it detects the devices.

        Ray Train reserves a TPU slice by the labels of its first host. Autoscaler v2 adds no slice unless the group
        has these labels.
        """
        if self.accelerator_type is None:
            return dict(self.labels)
        of_type = {ACCELERATOR_TYPE: self.accelerator_type}
        if self.topology is not None:
            of_type |= SliceShape(self.topology, self.accelerator_type).head_labels
        return {**of_type, **self.labels}


def node_type_name(cpus: int, resource: str | None, devices: int, accelerator_type: str | None, *more: str) -> str:
    """Return a default name for a node type, such as ``"a100-x4"`` or ``"cpu-16"``."""
    what = accelerator_type or resource
    if what is None:
        return f"cpu-{cpus}"
    parts = [*re.findall(r"[a-z0-9]+", what.lower()), *more]
    if devices > 1:
        parts.append(f"x{devices}")
    return "-".join(parts)


def _named(node_types: tuple[NodeType, ...]) -> tuple[NodeType, ...]:
    """Return the node types, with a unique name for each node type that has none."""
    # Given names come first, so that a derived name never takes the name that a user chose.
    taken = {node_type.name for node_type in node_types}
    named = []
    for node_type in node_types:
        if not node_type.name:
            resource, devices = next(iter(node_type.devices.items()), (None, 0))
            topology = [node_type.topology] if node_type.topology else []
            name = node_type_name(node_type.cpus, resource, int(devices), node_type.accelerator_type, *topology)
            free, number = name, 1
            while free in taken:
                number += 1
                free = f"{name}-{number}"
            taken.add(free)
            node_type = node_type.model_copy(update={"name": free})
        named.append(node_type)
    return tuple(named)


class NodeCatalog(Value):
    """A list of the available nodes.

    Attributes:
        nodes: The types of worker nodes, each with its ``count``; at most 200 types.
        head: The head node; by default a small node, :data:`HEAD`. It runs trials only if it has devices.
        currency: The currency of the prices.
        date: The date of the prices, such as ``2026-11-21``.

    Raises:
        InvalidResourcesError: A field is wrong, or two node types have the same name.
    """

    nodes: Annotated[tuple[NodeType, ...], Field(max_length=200), AfterValidator(_named)]
    head: NodeType | None = None
    currency: str = "USD"
    date: Annotated[str, StringConstraints(pattern=r"^\d{4}-\d{2}-\d{2}$")] | None = None

    @model_validator(mode="after")
    def _node_types_must_go_together(self) -> Self:
        if not self.nodes:
            raise InvalidResourcesError("nodes is empty: list at least one node, such as {count: 8, cpus: 32, gpus: 4}")
        # The head is a node type of the written file too, so its name must differ from the others.
        head = self.head or HEAD
        names = [head.name, *(node_type.name for node_type in self.nodes)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            message = f"the names of node types must be unique, but {twice[0]!r} is used twice"
            if twice[0] == head.name:
                message += ", once for the head"
            raise InvalidResourcesError(f"{message}. Rename one of them")
        if head.min_nodes or head.num_hosts > 1:
            raise InvalidResourcesError(
                "the head is a single node: remove its min_nodes, and use a topology of one host if it has TPUs"
            )
        for node_type in (head, *self.nodes):
            if node_type.gpu_parts is not None and node_type.gpus > 1:
                # A process can use at most one MIG instance, and several time slices may belong to one GPU, but Ray
                # assumes that a pod has n devices with the indices 0 to n - 1. Source:
                # https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
                raise InvalidResourcesError(
                    f"node type {node_type.name!r} has {node_type.gpus} parts of GPUs in a pod, but a process can use "
                    "only one of them. Set gpus to 1, and reduce the CPUs and the memory to the amounts for one part"
                )
        return self

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Build the catalog from plain data: a mapping of its fields, or only the list of its nodes."""
        if isinstance(data, list):
            data = {"nodes": data}
        if not isinstance(data, dict):
            raise InvalidResourcesError(
                f"it must be YAML or JSON, such as 'nodes: [{{name: l4, cpus: 3, gpus: 1}}]', got {kind_of(data)}"
            )
        return super().from_dict(data)

    @property
    def price_per_hour(self) -> float | None:
        """The price per hour of all worker nodes and, if its price is known, of the head.

        It is ``None`` if the price of a worker node is unknown.
        """
        total = 0.0
        if self.head is not None:
            total = self.head.price_per_hour or 0.0
        for node_type in self.nodes:
            if node_type.price_per_hour is None:
                return None
            total += node_type.num_nodes * node_type.price_per_hour
        return total

    def of_nodes(self, numbers: Mapping[str, int]) -> Self:
        """Return the catalog with only these numbers of nodes, by the name of their type."""
        nodes = tuple(
            node_type.model_copy(update={"count": numbers[node_type.name]})
            for node_type in self.nodes
            if node_type.name in numbers
        )
        return self.model_copy(update={"nodes": nodes})

    @property
    def lists_offers(self) -> bool:
        """Whether the catalog lists nodes to rent, because at least one type has a price, and one has no count."""
        has_price = any(node_type.price_per_hour is not None for node_type in self.nodes)
        return has_price and any(node_type.count is None for node_type in self.nodes)

    @property
    def cautions(self) -> tuple[str, ...]:
        """Sentences about amounts that may differ from those of the real nodes."""
        head = () if self.head is None else (self.head,)
        cautions = (node_type.caution for node_type in (*head, *self.nodes))
        return tuple(caution for caution in cautions if caution is not None)


HEAD = NodeType(name="head", cpus=2, memory=8 * 2**30)
"""The default head node, which runs only Ray's own processes."""

_MIG_KEY: Final = re.compile(r"nvidia\.com/mig-(.+)")
_PROFILE: Final = re.compile(r"\d+g\.(\d{1,9})gb\b.*")
"""Matches the name of a MIG profile. The capturing group contains the nominal memory in GB.

Source: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
"""

_MIG_MARGIN: Final = 0.05
"""The fraction by which the memory of a MIG instance may be smaller than its name states.

``nvidia-smi mig -lgip`` lists ``1g.18gb`` of an H200 with 16.00 GiB, 4.6 % less than 18 GB.
"""

_GKE_PROFILE: Final = "cloud.google.com/gke-gpu-partition-size"
_GKE_SHARING: Final = "cloud.google.com/gke-gpu-sharing-strategy"
"""GKE also uses the key ``nvidia.com/gpu`` for parts of GPUs, and adds these labels to nodes with partitioned GPUs."""


def parts_of_gpus(keys: Iterable[str], selector: Mapping[str, str], number: int) -> tuple[GpuDevice, ...] | None:
    """Return the devices of a pod with ``number`` parts of GPUs, or ``None`` if its GPUs are whole.

    A MIG instance has its own memory. The result contains its nominal size, reduced by the fraction ``_MIG_MARGIN``.
    Time slices share the memory of one GPU with other pods, so their memory is unknown and the result is empty.

    Args:
        keys: The names of the Kubernetes resources that the pod requests.
        selector: The node selector of the pod.
        number: The number of parts.
    """
    # Time slices come first, because slices of a MIG instance share its memory too.
    if _GKE_SHARING in selector or any(key.endswith(".shared") for key in keys):
        return ()
    named = [match[1] for match in map(_MIG_KEY.fullmatch, keys) if match]
    if not named and _GKE_PROFILE in selector:
        named = [selector[_GKE_PROFILE]]
    if not named:
        return None
    sizes = [_nominal_gb(profile) for profile in named]
    least = min(sizes)  # a trial may get the smallest of several kinds of parts
    memory = int(least * 10**9 * (1 - _MIG_MARGIN))
    if not memory:
        return ()
    name = f"MIG {named[sizes.index(least)]}"
    return tuple(GpuDevice(index=at, name=name, memory_bytes=memory) for at in range(number))


def _nominal_gb(profile: str) -> int:
    """Return the memory of a MIG profile in GB, or 0 if the name of the profile does not contain it."""
    size = _PROFILE.fullmatch(profile)
    return 0 if size is None else int(size[1])
