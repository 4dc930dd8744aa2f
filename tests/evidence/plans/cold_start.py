"""What a policy costs a program from its start to its end, and what of that the probe of a running cluster takes.

The program by hand and the same under ``run`` are processes of their own, each of which starts its own Ray, as a user's
does. Each round runs both, in random order.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

import ray
from ray import tune  # noqa: F401  # as a program has: with the first task Ray imports pyarrow, as Tune has done
from ray.cluster_utils import Cluster
from rich.progress import track

from tune_policies import probe_cluster
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.benchmarks.record.summary import spread
from tune_policies.files.terminal import TextConsole, TextTable

GOAL: Final = 1.05
"""The most that a policy should cost: the time of the program under it, against that of the program by hand."""

_TIMEOUT_S: Final = 600.0

_PROGRAM: Final = """
from ray import tune
{imports}

def train_fn(config):
    tune.report({{"loss": config["lr"] ** 2}})

{run}, config={{"lr": tune.uniform(0, 1)}}, num_samples={num_trials}, reuse_actors={reuse_actors}, verbose=1)
"""

_BY_HAND: Final = ("", 'tune.run(train_fn, resources_per_trial={"cpu": 1}')
_UNDER_A_POLICY: Final = (
    "from tune_policies import CpuPolicy, GpuMemoryPolicy, run",
    'run(train_fn, GpuMemoryPolicy(gpu_memory="6GiB") | CpuPolicy(cpus=1)',
)


class Case(NamedTuple):
    """A program.

    Attributes:
        num_trials: Trials of no length that it runs.
        reuse_actors: Whether a trial takes over the process of another.
    """

    num_trials: int
    reuse_actors: bool

    def __str__(self) -> str:
        return f"{self.num_trials} trials, {'processes reused' if self.reuse_actors else 'a process each'}"


CASES: Final = (Case(2, False), Case(20, False), Case(200, True))


def measure_cold_start(cases: list[Case], num_rounds: int) -> None:
    """Print a table: seconds of each program by hand and under a policy, and their ratio within each round."""
    table = TextTable(title="Programs from start to end: median ± half the interquartile range")
    table.add_column("Program")
    for heading in ("By hand (s)", "Under a policy (s)", "Ratio", "Smallest", "Largest", f"At most {GOAL}"):
        table.add_column(heading, justify="right")
    order = random.Random(0)
    for case in cases:
        seconds: dict[tuple[str, str], list[float]] = {_BY_HAND: [], _UNDER_A_POLICY: []}
        for number in track(range(num_rounds + 1), str(case), console=TextConsole(stderr=True)):
            for arm in order.sample([*seconds], len(seconds)):
                taken = _time_program(arm, case)
                if number:  # the first fills the machine's file cache
                    seconds[arm].append(taken)
        by_hand, ours = seconds[_BY_HAND], seconds[_UNDER_A_POLICY]
        ratios = [one / other for one, other in zip(ours, by_hand, strict=True)]
        against = spread(ratios)
        table.add_row(
            str(case),
            str(spread(by_hand)),
            str(spread(ours)),
            f"{against.median:.3f} ±{against.iqr / 2:.3f}",
            f"{min(ratios):.3f}",
            f"{max(ratios):.3f}",
            "yes" if against.median <= GOAL else "no",
        )
    TextConsole(width=120).print(table)
    print(f"{num_rounds} rounds after one that does not count. {describe_machine()}")
    print(f"command: {own_command()}")


def _time_program(arm: tuple[str, str], case: Case) -> float:
    imports, run = arm
    text = _PROGRAM.format(imports=imports, run=run, num_trials=case.num_trials, reuse_actors=case.reuse_actors)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "HOME": folder, "RAY_ADDRESS": "local"}
        program = Path(folder, "program.py")
        program.write_text(text, encoding="utf-8")
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, program], cwd=folder, env=environment, check=True, capture_output=True, timeout=_TIMEOUT_S
        )
        return time.perf_counter() - start


PROBE_GOAL_S: Final = 0.3
"""The most that a probe of a running cluster of one node should take, in seconds."""


def measure_probes(cluster_sizes: list[int], num_rounds: int) -> None:
    """Print a table: seconds of the first probe of a running cluster, and of those after it.

    Each node is a raylet of its own on this machine. The first probe starts a process on each node that it reads, and
    the later ones find it there.
    """
    table = TextTable(title="Probes of a running cluster: median ± half the interquartile range")
    for heading in ("Nodes", "First (s)", "Later (s)", "Largest (s)"):
        table.add_column(heading, justify="right")
    for number in cluster_sizes:
        first, *later = _time_probes(number, num_rounds + 1)
        table.add_row(str(number), f"{first:.2f}", str(spread(later)), f"{max(later):.2f}")
    TextConsole(width=120).print(table)
    print(f"{num_rounds} probes after the first; the goal for one node is {PROBE_GOAL_S} s. {describe_machine()}")
    print(f"command: {own_command()}")


def _time_probes(num_nodes: int, num_probes: int) -> list[float]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        for _ in range(num_nodes - 1):
            cluster.add_node(num_cpus=1, wait=False)
        cluster.wait_for_nodes(timeout=_TIMEOUT_S)
        ray.init(address=cluster.address, log_to_driver=False)
        seconds = []
        for _ in track(range(num_probes), f"{num_nodes} nodes", console=TextConsole(stderr=True)):
            start = time.perf_counter()
            capacity = probe_cluster()
            seconds.append(time.perf_counter() - start)
            assert len(capacity.nodes) == num_nodes  # else it has timed something else
        return seconds
    finally:
        ray.shutdown()
        cluster.shutdown()
