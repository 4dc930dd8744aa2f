"""What a plan costs in time, beside the rule of thumb that people use instead.

The rule of thumb divides the sums of the cluster by the request. It is fast, and wrong wherever a trial must fit
one node or one device.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from tune_policies import ClusterCapacity, GpuPolicy, Resources

from .environment import describe_machine


def measure_planning(node_counts: list[int], repetitions: int) -> None:
    """Print a table: median and spread of both arms in milliseconds, and their ratio."""
    table = Table(title="Time of one plan, GpuPolicy(gpus=0.3), nodes of 8 shapes")
    for heading in ("Nodes", "Plan (ms)", "IQR", "Rule of thumb (ms)", "IQR", "Ratio"):
        table.add_column(heading, justify="right")
    for count in node_counts:
        capacity = _capacity(count)
        policy = GpuPolicy(gpus=0.3)
        arms = {"plan": lambda: policy.plan(capacity), "rule": lambda: _rule_of_thumb(capacity)}  # noqa: B023
        samples = _interleaved(arms, repetitions)
        medians = {name: statistics.median(values) for name, values in samples.items()}
        row = [text for name in arms for text in (f"{medians[name]:.3f}", f"{_iqr(samples[name]):.3f}")]
        table.add_row(str(count), *row, f"{medians['plan'] / medians['rule']:.1f}")
    Console().print(table)
    Console().print(f"{repetitions} runs of each arm in random order. {describe_machine()}", soft_wrap=True)
    print(f"command: python -m benchmarks {' '.join(sys.argv[1:])}")


def _capacity(num_nodes: int) -> ClusterCapacity:
    return ClusterCapacity.of(*(Resources(cpus=8 + 8 * (i % 4), gpus=1 + 3 * (i // 4 % 2)) for i in range(num_nodes)))


def _rule_of_thumb(capacity: ClusterCapacity) -> int:
    gpus = sum(node.resources.gpus for node in capacity.nodes)
    cpus = sum(node.resources.cpus for node in capacity.nodes)
    return int(min(gpus / 0.3, cpus))


def _interleaved(arms: dict[str, Callable[[], object]], repetitions: int) -> dict[str, list[float]]:
    """Return milliseconds by arm. The arms are shuffled, so that a drift of the machine meets both."""
    order = [name for name in arms for _ in range(repetitions)]
    random.Random(0).shuffle(order)  # noqa: S311
    for arm in arms.values():
        arm()
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for name in order:
        start = time.perf_counter()
        arms[name]()
        samples[name].append((time.perf_counter() - start) * 1e3)
    return samples


def _iqr(values: list[float]) -> float:
    quarters = statistics.quantiles(values, n=4)
    return quarters[2] - quarters[0]
