"""Sequences of many nodes that create a node when it is read.

A planner usually reads one node of a shape and the identifiers of the rest, so creating all of them would be slow.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from tune_policies.cluster.node import NodeCapacity
from tune_policies.values.resources import Resources


class NodeSequence(Sequence[NodeCapacity]):
    """A sequence of nodes other than a tuple or a list."""

    @property
    def originals(self) -> Sequence[NodeCapacity]:
        """The nodes before their resources were reduced, with the same identifiers and labels."""
        return self

    @abstractmethod
    def distinct(self) -> Iterator[NodeCapacity]:
        """Yield the original nodes, but only one of nodes that are known to differ only in their identifiers."""


class ReducedNodes(NodeSequence):
    """The nodes of ``originals`` with their resources reduced to ``resources``."""

    def __init__(self, originals: Sequence[NodeCapacity], resources: Resources) -> None:
        self._originals = originals
        self.resources = resources

    @property
    def originals(self) -> Sequence[NodeCapacity]:
        """The nodes before their resources were reduced."""
        return self._originals

    def distinct(self) -> Iterator[NodeCapacity]:
        """Yield the original nodes."""
        return distinct_nodes(self._originals)

    @cached_property
    def _first(self) -> NodeCapacity:
        return self._originals[0].with_less(self.resources)

    def __getitem__(self, index: Any) -> Any:
        if index == 0:
            return self._first  # a planner reads it many times
        if isinstance(index, slice):
            return ReducedNodes(self._originals[index], self.resources)
        return self._originals[index].with_less(self.resources)

    def __len__(self) -> int:
        return len(self._originals)


class AlikeNodes(NodeSequence):
    """Nodes that differ only in their identifiers, and hold nothing.

    ``create`` returns all nodes, and is called only if another node than the first is read.
    """

    def __init__(self, first: NodeCapacity, number: int, create: Callable[[], Sequence[NodeCapacity]]) -> None:
        self._first = first
        self._number = number
        self._create = create

    def distinct(self) -> Iterator[NodeCapacity]:
        """Yield the first node."""
        yield self._first

    def __iter__(self) -> Iterator[NodeCapacity]:
        return iter(self._create())

    def __getitem__(self, index: Any) -> Any:
        if index == 0:
            return self._first
        return self._create()[index]

    def __len__(self) -> int:
        return self._number


class ChainedNodes(NodeSequence):
    """Several sequences of nodes as one sequence, without a copy."""

    def __init__(self, parts: Sequence[Sequence[NodeCapacity]]) -> None:
        self._parts = parts

    @property
    def originals(self) -> Sequence[NodeCapacity]:
        """The nodes of each part before their resources were reduced."""
        return ChainedNodes([original_nodes(part) for part in self._parts])

    def distinct(self) -> Iterator[NodeCapacity]:
        """Yield the original nodes of each part, but only one of nodes that differ only in their identifiers."""
        return chain.from_iterable(map(distinct_nodes, self._parts))

    def __iter__(self) -> Iterator[NodeCapacity]:
        return chain.from_iterable(self._parts)

    def __getitem__(self, index: Any) -> Any:
        if index == 0 and self._parts and self._parts[0]:
            return self._parts[0][0]
        return tuple(self)[index]

    def __len__(self) -> int:
        return sum(map(len, self._parts))


def original_nodes(nodes: Sequence[NodeCapacity]) -> Sequence[NodeCapacity]:
    """Return the nodes before their resources were reduced. They have the same identifiers and labels."""
    if isinstance(nodes, NodeSequence):
        return nodes.originals
    return nodes


def distinct_nodes(nodes: Sequence[NodeCapacity]) -> Iterator[NodeCapacity]:
    """Yield the original nodes, but only one of nodes that are known to differ only in their identifiers."""
    if isinstance(nodes, NodeSequence):
        return nodes.distinct()
    return iter(nodes)


def nodes_of_shape(parts: Sequence[Sequence[NodeCapacity]]) -> Sequence[NodeCapacity]:
    """Return the nodes of all parts, which must have similar shapes.

    If a part is reduced, all nodes get the resources of the first node.
    """
    if len(parts) == 1:
        return parts[0]
    if any(isinstance(part, ReducedNodes) for part in parts):
        # Reduced nodes exist only as their originals and common resources, so the other parts must have this form, too.
        originals = chain.from_iterable(map(original_nodes, parts))
        return ReducedNodes(tuple(originals), parts[0][0].resources)
    return all_nodes(parts)


def all_nodes(parts: Sequence[Sequence[NodeCapacity]]) -> Sequence[NodeCapacity]:
    """Return the nodes of all parts. Nodes that are created on access are not created yet."""
    if any(isinstance(part, NodeSequence) for part in parts):
        return ChainedNodes(parts)
    return tuple(chain.from_iterable(parts))
