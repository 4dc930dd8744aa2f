"""What a call of a Ray task takes in a fresh process and in a kept one, on a GPU that only Ray counts."""

import importlib
import os
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from itertools import product
from typing import Any, Final, Literal, NamedTuple

import ray
from rich.progress import track

from tune_policies import ClusterCapacity, GpuPolicy, Resources
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.benchmarks.record.summary import spread
from tune_policies.files.terminal import TextConsole, TextTable
from tune_policies.trainers import with_limits

_TIMEOUT_S: Final = 120.0

_PLAN: Final = GpuPolicy(cpus=1).plan(ClusterCapacity.of(Resources(cpus=2, gpus=1)))


class _Arm(NamedTuple):
    reuse: Literal["release", "keep"]
    module: str
    is_limited: bool

    def __str__(self) -> str:
        imports = f"imports {self.module}" if self.module != "os" else "imports nothing"
        process = "a fresh process" if self.reuse == "release" else "a kept process"
        return f"{process}, {imports}{', with_limits' if self.is_limited else ''}"


_REUSE: Final[tuple[Literal["release", "keep"], ...]] = ("release", "keep")
_ARMS: Final = [_Arm(*each) for each in product(_REUSE, ("os", "torch"), (False, True))]


def measure_task_processes(num_runs: int, num_calls: int) -> None:
    """Print a table: milliseconds of a call in each kind of process.

    Each run starts a Ray, and makes the calls of one arm after the other, in random order. The first call of an arm
    does not count.
    """
    medians: dict[_Arm, list[float]] = {arm: [] for arm in _ARMS}
    order = random.Random(0)
    for _ in track(range(num_runs), "runs", console=TextConsole(stderr=True)):
        with _local_ray():
            for arm in order.sample(_ARMS, len(_ARMS)):
                medians[arm].append(1000 * _time_calls(arm, num_calls))
    table = TextTable(title="One call of a task: median of the runs' medians ± half their interquartile range")
    table.add_column("Call in")
    for heading in ("Time (ms)", "Smallest", "Largest"):
        table.add_column(heading, justify="right")
    for arm, values in medians.items():
        table.add_row(str(arm), str(spread(values)), f"{min(values):.2f}", f"{max(values):.2f}")
    TextConsole(width=120).print(table)
    print(f"{num_runs} runs of {num_calls} calls each. {describe_machine()}, torch {version('torch')}")
    print(f"command: {own_command()}")


@contextmanager
def _local_ray() -> Iterator[None]:
    ray.init(
        address="local", num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    try:
        yield
    finally:
        ray.shutdown()


def _time_calls(arm: _Arm, num_calls: int) -> float:
    def task() -> int:
        importlib.import_module(arm.module)
        return os.getpid()

    options: dict[str, Any] = _PLAN.remote_options(reuse=arm.reuse)
    remote: Any = ray.remote(**options)(with_limits(_PLAN)(task) if arm.is_limited else task)
    processes, seconds = set(), []
    for number in range(num_calls + 1):
        start = time.perf_counter()
        processes.add(ray.get(remote.remote(), timeout=_TIMEOUT_S))
        if number:
            seconds.append(time.perf_counter() - start)
    assert len(processes) == (1 if arm.reuse == "keep" else num_calls + 1)  # else it has timed something else
    return statistics.median(seconds)
