"""Tests of the plans for common clusters. Tests in ``on_ray`` compare the plans with Ray's scheduling."""

import pytest

from tests.clusters import gpu_node, nodes, with_devices
from tune_policies import (
    AcceleratorPolicy,
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    EvenSplitPolicy,
    FirstFeasiblePolicy,
    FreeCapacityPolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    MixedPolicy,
    NodeCapacity,
    NodeTypeCapacity,
    ReservingPolicy,
    Resources,
    SelectingPolicy,
)
from tune_policies.values.resources import TICKS
from tune_policies.values.units import format_bytes

T4 = {"gpu_memory_gib": 16, "accelerator_type": "T4"}
L4 = {"gpu_memory_gib": 22, "accelerator_type": "L4"}
A100 = {"gpu_memory_gib": 80, "accelerator_type": "A100"}
H100 = {"gpu_memory_gib": 80, "accelerator_type": "H100"}
of = ClusterCapacity.of
EU, US = {"zone": "eu"}, {"zone": "us"}
CPU, GPU, NPU = CpuPolicy(), GpuPolicy(), AcceleratorPolicy(resource="NPU", cpus=1)
QUARTERS, ON_CPUS = GpuPolicy(gpus=0.25, cpus=1), CpuPolicy(cpus=2)
TWO_GPUS, ONE_CPU_GPU = CappedPolicy(GpuPolicy(cpus=1), 2), GpuPolicy(cpus=1)


def node_type(name, most, *, cpus=8, gpus=0, memory=None, **more):
    has = Resources(cpus=cpus, gpus=gpus, memory_bytes=memory)
    return NodeTypeCapacity(name=name, resources=has, max_nodes_to_add=most, **more)


def growing(*node_types, alive=((8, 0),), most=None):
    return nodes(*alive).model_copy(update={"node_types": node_types, "max_nodes_to_add": most})


def may_grow(alive, *node_types):
    return of(*alive).model_copy(update={"node_types": node_types})


def in_use(*used):
    """Return a node for each argument, with 8 CPUs, 2 GPUs and these resources in use."""
    both = zip(nodes(*[(8, 2)] * len(used)).nodes, used, strict=True)
    return ClusterCapacity(nodes=tuple(node.model_copy(update={"in_use": each}) for node, each in both))


def with_memory(*sizes, cpus=4):
    return ClusterCapacity.of(*(Resources(cpus=cpus, memory_bytes=size) for size in sizes))


ONE_A100, GPU_24, BUSY = of(gpu_node("a", **A100)), of(gpu_node("a", gpu_memory_gib=24)), Resources(gpus=1)
T4_AND_A100 = of(gpu_node("a", cpus=8, **T4), gpu_node("b", cpus=6, **A100))
TWO, THREE, POOL = nodes(*[(8, 1)] * 2), nodes(*[(8, 1)] * 3), nodes((16, 2))
GROWING_POOL = growing(node_type("both", 5, cpus=16, gpus=2), alive=((16, 2),))
SMALL_A100 = gpu_node("b", gpu_memory_gib=16, accelerator_type="A100")
NO_ROOM, ROOM = node_type("no room", 3, memory=2**19 + 1), node_type("room", 3, cpus=2, memory="1GiB")
SMALL, LARGE = node_type("small", 4, gpus=1), node_type("large", 2, cpus=64, gpus=8)
CPUS, HUGE = node_type("cpus", 3, cpus=16), node_type("huge", 1, cpus=48)
MIXED = MixedPolicy(QUARTERS, ON_CPUS)
SIX_GIB = GpuMemoryPolicy(gpu_memory="6GiB")
GPU_L4, GPU_A100 = (node_type(name.lower(), 2, gpus=1, accelerator_type=name) for name in ("L4", "A100"))
IN_ZONES = growing(node_type("eu", 2, gpus=1, labels=EU), node_type("us", 2, gpus=1, labels=US))
FEW_H100 = of(gpu_node("a", **H100), gpu_node("b", gpus=2, **L4), gpu_node("c", gpus=8, **A100))
SEVERAL = of(
    gpu_node("a", gpus=4, **A100),
    gpu_node("b", gpus=2, **L4),
    gpu_node("c", gpus=2, cpus=32, **H100),
    gpu_node("d", gpus=0),
)
LABELED = SEVERAL.with_nodes(
    node.model_copy(update={"labels": {"ray.io/accelerator-type": node.accelerator_type or "none"}})
    for node in SEVERAL.nodes
)
TPUS = of(
    gpu_node("a", gpus=0, cpus=8, accelerator_type="TPU-V4", custom={"TPU": 4}),
    gpu_node("b", gpus=0, cpus=99, accelerator_type="TPU-V6E", custom={"TPU": 8}),
)
HEAD = gpu_node("head", gpus=0, cpus=4).model_copy(update={"is_head": True})
ADDRESSED = gpu_node("0123456789abcdef", gpus=0, cpus=2).model_copy(update={"address": "fe80::1"})


def planned(plan):
    """Return a line with the slots of a plan, the limiting resource and the nodes to add."""
    added = " ".join(f"+{count} {name}" for name, count in plan.nodes_to_add.items())
    return " | ".join([" + ".join(map(_slot, plan.slots)), plan.limited_by, *([added] if added else [])])


def _slot(slot):
    amounts = [
        format_bytes(amount) if name == "memory" else f"{amount / TICKS:.5g} {name}"
        for name, amount in slot.worker.ticks.items()
    ]
    workers = f"{slot.num_workers} of " if slot.num_workers else ""
    gpu_memory = f" of {format_bytes(slot.gpu_memory_bytes)}" if slot.gpu_memory_bytes else ""
    device_type = f" on {slot.accelerator_type}" if slot.accelerator_type else ""
    where = "".join(f", {key.removeprefix('ray.io/')} {each}" for key, each in slot.label_selector.items())
    return f"{slot.max_concurrent_trials} x {workers}{', '.join(amounts)}{gpu_memory}{device_type}{where}"


