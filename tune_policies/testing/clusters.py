"""Random clusters for testing policies, and simpler variants of a cluster.

The same seed produces the same cluster. Clusters are small, because small clusters reveal the same mistakes as large
ones and are easier to understand.
"""

import random
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import GpuDevice, NodeCapacity, NodeTypeCapacity
from tune_policies.cluster.tpu_slices import POD_TYPE, SLICE_NAME, TOPOLOGY, WORKER_ID, SliceShape
from tune_policies.values.resources import Resources
from tune_policies.values.units import GIB

_CPUS: Final = (0, 0.5, 1, 2, 3, 7, 16, 64)
_GPU_MEMORY_GIB: Final = (None, None, 8, 16, 17.5, 80)
_GPU_TYPES: Final = (None, "T4", "A100")
_OTHER_DEVICES: Final[tuple[dict[str, float], ...]] = (
    {},
    {},
    {"NPU": 1},
    {"NPU": 8},
    {"NPU": 3, "HPU": 2},
    {"TPU": 4},
    {"TPU": 8},
    {"neuron_cores": 2},
)
_LICENSES: Final[tuple[dict[str, float], ...]] = ({}, {"license": 2}, {"license": 5})
_LABELS: Final[tuple[dict[str, str], ...]] = ({}, {"zone": "eu"}, {"zone": "us", "disk": "ssd"})
_SLICES: Final = (SliceShape("2x2x2", "TPU-V4"), SliceShape("4x4", "TPU-V6E"), SliceShape("2x4", "TPU-V6E"))


def draw_cluster(rng: random.Random) -> ClusterCapacity:
    """Return a random cluster of at most 13 nodes.

    It has nodes with or without GPUs, with one or several GPU types and known or unknown devices, or TPU slices. It may
    have an autoscaler, draining nodes or resources in use, or be empty.
    """
    match rng.choices(("any", "alike", "slices", "empty"), weights=(70, 15, 10, 5))[0]:
        case "any":
            nodes = draw_nodes(rng)
        case "alike":
            one = draw_node(rng, 0)
            nodes = [one.model_copy(update={"node_id": f"node-{i}"}) for i in range(rng.randint(2, 6))]
        case "slices":
            nodes = [host for i in range(rng.randint(1, 3)) for host in _draw_slice(rng, f"slice-{i}")]
            nodes += draw_nodes(rng)[:1]
        case _:
            nodes = []
    if nodes and rng.random() < 0.2:
        nodes = [_partly_used(rng, node) for node in nodes]
        # In a container, a node can have fewer usable CPUs than Ray counts.
        nodes[0] = nodes[0].model_copy(update={"is_head": True, "usable_cpus": nodes[0].resources.cpus / 2})
    draining = (draw_node(rng, 99),) if rng.random() < 0.1 else ()
    match rng.choices(("fixed", "grows", "grows in unknown ways"), weights=(60, 35, 5))[0]:
        case "fixed":
            return ClusterCapacity(nodes=tuple(nodes), draining=draining)
        case "grows":
            return with_node_types(rng, ClusterCapacity(nodes=tuple(nodes), draining=draining))
        case _:
            return ClusterCapacity(nodes=tuple(nodes), draining=draining, node_types=None)


def draw_nodes(rng: random.Random) -> list[NodeCapacity]:
    """Return 1 to 4 random nodes."""
    return [draw_node(rng, number) for number in range(rng.randint(1, 4))]


def draw_node(rng: random.Random, number: int) -> NodeCapacity:
    """Return a random node. The number of GPUs in Ray may differ from the number of listed devices."""
    gpus = rng.randint(0, 8)
    gpu_memory_gib = rng.choice(_GPU_MEMORY_GIB)
    accelerator_type = rng.choice(_GPU_TYPES)
    devices = None
    if gpu_memory_gib is not None:
        num_devices = max(0, gpus - rng.choice((0, 0, 0, 1, 2, -1)))
        device = GpuDevice(index=0, name=accelerator_type or "GPU", memory_bytes=int(gpu_memory_gib * GIB))
        devices = tuple(device.model_copy(update={"index": i}) for i in range(num_devices))
    return NodeCapacity(
        node_id=f"node-{number}",
        resources=Resources(
            cpus=rng.choice(_CPUS),
            gpus=gpus,
            memory_bytes=rng.choice((None, rng.randint(1, 64) * GIB)),
            custom=rng.choice(_OTHER_DEVICES) | rng.choice(_LICENSES),
        ),
        accelerator_type=accelerator_type,
        devices=devices,
        labels=rng.choice(_LABELS),
    )


