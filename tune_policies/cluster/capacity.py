"""What exists: the nodes of a cluster with their devices, and the nodes that could still be added.

A capacity is a value. It can be saved as JSON where the cluster is, and planned against elsewhere. At the end: how
Ray's own dict of resource amounts becomes values.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import chain, count, islice
from typing import Any, ClassVar, Final, NamedTuple, Self, cast, overload

from pydantic import Field, model_validator

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX, gpu_memory_of_type
from tune_policies.cluster.labels import NODE_ID
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import MOST, TICKS, Amount, Amounts, Bytes, Count, Resources, amount_of
from tune_policies.values.value import Many, ShownValue, Value


class GpuDevice(Value):
    """One physical GPU, or one MIG device of it.

    Attributes:
        index: Its number on the node, from 0.
        name: The model, as its driver calls it.
        memory_bytes: Total GPU memory.
        uuid: The driver's identifier.
    """

    index: Count
    name: str
    memory_bytes: Bytes
    uuid: str | None = None


class NodeCapacity(Value):
    """One alive node.

    Attributes:
        node_id: Ray's identifier, in hexadecimal.
        resources: Everything the node has, used or not.
        accelerator_type: Ray's name of its device type, such as ``"A100"``.
        labels: Ray's node labels.
        devices: Its physical GPUs; ``None``: not read.
        address: Its IP address, by which a user may exclude it.
        is_head: Whether it is the cluster's head node.
        usable_cpus: CPUs that its cgroup quota, its CPU affinity and ``SLURM_CPUS_PER_TASK`` allow, which Ray may
            not know; ``None``: not read.
        cpu_model: What its system calls its CPUs; ``None``: not read. It takes no part in how much fits.
        is_expected: Whether it is not there yet: a plan counts on the autoscaler to add it.
        in_use: What was reserved when it was read. It takes no part in planning, which goes by totals.
    """

    node_id: str
    resources: Resources
    accelerator_type: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    devices: Many[GpuDevice] | None = None
    address: str | None = None
    is_head: bool = False
    usable_cpus: Amount | None = None
    cpu_model: str | None = None
    is_expected: bool = False
    in_use: Resources | None = None

    @cached_property
    def amounts(self) -> Amounts:
        """All that Ray counts of the node, one unit of its device type too; without ``memory``, that is not known."""
        return _amounts(self.resources, self.accelerator_type)

    @cached_property
    def smallest_gpu_memory_bytes(self) -> int | None:
        """GPU memory of the smallest device, which Ray may hand out first; ``None``: not known.

        What was not read comes from the table of known types. It is not known where Ray counts more GPUs than
        there are devices: several would then be the same one.
        """
        if self.resources.gpus == 0:
            return None
        if self.devices is None:
            return gpu_memory_of_type(self.accelerator_type)
        if len(self.devices) < self.resources.gpus:
            return None
        return min([device.memory_bytes for device in self.devices], default=None)

    def with_less(self, resources: Resources) -> "NodeCapacity":
        """Return the node with fewer resources, of which nothing is known that was not known of all of them.

        With as many devices as GPUs are left, GPU memory would seem to be known where Ray counts GPUs that the driver
        does not list; and what its CPUs really are would be told of a node that has fewer now.
        """
        is_hidden = self.devices is not None and len(self.devices) < self.resources.gpus
        devices = () if is_hidden else self.devices
        return self.model_copy(update={"resources": resources, "devices": devices, "usable_cpus": None})

    @property
    def ray_labels(self) -> Mapping[str, str]:
        """The labels by which Ray selects: those that are given, and the node's own identifier."""
        return self.labels if NODE_ID in self.labels else {NODE_ID: self.node_id, **self.labels}

    @cached_property
    def shape(self) -> tuple[Any, ...]:
        """What a planner sees of the node, its host memory first: nodes of one shape are alike to it."""
        has = self.resources
        custom = tuple(has.custom.items()) if has.custom else ()
        gpu_memory = (self.smallest_gpu_memory_bytes, self.devices is None) if has.gpus else ()
        return (
            *(has.memory_bytes, has.cpus, has.gpus, custom, self.accelerator_type, gpu_memory),
            *(self.usable_cpus, self.is_expected),
        )

    def __str__(self) -> str:
        has = self.resources
        device = f" ({self.accelerator_type})" if self.accelerator_type else ""
        # What is missing is worth saying of a node: "8 CPUs, 0 GPUs".
        parts = [amount_of(has.cpus, "CPU"), amount_of(has.gpus, "GPU") + device]
        rest = has.replaced(cpus=0, gpus=0)
        return ", ".join(parts if rest.memory_bytes is None and not rest.custom else [*parts, str(rest)])