# fmt: off
PLANS = {
    # Fractions and CPUs
    "0.4 on 3 GPUs: 2 per GPU, not 7": (nodes((64, 3)), GpuPolicy(gpus=0.4), "6 x 10 CPU, 0.5 GPU | GPU"),
    "thirds": (nodes((64, 1)), GpuPolicy(gpus=1 / 3), "3 x 21 CPU, 0.3333 GPU | GPU"),
    "0.6 is rounded up to a whole GPU": (nodes((64, 1)), GpuPolicy(gpus=0.6), "1 x 64 CPU, 1 GPU | GPU"),
    "few CPUs leave no GPU idle": (nodes((2, 4)), GPU, "4 x 0.5 CPU, 1 GPU | GPU"),
    "a head without CPUs has slots without CPUs": (nodes((0, 1), (32, 4)), GPU, "4 x 8 CPU, 1 GPU + 1 x 1 GPU | GPU"),
    "a head without CPUs is omitted if all trials get the same":
        (nodes((0, 1), (32, 4)), GpuPolicy(same_for_all=True), "4 x 8 CPU, 1 GPU | GPU"),
    "no CPUs if no trial fits the nodes with CPUs":
        (nodes((0, 1), (0, 1), (8, 1)), GpuPolicy(num_workers=2), "1 x 2 of 1 GPU | GPU"),
    "no CPUs if the nodes with CPUs have too little GPU memory":
        (of(gpu_node("a", cpus=0, **A100), gpu_node("b", cpus=8, **T4)),
         GpuMemoryPolicy(gpu_memory="30GiB", same_for_all=True), "2 x 0.5 GPU of 40 GiB on A100 | GPU"),
    "no CPUs if the nodes with CPUs have too few NPUs":
        (with_devices((0, {"NPU": 1}), (0, {"NPU": 1}), (8, {"NPU": 1})),
         AcceleratorPolicy(resource="NPU", num_workers=2), "1 x 2 of 1 NPU | NPU"),
    "a head without CPUs counts if no CPUs are requested":
        (nodes((0, 1), (32, 4)), GpuPolicy(cpus=0), "5 x 1 GPU | GPU"),
    "no CPUs on the GPU nodes": (nodes((0, 2), (8, 1)), GpuPolicy(gpus=2), "1 x 2 GPU | GPU"),
    "half a CPU is enough": (nodes((0, 2), (0.5, 1)), GPU, "1 x 0.5 CPU, 1 GPU + 2 x 1 GPU | GPU"),
    "many GPUs without CPUs do not affect the split":
        (of(gpu_node("a", gpus=8, cpus=0, **A100), gpu_node("b", gpus=2, cpus=8, **T4)),
         GpuPolicy(min_gpu_memory="10GiB"), "2 x 4 CPU, 1 GPU of 16 GiB + 8 x 1 GPU of 80 GiB | GPU"),
    "requested CPUs can leave GPUs idle": (nodes((8, 4)), GpuPolicy(cpus=4), "2 x 4 CPU, 1 GPU | CPU"),
    "nodes without GPUs do not count":
        (nodes((16, 8), (8, 0), (8, 0), (8, 0)), GpuPolicy(cpus=4), "4 x 4 CPU, 1 GPU | CPU"),
    "the resource that stops the most trials is the limit":
        (nodes((4, 8), (64, 16)), GpuPolicy(cpus=2), "18 x 2 CPU, 1 GPU | GPU"),
    "CPUs above 1 are whole": (nodes((10, 4)), GPU, "4 x 2 CPU, 1 GPU | GPU"),
    "each node divides its own CPUs":
        (nodes((8, 1), (32, 4), (4, 2)), GPU, "5 x 8 CPU, 1 GPU + 2 x 2 CPU, 1 GPU | GPU"),
    "the node with the fewest CPUs per GPU determines the split":
        (nodes((8, 4), (4, 4)), GpuPolicy(same_for_all=True), "8 x 1 CPU, 1 GPU | GPU"),
    "one of 21 nodes with half the CPUs is omitted":
        (nodes(*[(8, 1)] * 20, (4, 1)), GpuPolicy(same_for_all=True), "20 x 8 CPU, 1 GPU | GPU"),
    "one of 21 nodes with more than half the CPUs determines the split":
        (nodes(*[(8, 1)] * 20, (5, 1)), GpuPolicy(same_for_all=True), "21 x 5 CPU, 1 GPU | GPU"),
    "two of 22 nodes with half the CPUs determine the split":
        (nodes(*[(8, 1)] * 20, (4, 1), (4, 1)), GpuPolicy(same_for_all=True), "22 x 4 CPU, 1 GPU | GPU"),
    "a GPU of each node stays free": (nodes((64, 3), (64, 3)), GpuPolicy(gpus=2), "2 x 64 CPU, 2 GPU | GPU"),
    "a gang over 2 nodes": (nodes((3, 0), (3, 0)), CpuPolicy(cpus=2, num_workers=2), "1 x 2 of 2 CPU | CPU"),
    "host memory is the limit": (with_memory("16GiB", cpus=64), CpuPolicy(memory="6GiB"), "2 x 1 CPU, 6 GiB | memory"),
    "drivers take host memory from workers":
        (with_memory("16GiB", cpus=64), CpuPolicy(memory="8GiB", num_workers=1), "1 x 1 of 1 CPU, 8 GiB | memory"),
    "the drivers' host memory is the limit":
        (with_memory("2MiB", cpus=64), CpuPolicy(num_workers=1), "2 x 1 of 1 CPU | memory"),
    "a custom resource":
        (of(Resources(cpus=8, custom={"license": 3})),
         CpuPolicy(custom={"license": 1}), "3 x 1 CPU, 1 license | license"),
    "as many trials as a plan counts": (nodes((10**11, 0)), CpuPolicy(cpus=0.0001), "100000000000 x 0.0001 CPU | CPU"),
    # Even splits
    "3 rounds of 7, not 8": (nodes((30, 4)), EvenSplitPolicy(num_trials=20, min_gpus=0.5), "7 x 4 CPU, 0.5 GPU | GPU"),
    "8 if they get the same resources":
        (nodes((32, 4)), EvenSplitPolicy(num_trials=20, min_gpus=0.5), "8 x 4 CPU, 0.5 GPU | GPU"),
    "96 of 100, not twice 50": (nodes((64, 0), (32, 0)), EvenSplitPolicy(num_trials=100), "96 x 1 CPU | CPU"),
    "all at once with a third":
        (nodes((64, 8)), EvenSplitPolicy(num_trials=20, min_gpus=0.3), "20 x 3 CPU, 0.3333 GPU | num_trials"),
    "4 GPUs each, beside a node with one":
        (nodes((64, 8), (64, 1)), EvenSplitPolicy(num_trials=2, min_gpus=1), "2 x 32 CPU, 4 GPU | num_trials"),
    "no slot is left idle": (nodes((8, 0)), EvenSplitPolicy(num_trials=9), "8 x 1 CPU | CPU"),
    "the remaining resources of a round are used":
        (nodes((24, 0)), EvenSplitPolicy(num_trials=10, min_cpus=3), "6 x 4 CPU | CPU"),
    "a fraction of a CPU": (nodes((2, 0)), EvenSplitPolicy(num_trials=3, min_cpus=0.5), "3 x 0.6666 CPU | num_trials"),
    # GPU memory
    "fractions of 80 GiB": (ONE_A100, SIX_GIB, "13 x 4 CPU, 0.0769 GPU of 6.2 GiB | GPU"),
    "at most the requested number on a GPU":
        (ONE_A100,
         GpuMemoryPolicy(gpu_memory="6GiB", max_trials_per_gpu=4),
         "4 x 16 CPU, 0.25 GPU of 20 GiB | max_trials_per_gpu"),
    "a worker gets at least its requested memory":
        (of(gpu_node("a", gpu_memory_gib=18)), SIX_GIB, "3 x 21 CPU, 0.3333 GPU of 6 GiB | GPU"),
    "141 fractions, although Ray would count 142":
        (of(gpu_node("a", gpu_memory_gib=141)),
         GpuMemoryPolicy(gpu_memory="1GiB"), "140 x 0.4571 CPU, 0.0071 GPU of 1 GiB | GPU"),
    "a GPU without CPUs has slots without CPUs":
        (of(gpu_node("a", cpus=0, gpu_memory_gib=8), gpu_node("b", gpu_memory_gib=16)),
         GpuMemoryPolicy(gpu_memory="4GiB"),
         "4 x 16 CPU, 0.25 GPU of 4 GiB, node-id b + 2 x 0.5 GPU of 4 GiB, node-id a | GPU"),
    "a GPU without CPUs does not count if all trials get the same":
        (of(gpu_node("a", cpus=0, gpu_memory_gib=8), gpu_node("b", gpu_memory_gib=16)),
         GpuMemoryPolicy(gpu_memory="4GiB", same_for_all=True), "4 x 16 CPU, 0.25 GPU of 4 GiB | GPU"),
    "fractions of a CPU with GPU memory":
        (of(gpu_node("a", cpus=0.5, gpu_memory_gib=16)),
         GpuMemoryPolicy(gpu_memory="8GiB"), "2 x 0.25 CPU, 0.5 GPU of 8 GiB | GPU"),
    "a GPU without room for a worker does not reduce the fraction":
        (of(gpu_node("a", gpu_memory_gib=80), gpu_node("b", cpus=2, gpu_memory_gib=8), gpu_node("c", cpus=2)),
         GpuPolicy(gpus=0.5, cpus=8), "2 x 8 CPU, 0.5 GPU of 40 GiB | GPU"),
    "memory of the type if it was not read":
        (of(gpu_node("a", accelerator_type="L4")),
         GpuPolicy(gpus=0.5, min_gpu_memory="20GiB"), "2 x 32 CPU, 0.5 GPU of 11.2 GiB | GPU"),
    "the smallest A100 is assumed":
        (of(gpu_node("a", gpus=8, accelerator_type="A100")),
         GpuMemoryPolicy(gpu_memory="12GiB"), "24 x 2 CPU, 0.3333 GPU of 13.2 GiB | GPU"),
    "all large enough GPUs of any type":
        (SEVERAL, GpuMemoryPolicy(gpu_memory="30GiB"), "12 x 8 CPU, 0.5 GPU of 40 GiB, node-id in(a,c) | GPU"),
    "GPUs of unknown memory are excluded by type":
        (of(gpu_node("a", **A100), gpu_node("b", accelerator_type="M3-Max")),
         SIX_GIB, "13 x 4 CPU, 0.0769 GPU of 6.2 GiB on A100 | GPU"),
    "the smallest GPU determines the fraction if more trials run":
        (of(gpu_node("a", **A100), gpu_node("b", gpus=8, **T4)),
         GpuMemoryPolicy(gpu_memory="6GiB", same_for_all=True), "18 x 4 CPU, 0.5 GPU of 8 GiB | GPU"),
    "otherwise the smaller GPUs are omitted":
        (of(gpu_node("a", **A100), gpu_node("b", gpus=2, **T4)),
         GpuMemoryPolicy(gpu_memory="6GiB", same_for_all=True), "13 x 4 CPU, 0.0769 GPU of 6.2 GiB on A100 | GPU"),
    "equally many trials get the larger fraction":
        (of(gpu_node("a", **A100), gpu_node("b", gpus=7, **T4)),
         GpuMemoryPolicy(gpu_memory="10GiB", same_for_all=True), "8 x 9 CPU, 1 GPU of 16 GiB | GPU"),
    "the requested CPUs also count":
        (of(gpu_node("a", gpus=8, cpus=8, **T4), gpu_node("b", gpus=2, cpus=64, **A100)),
         GpuMemoryPolicy(gpu_memory="8GiB", cpus=4, same_for_all=True), "16 x 4 CPU, 0.1 GPU of 8 GiB on A100 | CPU"),
    # Device types and nodes
    "the first type that fits":
        (SEVERAL,
         GpuPolicy(gpus=4, accelerator_type=("H100", "A100", "L4")), "1 x 64 CPU, 4 GPU of 80 GiB on A100 | GPU"),
    "a type with too few trials is skipped":
        (FEW_H100,
         GpuPolicy(accelerator_type=("H100", "L4", "A100"), min_trials=6), "8 x 8 CPU, 1 GPU of 80 GiB on A100 | GPU"),
    "a choice with too few trials is skipped":
        (FEW_H100,
         FirstFeasiblePolicy(GpuPolicy(accelerator_type="H100"), CpuPolicy(cpus=64), min_trials=3), "3 x 64 CPU | CPU"),
    "a fallback": (nodes((4, 0)), GpuPolicy() | CpuPolicy(cpus=2), "2 x 2 CPU | CPU"),
    "minimum GPU memory, from the nodes":
        (SEVERAL, GpuPolicy(min_gpu_memory="24GiB"), "6 x 16 CPU, 1 GPU of 80 GiB, node-id in(a,c) | GPU"),
    "minimum GPU memory, from Ray's label":
        (LABELED,
         GpuPolicy(min_gpu_memory="24GiB"), "6 x 16 CPU, 1 GPU of 80 GiB, accelerator-type in(A100,H100) | GPU"),
    "minimum GPU memory, from the type":
        (SEVERAL.with_nodes(SEVERAL.nodes[:2]),
         GpuPolicy(min_gpu_memory="24GiB"), "4 x 16 CPU, 1 GPU of 80 GiB on A100 | GPU"),
    "minimum GPU memory that all GPUs have":
        (SEVERAL.with_nodes(SEVERAL.nodes[::3]),
         GpuPolicy(min_gpu_memory="24GiB"), "4 x 16 CPU, 1 GPU of 80 GiB | GPU"),
    "a node without a label of its type is listed":
        (of(gpu_node("large", gpu_memory_gib=80), LABELED.nodes[1]),
         GpuPolicy(min_gpu_memory="24GiB"), "1 x 64 CPU, 1 GPU of 80 GiB, node-id large | GPU"),
    "excluded nodes":
        (of(HEAD, ADDRESSED, gpu_node("c", gpus=0, cpus=3)),
         SelectingPolicy(CPU, exclude_head=True, exclude_nodes=("fe80:0::1",)),
         "3 x 1 CPU, node-id !in(0123456789abcdef,head) | CPU"),
    "nodes excluded by the start of an ID":
        (of(ADDRESSED, gpu_node("c", gpus=0, cpus=3)),
         SelectingPolicy(CPU, exclude_nodes=("01234567",)), "3 x 1 CPU, node-id !0123456789abcdef | CPU"),
    "an outer and an inner selector":
        (SEVERAL,
         SelectingPolicy(GpuPolicy(min_gpu_memory="24GiB"), exclude_nodes=("c",)),
         "4 x 16 CPU, 1 GPU of 80 GiB on A100, node-id !c | GPU"),
    "two conditions on one label":
        (of(gpu_node("a", gpus=0, cpus=2, labels=US)),
         SelectingPolicy(SelectingPolicy(CPU, {"zone": "!eu"}), US), "2 x 1 CPU, zone us | CPU"),
    "draining nodes do not count":
        (ClusterCapacity(nodes=(gpu_node("a", gpus=0, cpus=2),), draining=(gpu_node("b"),)), CPU, "2 x 1 CPU | CPU"),
    "unusable nodes are excluded from Ray's placement":
        (ClusterCapacity(nodes=(gpu_node("a", gpus=0, cpus=2),), unusable=(gpu_node("b"),)),
         CPU, "2 x 1 CPU, node-id !b | CPU"),
    "unusable nodes next to slots of several node types":
        (ClusterCapacity(
            nodes=(gpu_node("a", gpus=2, cpus=8), gpu_node("c", gpus=2, cpus=2)), unusable=(gpu_node("b"),)),
         GpuPolicy(), "2 x 4 CPU, 1 GPU, node-id !b + 2 x 1 CPU, 1 GPU, node-id !b | GPU"),
    # Other accelerators
    "whole devices, node by node":
        (with_devices((16, {"HPU": 8}), (5, {"HPU": 3})),
         AcceleratorPolicy(resource="HPU", amount=2), "1 x 5 CPU, 2 HPU + 4 x 4 CPU, 2 HPU | HPU"),
    "a fraction of an NPU":
        (with_devices((12, {"NPU": 4})), AcceleratorPolicy(resource="NPU", amount=0.3), "12 x 1 CPU, 0.3333 NPU | NPU"),
    "a single device type":
        (TPUS,
         AcceleratorPolicy(resource="TPU", amount=4, accelerator_type="TPU-V4"), "1 x 8 CPU, 4 TPU on TPU-V4 | TPU"),
    "Train workers":
        (with_devices((8, {"neuron_cores": 16})),
         AcceleratorPolicy(resource="neuron_cores", amount=2, num_workers=3),
         "2 x 3 of 1 CPU, 2 neuron_cores | neuron_cores"),
    "GPUs as GpuPolicy plans them":
        (nodes((16, 4), (8, 1)),
         AcceleratorPolicy(resource="GPU", amount=0.3, num_workers=2), "7 x 2 of 1 CPU, 0.3333 GPU | GPU"),
    # Limits of trials and reserved resources
    "capped": (nodes((64, 4)), CappedPolicy(GPU, 3), "3 x 16 CPU, 1 GPU | max_concurrent_trials"),
    "a reserved GPU": (nodes((64, 4)), ReservingPolicy(GPU, gpus=1), "3 x 21 CPU, 1 GPU | GPU"),
    "CPUs of GPU nodes are kept": (nodes((8, 4), (8, 0)), ReservingPolicy(GPU, cpus=4), "4 x 2 CPU, 1 GPU | GPU"),
    "remaining CPUs are reserved first": (TWO, ReservingPolicy(QUARTERS, cpus=8), "8 x 1 CPU, 0.25 GPU | GPU"),
    "reserved CPUs differ by node": (TWO, ReservingPolicy(QUARTERS, cpus=7), "8 x 1 CPU, 0.25 GPU | GPU"),
    "one CPU more than the trials leave": (TWO, ReservingPolicy(QUARTERS, cpus=9), "7 x 1 CPU, 0.25 GPU | CPU"),
    "reserved CPUs that trials would divide":
        (TWO, ReservingPolicy(GpuPolicy(gpus=0.25), cpus=8), "8 x 1 CPU, 0.25 GPU | GPU"),
    "half a CPU each":
        (nodes((1, 1), (1, 1)), ReservingPolicy(GpuPolicy(gpus=0.5), cpus=1), "4 x 0.25 CPU, 0.5 GPU | GPU"),
    "CPUs are reserved where devices have the most":
        (nodes((8, 1), (8, 1), (8, 2)), ReservingPolicy(QUARTERS, cpus=8), "16 x 1 CPU, 0.25 GPU | GPU"),
    "CPUs without devices are reserved first":
        (nodes((8, 1), (8, 1), (4, 0)), ReservingPolicy(QUARTERS, cpus=12), "8 x 1 CPU, 0.25 GPU | GPU"),
    "CPUs next to a reserved whole GPU":
        (THREE, ReservingPolicy(QUARTERS, cpus=12, gpus=1), "8 x 1 CPU, 0.25 GPU | GPU"),
    "few nodes if these suffice":
        (nodes((2, 1), (2, 1)), ReservingPolicy(GpuPolicy(cpus=2), cpus=2), "1 x 2 CPU, 1 GPU | CPU"),
    "no fallback": (TWO, ReservingPolicy(GpuPolicy(cpus=8) | CPU, cpus=8), "1 x 8 CPU, 1 GPU | CPU"),
    "reserved CPUs on nodes with too few per GPU":
        (TWO, ReservingPolicy(GpuPolicy(cpus=4), cpus=12), "1 x 4 CPU, 1 GPU | CPU"),
    "reserved GPUs, whose CPUs the trials divide": (TWO, ReservingPolicy(GPU, cpus=12), "2 x 2 CPU, 1 GPU | GPU"),
    "a cap with reserved resources":
        (TWO, ReservingPolicy(CappedPolicy(GpuPolicy(cpus=4), 1), cpus=1), "1 x 4 CPU, 1 GPU | max_concurrent_trials"),
    "CPUs that no NPU needs are reserved":
        (with_devices((8, {"NPU": 1}), (8, {"NPU": 1})), ReservingPolicy(NPU, cpus=8), "2 x 1 CPU, 1 NPU | NPU"),
    "the node with the most remaining resources":
        (nodes((4, 0), (8, 0)), ReservingPolicy(CpuPolicy(cpus=4), cpus=3), "2 x 4 CPU | CPU"),
    "host memory of nodes with different amounts":
        (with_memory("2GiB", "4GiB"),
         MixedPolicy(CpuPolicy(cpus=3), ReservingPolicy(CpuPolicy(cpus=0.5, memory="2GiB"), memory="5GiB")),
         "2 x 3 CPU | CPU"),
    "reserved GPU memory, with GPU memory per trial":
        (GPU_24,
         ReservingPolicy(GpuMemoryPolicy(gpu_memory="5GiB"), gpu_memory="4GiB"), "4 x 16 CPU, 0.25 GPU of 5 GiB | GPU"),
    "reserved GPU memory, of a GPU type":
        (of(gpu_node("a", accelerator_type="L4")),
         ReservingPolicy(GpuPolicy(gpus=0.5), gpu_memory="4GiB"), "2 x 32 CPU, 0.5 GPU of 9.2 GiB | GPU"),
    "reserved GPU memory, and a GPU that is too small for it":
        (of(gpu_node("a", cpus=8, **T4), gpu_node("b", cpus=8, gpus=2, **A100)),
         ReservingPolicy(GPU, gpu_memory="20GiB"), "2 x 4 CPU, 1 GPU of 60 GiB, node-id !a | GPU"),
    "reserved GPU memory does not concern CPUs":
        (of(gpu_node("a", cpus=8, **T4)), ReservingPolicy(CPU, gpu_memory="20GiB"), "8 x 1 CPU | CPU"),
    "GPU memory stays unknown if some GPUs are reserved":
        (of(gpu_node("a", gpus=8, gpu_memory_gib=16, num_devices=7)),
         ReservingPolicy(GPU, gpus=1), "7 x 9 CPU, 1 GPU | GPU"),
    "reserved GPUs that are too small":
        (T4_AND_A100,
         ReservingPolicy(GpuMemoryPolicy(gpu_memory="20GiB"), gpus=1),
         "4 x 1 CPU, 0.25 GPU of 20 GiB, node-id !a | GPU"),
    "reserved GPUs below the minimum memory":
        (T4_AND_A100,
         ReservingPolicy(GpuPolicy(min_gpu_memory="24GiB"), gpus=1), "1 x 6 CPU, 1 GPU of 80 GiB, node-id !a | GPU"),
    "a GPU is in use": (in_use(BUSY, None), FreeCapacityPolicy(GPU), "1 x 8 CPU, 1 GPU + 2 x 4 CPU, 1 GPU | GPU"),
    "a GPU that is partly in use counts as fully used":
        (in_use(Resources(gpus=0.25), None), FreeCapacityPolicy(GPU), "1 x 8 CPU, 1 GPU + 2 x 4 CPU, 1 GPU | GPU"),
    "fractions of the remaining GPUs":
        (in_use(BUSY, Resources(gpus=2)), FreeCapacityPolicy(GpuPolicy(gpus=0.5)), "2 x 4 CPU, 0.5 GPU | GPU"),
    "CPUs are in use": (in_use(Resources(cpus=3), Resources(cpus=8)), FreeCapacityPolicy(ON_CPUS), "2 x 2 CPU | CPU"),
    "a fallback with resources in use":
        (in_use(BUSY), FreeCapacityPolicy(GpuPolicy(gpus=2) | CpuPolicy(cpus=8)), "1 x 8 CPU | CPU"),
    # Slots of several types
    "resources that the previous policies leave": (POOL, MIXED, "8 x 1 CPU, 0.25 GPU + 4 x 2 CPU | CPU"),
    "no resources for the second policy": (nodes((8, 2)), MIXED, "8 x 1 CPU, 0.25 GPU | GPU"),
    "device types":
        (of(gpu_node("a", gpus=2, cpus=8, **A100), gpu_node("b", gpus=4, cpus=8, **L4)),
         MixedPolicy(GpuPolicy(accelerator_type="A100"), GpuPolicy(accelerator_type="L4")),
         "2 x 4 CPU, 1 GPU of 80 GiB on A100 + 4 x 2 CPU, 1 GPU of 22 GiB on L4 | GPU"),
    "other devices":
        (with_devices((16, {"NPU": 2})),
         MixedPolicy(AcceleratorPolicy(resource="NPU", cpus=4), ON_CPUS), "2 x 4 CPU, 1 NPU + 4 x 2 CPU | CPU"),
    "whole GPUs of two policies share a node":
        (nodes((16, 4)),
         MixedPolicy(CappedPolicy(GpuPolicy(gpus=2, cpus=2), 1), ONE_CPU_GPU),
         "1 x 2 CPU, 2 GPU + 2 x 1 CPU, 1 GPU | GPU"),
    "fractions followed by whole GPUs do not share a node":
        (nodes((16, 2), (16, 2)),
         MixedPolicy(CappedPolicy(QUARTERS, 2), ONE_CPU_GPU), "2 x 1 CPU, 0.25 GPU + 2 x 1 CPU, 1 GPU | GPU"),
    "whole GPUs followed by fractions do not share a node":
        (nodes((16, 2), (16, 2)),
         MixedPolicy(CappedPolicy(ONE_CPU_GPU, 1), QUARTERS), "1 x 1 CPU, 1 GPU + 8 x 1 CPU, 0.25 GPU | GPU"),
    "a cap keeps the better slot types":
        (POOL, CappedPolicy(MIXED, 9), "8 x 1 CPU, 0.25 GPU + 1 x 2 CPU | max_concurrent_trials"),
    "an inner reservation is available to the next policy":
        (nodes((8, 0)), MixedPolicy(ReservingPolicy(CPU, cpus=4), ON_CPUS), "4 x 1 CPU + 2 x 2 CPU | CPU"),
    "an outer reservation applies to all policies":
        (POOL, ReservingPolicy(MIXED, cpus=4), "8 x 1 CPU, 0.25 GPU + 2 x 2 CPU | CPU"),
    "a selector for each policy":
        (of(gpu_node("a", gpus=0, cpus=8, labels=EU), gpu_node("b", gpus=0, cpus=8)),
         MixedPolicy(SelectingPolicy(ON_CPUS, EU), CPU), "4 x 2 CPU, zone eu + 8 x 1 CPU | CPU"),
    "devices are left for trials that need them":
        (nodes((8, 2), (8, 0)),
         MixedPolicy(CappedPolicy(ON_CPUS, 4), GpuPolicy(cpus=4)), "4 x 2 CPU + 2 x 4 CPU, 1 GPU | GPU"),
    "Train workers use resources for all of them":
        (nodes((16, 4)),
         MixedPolicy(GpuPolicy(cpus=1, num_workers=2), ON_CPUS), "2 x 2 of 1 CPU, 1 GPU + 6 x 2 CPU | CPU"),
    "resources that Train workers cannot use":
        (nodes((8, 2), (8, 2)),
         MixedPolicy(CappedPolicy(GpuPolicy(cpus=1, num_workers=2), 2), ON_CPUS),
         "2 x 2 of 1 CPU, 1 GPU + 6 x 2 CPU | CPU"),
    "an added small node does not remove a Train trial":
        (nodes((96, 2), (2, 0)),
         MixedPolicy(ONE_CPU_GPU, CpuPolicy(num_workers=1)), "2 x 1 CPU, 1 GPU + 96 x 1 of 1 CPU | CPU"),
    "room for drivers next to reserved memory":
        (of(*(gpu_node(name, gpus=4, cpus=8, memory_gib=64) for name in "ab")),
         ReservingPolicy(MixedPolicy(CappedPolicy(GpuPolicy(cpus=1, num_workers=2), 2), CPU), memory="64GiB"),
         "2 x 2 of 1 CPU, 1 GPU + 12 x 1 CPU | CPU"),
    "no added nodes without a request":
        (growing(CPUS, alive=((3, 0), (6, 0), (6, 0))),
         ReservingPolicy(MixedPolicy(CpuPolicy(cpus=3, num_workers=3), CpuPolicy(cpus=4)), cpus=2),
         "1 x 3 of 3 CPU | CPU"),
    # Nodes that can be added
    "nodes of every useful type":
        (growing(SMALL, LARGE), AutoscalingPolicy(GPU), "20 x 8 CPU, 1 GPU | GPU | +2 large +4 small"),
    "no nodes of useless types": (growing(SMALL, CPUS), AutoscalingPolicy(GPU), "4 x 8 CPU, 1 GPU | GPU | +4 small"),
    "the types that Ray launches first":
        (growing(SMALL, LARGE, most=2), AutoscalingPolicy(GPU), "2 x 8 CPU, 1 GPU | GPU | +2 small"),
    "then the types that Ray launches next":
        (growing(SMALL, LARGE, most=5), AutoscalingPolicy(GPU), "12 x 8 CPU, 1 GPU | GPU | +4 small +1 large"),
    "no nodes of types that cannot be added":
        (growing(SMALL, LARGE, most=0), AutoscalingPolicy(CPU), "8 x 1 CPU | CPU"),
    "the policy's own limit":
        (growing(SMALL, LARGE, most=5),
         AutoscalingPolicy(GPU, max_nodes_to_add=1), "1 x 8 CPU, 1 GPU | GPU | +1 small"),
    "unknown node types":
        (nodes((8, 0)).model_copy(update={"node_types": None}), AutoscalingPolicy(CPU), "8 x 1 CPU | CPU"),
    "a type at its limit": (growing(node_type("gone", 0, gpus=1)), AutoscalingPolicy(CPU), "8 x 1 CPU | CPU"),
    "a limit of zero":
        (growing(node_type("any", 2**31 - 1), alive=()), AutoscalingPolicy(CPU), "80000 x 1 CPU | CPU | +10000 any"),
    "only nodes for an inner cap":
        (growing(SMALL, LARGE),
         AutoscalingPolicy(CappedPolicy(GPU, 3)), "3 x 8 CPU, 1 GPU | max_concurrent_trials | +3 small"),
    "only nodes for an outer cap":
        (growing(SMALL, LARGE),
         CappedPolicy(AutoscalingPolicy(GPU), 9), "9 x 8 CPU, 1 GPU | max_concurrent_trials | +4 small +1 large"),
    "no GPU node for CPU trials":
        (growing(LARGE, CPUS),
         AutoscalingPolicy(CappedPolicy(CPU, 20)), "20 x 1 CPU | max_concurrent_trials | +1 cpus"),
    "a GPU node for CPU trials if necessary":
        (growing(LARGE, CPUS),
         AutoscalingPolicy(CappedPolicy(CPU, 99)), "99 x 1 CPU | max_concurrent_trials | +3 cpus +1 large"),
    "reserved resources count":
        (growing(CPUS),
         AutoscalingPolicy(CappedPolicy(ReservingPolicy(CPU, cpus=4), 6)),
         "6 x 1 CPU | max_concurrent_trials | +1 cpus"),
    "3 of 4 for a trial with 3 Train workers":
        (growing(SMALL), AutoscalingPolicy(GpuPolicy(num_workers=3)), "1 x 3 of 8 CPU, 1 GPU | GPU | +3 small"),
    "only alive nodes if the new ones are unknown":
        (may_grow([gpu_node("a", gpu_memory_gib=16)], SMALL),
         AutoscalingPolicy(SIX_GIB), "2 x 32 CPU, 0.5 GPU of 8 GiB, node-id a | GPU"),
    "minimum GPU memory, from the type of new nodes":
        (growing(node_type("t4", 2, gpus=1, accelerator_type="T4"), GPU_A100),
         AutoscalingPolicy(GpuPolicy(min_gpu_memory="24GiB")), "2 x 8 CPU, 1 GPU of 39.6 GiB on A100 | GPU | +2 a100"),
    "one node type if no selector distinguishes two":
        (may_grow([gpu_node("t", accelerator_type="T4")], node_type("l4", 1, gpus=1, accelerator_type="L4"), GPU_A100),
         AutoscalingPolicy(GpuPolicy(min_gpu_memory="20GiB")), "2 x 8 CPU, 1 GPU of 39.6 GiB on A100 | GPU | +2 a100"),
    "no nodes that would have to be listed":
        (may_grow([gpu_node("a", gpu_memory_gib=80), SMALL_A100], GPU_A100),
         AutoscalingPolicy(GpuPolicy(min_gpu_memory="30GiB")), "1 x 64 CPU, 1 GPU of 80 GiB, node-id a | GPU"),
    "GPU memory reserved on added nodes":
        (growing(GPU_L4, alive=()),
         AutoscalingPolicy(ReservingPolicy(SIX_GIB, gpu_memory="5GiB")), "4 x 4 CPU, 0.5 GPU of 8.7 GiB | GPU | +2 l4"),
    "GPU memory reserved outside an AutoscalingPolicy":
        (growing(GPU_L4, alive=()),
         ReservingPolicy(AutoscalingPolicy(SIX_GIB), gpu_memory="5GiB"), "4 x 4 CPU, 0.5 GPU of 8.7 GiB | GPU | +2 l4"),
    "selected node types":
        (IN_ZONES, SelectingPolicy(AutoscalingPolicy(GPU), EU), "2 x 8 CPU, 1 GPU, zone eu | GPU | +2 eu"),
    "node types selected by the inner policy":
        (IN_ZONES,
         AutoscalingPolicy(SelectingPolicy(GPU, EU), max_nodes_to_add=2), "2 x 8 CPU, 1 GPU, zone eu | GPU | +2 eu"),
    "added nodes with little host memory have room for few drivers":
        (growing(node_type("tiny", 5, memory="2MiB"), alive=()),
         AutoscalingPolicy(CappedPolicy(CpuPolicy(num_workers=1), 6)),
         "6 x 1 of 1 CPU | max_concurrent_trials | +3 tiny"),
    "no added nodes without room for a driver":
        (may_grow(with_memory(2**19 + 1, cpus=8).nodes, NO_ROOM, ROOM),
         CappedPolicy(AutoscalingPolicy(CpuPolicy(num_workers=1)), 2),
         "2 x 1 of 1 CPU | max_concurrent_trials | +1 room"),
    "exactly the host memory of a trial":
        (growing(node_type("exact", 5, memory="1GiB"), alive=()),
         AutoscalingPolicy(CappedPolicy(CpuPolicy(memory="1GiB"), 2)),
         "2 x 1 CPU, 1 GiB | max_concurrent_trials | +2 exact"),
    "added nodes for slots of every type":
        (GROWING_POOL, AutoscalingPolicy(MIXED), "48 x 1 CPU, 0.25 GPU + 24 x 2 CPU | CPU | +5 both"),
    "the nodes of one policy have room for the next":
        (GROWING_POOL,
         MixedPolicy(AutoscalingPolicy(QUARTERS, max_nodes_to_add=1), ON_CPUS),
         "16 x 1 CPU, 0.25 GPU + 8 x 2 CPU | CPU | +1 both"),
    "two policies that add nodes":
        (GROWING_POOL,
         MixedPolicy(AutoscalingPolicy(QUARTERS, max_nodes_to_add=3), AutoscalingPolicy(ON_CPUS)),
         "32 x 1 CPU, 0.25 GPU + 32 x 2 CPU | CPU | +5 both"),
    "Train workers on their GPU nodes":
        (growing(SMALL),
         AutoscalingPolicy(MixedPolicy(GpuPolicy(num_workers=2, cpus=1), CPU)),
         "2 x 2 of 1 CPU, 1 GPU + 36 x 1 CPU | CPU | +4 small"),
    "no GPU node for CPU trials next to GPU trials":
        (growing(SMALL, CPUS),
         AutoscalingPolicy(MixedPolicy(TWO_GPUS, CPU)), "2 x 1 CPU, 1 GPU + 70 x 1 CPU | CPU | +2 small +3 cpus"),
    "the fewest nodes with room for them":
        (growing(SMALL, CPUS),
         AutoscalingPolicy(MixedPolicy(TWO_GPUS, CappedPolicy(CPU, 30))),
         "2 x 1 CPU, 1 GPU + 30 x 1 CPU | max_concurrent_trials | +2 small +1 cpus"),
    "a GPU node if no other node has room":
        (growing(SMALL),
         AutoscalingPolicy(MixedPolicy(TWO_GPUS, CappedPolicy(CPU, 30))),
         "2 x 1 CPU, 1 GPU + 30 x 1 CPU | max_concurrent_trials | +3 small"),
    "the nodes that Ray launches for GPU trials and CPU trials":
        (growing(SMALL, LARGE, CPUS),
         AutoscalingPolicy(MixedPolicy(TWO_GPUS, CPU)),
         "2 x 1 CPU, 1 GPU + 118 x 1 CPU | CPU | +4 small +3 cpus +1 large"),
    "no GPU node for CPU trials of two sizes":
        (growing(SMALL, CPUS),
         AutoscalingPolicy(MixedPolicy(CappedPolicy(CpuPolicy(cpus=4), 4), CappedPolicy(ON_CPUS, 4))),
         "4 x 4 CPU + 4 x 2 CPU | max_concurrent_trials | +1 cpus"),
    "small nodes, because Ray launches a node for each pending trial":
        (growing(CPUS, HUGE),
         AutoscalingPolicy(MixedPolicy(CappedPolicy(CpuPolicy(cpus=4), 12), CappedPolicy(ON_CPUS, 4))),
         "12 x 4 CPU + 4 x 2 CPU | max_concurrent_trials | +3 cpus"),
    "within a common limit of all types":
        (growing(LARGE, CPUS, most=2),
         AutoscalingPolicy(MixedPolicy(CappedPolicy(ONE_CPU_GPU, 8), CPU)),
         "8 x 1 CPU, 1 GPU + 80 x 1 CPU | CPU | +1 large +1 cpus"),
}
# fmt: on