def with_node_types(rng: random.Random, capacity: ClusterCapacity) -> ClusterCapacity:
    """Return the cluster with an autoscaler that can add nodes of 1 to 3 random types."""
    node_types = tuple(
        NodeTypeCapacity(
            name=f"type-{number}",
            resources=Resources(cpus=rng.choice((0, 1, 3, 16)), gpus=rng.randint(0, 4)),
            max_nodes_to_add=rng.randint(0, 4),
            accelerator_type=rng.choice(_GPU_TYPES),
        )
        for number in range(rng.randint(1, 3))
    )
    limit = rng.choice((None, rng.randint(0, 6)))
    return capacity.model_copy(update={"node_types": node_types, "max_nodes_to_add": limit})


def _draw_slice(rng: random.Random, name: str) -> list[NodeCapacity]:
    """Return the hosts of a TPU slice with Ray's labels and resources. One host may be missing."""
    shape = rng.choice(_SLICES)
    chips = shape.chips if shape.has_one_host else 4
    cpus = rng.choice((4, 8))
    hosts = []
    for number in range(shape.chips // chips):
        custom = {"TPU": chips, name: 1}
        if number == 0:
            custom[shape.head_resource] = 1  # Train reserves a slice with it
        host = NodeCapacity(
            node_id=f"{name}-{number}",
            resources=Resources(cpus=cpus, custom=custom),
            accelerator_type=shape.accelerator_type,
            labels={
                SLICE_NAME: name,
                TOPOLOGY: shape.topology,
                POD_TYPE: shape.pod_type,
                WORKER_ID: str(number),
            },
        )
        hosts.append(host)
    if rng.random() < 0.2:
        return hosts[:-1]
    return hosts


def _partly_used(rng: random.Random, node: NodeCapacity) -> NodeCapacity:
    has = node.resources
    in_use = Resources(cpus=has.cpus * rng.choice((0, 0.5, 1)), gpus=rng.choice((0, has.gpus // 2, has.gpus)))
    return node.model_copy(update={"in_use": in_use})


def twice(capacity: ClusterCapacity) -> ClusterCapacity:
    """Return the cluster with each alive node duplicated."""
    return capacity.with_nodes((*capacity.nodes, *map(_copy, capacity.nodes)))


def _copy(node: NodeCapacity) -> NodeCapacity:
    labels = node.labels
    if SLICE_NAME in labels:
        labels = labels | {SLICE_NAME: f"{labels[SLICE_NAME]}-copy"}
    return node.model_copy(update={"node_id": f"{node.node_id}-copy", "labels": labels, "is_head": False})


def simpler_clusters(capacity: ClusterCapacity) -> Iterator[ClusterCapacity]:
    """Yield slightly simpler clusters: without one of the nodes or node types, or with a simpler node."""
    nodes = capacity.nodes
    for i in range(len(nodes)):
        yield capacity.with_nodes((*nodes[:i], *nodes[i + 1 :]))
    defaults = {"node_types": (), "draining": (), "max_nodes_to_add": None}
    for name, default in defaults.items():
        if getattr(capacity, name) != default:
            yield capacity.model_copy(update={name: default})
    for i, node_type in enumerate(capacity.node_types or ()):
        others = (*(capacity.node_types or ())[:i], *(capacity.node_types or ())[i + 1 :])
        yield capacity.model_copy(update={"node_types": others})
        if node_type.max_nodes_to_add > 1:
            one = node_type.model_copy(update={"max_nodes_to_add": 1})
            yield capacity.model_copy(update={"node_types": (*others, one)})
    for i, node in enumerate(nodes):
        for changes in _simpler(node):
            yield capacity.with_nodes((*nodes[:i], node.model_copy(update=changes), *nodes[i + 1 :]))


def _simpler(node: NodeCapacity) -> Iterator[Mapping[str, Any]]:
    """Yield field values that make a node slightly simpler."""
    for name in ("labels", "in_use", "usable_cpus", "accelerator_type", "devices", "is_head"):
        default = NodeCapacity.model_fields[name].get_default(call_default_factory=True)
        if getattr(node, name) != default:
            yield {name: default}
    has = node.resources
    if has.custom:
        yield {"resources": has.replaced(custom={})}
    if has.memory_bytes is not None:
        yield {"resources": has.replaced(memory_bytes=None)}
    for cpus in sorted({0, 1, has.cpus // 2, has.cpus - 1}):
        if 0 <= cpus < has.cpus:
            yield {"resources": has.replaced(cpus=cpus)}
    for gpus in sorted({0, 1, has.gpus // 2, has.gpus - 1}):
        if 0 <= gpus < has.gpus:
            devices = node.devices and node.devices[: int(gpus)]
            yield {"resources": has.replaced(gpus=gpus), "devices": devices}