def _amounts(resources: Resources, accelerator_type: str | None) -> Amounts:
    of_type = {} if accelerator_type is None else {ACCELERATOR_TYPE_PREFIX + accelerator_type: TICKS}
    return resources.ticks | of_type


class ReducedNodes(Sequence[NodeCapacity]):
    """Nodes that have become alike, as all have fewer resources than before. Each is made when it is asked for.

    Most are never asked for: a planner looks at one node of each shape, and tells the others by their identifiers.

    Args:
        before: The nodes as they were before, of any shapes.
        resources: What each of them has now.
    """

    def __init__(self, before: Sequence[NodeCapacity], resources: Resources) -> None:
        self.before = before
        self.resources = resources

    @overload
    def __getitem__(self, index: int) -> NodeCapacity: ...
    @overload
    def __getitem__(self, index: slice) -> "ReducedNodes": ...
    def __getitem__(self, index: int | slice) -> "NodeCapacity | ReducedNodes":
        """Return a node, or some of them."""
        if isinstance(index, slice):
            return ReducedNodes(self.before[index], self.resources)
        return self.before[index].with_less(self.resources)

    def __len__(self) -> int:
        """Return how many nodes there are."""
        return len(self.before)


def _joined(parts: Collection[Sequence[NodeCapacity]]) -> Sequence[NodeCapacity]:
    """Return the nodes of all parts; where some are reduced, all with the resources of the very first."""
    if any(type(part) is ReducedNodes for part in parts):
        first = next(iter(parts))
        return ReducedNodes(tuple(chain.from_iterable(map(nodes_before, parts))), first[0].resources)
    return tuple(chain.from_iterable(parts))


def nodes_before(nodes: Sequence[NodeCapacity]) -> Sequence[NodeCapacity]:
    """Return the nodes as they once were: with the same identifiers and labels, and perhaps more resources."""
    return nodes.before if type(nodes) is ReducedNodes else nodes  # isinstance() of an abstract class is slow


