"""The nodes of a cluster, and the nodes that can be added.

A ``ClusterCapacity`` can be saved as JSON, so that you can make plans for it on another machine.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pydantic import model_validator

from tune_policies.cluster.labels import NODE_ID, is_none_of
from tune_policies.cluster.lazy_nodes import (
    ReducedNodes,
    all_nodes,
    distinct_nodes,
    nodes_of_shape,
    original_nodes,
)
from tune_policies.cluster.node import NodeCapacity, NodeGroup, NodeTypeCapacity, Shape
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.field_types import Many
from tune_policies.values.resources import Count, Resources
from tune_policies.values.value import ShownValue

if TYPE_CHECKING:
    from rich.console import RenderableType

AutoscalerVersion = Literal[1, 2]

DEFAULT_AUTOSCALER: Final[AutoscalerVersion] = 2
"""The version that KubeRay starts by default since Ray 2.48, and ``ray up`` since Ray 2.50."""


def _memory_of_shape(shape_and_nodes: tuple[Shape, object]) -> int:
    return shape_and_nodes[0][0] or 0


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
            # The model is frozen, so a validator can set a field only in its dict.
            self.__dict__["nodes"] = tuple(_with_shared_devices(node, numbers) for node in self.nodes)
        return self

    def held_by(self) -> dict[str, Counter[str]]:
        """Return the ticks that the program itself reserves on the alive nodes, by holder and resource."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for nodes in self.nodes_by_shape.values():
            for node in distinct_nodes(nodes):
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
        # ``model_copy`` drops what is no field, so a changed copy never has results of the original.
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
                nodes = nodes_of_shape([nodes for _, nodes in some])
            by_shape[shape] = nodes
        seen = self.model_copy()
        # The mark says that the shapes cannot be computed from the nodes, which keep their exact memory.
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
            values.update(node.labels.get(key) for node in distinct_nodes(self.nodes_by_shape.get(one.shape, ())))
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
                if left is None and not isinstance(before, ReducedNodes):
                    now: Sequence[NodeCapacity] = tuple(nodes)
                else:
                    resources = before[0].resources if left is None else left
                    now = ReducedNodes(original_nodes(nodes), resources)
                one = now[0]
                # With less resources, these nodes may have the same shape as others.
                others = by_shape.get(one.shape)
                if others:
                    now = ReducedNodes([*original_nodes(others), *original_nodes(now)], one.resources)
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
        nodes = all_nodes(tuple(nodes_by_shape.values()))
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
        by_shape = {shape: nodes_of_shape(some) for shape, some in of_shape.items()}
        # Grouping the nodes one by one would be slow.
        capacity.__dict__ |= {"nodes": all_nodes(parts), "nodes_by_shape": by_shape}
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
    # Nodes that an earlier call has added have such IDs, too.
    while any(node_id.startswith(f"{prefix}+") for node_id in taken):
        prefix += "+"
    return (f"{prefix}+{i}" for i in count(1))
