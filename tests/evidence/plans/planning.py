"""Measures how long policies and the rule of thumb take to plan, and how long plans take to draw and to explain.

The rule of thumb divides the total resources of the cluster by the request. It is fast, but wrong, because a trial must
fit on one node or device.
"""

import gc
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from tune_policies import (
    AutoscalingPolicy,
    ClusterCapacity,
    CpuPolicy,
    EvenSplitPolicy,
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
from tune_policies.files.terminal import TextConsole, empty_table
from tune_policies.values.units import GIB
from tune_policies.values.value import collector_paused

_NUM_SHAPES: Final = 50
_DEVICES: Final = {"A100": 80, "H100": 80, "L4": 22, "T4": 15}
_PLAIN: Final[tuple[ResourcePolicy, ...]] = (
    CpuPolicy(cpus=2, memory="2GiB", num_workers=2),
    GpuPolicy(gpus=0.3),
    GpuMemoryPolicy(gpu_memory="6GiB"),
    EvenSplitPolicy(num_trials=1000, min_gpus=0.3),
    ReservingPolicy(CpuPolicy(), cpus=40, gpus=8, memory="64GiB"),
    SelectingPolicy(GpuPolicy(), label_selector={"zone": "!a"}, exclude_head=True),
    AutoscalingPolicy(GpuPolicy()),
    MixedPolicy(GpuPolicy(gpus=0.5), CpuPolicy(cpus=2)),
)
_POLICIES: Final[Mapping[str, ResourcePolicy]] = {type(policy).__name__: policy for policy in _PLAIN}

_Prepare = Callable[[], Callable[[], object]]
"""A function that prepares one run and returns the function to time. The preparation is not timed."""


def measure_planning(node_counts: list[int], repetitions: int) -> None:
    """Print the times of plans, their pictures and their texts in milliseconds, for each number of nodes."""
    times: dict[str, dict[str, Spread]] = {}
    times_shown: dict[str, dict[str, Spread]] = {}
    for count in node_counts:
        capacity = _cluster(count)
        different = capacity.with_nodes(_with_more_memory(node, number) for number, node in enumerate(capacity.nodes))
        rule: dict[str, _Prepare] = {"sums ÷ request": partial(partial, _rule_of_thumb, capacity)}
        times[f"{count:,}"] = _interleaved_ms(rule | _plans(capacity), repetitions)
        times[f"{count:,} different"] = _interleaved_ms(_plans(different), repetitions)
        times_shown[f"{count:,}"] = _interleaved_ms(_views(capacity), repetitions)
        times_shown[f"{count:,} different"] = _interleaved_ms(_views(different), repetitions)
    _print_times("Time of one plan", times)
    _print_times("Time of a picture and of a text with idle resources", times_shown)
    print(
        f"{repetitions} runs of each row in random order, {_NUM_SHAPES} node shapes. In “different”, all nodes differ."
    )
    print(f"{describe_machine()}\ncommand: {own_command()}")


def _print_times(title: str, times: Mapping[str, Mapping[str, Spread]]) -> None:
    table = empty_table(f"{title} in ms (median ± half the interquartile range)", "Nodes", *times)
    for name in next(iter(times.values())):
        table.add_row(name, *(str(column.get(name, "")) for column in times.values()))
    TextConsole(width=110).print(table)


def _views(capacity: ClusterCapacity) -> dict[str, _Prepare]:
    """Return functions that plan, and then return the function that draws or explains the plan."""

    def prepare(policy: ResourcePolicy, view: str) -> Callable[[], object]:
        seen = capacity.model_copy()
        plan = policy.plan(seen)
        return partial(getattr(plan, view), seen)

    views: dict[str, _Prepare] = {}
    for name, policy in _POLICIES.items():
        for view in ("plot", "explain"):
            views[f"{name}, {view}"] = partial(prepare, policy, view)
    return views


def _plans(capacity: ClusterCapacity) -> dict[str, _Prepare]:
    # Copy the capacity, because a copy has no cached properties, like a capacity from a probe.
    return {
        name: lambda policy=policy: partial(policy.plan, capacity.model_copy())  # type: ignore[misc]
        for name, policy in _POLICIES.items()
    }


def _interleaved_ms(prepared: Mapping[str, _Prepare], repetitions: int) -> dict[str, Spread]:
    """Return the times in milliseconds by name. The runs are in random order, so that drift affects all of them."""
    order = list(prepared) * repetitions
    random.Random(0).shuffle(order)
    samples: dict[str, list[float]] = {name: [] for name in prepared}
    for prepare in prepared.values():  # warm up
        prepare()()
    gc.collect()
    gc.freeze()  # otherwise the garbage collector scans the clusters of the other runs
    for name in order:
        run = prepared[name]()
        start = time.perf_counter()
        result = run()
        samples[name].append((time.perf_counter() - start) * 1e3)
        del result  # outside the timed part, because freeing a cluster takes a while
    gc.unfreeze()
    return {name: spread(values) for name, values in samples.items()}


def _with_more_memory(node: NodeCapacity, more_bytes: int) -> NodeCapacity:
    memory = (node.resources.memory_bytes or 0) + more_bytes
    return node.model_copy(update={"resources": node.resources.replaced(memory_bytes=memory)})


@collector_paused()  # the probe also pauses the garbage collector
def _cluster(num_nodes: int) -> ClusterCapacity:
    """Return a cluster whose nodes have Ray's labels and 50 combinations of CPUs, host memory and devices."""
    fields = [_fields(index, *_shape(index % _NUM_SHAPES)) for index in range(num_nodes)]
    gpu_node = NodeTypeCapacity(name="gpu", resources=Resources(cpus=32, gpus=4), max_nodes_to_add=64)
    return ClusterCapacity(nodes=tuple(NodeCapacity(**of_node) for of_node in fields), node_types=(gpu_node,))


def _shape(index: int) -> tuple[Resources, str | None]:
    gpus = (0, 1, 2, 4, 8)[index % 5]
    custom = {"HPU": 8.0} if index % 10 == 0 else {}
    resources = Resources(cpus=8 + index, gpus=gpus, memory_bytes=(32 + index) * GIB, custom=custom)
    accelerator_type = list(_DEVICES)[index % 4] if gpus else None
    return resources, accelerator_type


def _fields(index: int, resources: Resources, kind: str | None) -> dict[str, Any]:
    fields = {"node_id": f"{index:056x}", "resources": resources, "accelerator_type": kind, "is_head": index == 0}
    labels = {"ray.io/node-id": f"{index:056x}", "zone": "abc"[index % 3]}
    if kind is None:
        return {**fields, "labels": labels}
    devices = [
        {"index": i, "name": kind, "memory_bytes": _DEVICES[kind] * GIB, "uuid": f"GPU-{index}-{i}"}
        for i in range(int(resources.gpus))
    ]
    return {**fields, "labels": {**labels, "ray.io/accelerator-type": kind}, "devices": devices}


def _rule_of_thumb(capacity: ClusterCapacity) -> int:
    gpus = sum(node.resources.gpus for node in capacity.nodes)
    cpus = sum(node.resources.cpus for node in capacity.nodes)
    return int(min(gpus / 0.3, cpus))