@pytest.mark.parametrize(("capacity", "policy", "expected"), PLANS.values(), ids=PLANS)
def test_the_plan_for_a_cluster_has_the_expected_slots(capacity, policy, expected):
    assert planned(policy.plan(capacity)) == expected


TYPE = "ray.io/accelerator-type"
WITH_GPUS = ClusterCapacity(
    nodes=(
        NodeCapacity(node_id="a", resources=Resources(cpus=8, gpus=1), accelerator_type="A100", labels={TYPE: "A100"}),
        NodeCapacity(node_id="simulated", resources=Resources(cpus=8, gpus=1)),
        NodeCapacity(node_id="c", resources=Resources(cpus=4)),
    ),
    node_types=(
        NodeTypeCapacity(name="l4", resources=Resources(cpus=8, gpus=1), max_nodes_to_add=2, labels={TYPE: "L4"}),
        NodeTypeCapacity(name="cpu", resources=Resources(cpus=8), max_nodes_to_add=1),
    ),
)


def test_cpu_trials_can_be_kept_off_nodes_with_devices():
    plan = CpuPolicy(cpus=2, exclude_gpu_nodes=True).plan(WITH_GPUS)

    assert plan.max_concurrent_trials == 2
    assert plan.label_selector == {TYPE: "!in(A100,L4)", "ray.io/node-id": "!simulated"}


