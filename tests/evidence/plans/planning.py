"""What a plan costs in time and memory by number of nodes, beside the rule of thumb that people use instead.

The rule of thumb divides the sums of the cluster by the request. It is fast, and wrong wherever a trial must fit
one node or one device. The nodes have 50 shapes, and nothing of a cluster has been computed before a plan is timed.
"""

import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from rich.table import Table

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
    ResourcePolicy,
    Resources,
    SelectingPolicy,
)
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.benchmarks.record.summary import Spread, spread
from tune_policies.files.terminal import TextConsole, TextTable
from tune_policies.values.value import collector_paused

GIB: Final = 2**30
NUM_SHAPES: Final = 50
RULE_OF_THUMB: Final = "rule of thumb"

_PLAIN: Final[tuple[ResourcePolicy, ...]] = (
    CpuPolicy(cpus=2, memory="2GiB", num_workers=2),
    GpuPolicy(gpus=0.3),
    GpuMemoryPolicy(gpu_memory="6GiB"),
    AcceleratorPolicy(resource="HPU", amount=2),
    EvenSplitPolicy(num_trials=1000, min_gpus=0.3),
    FirstFeasiblePolicy(GpuPolicy(gpus=16), CpuPolicy()),
    CappedPolicy(GpuPolicy(), 8),
    ReservingPolicy(CpuPolicy(), cpus=40, gpus=8, memory="64GiB"),
    SelectingPolicy(GpuPolicy(), label_selector={"zone": "!a"}, exclude_head=True),
    AutoscalingPolicy(GpuPolicy()),
    MixedPolicy(GpuPolicy(gpus=0.5), CpuPolicy(cpus=2)),
)
POLICIES: Final[Mapping[str, ResourcePolicy]] = {
    **{type(policy).__name__: policy for policy in _PLAIN},
    "MixedPolicy, Train workers": MixedPolicy(GpuPolicy(num_workers=2), CpuPolicy(cpus=2, num_workers=2)),
    "MixedPolicy, four slot types": MixedPolicy(
        GpuPolicy(accelerator_type="H100", num_workers=2),
        GpuPolicy(gpus=0.5, accelerator_type="A100"),
        GpuPolicy(accelerator_type="L4", num_workers=2),
        CpuPolicy(cpus=2, num_workers=2),
    ),
}
DEVICES: Final = {"A100": 80, "H100": 80, "L4": 22, "T4": 15}


def measure_planning(node_counts: list[int], repetitions: int) -> None:
    """Print milliseconds and peak MiB of each policy's plan by number of nodes."""
    times: dict[int, dict[str, Spread]] = {}
    peaks: dict[int, dict[str, float]] = {}
    for count in node_counts:
        capacity = simulated_cluster(count)
        arms: dict[str, Callable[[], Callable[[], object]]] = {
            RULE_OF_THUMB: partial(partial, _rule_of_thumb, capacity)
        }
        arms |= {name: partial(_prepared, policy, capacity) for name, policy in POLICIES.items()}
        times[count] = _interleaved_ms(arms, repetitions)
        peaks[count] = {name: _peak_mib(_prepared(policy, capacity)) for name, policy in POLICIES.items()}
    console = TextConsole(width=110)
    console.print(_table("Time of one plan (ms): median ± half the interquartile range", times))
    console.print(_table("Memory of one plan at its peak (MiB), beside the capacity itself", peaks))
    console.print(_uneven_table(node_counts, repetitions))
    console.print(_odd_table(repetitions))
    runs = f"{repetitions} runs of each arm in random order, {NUM_SHAPES} shapes of nodes."
    console.print(f"{runs} {describe_machine()}", soft_wrap=True)
    print(f"command: {own_command()}")


def _interleaved_ms(arms: Mapping[str, Callable[[], Callable[[], object]]], repetitions: int) -> dict[str, Spread]:
    """Return milliseconds by arm. The arms are shuffled, so that a drift of the machine meets all of them.

    Args:
        arms: For each a function that prepares one run, untimed, and returns what is timed.
        repetitions: Timed runs of each arm, after one that is not counted.
    """
    order = [name for name in arms for _ in range(repetitions)]
    random.Random(0).shuffle(order)
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for prepare in arms.values():
        prepare()()
    gc.collect()
    gc.freeze()  # the collector need not go through the clusters of the other arms
    for name in order:
        run = arms[name]()
        start = time.perf_counter()
        result = run()
        samples[name].append((time.perf_counter() - start) * 1e3)
        del result  # untimed: to free a cluster takes a while
    gc.unfreeze()
    return {name: spread(values) for name, values in samples.items()}


def _uneven_table(node_counts: list[int], repetitions: int) -> Table:
    """Return the time of each plan where no two nodes have the same host memory, and of building and reading nodes."""
    times: dict[int, dict[str, Spread]] = {}
    for count in node_counts:
        even = simulated_cluster(count)
        uneven = even.with_nodes(_with_memory(node, number) for number, node in enumerate(even.nodes))
        text = even.to_json()
        arms: dict[str, Callable[[], Callable[[], object]]] = {
            name: partial(_prepared, policy, uneven) for name, policy in POLICIES.items()
        }
        arms["the cluster is built"] = partial(partial, _built, _as_read(count))
        arms["the cluster is read from JSON"] = partial(partial, ClusterCapacity.from_json, text)
        times[count] = _interleaved_ms(arms, repetitions)
    return _table("Time (ms) where all nodes differ by some bytes of host memory", times)


