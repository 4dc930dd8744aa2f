"""Selects the nodes to read, and applies their facts to similar nodes.

In a cluster of up to 100 nodes, all nodes are read. In a larger cluster, a few nodes of each kind are read first, and
the other nodes of a kind are read only if the first nodes have different facts.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import log2
from typing import Final

from tune_policies.cluster.node import GpuDevice, NodeCapacity
from tune_policies.values.resources import Amount
from tune_policies.values.value import Value

MAX_NODES_READ: Final = 100
"""Clusters of up to this size are read completely. In larger clusters, at most this many nodes are read first."""
# More than one, because only nodes with different facts show that a kind must be read completely.
READS_PER_KIND: Final = 3

_NAMED: Final = 3
"""The maximum number of nodes that a warning lists for each reason."""

_MAX_LABEL_VALUES: Final = 10
"""Labels with more values than this do not distinguish kinds, because they identify nodes or racks."""


class NodeFacts(Value):
    """The properties read from one node.

    The fields have the same meaning as in ``NodeCapacity``. A field that was not read is ``None``.
    """

    devices: tuple[GpuDevice, ...] | None = None
    has_simulated_gpus: bool = False
    usable_cpus: Amount | None = None
    cpu_model: str | None = None
    problem: str | None = None

    def of_another(self) -> "NodeFacts":
        """Return the facts that also apply to another node of the same kind.

        The UUIDs are excluded. The CPU model is also excluded, because a cloud's machine type can have several models.
        """
        devices = self.devices and tuple(d.model_copy(update={"uuid": None}) for d in self.devices)
        return self.model_copy(update={"devices": devices, "cpu_model": None})


Kind = tuple[NodeCapacity, ...]


def group_kinds(nodes: Sequence[NodeCapacity]) -> list[Kind]:
    """Return groups of similar nodes, with the largest group first.

    Nodes are also read if the GPU memory of their type is certain, because the same reading finds missing packages and
    CPU limits.
    """
    if len(nodes) <= MAX_NODES_READ:
        return [(node,) for node in nodes]
    values = defaultdict(set)
    for node in nodes:
        for key, value in node.labels.items():
            values[key].add(value)
    custom = Counter(name for node in nodes for name in node.resources.custom)

    def kind_of(node: NodeCapacity) -> tuple[object, ...]:
        has = node.resources
        # The memory of similar machines differs by some MiB, so only its logarithm, rounded to 1/4, is compared.
        memory = round(4 * log2(has.memory_bytes)) if has.memory_bytes else 0
        return (
            node.accelerator_type or "",
            has.cpus,
            has.gpus,
            memory,
            # A resource that only one node has identifies the node and does not describe a kind.
            tuple((name, amount) for name, amount in sorted(has.custom.items()) if custom[name] > 1),
            tuple(item for item in sorted(node.labels.items()) if len(values[item[0]]) <= _MAX_LABEL_VALUES),
        )

    kinds = defaultdict(list)
    for node in sorted(nodes, key=lambda node: node.node_id):
        kinds[kind_of(node)].append(node)
    return [tuple(kinds[key]) for key in sorted(kinds, key=lambda key: (-len(kinds[key]), repr(key)))]


def first_reads(kinds: Iterable[Kind], heads: Iterable[NodeCapacity]) -> list[NodeCapacity]:
    """Return a few nodes of each kind, and the head nodes, because the autoscaler can run on them."""
    few = [node for kind in kinds for node in kind[:READS_PER_KIND]][:MAX_NODES_READ]
    return [*few, *(head for head in heads if head not in few)]


def second_reads(kinds: Iterable[Kind], facts: Mapping[str, NodeFacts]) -> list[NodeCapacity]:
    """Return the remaining nodes of each kind whose first nodes have different facts."""
    return [node for kind in kinds if len(_findings(kind, facts)) > 1 for node in kind[READS_PER_KIND:]]


def spread_facts(kinds: Iterable[Kind], facts: Mapping[str, NodeFacts]) -> dict[str, NodeFacts]:
    """Return ``facts``, extended to the unread nodes of each kind whose read nodes have the same facts."""
    known = dict(facts)
    for kind in kinds:
        findings = _findings(kind, facts)
        if len(findings) == 1:
            known |= {node.node_id: findings[0] for node in kind[READS_PER_KIND:] if node.node_id not in facts}
    return known


def unread(kinds: Iterable[Kind], facts: Mapping[str, NodeFacts], failures: Mapping[str, str]) -> dict[str, str]:
    """Return the reason for each node that was not read. It may come from another node of the same kind."""
    reasons = dict(failures)
    for kind in kinds:
        of_kind = next(
            (failures[node.node_id] for node in kind if node.node_id in failures),
            "the cluster has too many kinds of nodes to read all of them",
        )
        reasons |= {n.node_id: of_kind for n in kind if n.node_id not in facts and n.node_id not in failures}
    return reasons


def unread_nodes_warnings(nodes: Iterable[NodeCapacity], failures: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each consequence of unread nodes. ``nodes`` contain the facts that were read."""
    reasons: dict[str, dict[str, str]] = defaultdict(dict)
    for node in nodes:
        if node.node_id not in failures:
            continue
        if not node.resources.gpus:
            meaning = "CPU limits of unread nodes are unknown"
        elif node.smallest_gpu_memory_bytes is None:
            meaning = "GPU memory was not read"
        else:
            meaning = "GPU memory was not read, so plans assume the smallest amount known for the type"
        reasons[meaning][node.node_id] = failures[node.node_id]
    yield from (f"{meaning}: {_explain(why)}" for meaning, why in reasons.items())


def _explain(reasons: Mapping[str, str]) -> str:
    """Return a string that lists each reason once, with the first nodes to which it applies."""
    nodes = defaultdict(list)
    for node_id, why in sorted(reasons.items()):
        nodes[why].append(node_id[:8])
    parts = []
    for why, ids in nodes.items():
        named = ", ".join(ids[:_NAMED])
        if len(ids) > _NAMED:
            named += f" and {len(ids) - _NAMED} more"
        if len(ids) > 1:
            parts.append(f"nodes {named}: {why}")
        else:
            parts.append(f"node {named}: {why}")
    return "; ".join(parts)


def _findings(kind: Kind, facts: Mapping[str, NodeFacts]) -> list[NodeFacts]:
    found: list[NodeFacts] = []
    for node in kind:
        if node.node_id not in facts:
            continue
        of_kind = facts[node.node_id].of_another()
        if of_kind not in found:
            found.append(of_kind)
    return found
