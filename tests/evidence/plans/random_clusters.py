"""Draws random clusters and policies. Equal seeds give equal results.

The clusters are small enough to start on one machine, but difficult to plan. Their nodes differ in resources, device
types and labels. The fractions do not divide a device evenly, and host memory or custom resources may run out first.
Some nodes have known GPUs. On the other nodes, the GPU memory follows from the device type.
"""

import random
from collections.abc import Iterator
from typing import Final, Literal

from tune_policies import (
    AcceleratorPolicy,
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    EvenSplitPolicy,
    FirstFeasiblePolicy,
    GpuDevice,
    GpuMemoryPolicy,
    GpuPolicy,
    MixedPolicy,
    NodeCapacity,
    NodeTypeCapacity,
    ReservingPolicy,
    Resources,
    SelectingPolicy,
)
from tune_policies.cluster.labels import ACCELERATOR_TYPE
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.units import GIB

MOST_NODES: Final = 6
MOST_GPUS: Final = 8

Strategy = Literal["PACK", "SPREAD"]

_GPU_MEMORY_GIB: Final = {None: (8, 16, 24), "T4": (15,), "A10G": (22.5,), "A100": (40, 80), "H100": (80,)}
_NUM_WORKERS: Final = (0, 0, 0, 1, 2, 3, 4, 6)
_CUSTOM: Final[tuple[dict[str, float], ...]] = ({}, {}, {}, {"license": 1}, {"license": 0.3}, {"scratch": 1})
_MEMORY: Final = (None, None, "500MiB", "1GiB", "1500MiB", "3GiB")
_TYPES: Final = (None, None, None, "T4", "A100", ("H100", "A100"), ("A10G", "T4"))
_SELECTORS: Final[tuple[dict[str, str], ...]] = (
    {},
    {"zone": "eu"},
    {"zone": "!us"},
    {"zone": "in(eu,us)", "disk": "!ssd"},
    {"zone": "!in(eu,asia)"},
)


def draw_cluster(rng: random.Random) -> ClusterCapacity:
    """Return a cluster of 1 to 6 nodes. Some nodes may be equal."""
    nodes = [_draw_node(rng)]
    for _ in range(rng.randint(0, MOST_NODES - 1)):
        is_equal = rng.random() < 0.3
        nodes.append(nodes[-1] if is_equal else _draw_node(rng))
    named = []
    for index, node in enumerate(nodes):
        node_id = f"{rng.getrandbits(224):056x}"  # real nodes are started with these IDs of the length of Ray's
        named.append(node.model_copy(update={"node_id": node_id, "is_head": index == 0}))
    return ClusterCapacity(nodes=tuple(named))


def _draw_node(rng: random.Random) -> NodeCapacity:
    gpus = rng.choice((0, 0, 1, 1, 2, 3, 4, MOST_GPUS))
    accelerator_type = rng.choice(list(_GPU_MEMORY_GIB)) if gpus else None
    devices = None
    if gpus and rng.random() < 0.5:
        memory = int(rng.choice(_GPU_MEMORY_GIB[accelerator_type]) * GIB)
        name = accelerator_type or "GPU"
        devices = tuple(GpuDevice(index=index, name=name, memory_bytes=memory) for index in range(gpus))
    labels = rng.choice(({}, {"zone": "eu"}, {"zone": "us"}, {"zone": "us", "disk": "ssd"}))
    if accelerator_type and rng.random() < 0.5:
        labels = {**labels, ACCELERATOR_TYPE: accelerator_type}
    return NodeCapacity(
        node_id="",
        resources=Resources(
            cpus=rng.choice((0 if gpus else 1, 1, 2, 3, 4, 6, 8, 16, 32)),
            gpus=gpus,
            memory_bytes=rng.choice((1, 2, 3, 4, 8, 16)) * GIB,
            custom=rng.choice(({}, {}, {"license": 2}, {"license": 1, "scratch": 3}, {"scratch": 2})),
        ),
        accelerator_type=accelerator_type,
        labels=labels,
        devices=devices,
    )


def draw_larger_cluster(rng: random.Random) -> ClusterCapacity:
    """Return a cluster that may have accelerators other than GPUs, and 0 to 2 node types that can be added."""
    cluster = draw_cluster(rng)
    types = []
    for index in range(rng.randint(0, 2)):
        node = _with_accelerators(rng, _draw_node(rng))
        types.append(
            NodeTypeCapacity(
                name=f"type-{index}",
                resources=node.resources,
                max_nodes_to_add=rng.randint(1, 2),
                accelerator_type=node.accelerator_type,
                labels=node.labels,
            )
        )
    nodes = tuple(_with_accelerators(rng, node) for node in cluster.nodes)
    return cluster.model_copy(update={"nodes": nodes, "node_types": tuple(types)})


def _with_accelerators(rng: random.Random, node: NodeCapacity) -> NodeCapacity:
    custom = rng.choice(({}, {}, {"HPU": 8}, {"HPU": 2}, {"NPU": 1}, {"NPU": 4}))
    return node.model_copy(update={"resources": node.resources.replaced(custom={**node.resources.custom, **custom})})


def draw_mixed_policies(rng: random.Random) -> Iterator[ResourcePolicy]:
    """Yield policies with several slot types, with accelerators other than GPUs, or with nodes to add, indefinitely."""
    while True:
        inner = rng.choice((_draw_mixed, _draw_mixed, _draw_accelerator))(rng)
        yield AutoscalingPolicy(inner) if rng.random() < 0.4 else inner