def _odd_table(repetitions: int) -> Table:
    """Return the time of plans for clusters that hardly exist, which must not take seconds all the same."""
    sizes = [
        NodeCapacity(
            node_id=f"node-{number}",
            resources=Resources(cpus=16, gpus=1),
            devices=(GpuDevice(index=0, name="any", memory_bytes=(8 + number) * GIB // 8),),
        )
        for number in range(2000)
    ]
    unlimited = NodeTypeCapacity(name="any", resources=Resources(cpus=32, gpus=4), max_nodes_to_add=2**31 - 1)
    growing = ClusterCapacity.of(*[Resources(cpus=16, gpus=8)] * 100).model_copy(update={"node_types": (unlimited,)})
    nested: ResourcePolicy = MixedPolicy(GpuPolicy(gpus=0.5), CpuPolicy(cpus=2))
    for number in range(16):
        nested = AutoscalingPolicy(nested) if number % 2 else CappedPolicy(nested, 100)
    arms: dict[str, Callable[[], Callable[[], object]]] = {
        "2,000 sizes of devices, 100 MiB a worker": partial(
            _prepared, GpuMemoryPolicy(gpu_memory="100MiB"), ClusterCapacity(nodes=tuple(sizes))
        ),
        "a node with 1,000,000 GPUs": partial(
            _prepared, GpuPolicy(gpus=0.3), ClusterCapacity.of(Resources(cpus=10**6, gpus=10**6))
        ),
        "16 policies around a mix, and any number of nodes to add": partial(_prepared, nested, growing),
    }
    table = TextTable(title="Time (ms) of odd cases")
    table.add_column("Case")
    table.add_column("Time (ms)", justify="right")
    for name, time_ms in _interleaved_ms(arms, repetitions).items():
        table.add_row(name, str(time_ms))
    return table


def _with_memory(node: NodeCapacity, more: int) -> NodeCapacity:
    memory = (node.resources.memory_bytes or 0) + more
    return node.model_copy(update={"resources": node.resources.replaced(memory_bytes=memory)})


def simulated_cluster(num_nodes: int) -> ClusterCapacity:
    """Return nodes of 50 shapes that differ in CPUs, host memory, devices and their memory, labelled as Ray does."""
    return _built(_as_read(num_nodes))


def _as_read(num_nodes: int) -> list[dict[str, Any]]:
    """Return the fields of each node, devices among them, as a probe has read them."""
    shapes = [_shape(index) for index in range(NUM_SHAPES)]
    return [_node(index, *shapes[index % NUM_SHAPES]) for index in range(num_nodes)]


@collector_paused()  # as the probe does
def _built(nodes: list[dict[str, Any]]) -> ClusterCapacity:
    gpu_node = NodeTypeCapacity(name="gpu", resources=Resources(cpus=32, gpus=4), max_nodes_to_add=64)
    return ClusterCapacity(nodes=tuple(NodeCapacity(**fields) for fields in nodes), node_types=(gpu_node,))


def _shape(index: int) -> tuple[Resources, str | None]:
    gpus = (0, 1, 2, 4, 8)[index % 5]
    custom = {"HPU": 8.0} if index % 10 == 0 else {}
    resources = Resources(cpus=8 + index, gpus=gpus, memory_bytes=(32 + index) * GIB, custom=custom)
    return resources, list(DEVICES)[index % 4] if gpus else None


def _node(index: int, resources: Resources, kind: str | None) -> dict[str, Any]:
    node_id = f"{index:056x}"
    labels = {"ray.io/node-id": node_id, "zone": "abc"[index % 3]}
    devices = None
    if kind is not None:
        labels["ray.io/accelerator-type"] = kind
        devices = [
            {"index": i, "name": kind, "memory_bytes": DEVICES[kind] * GIB, "uuid": f"GPU-{index}-{i}"}
            for i in range(int(resources.gpus))
        ]
    return {
        "node_id": node_id,
        "resources": resources,
        "accelerator_type": kind,
        "labels": labels,
        "devices": devices,
        "is_head": index == 0,
    }


def _prepared(policy: ResourcePolicy, capacity: ClusterCapacity) -> Callable[[], object]:
    """Return the planning for a cluster as it is after a probe: nothing computed from it is kept."""
    return partial(policy.plan, capacity.model_copy())


def _rule_of_thumb(capacity: ClusterCapacity) -> int:
    gpus = sum(node.resources.gpus for node in capacity.nodes)
    cpus = sum(node.resources.cpus for node in capacity.nodes)
    return int(min(gpus / 0.3, cpus))


def _peak_mib(plan: Callable[[], object]) -> float:
    tracemalloc.start()
    try:
        plan()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def _table(title: str, results: Mapping[int, Mapping[str, Spread | float]]) -> Table:
    table = TextTable(title=title)
    table.add_column("Nodes")
    for count in results:
        table.add_column(f"{count:,}", justify="right")
    for name in next(iter(results.values())):
        cells = [results[count][name] for count in results]
        table.add_row(name, *(str(cell) if isinstance(cell, Spread) else f"{cell:.2f}" for cell in cells))
    return table
