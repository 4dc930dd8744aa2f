"""Clusters that are designed for random catalogues, beside the cheapest that there could be.

The cheapest is found by trying all numbers of nodes that cost less: the policy itself says whether the trials fit. The
nodes have the shapes of EC2 instances, and prices around the usual ones of their devices.
"""

import random
import statistics
import time
from collections.abc import Iterator
from itertools import product
from typing import Final, NamedTuple

from rich.table import Table

from tune_policies import GpuMemoryPolicy, GpuPolicy, InfeasibleRequestError, NodeCatalog, NodeType, design_cluster
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, TextTable
from tune_policies.kuberay.design.catalog import HEAD
from tune_policies.kuberay.design.cheapest_nodes import NodePool
from tune_policies.kuberay.design.cluster_spec import head_of
from tune_policies.policies.policy import ResourcePolicy

_PER_GPU: Final = {"T4": 0.5, "L4": 0.8, "A10G": 1.0, "V100": 3.1, "A100": 4.1, "A100-80G": 5.1, "H100": 12.3}
_SHAPES: Final[dict[str, dict[int, tuple[int, ...]]]] = {  # GPUs: the CPUs that come with so many
    "T4": {1: (4, 8, 16), 4: (48,), 8: (96,)},
    "L4": {1: (4, 8, 16), 4: (48,), 8: (192,)},
    "A10G": {1: (4, 8, 16), 4: (48, 96), 8: (192,)},
    "V100": {1: (8,), 4: (32,), 8: (64, 96)},
    "A100": {8: (96,)},
    "A100-80G": {8: (96,)},
    "H100": {1: (16,), 8: (192,)},
}
_MOST_COMBINATIONS: Final = 3_000


class Priced(NamedTuple):
    """What the nodes for one policy and catalogue cost, and the least that would do."""

    kind: str
    price: float
    cheapest: float


def draw_catalog(rng: random.Random) -> NodeCatalog:
    """Return a catalogue of some node types with GPUs, of each of which there can be a few."""
    number = rng.randint(2, 4)
    most = int(_MOST_COMBINATIONS ** (1 / number)) - 1
    return NodeCatalog(nodes=tuple(_draw_node_type(rng, f"node-{at}", most) for at in range(number)))


def _draw_node_type(rng: random.Random, name: str, most: int) -> NodeType:
    kind = rng.choice([*_SHAPES])
    gpus = rng.choice([*_SHAPES[kind]])
    cpus = rng.choice(_SHAPES[kind][gpus])
    price = round(gpus * _PER_GPU[kind] * rng.uniform(0.6, 1.4) + 0.02 * cpus, 3)
    return NodeType(
        name=name,
        cpus=cpus,
        memory=f"{4 * cpus}GiB",
        gpus=gpus,
        accelerator_type=kind,
        price_per_hour=price,
        count=rng.randint(1, min(most, 20)),
    )


def draw_policies(rng: random.Random) -> Iterator[tuple[str, ResourcePolicy]]:
    """Yield policies by what they are called in the table."""
    memory = rng.choice(("2GiB", "5GiB", "6GiB", "9GiB", "12GiB", "14GiB", "20GiB", "35GiB"))
    cpus = rng.choice((None, None, 1, 2))
    most = rng.choice((None, None, None, 1, 3))
    own = GpuMemoryPolicy(gpu_memory=memory, cpus=cpus, max_trials_per_gpu=most)
    yield "GpuMemoryPolicy", own
    yield "GpuMemoryPolicy, same_for_all", own.model_copy(update={"same_for_all": True})
    yield "GpuMemoryPolicy, Train workers", own.model_copy(update={"num_workers": rng.choice((1, 2, 4))})
    yield "GpuPolicy", GpuPolicy(gpus=rng.choice((0.25, 0.5, 1, 2)), cpus=cpus)


def compare(rng: random.Random) -> Iterator[Priced]:
    """Yield what the policies of one catalogue cost. Those of which no trial fits are left out."""
    catalog, num_trials = draw_catalog(rng), rng.choice((1, 3, 8, 20, 50, 100))
    pool = NodePool({each.name: each for each in catalog.nodes}, head_of(HEAD))
    prices = {each.name: each.price_per_hour or 0 for each in catalog.nodes}
    combinations = [
        (sum(prices[name] * number for name, number in zip(pool.most, numbers, strict=True)), numbers)
        for numbers in product(*(range(most + 1) for most in pool.most.values()))
    ]
    combinations.sort()
    for kind, policy in draw_policies(rng):
        try:
            design = design_cluster(policy, catalog, num_trials)
        except InfeasibleRequestError:
            continue
        price = design.price_per_hour or 0
        for cheapest, numbers in combinations:
            if cheapest >= price - 1e-6:
                cheapest = price
                break
            plan = pool.plan(policy, dict(zip(pool.most, numbers, strict=True)))
            if plan is not None and plan.min_concurrent_trials >= design.trials.min_concurrent_trials:
                break
        yield Priced(kind, price, cheapest)


def measure_prices(seeds: range) -> bool:
    """Print by how much designed clusters are dearer than need be; return whether none is."""
    start = time.monotonic()
    priced = [each for seed in seeds for each in compare(random.Random(seed))]
    TextConsole().print(_table(priced))
    print(f"{len(seeds)} catalogues, {len(priced)} designs, {time.monotonic() - start:.0f} s")
    print(describe_machine())
    print(f"command: {own_command()}")
    return all(each.price <= each.cheapest + 1e-6 for each in priced)


def _table(priced: list[Priced]) -> Table:
    table = TextTable(title="Price of the nodes, beside the cheapest that hold as many trials")
    for heading in ("Policy", "Designs", "Dearer", "Mean", "Worst"):
        table.add_column(heading, justify="left" if heading == "Policy" else "right")
    for kind in dict.fromkeys(each.kind for each in priced):
        ratios = [each.price / each.cheapest for each in priced if each.kind == kind]
        dearer = sum(ratio > 1 + 1e-6 for ratio in ratios)
        table.add_row(
            kind,
            str(len(ratios)),
            f"{dearer} ({dearer / len(ratios):.1%})",
            f"{statistics.fmean(ratios):.3f}×",
            f"{max(ratios):.2f}×",
        )
    return table