class _Chained(Sequence[NodeCapacity]):
    """The nodes of several sequences, one after the other."""

    def __init__(self, parts: Collection[Sequence[NodeCapacity]]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[NodeCapacity]:
        return chain.from_iterable(self._parts)

    def __getitem__(self, index: Any) -> Any:
        return tuple(self)[index]

    def __len__(self) -> int:
        return sum(map(len, self._parts))


class NodeGroup(NamedTuple):
    """Nodes of one shape: one of them, and how many there are."""

    node: NodeCapacity
    num_nodes: int


class NodeTypeCapacity(Value):
    """A type of node that the autoscaler could still add.

    Attributes:
        name: The name of the type in the cluster's configuration.
        resources: What one such node will have.
        max_nodes_to_add: How many more may come, those included that are on their way.
        accelerator_type: Ray's name of its device type.
        labels: Ray's node labels.
        devices: Its GPUs, where they are known before it is there, as parts of GPUs are; ``None``: they are not.
    """

    name: str
    resources: Resources
    max_nodes_to_add: Count
    accelerator_type: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    devices: Many[GpuDevice] | None = None

    @cached_property
    def amounts(self) -> Amounts:
        """All that Ray will count of such a node; see :attr:`NodeCapacity.amounts`."""
        return _amounts(self.resources, self.accelerator_type)

    def as_node(self) -> NodeCapacity:
        """Return what one node of this type will be. Its whole GPUs cannot be read before it is there."""
        return NodeCapacity(
            node_id=self.name,
            resources=self.resources,
            accelerator_type=self.accelerator_type,
            labels=self.labels,
            devices=self.devices,
            is_expected=True,
        )


class ClusterCapacity(ShownValue):
    """The alive nodes, the node types that can be added, and when this was read.

    Attributes:
        nodes: The alive nodes that take work. Their order means nothing.
        draining: Alive nodes that are being drained: Ray places nothing new on them, so no plan counts them.
        node_types: What the autoscaler could still add; empty: nothing; ``None``: there is an autoscaler, but what it
            could add is not known.
        max_nodes_to_add: The most nodes of all types together that the autoscaler may still add; ``None``: each type's
            own limit is the only one.
        read_at: When the cluster was read; ``None``: it was written by hand.
    """

    _view: ClassVar = "tune_policies.views.tables:cluster_view"

    nodes: Many[NodeCapacity] = ()
    draining: Many[NodeCapacity] = ()
    node_types: Many[NodeTypeCapacity] | None = ()
    max_nodes_to_add: Count | None = None
    read_at: datetime | None = None

    @model_validator(mode="after")
    def _node_ids_must_differ(self) -> Self:
        if twice := _twice([node.node_id for node in (*self.nodes, *self.draining)]):
            raise InvalidResourcesError(f"each node needs a node_id of its own, but {twice[0]!r} comes twice")
        if twice := _twice([node_type.name for node_type in self.node_types or ()]):
            raise InvalidResourcesError(f"each node type needs a name of its own, but {twice[0]!r} comes twice")
        return self

    @cached_property
    def nodes_by_shape(self) -> dict[Hashable, Sequence[NodeCapacity]]:
        """The nodes of each shape, so that a plan costs as much as there are shapes."""
        nodes_of: dict[Hashable, list[NodeCapacity]] = {}
        for node in self.nodes:
            nodes_of.setdefault(node.shape, []).append(node)
        return {shape: tuple(nodes) for shape, nodes in nodes_of.items()}

    @cached_property
    def groups(self) -> tuple[NodeGroup, ...]:
        """One node of each shape, and how many there are."""
        return tuple(NodeGroup(nodes[0], len(nodes)) for nodes in self.nodes_by_shape.values())

    def in_steps_of_memory(self, step_bytes: int) -> "ClusterCapacity":
        """Return the same cluster, with nodes as one shape that differ by less than a step of host memory, or by none.

        The nodes of a cluster may all differ by some bytes, which few requests tell apart. The node with the most
        memory stands for each shape.
        """
        kept: dict[int, ClusterCapacity] = self.__dict__.setdefault("_in_steps", {})
        if step_bytes in kept:
            return kept[step_bytes]
        seen = self._in_steps_of_memory(step_bytes)
        if seen is not self:
            kept[step_bytes] = seen
        return seen

    def _in_steps_of_memory(self, step_bytes: int) -> "ClusterCapacity":
        alike: dict[Hashable, list[Sequence[NodeCapacity]]] = {}
        for shape, nodes in self.nodes_by_shape.items():
            memory, *rest = cast("tuple[Any, ...]", shape)
            parts = alike.setdefault((memory if memory is None else memory // step_bytes, *rest), [])
            parts.append(nodes)
            if memory is not None and memory > cast("int", parts[0][0].resources.memory_bytes):
                parts[0], parts[-1] = nodes, parts[0]
        if len(alike) == len(self.nodes_by_shape):
            return self
        by_shape: dict[Hashable, Sequence[NodeCapacity]] = {}
        for parts in alike.values():
            by_shape[parts[0][0].shape] = parts[0] if len(parts) == 1 else _joined(parts)
        seen = self.model_copy()
        seen.__dict__["nodes_by_shape"] = by_shape
        seen.__dict__["_is_in_steps"] = True
        return seen

    @property
    def _exact(self) -> "ClusterCapacity":
        """The cluster with every shape by itself: what becomes of it may be asked for all of its host memory."""
        return self.model_copy() if "_is_in_steps" in self.__dict__ else self

    def nodes_of(self, groups: Iterable[NodeGroup]) -> Iterator[NodeCapacity]:
        """Yield the nodes of some of the groups."""
        for node, _ in groups:
            yield from self.nodes_by_shape.get(node.shape, ())

    def with_nodes(self, nodes: Iterable[NodeCapacity]) -> "ClusterCapacity":
        """Return the same cluster with other alive nodes, which are not checked again."""
        return self.model_copy(update={"nodes": tuple(nodes)})

    def replacing(self, changed: Mapping[str, NodeCapacity]) -> "ClusterCapacity":
        """Return the same cluster with some nodes changed, by their identifiers."""
        if "_is_in_steps" in self.__dict__:
            return self._exact.replacing(changed)
        by_shape = dict(self.nodes_by_shape)
        for shape in {node.shape for node in self.nodes if node.node_id in changed}:
            by_shape[shape] = tuple(node for node in by_shape[shape] if node.node_id not in changed)
        for node in changed.values():
            by_shape[node.shape] = (*by_shape.get(node.shape, ()), node)
        return self._with_shapes({shape: nodes for shape, nodes in by_shape.items() if nodes})

    def with_less(
        self, parts: Mapping[Hashable, Iterable[tuple[Sequence[NodeCapacity], Resources | None]]]
    ) -> "ClusterCapacity":
        """Return the same cluster with fewer resources on some nodes.

        Args:
            parts: Of each shape of which some nodes change all nodes, and what each of them has left; ``None``: as
                before.
        """
        by_shape = {shape: nodes for shape, nodes in self.nodes_by_shape.items() if shape not in parts}
        for shape, changes in parts.items():
            before = self.nodes_by_shape[shape]
            for nodes, left in changes:
                if left is None and type(before) is not ReducedNodes:
                    now: Sequence[NodeCapacity] = tuple(nodes)
                else:
                    now = ReducedNodes(nodes_before(nodes), before[0].resources if left is None else left)
                one = now[0]
                if others := by_shape.get(one.shape):
                    now = ReducedNodes([*nodes_before(others), *nodes_before(now)], one.resources)
                by_shape[one.shape] = now
        return self._with_shapes(by_shape)

    def with_nodes_added(self, nodes_to_add: Mapping[str, int]) -> "ClusterCapacity":
        """Return the cluster with so many nodes of each type, by its name, as if alive; no more can be added."""
        by_shape = dict(self.nodes_by_shape)
        for node_type in self.node_types or ():
            if number := nodes_to_add.get(node_type.name, 0):
                nodes = self._nodes_of_type(node_type, number)
                by_shape[nodes[0].shape] = (*by_shape.get(nodes[0].shape, ()), *nodes)
        return self._with_shapes(by_shape, node_types=(), max_nodes_to_add=None)

    def _nodes_of_type(self, node_type: NodeTypeCapacity, number: int) -> list[NodeCapacity]:
        """Return so many nodes as they will be. They are kept: a search for a number of nodes asks again and again."""
        nodes = self._expected_nodes.setdefault(node_type.name, [])
        if len(nodes) < number:
            node = node_type.as_node()
            ids = islice(_free_ids(node_type.name, {node.node_id for node in self.nodes}), len(nodes), number)
            nodes += [node.model_copy(update={"node_id": node_id}) for node_id in ids]
        return nodes[:number]

    @cached_property
    def _expected_nodes(self) -> dict[str, list[NodeCapacity]]:
        return {}

    def where(self, holds: Callable[[NodeCapacity], bool]) -> "ClusterCapacity":
        """Return the same cluster with only some of its alive nodes."""
        if "nodes_by_shape" not in self.__dict__ or "_is_in_steps" in self.__dict__:
            return self.with_nodes(filter(holds, self.nodes))
        kept: dict[Hashable, Sequence[NodeCapacity]] = {
            shape: tuple(filter(holds, nodes)) for shape, nodes in self.nodes_by_shape.items()
        }
        return self._with_shapes({shape: nodes for shape, nodes in kept.items() if nodes})

    def _with_shapes(self, nodes_by_shape: dict[Hashable, Sequence[NodeCapacity]], **changes: Any) -> "ClusterCapacity":
        """Return the same cluster with other nodes, whose shapes are known already."""
        of_shapes = nodes_by_shape.values()
        is_reduced = any(type(each) is ReducedNodes for each in of_shapes)
        nodes = _Chained(of_shapes) if is_reduced else tuple(chain.from_iterable(of_shapes))
        changed = self.model_copy(update={"nodes": nodes, **changes})
        changed.__dict__["nodes_by_shape"] = nodes_by_shape
        if "_is_in_steps" in self.__dict__:
            changed.__dict__["_is_in_steps"] = True
        return changed

    @classmethod
    def of(cls, *nodes: Resources | NodeCapacity) -> "ClusterCapacity":
        """Build a capacity by hand, one node for each argument.

        ``ClusterCapacity.of(Resources(cpus=8, gpus=4), Resources(cpus=16))`` has two nodes.
        """
        taken = {node.node_id for node in nodes if isinstance(node, NodeCapacity)}
        free_ids = (node_id for i in count() if (node_id := f"node-{i}") not in taken)
        return cls(
            nodes=tuple(
                node if isinstance(node, NodeCapacity) else NodeCapacity(node_id=next(free_ids), resources=node)
                for node in nodes
            )
        )

    def gpu_nodes(self, accelerator_type: str | None = None) -> Iterator[NodeCapacity]:
        """Yield the nodes with GPUs; of one device type only, if it is given."""
        for node in self.nodes:
            if node.resources.gpus > 0 and accelerator_type in (None, node.accelerator_type):
                yield node

    def gpu_groups(self, accelerator_type: str | None = None) -> Iterator[NodeGroup]:
        """Yield the nodes with GPUs by shape; of one device type only, if it is given."""
        for group in self.groups:
            if group.node.resources.gpus > 0 and accelerator_type in (None, group.node.accelerator_type):
                yield group


def _twice(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1) if len(set(names)) < len(names) else []


def _free_ids(name: str, taken: set[str]) -> Iterator[str]:
    prefix = name
    while any(node_id.startswith(f"{prefix}+") for node_id in taken):
        prefix += "+"
    return (f"{prefix}+{i}" for i in count(1))


HEAD_RESOURCE: Final = "node:__internal_head__"
"""Ray gives it to the head node alone (``HEAD_NODE_RESOURCE_NAME``)."""

_NOT_CUSTOM: Final = ("CPU", "GPU", "memory", "object_store_memory")
# What a placement group holds appears again beside the node's own, as CPU_group_0_<36 hex digits>.
_OF_A_GROUP: Final = re.compile(r"_group_(\d+_)?[0-9a-f]{36}$")


def to_resources(totals: Mapping[str, float]) -> Resources:
    """Return what ``totals`` say of a node, without what Ray keeps there for itself.

    Of a custom resource it has at most what a trial may ask for: somebody's bytes of a disk are no reason to fail.
    """
    return Resources(
        cpus=totals.get("CPU", 0),
        gpus=totals.get("GPU", 0),
        memory_bytes=int(totals["memory"]) if totals.get("memory", 0) >= 1 else None,
        custom={name: min(amount, MOST) for name, amount in totals.items() if _is_custom(name)},
    )


def in_use(totals: Mapping[str, float], available: Mapping[str, float]) -> Resources:
    """Return what is reserved of ``totals``; never below zero.

    Above one GPU it is rounded up to whole ones, as an amount of GPUs is a fraction of one, or whole.
    """
    # Ray leaves out what is used up, and what is free may be news of a moment other than the total.
    used = {name: max(0.0, total - available.get(name, 0)) for name, total in totals.items()}
    if used.get("GPU", 0) > 1:
        used["GPU"] = math.ceil(round(used["GPU"], 4))
    return to_resources({name: round(amount, 4) for name, amount in used.items()})


def accelerator_type_of(totals: Mapping[str, float]) -> str | None:
    """Return Ray's name of the device type; the first by name where there are several."""
    types = sorted(name for name in totals if name.startswith(ACCELERATOR_TYPE_PREFIX))
    return types[0].removeprefix(ACCELERATOR_TYPE_PREFIX) if types else None


def _is_custom(name: str) -> bool:
    return (
        name not in _NOT_CUSTOM
        and not name.startswith(("node:", ACCELERATOR_TYPE_PREFIX))
        and not _OF_A_GROUP.search(name)
    )
