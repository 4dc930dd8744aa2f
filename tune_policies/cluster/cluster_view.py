"""Shows clusters as tables and lines.

Labels and custom resources can have long names, so they are listed below the tables.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import NodeCapacity
from tune_policies.files.terminal import empty_table, line
from tune_policies.values.resources import Resources, amount_of, format_amount, from_ticks
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import format_bytes
from tune_policies.values.wording import counted, shorten_names

_NOT_REPEATED: Final = frozenset({"ray.io/node-id", "ray.io/accelerator-type"})
"""The labels that are not listed: the node ID, and the device type, which has its own column."""

_NO_LIMIT: Final = 2**30
"""The table shows "no limit" for limits of at least this number of nodes. KubeRay's default limit is 2147483647."""


def cluster_view(capacity: ClusterCapacity) -> RenderableType:
    """Return the tables and lines that ``tune-policies probe`` prints."""
    parts: list[RenderableType] = [_nodes(capacity.nodes)]
    if capacity.draining:
        names = sorted(node.address or node.node_id[:8] for node in capacity.draining)
        number = counted(len(names), "node")
        parts.append(line(f"plans ignore {number} being drained: {shorten_names(names)}"))
    parts += (line(f"plans ignore node {_name(node)}: {node.problem}") for node in capacity.unusable)
    for node in capacity.nodes:
        parts += (
            line(f"plans ignore {held} of node {_name(node)}, reserved by {holder}")
            for holder, held in node.held.items()
        )
    # With ``None``, an autoscaler runs, but its node types are unknown. An empty tuple means that none can be added.
    if capacity.node_types is None:
        text = "An autoscaler is running, but its node types are unknown. Pass the cluster file with --cluster-config"
        parts.append(line(text))
    elif capacity.node_types:
        parts += ["", _node_types(capacity)]
    return Group(*parts)


def _name(node: NodeCapacity) -> str:
    return node.address or node.node_id[:8]


def _nodes(nodes: tuple[NodeCapacity, ...]) -> RenderableType:
    shapes: dict[tuple[str, ...], list[NodeCapacity]] = defaultdict(list)
    for node in nodes:
        # Ray's memory total is the memory that was free when the node started, so it differs between equal machines.
        has_memory = "" if node.resources.memory_bytes else "not known"
        shapes[(*_columns(node), has_memory, _others(node))].append(node)
    table = empty_table(
        counted(len(nodes), "node"), "Nodes", "CPU", "GPU", "Type", "GPU memory", "Host memory", "In use"
    )
    details = []

    def most_gpus_first(shape: tuple[tuple[str, ...], list[NodeCapacity]]) -> tuple[object, ...]:
        has = shape[1][0].resources
        return (-has.gpus, -has.cpus, shape[0])

    for (*columns, _, others), alike in sorted(shapes.items(), key=most_gpus_first):
        memory = _host_memory(*(node.resources for node in alike))
        table.add_row(str(len(alike)), *columns, memory, _in_use(alike))
        has, kind = alike[0].resources, columns[2]
        named = f"{len(alike)} with {amount_of(has.cpus, 'CPU')}, {amount_of(has.gpus, 'GPU')}"
        if kind != "-":
            named += f" ({kind})"
        # Nodes in one row can have different labels, so only the labels that all of them have describe the row.
        shared_labels = dict(set.intersection(*(set(node.labels.items()) for node in alike)))
        details.append(_details(named, shared_labels, others))
    return Group(table, *(line(text) for text in details if text))


def _node_types(capacity: ClusterCapacity) -> RenderableType:
    table = empty_table("The autoscaler can add", "Nodes", "Node type", "CPU", "GPU", "Type", "Host memory")
    details = []
    for kind in capacity.node_types or ():
        has = kind.resources
        amounts = (format_amount(has.cpus), format_amount(has.gpus), kind.accelerator_type or "-", _host_memory(has))
        most = str(kind.max_nodes_to_add) if kind.max_nodes_to_add < _NO_LIMIT else "no limit"
        table.add_row(most, kind.name, *amounts)
        details.append(_details(kind.name, kind.labels, _custom(has)))
    if capacity.max_nodes_to_add is not None and capacity.max_nodes_to_add < _NO_LIMIT:
        details.append(f"- at most {counted(capacity.max_nodes_to_add, 'node')} of all types together")
    return Group(table, *(line(text) for text in details if text))


def _columns(node: NodeCapacity) -> tuple[str, ...]:
    has = node.resources
    memory = node.smallest_gpu_memory_bytes
    gpu_memory = "-"
    if has.gpus:
        gpu_memory = format_bytes(memory) if memory else "not read"
    models = sorted({device.name for device in node.devices or ()})
    kind = node.accelerator_type or ", ".join(models) or "-"
    return format_amount(has.cpus), format_amount(has.gpus), kind, gpu_memory


def _host_memory(*of_nodes: Resources) -> str:
    """Return the host memory of a node, or the range for several nodes, as text such as ``"14.7 to 14.9 GiB"``."""
    amounts = [has.memory_bytes for has in of_nodes if has.memory_bytes]
    if not amounts:
        return "not known"
    least, most = format_bytes(min(amounts)), format_bytes(max(amounts))
    if least == most:
        return most
    # If both amounts have the same unit, it is written once, after the second amount.
    number, unit = least.split()
    if most.endswith(f" {unit}"):
        return f"{number} to {most}"
    return f"{least} to {most}"


def _others(node: NodeCapacity) -> str:
    parts = []
    if node.usable_cpus is not None and node.usable_cpus < node.resources.cpus:
        parts.append(f"only {amount_of(node.usable_cpus, 'CPU')} usable")
    if node.resources.custom:
        parts.append(_custom(node.resources))
    return ", ".join(parts)


def _custom(has: Resources) -> str:
    return ", ".join(amount_of(amount, name) for name, amount in sorted(has.custom.items()))


def _in_use(nodes: Iterable[NodeCapacity]) -> Text:
    """Return the sum of the reserved resources of all nodes as text, with one line per resource."""
    total: dict[str, int] = defaultdict(int)
    for node in nodes:
        if node.in_use is None:
            return Text("not known")
        for name, ticks in node.in_use.ticks.items():
            total[name] += ticks
    memory = total.pop("memory", 0)
    lines = [one_line(amount_of(from_ticks(ticks), name)) for name, ticks in sorted(total.items())]
    if memory:
        lines.append(format_bytes(memory))
    return Text("\n".join(lines) or "nothing")


def _details(named: str, labels: Mapping[str, str], others: str) -> str:
    shown = ", ".join(f"{key}={value}" for key, value in sorted(labels.items()) if key not in _NOT_REPEATED)
    parts = []
    if others:
        parts.append(others)
    if shown:
        parts.append(f"labels {shown}")
    if not parts:
        return ""
    return f"- {named}: {'; '.join(parts)}"