def test_cpu_trials_can_be_kept_off_nodes_whose_device_type_is_not_valid_in_a_condition():
    names = ("Quadro-RTX-6000/8000", "T4")
    with_gpus = [gpu_node(name[:2], cpus=4, labels={TYPE: name}) for name in names]

    plan = CpuPolicy(exclude_gpu_nodes=True).plan(ClusterCapacity.of(*with_gpus, gpu_node("c", cpus=4, gpus=0)))

    assert plan.max_concurrent_trials == 4
    assert plan.label_selector == {TYPE: "!T4", "ray.io/node-id": "!Qu"}


def test_the_autoscaler_adds_no_device_nodes_for_trials_that_are_kept_off_them():
    plan = AutoscalingPolicy(CpuPolicy(cpus=2, exclude_gpu_nodes=True)).plan(WITH_GPUS)

    assert (plan.max_concurrent_trials, plan.nodes_to_add) == (6, {"cpu": 1})


def test_cpu_trials_that_are_kept_off_device_nodes_need_another_node():
    only_gpus = WITH_GPUS.model_copy(update={"nodes": WITH_GPUS.nodes[:2], "node_types": ()})

    with pytest.raises(InfeasibleRequestError):
        CpuPolicy(exclude_gpu_nodes=True).plan(only_gpus)


def test_reserved_gpus_do_not_make_a_gpu_node_a_node_for_cpu_trials():
    plan = ReservingPolicy(CpuPolicy(exclude_gpu_nodes=True), cpus=4, gpus=1).plan(
        ClusterCapacity.of(WITH_GPUS.nodes[0], WITH_GPUS.nodes[2])
    )

    assert plan.label_selector == {TYPE: "!A100"}