def _draw_mixed(rng: random.Random) -> MixedPolicy:
    draws = (_draw_cpu, _draw_gpu, _draw_gpu, _draw_gpu_memory, _draw_accelerator)
    return MixedPolicy(policies=[rng.choice(draws)(rng) for _ in range(rng.choice((2, 2, 3)))])


def _draw_accelerator(rng: random.Random) -> AcceleratorPolicy:
    resource = rng.choice(("HPU", "NPU"))
    amounts = (1, 1, 2, 4) if resource == "HPU" else (0.25, 0.3, 0.5, 1, 2)
    return AcceleratorPolicy(
        resource=resource,
        amount=rng.choice(amounts),
        cpus=rng.choice((None, None, 0.5, 1, 2)),
        num_workers=rng.choice(_NUM_WORKERS),
    )


def draw_sizing_policy(rng: random.Random) -> ResourcePolicy:
    """Return a policy that fixes the size of a worker and runs as many trials as fit."""
    return rng.choice((_draw_cpu, _draw_gpu, _draw_gpu, _draw_gpu_memory))(rng)


def draw_policies(rng: random.Random, capacity: ClusterCapacity) -> Iterator[ResourcePolicy]:
    """Yield policies of all kinds, some of them wrapped and some infeasible. The iterator is infinite."""
    while True:
        yield _wrapped(rng, capacity, _draw_even_split(rng) if rng.random() < 0.15 else draw_sizing_policy(rng))


def draw_selection(rng: random.Random, capacity: ClusterCapacity, inner: ResourcePolicy) -> SelectingPolicy:
    """Return ``inner`` with a random label selector and random excluded nodes."""
    node_ids = [node.node_id for node in capacity.nodes]
    excluded = rng.sample(node_ids, rng.randint(0, len(node_ids) // 2))
    return SelectingPolicy(
        inner,
        label_selector=rng.choice(_SELECTORS),
        exclude_nodes=tuple(excluded),
        exclude_head=rng.random() < 0.2,
    )


def leaves_room(policy: ResourcePolicy) -> bool:
    """Return whether ``policy`` may leave a part of the cluster unused on purpose."""
    match policy:
        case CappedPolicy() | ReservingPolicy() | EvenSplitPolicy():
            return True
        case SelectingPolicy():
            return leaves_room(policy.inner)
        case FirstFeasiblePolicy():
            return any(map(leaves_room, policy.policies))
        case _:
            return False


def _wrapped(rng: random.Random, capacity: ClusterCapacity, inner: ResourcePolicy) -> ResourcePolicy:
    match rng.choices(("", "select", "first", "cap", "reserve"), weights=(50, 30, 10, 5, 5))[0]:
        case "select":
            return draw_selection(rng, capacity, inner)
        case "first":
            return FirstFeasiblePolicy(inner, _draw_cpu(rng))
        case "cap":
            return CappedPolicy(inner, rng.randint(1, 6))
        case "reserve":
            return ReservingPolicy(inner, cpus=rng.choice((0, 1, 2, 5)), gpus=rng.randint(0, 2))
        case _:
            return inner


def _draw_cpu(rng: random.Random) -> CpuPolicy:
    return CpuPolicy(
        cpus=rng.choice((0.25, 0.3, 0.57, 1, 1, 1.5, 2, 3, 4)),
        memory=rng.choice(_MEMORY),
        num_workers=rng.choice(_NUM_WORKERS),
        custom=rng.choice(_CUSTOM),
    )


def _draw_gpu(rng: random.Random) -> GpuPolicy:
    return GpuPolicy(
        gpus=rng.choice((0.007, 0.03, 0.1, 0.15, 0.2, 0.25, 0.3, 1 / 3, 0.34, 0.4, 0.5, 0.6, 0.75, 1, 1, 2, 3, 4)),
        cpus=rng.choice((None, None, 0, 0.5, 1, 2, 3)),
        memory=rng.choice((None, *_MEMORY)),
        accelerator_type=rng.choice(_TYPES),
        num_workers=rng.choice(_NUM_WORKERS),
        min_gpu_memory=rng.choice((None, None, None, "15GiB", "20GiB", "50GiB")),
        custom=rng.choice(_CUSTOM),
    )


def _draw_gpu_memory(rng: random.Random) -> GpuMemoryPolicy:
    return GpuMemoryPolicy(
        gpu_memory=rng.choice(("2GiB", "5GiB", "6GiB", "10GiB", "14GiB", "20GiB", "35GiB")),
        cpus=rng.choice((None, None, 0.5, 1, 2)),
        memory=rng.choice((None, *_MEMORY)),
        accelerator_type=rng.choice(_TYPES),
        num_workers=rng.choice(_NUM_WORKERS),
        max_trials_per_gpu=rng.choice((None, None, None, 1, 2, 3)),
        custom=rng.choice(_CUSTOM),
    )


def _draw_even_split(rng: random.Random) -> EvenSplitPolicy:
    return EvenSplitPolicy(
        num_trials=rng.randint(1, 30),
        min_cpus=rng.choice((0.5, 1, 1, 2)),
        min_gpus=rng.choice((0, 0.15, 0.3, 0.5, 1, 2)),
        num_workers=rng.choice(_NUM_WORKERS),
        memory=rng.choice(_MEMORY),
    )
