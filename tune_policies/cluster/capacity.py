"""The nodes of a cluster with their devices, and the nodes that can be added.

A ``ClusterCapacity`` can be saved as JSON, so that you can make plans for it on another machine. The functions at the
end of this module convert Ray's resource amounts.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX, gpu_memory_of_type
from tune_policies.cluster.labels import NODE_ID, is_none_of
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import (
    MOST,
    TICKS,
    Amount,
    Amounts,
    Bytes,
    Count,
    PositiveCount,
    Resources,
    amount_of,
)
from tune_policies.values.value import FrozenDict, Many, ShownValue, Value

if TYPE_CHECKING:
    from rich.console import RenderableType

AutoscalerVersion = Literal[1, 2]

DEFAULT_AUTOSCALER: Final[AutoscalerVersion] = 2
"""The version that KubeRay starts by default since Ray 2.48, and ``ray up`` since Ray 2.50."""

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


class ReducedNodes(Sequence[NodeCapacity]):
    """The nodes in ``before`` with their resources reduced to ``resources``.

    Each node is created on access, because a planner reads only one node per shape and the identifiers of the rest.
    """

    def __init__(self, before: Sequence[NodeCapacity], resources: Resources) -> None:
        self.before = before
        self.resources = resources

    @cached_property
    def _first(self) -> NodeCapacity:
        return self.before[0].with_less(self.resources)

    def __getitem__(self, index: Any) -> Any:
        if index == 0:
            return self._first  # cached, because a planner reads it many times
        if isinstance(index, slice):
            return ReducedNodes(self.before[index], self.resources)
        return self.before[index].with_less(self.resources)

    def __len__(self) -> int:
        return len(self.before)


class AlikeNodes(Sequence[NodeCapacity]):
    """Nodes that differ only in their identifiers, and hold nothing.

    ``create`` returns all nodes, and is called only if another node than the first is read. A planner usually reads
    only the first node.
    """

    def __init__(self, first: NodeCapacity, number: int, create: Callable[[], Sequence[NodeCapacity]]) -> None:
        self._first = first
        self._number = number
        self._create = create

    def __iter__(self) -> Iterator[NodeCapacity]:
        return iter(self._create())

    def __getitem__(self, index: Any) -> Any:
        if index == 0:
            return self._first
        return self._create()[index]

    def __len__(self) -> int:
        return self._number


def _joined(parts: Sequence[Sequence[NodeCapacity]]) -> Sequence[NodeCapacity]:
    """Return the nodes of all parts. If some parts are reduced, all nodes get the resources of the first node."""
    if len(parts) == 1:
        return parts[0]
    if any(type(part) is ReducedNodes for part in parts):
        return ReducedNodes(tuple(chain.from_iterable(map(nodes_before, parts))), parts[0][0].resources)
    if any(type(part) in (AlikeNodes, _Chained) for part in parts):
        return _Chained(parts)
    return tuple(chain.from_iterable(parts))


def nodes_before(nodes: Sequence[NodeCapacity]) -> Sequence[NodeCapacity]:
    """Return the original, unreduced nodes. They have the same identifiers and labels as the reduced nodes."""
    if type(nodes) is ReducedNodes:  # isinstance() with an abstract class is slow
        return nodes.before
    return nodes


class _Chained(Sequence[NodeCapacity]):
    """Several sequences of nodes as one sequence, without a copy."""

    def __init__(self, parts: Sequence[Sequence[NodeCapacity]]) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[NodeCapacity]:
        return chain.from_iterable(self.parts)

    def __getitem__(self, index: Any) -> Any:
        if index == 0 and self.parts and self.parts[0]:
            return self.parts[0][0]
        return tuple(self)[index]

    def __len__(self) -> int:
        return sum(map(len, self.parts))


def _distinct(nodes: Sequence[NodeCapacity]) -> Iterator[NodeCapacity]:
    """Yield the nodes without reduced resources, but only one of nodes that differ only in their identifiers."""
    if type(nodes) is _Chained:
        yield from chain.from_iterable(map(_distinct, nodes.parts))
    elif type(nodes) is AlikeNodes:
        yield nodes[0]
    else:
        yield from nodes_before(nodes)


def _memory_of_shape(shape_and_nodes: tuple[Shape, object]) -> int:
    return shape_and_nodes[0][0] or 0


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


class ClusterCapacity(ShownValue):
    """The alive nodes of a cluster, and the node types that can be added.

    Attributes:
        nodes: The alive nodes that are not being drained, in any order.
        draining: Alive nodes that are being drained. Plans ignore them, because Ray places nothing on them.
        unusable: Alive nodes on which trials cannot run, because this package is missing there or has another version.
            Plans ignore them, and prevent Ray from placing trials on them.
        node_types: The node types that the autoscaler can add, in the order of the cluster's configuration, or ``None``
            if an autoscaler runs but its node types are unknown.
        max_nodes_to_add: The maximum number of nodes of all types together that can be added, or ``None`` for no limit.
        autoscaler_version: The version of Ray's autoscaler, which determines the node types that it launches.
        is_started_here: Whether the program that read the cluster has started Ray itself, with ``ray.init``.
        read_at: The time when the cluster was read, or ``None`` if the capacity was not read from a cluster.
    """

    nodes: Many[NodeCapacity] = ()
    draining: Many[NodeCapacity] = ()
    unusable: Many[NodeCapacity] = ()
    node_types: Many[NodeTypeCapacity] | None = ()
    max_nodes_to_add: Count | None = None
    autoscaler_version: AutoscalerVersion = DEFAULT_AUTOSCALER
    is_started_here: bool = False
    read_at: datetime | None = None

    def __rich__(self) -> "RenderableType":
        from tune_policies.cluster.cluster_view import cluster_view  # the view imports this module

        return cluster_view(self)

    @model_validator(mode="after")
    def _node_ids_must_differ(self) -> Self:
        every = (*self.nodes, *self.draining, *self.unusable)
        _check_different([node.node_id for node in every], "the node_id of each node")
        _check_different([node_type.name for node_type in self.node_types or ()], "the name of each node type")
        return self

    @model_validator(mode="after")
    def _count_nodes_of_devices(self) -> Self:
        # Time slices, MPS and several Ray nodes on a machine let nodes use the same GPU. Its memory counts only once.
        every = (*self.nodes, *self.draining, *self.unusable)
        numbers = Counter(device.uuid for node in every for device in node.devices or () if device.uuid is not None)
        if len(numbers) < numbers.total():
            self.__dict__["nodes"] = tuple(_with_shared_devices(node, numbers) for node in self.nodes)
        return self

    def held_by(self) -> dict[str, Counter[str]]:
        """Return the ticks that the program itself reserves on the alive nodes, by holder and resource."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for nodes in self.nodes_by_shape.values():
            for node in _distinct(nodes):
                for holder, resources in node.held.items():
                    found[holder].update(resources.ticks)
        return {**found}

    def nodes_by_shared_device(self) -> dict[str, list[NodeCapacity]]:
        """Return the nodes of each GPU that several nodes report, by the UUID of the GPU."""
        found: dict[str, list[NodeCapacity]] = defaultdict(list)
        for nodes in self.nodes_by_shape.values():
            if any(device.shared_by > 1 for device in nodes[0].devices or ()):
                for node in nodes:
                    for device in node.devices or ():
                        if device.shared_by > 1 and device.uuid is not None:
                            found[device.uuid].append(node)
        return {**found}

    @cached_property
    def nodes_by_shape(self) -> dict[Shape, Sequence[NodeCapacity]]:
        """The nodes of each shape. The time to make a plan depends on the number of shapes."""
        nodes_of: dict[Shape, list[NodeCapacity]] = defaultdict(list)
        for node in self.nodes:
            nodes_of[node.shape].append(node)
        return {**nodes_of}

    @property
    def usable_selector(self) -> dict[str, str]:
        """The label selector that excludes the unusable nodes, or ``{}`` if there are none."""
        if self.unusable:
            return {NODE_ID: is_none_of(node.node_id for node in self.unusable)}
        return {}

    @cached_property
    def groups(self) -> tuple[NodeGroup, ...]:
        """One node of each shape, and the number of nodes with this shape."""
        return tuple(NodeGroup(nodes[0], len(nodes)) for nodes in self.nodes_by_shape.values())

    def in_steps_of_memory(self, step_bytes: int, most_steps: int = 2**63) -> "ClusterCapacity":
        """Return the cluster after merging the shapes that differ only in host memory and are in the same memory step.

        The host memory of equal machines can differ by a few bytes, and such differences affect few requests. All nodes
        with at least ``most_steps`` steps of memory count as equal in memory. The node with the most memory represents
        the shape.
        """
        kept: dict[tuple[int, int], ClusterCapacity | None] = self.__dict__.setdefault("_in_steps", {})
        key = step_bytes, most_steps
        if key not in kept:
            kept[key] = self._joined_in_steps(*key)
        return kept[key] or self

    def _joined_in_steps(self, step_bytes: int, most_steps: int) -> "ClusterCapacity | None":
        """Return the result of ``in_steps_of_memory``, or ``None`` if no shapes can be merged."""
        steps = []
        for memory, others in self.nodes_by_shape:
            in_steps = None if memory is None else min(memory // step_bytes, most_steps)
            steps.append((in_steps, others))
        if len(set(steps)) == len(steps):  # usually true, and avoids the slow merge
            return None
        alike: dict[Shape, list[tuple[Shape, Sequence[NodeCapacity]]]] = defaultdict(list)
        for step, shape_and_nodes in zip(steps, self.nodes_by_shape.items(), strict=True):
            alike[step].append(shape_and_nodes)
        by_shape: dict[Shape, Sequence[NodeCapacity]] = {}
        for some in alike.values():
            some.sort(key=_memory_of_shape, reverse=True)
            shape, nodes = some[0]
            if len(some) > 1:
                nodes = _joined([nodes for _, nodes in some])
            by_shape[shape] = nodes
        seen = self.model_copy()
        seen.__dict__ |= {"nodes_by_shape": by_shape, "_is_in_steps": True}
        return seen

    def nodes_of(self, groups: Iterable[NodeGroup]) -> Iterator[NodeCapacity]:
        """Yield all nodes of these groups."""
        for node, _ in groups:
            yield from self.nodes_by_shape.get(node.shape, ())

    def labels_of(self, groups: Iterable[NodeGroup], key: str) -> set[str | None]:
        """Return the values of a label on the nodes of these groups, with ``None`` if a node lacks the label."""
        values: set[str | None] = set()
        for one, _ in groups:
            values.update(node.labels.get(key) for node in _distinct(self.nodes_by_shape.get(one.shape, ())))
        return values

    def with_nodes(self, nodes: Iterable[NodeCapacity]) -> "ClusterCapacity":
        """Return the cluster with ``nodes`` as its alive nodes. The nodes are not validated."""
        return self.model_copy(update={"nodes": tuple(nodes)})

    def replacing(self, changed: Mapping[str, NodeCapacity]) -> "ClusterCapacity":
        """Return the cluster with some nodes replaced. ``changed`` maps node identifiers to the new nodes."""
        if "_is_in_steps" in self.__dict__:
            return self.model_copy().replacing(changed)  # changed nodes need exact shapes
        by_shape = dict(self.nodes_by_shape)
        for shape in {node.shape for node in self.nodes if node.node_id in changed}:
            nodes = tuple(node for node in by_shape.pop(shape) if node.node_id not in changed)
            if nodes:
                by_shape[shape] = nodes
        for node in changed.values():
            by_shape[node.shape] = (*by_shape.get(node.shape, ()), node)
        return self._with_shapes(by_shape)

    def with_less(
        self, parts: Mapping[Shape, Iterable[tuple[Sequence[NodeCapacity], Resources | None]]]
    ) -> "ClusterCapacity":
        """Return the cluster with fewer resources on some nodes.

        ``parts`` maps each changed shape to all its nodes, grouped by their remaining resources, or by
        ``None`` if their resources are unchanged.
        """
        by_shape = dict(self.nodes_by_shape)  # a copy does not hash the shapes again, which would be slow
        for shape in parts:
            del by_shape[shape]
        for shape, changes in parts.items():
            before = self.nodes_by_shape[shape]
            for nodes, left in changes:
                if left is None and type(before) is not ReducedNodes:
                    now: Sequence[NodeCapacity] = tuple(nodes)
                else:
                    resources = before[0].resources if left is None else left
                    now = ReducedNodes(nodes_before(nodes), resources)
                one = now[0]
                others = by_shape.get(one.shape)
                if others:
                    now = ReducedNodes([*nodes_before(others), *nodes_before(now)], one.resources)
                by_shape[one.shape] = now
        return self._with_shapes(by_shape)

    def with_nodes_added(self, nodes_to_add: Mapping[str, int]) -> "ClusterCapacity":
        """Return the cluster plus ``nodes_to_add[name]`` nodes of each node type, and without an autoscaler."""
        by_shape = dict(self.nodes_by_shape)
        for node_type in self.node_types or ():
            number = nodes_to_add.get(node_type.name, 0)
            if number:
                nodes = self._nodes_of_type(node_type, number)
                by_shape[nodes[0].shape] = (*by_shape.get(nodes[0].shape, ()), *nodes)
        return self._with_shapes(by_shape, node_types=(), max_nodes_to_add=None)

    def _nodes_of_type(self, node_type: NodeTypeCapacity, number: int) -> list[NodeCapacity]:
        """Return ``number`` new nodes of a type. They are cached, because searches call this method many times."""
        cached: dict[str, list[NodeCapacity]] = self.__dict__.setdefault("_expected_nodes", {})
        nodes = cached.setdefault(node_type.name, [])
        if len(nodes) < number:
            node = node_type.as_node()
            ids = islice(_free_ids(node_type.name, {node.node_id for node in self.nodes}), len(nodes), number)
            nodes += [node.model_copy(update={"node_id": node_id}) for node_id in ids]
        return nodes[:number]

    def where(self, holds: Callable[[NodeCapacity], bool]) -> "ClusterCapacity":
        """Return the cluster with only the alive nodes for which ``holds`` is true."""
        if "nodes_by_shape" not in self.__dict__ or "_is_in_steps" in self.__dict__:
            return self.with_nodes(filter(holds, self.nodes))
        kept: dict[Shape, Sequence[NodeCapacity]] = {
            shape: tuple(filter(holds, nodes)) for shape, nodes in self.nodes_by_shape.items()
        }
        return self._with_shapes({shape: nodes for shape, nodes in kept.items() if nodes})

    def _with_shapes(self, nodes_by_shape: dict[Shape, Sequence[NodeCapacity]], **changes: Any) -> "ClusterCapacity":
        """Return the cluster with ``nodes_by_shape`` as its alive nodes."""
        of_shapes = nodes_by_shape.values()
        is_lazy = any(type(nodes) in (ReducedNodes, AlikeNodes, _Chained) for nodes in of_shapes)
        # A tuple would create every node.
        nodes = _Chained(tuple(of_shapes)) if is_lazy else tuple(chain.from_iterable(of_shapes))
        changed = self.model_copy(update={"nodes": nodes, **changes})
        changed.__dict__["nodes_by_shape"] = nodes_by_shape  # grouping the nodes again would be slow
        if "_is_in_steps" in self.__dict__:
            changed.__dict__["_is_in_steps"] = True
        return changed

    @classmethod
    def of(cls, *nodes: Resources | NodeCapacity) -> "ClusterCapacity":
        """Return a capacity with one node per argument, as in ``of(Resources(cpus=8, gpus=4))``."""
        taken = {node.node_id for node in nodes if isinstance(node, NodeCapacity)}
        free_ids = (f"node-{i}" for i in count() if f"node-{i}" not in taken)
        named = []
        for node in nodes:
            if not isinstance(node, NodeCapacity):
                node = NodeCapacity(node_id=next(free_ids), resources=node)
            named.append(node)
        return cls(nodes=tuple(named))

    @classmethod
    def of_parts(cls, parts: Sequence[Sequence[NodeCapacity]]) -> "ClusterCapacity":
        """Return a capacity with the nodes of all parts, without validation.

        The nodes of a part must have the same shape.
        """
        of_shape: dict[Shape, list[Sequence[NodeCapacity]]] = defaultdict(list)
        for nodes in parts:
            if nodes:
                of_shape[nodes[0].shape].append(nodes)
        capacity = cls().with_nodes(())
        by_shape = {shape: _joined(some) for shape, some in of_shape.items()}
        # Grouping the nodes one by one would be slow.
        capacity.__dict__ |= {"nodes": _Chained(parts), "nodes_by_shape": by_shape}
        return capacity

    def gpu_nodes(self, accelerator_type: str | None = None) -> Iterator[NodeCapacity]:
        """Yield the nodes with GPUs, optionally only those with GPUs of one type."""
        for node in self.nodes:
            if node.resources.gpus > 0 and accelerator_type in (None, node.accelerator_type):
                yield node

    def gpu_groups(self, accelerator_type: str | None = None) -> Iterator[NodeGroup]:
        """Yield the nodes with GPUs, grouped by shape, optionally only those with GPUs of one type."""
        for group in self.groups:
            if group.node.resources.gpus > 0 and accelerator_type in (None, group.node.accelerator_type):
                yield group


def _with_shared_devices(node: NodeCapacity, numbers: Mapping[str, int]) -> NodeCapacity:
    """Return the node with the number of nodes that report each of its devices."""
    if node.devices is None:
        return node
    shared_by = [numbers.get(device.uuid or "", 1) for device in node.devices]
    devices = (
        device.model_copy(update={"shared_by": number}) for device, number in zip(node.devices, shared_by, strict=True)
    )
    return node.model_copy(update={"devices": tuple(devices)})


def _check_different(names: Sequence[str], what: str) -> None:
    if len(set(names)) < len(names):
        twice = min(name for name, number in Counter(names).items() if number > 1)
        raise InvalidResourcesError(f"{what} must be unique, but {twice!r} occurs more than once")


def _free_ids(name: str, taken: set[str]) -> Iterator[str]:
    prefix = name
    while any(node_id.startswith(f"{prefix}+") for node_id in taken):
        prefix += "+"
    return (f"{prefix}+{i}" for i in count(1))


HEAD_RESOURCE: Final = "node:__internal_head__"
"""The resource that only the head node has (``HEAD_NODE_RESOURCE_NAME`` in Ray)."""

# Reservations of placement groups appear as additional resources such as CPU_group_0_<36 hex digits>.
_NOT_CUSTOM: Final = re.compile(
    rf"(CPU|GPU|memory|object_store_memory)\Z|node:|{ACCELERATOR_TYPE_PREFIX}|.*_group_(\d+_)?[0-9a-f]{{36}}$",
    re.DOTALL,
)


def to_resources(totals: Mapping[str, float]) -> Resources:
    """Return the resources of a node from Ray's totals, without Ray's internal resources.

    Amounts of custom resources are capped at the maximum amount of a request.
    """
    memory = totals.get("memory", 0)
    return Resources(
        cpus=totals.get("CPU", 0),
        gpus=totals.get("GPU", 0),
        memory_bytes=int(memory) if memory >= 1 else None,
        custom={name: min(amount, MOST) for name, amount in totals.items() if not _NOT_CUSTOM.match(name)},
    )


def in_use(totals: Mapping[str, float], available: Mapping[str, float]) -> Resources:
    """Return the reserved resources of a node. A number of GPUs above 1 is rounded up to a whole number."""
    # Ray omits fully used resources. The free amounts and the totals can come from different moments.
    used = {name: max(0.0, total - available.get(name, 0)) for name, total in totals.items()}
    if used.get("GPU", 0) > 1:
        used["GPU"] = math.ceil(round(used["GPU"], 4))
    return to_resources({name: round(amount, 4) for name, amount in used.items()})


def accelerator_type_of(totals: Mapping[str, float]) -> str | None:
    """Return a node's device type, or ``None``. If it has several types, return the first in alphabetical order."""
    types = sorted(name for name in totals if name.startswith(ACCELERATOR_TYPE_PREFIX))
    if types:
        return types[0].removeprefix(ACCELERATOR_TYPE_PREFIX)
    return None
