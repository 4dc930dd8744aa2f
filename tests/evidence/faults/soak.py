"""What a long life leaves behind: a thousand runs in one process, and hundreds of programs, one after the other.

All on one real Ray with an autoscaler. What is held after the first runs is compared with what is held at the end.
"""

import contextlib
import gc
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import ray
from ray import tune
from ray._private.state import actors
from ray.util.placement_group import placement_group_table

from tests.evidence.guard import processes_with
from tests.evidence.plans.autoscaling_cluster import AutoscalingCluster, autoscaling_cluster, node_type
from tune_policies import CpuPolicy, PolicyScheduler, probe_cluster, request_capacity
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, empty_table
from tune_policies.ray_compat.autoscaler import find_autoscaler
from tune_policies.trainers import run

_SETTLES_IN_S: Final = 20.0
_NUM_LOOKS: Final = 10
_POLICY: Final = CpuPolicy(cpus=1)


class Held(NamedTuple):
    """What is held at a moment.

    Attributes:
        threads: Threads of this process.
        files: Open file descriptors of this process.
        memory_mib: Memory of this process, in MiB: its resident set.
        temporary: Files and folders in the folder for temporary files, and measured values that were kept.
        groups: Placement groups that have not been removed.
        actors: Actors that have not ended.
        requests: What the autoscaler is asked for.
        processes: Processes of the cluster.
    """

    threads: int
    files: int
    memory_mib: float
    temporary: int
    groups: int
    actors: int
    requests: int
    processes: int


def held(cluster: AutoscalingCluster, temporary: Path) -> Held:
    """Return what is held now."""
    gc.collect()
    autoscaler = find_autoscaler()
    return Held(
        threads=len(list(Path("/proc/self/task").iterdir())),
        files=len(list(Path("/proc/self/fd").iterdir())),
        memory_mib=_memory_mib(),
        temporary=sum(1 for _ in temporary.rglob("*")),
        groups=sum(each["state"] != "REMOVED" for each in placement_group_table().values()),
        actors=sum(each["State"] != "DEAD" for each in actors().values()),
        requests=0 if autoscaler is None else autoscaler.requested().total(),
        processes=len(processes_with("RAY_TMPDIR", str(cluster.modes.parent))),
    )


def grown(before: Held, after: Held) -> list[str]:
    """Return what has grown: memory apart, of which Ray's own Tune takes a little more with each run."""
    return [name for name in Held._fields if name != "memory_mib" and getattr(after, name) > getattr(before, name)]


def _memory_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _settled(cluster: AutoscalingCluster, temporary: Path, before: Held | None) -> Held:
    """Return what is held once the processes of what has ended are gone: no more than before, or after some seconds."""
    deadline = time.monotonic() + _SETTLES_IN_S
    while True:
        now = held(cluster, temporary)
        if before is not None and not grown(before, now):
            return now
        if time.monotonic() > deadline:
            return now
        time.sleep(1)


def one_step(config: dict[str, Any]) -> None:
    """Train for one step."""
    tune.report({"loss": config["x"]})


def _run_alone(options: Mapping[str, Any]) -> None:
    tune.run(one_step, resources_per_trial={"cpu": 1}, **options)


def _run(options: Mapping[str, Any]) -> None:
    run(one_step, _POLICY, **options)


def _run_after_request(options: Mapping[str, Any]) -> None:
    plan = _POLICY.plan(probe_cluster())
    with request_capacity(plan):
        tune.run(one_step, scheduler=PolicyScheduler(plan), **options)


def _run_under_scheduler(options: Mapping[str, Any]) -> None:
    tune.run(one_step, scheduler=PolicyScheduler(_POLICY), **options)


WAYS: Final[dict[str, Callable[[Mapping[str, Any]], None]]] = {
    "run": _run,
    "request_capacity": _run_after_request,
    "PolicyScheduler": _run_under_scheduler,
}


def cycle(way: Callable[[Mapping[str, Any]], None], temporary: Path) -> None:
    """Plan, run a trial, and end."""
    results = temporary.parent / "results"
    with contextlib.redirect_stdout(io.StringIO()):
        way({"config": {"x": 1}, "storage_path": str(results), "verbose": 0})
    shutil.rmtree(results)


@contextlib.contextmanager
def _cluster() -> Iterator[tuple[AutoscalingCluster, Path]]:
    """Run a cluster, connected to it; the temporary files of this process and of its children are in a folder."""
    with (
        tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as name,
        autoscaling_cluster({"worker": node_type(1, CPU=1)}, v2=True, cpus=2, max_workers=0) as cluster,
    ):
        temporary = Path(name, "temporary")
        temporary.mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = os.environ["TUNE_POLICIES_CACHE"] = str(temporary)
        os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        try:
            yield cluster, temporary
        finally:
            tempfile.tempdir = None


def soak_in_one_process(number: int, warm_up: int, *, is_alone: bool) -> tuple[Held, Held, float]:
    """Run so many cycles; return what was held after the warm-up and at the end, and the seconds of a cycle."""
    ways = [_run_alone] if is_alone else [*WAYS.values()]
    with _cluster() as (cluster, temporary):
        for i in range(warm_up):
            cycle(ways[i % len(ways)], temporary)
        # The threads of gRPC come and go, so one look would not tell how many there are at the most.
        looks = [_settled(cluster, temporary, None)]
        for i in range(_NUM_LOOKS - 1):
            cycle(ways[i % len(ways)], temporary)
            looks.append(_settled(cluster, temporary, looks[0]))
        before = Held(*map(max, zip(*looks, strict=True)))
        start = time.monotonic()
        for i in range(number):
            cycle(ways[i % len(ways)], temporary)
            if i % 50 == 49:
                print(f"after {i + 1} runs: {held(cluster, temporary)}", file=sys.stderr, flush=True)
        took_s = time.monotonic() - start
        return before, _settled(cluster, temporary, before), took_s / number


_PROGRAM: Final = """
import sys
import ray
from pathlib import Path
from tests.evidence.faults.soak import WAYS, cycle
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
cycle(WAYS[sys.argv[2]], Path(sys.argv[3]))
"""


def soak_by_programs(number: int) -> tuple[Held, Held, float]:
    """Start so many programs, one after the other; as ``soak_in_one_process``. This process looks on."""
    with _cluster() as (cluster, temporary):

        def program(i: int) -> None:
            arguments = [cluster.address, [*WAYS][i % len(WAYS)], str(temporary)]
            subprocess.run([sys.executable, "-c", _PROGRAM, *arguments], check=True, stdout=subprocess.DEVNULL)

        for i in range(3):
            program(i)
        before = _settled(cluster, temporary, None)
        start = time.monotonic()
        for i in range(number):
            program(i)
            if i % 10 == 9:
                print(f"after {i + 1} programs: {held(cluster, temporary)}", file=sys.stderr, flush=True)
        took_s = time.monotonic() - start
        return before, _settled(cluster, temporary, before), took_s / number


def measure_soak(num_cycles: int, num_starts: int, warm_up: int, *, is_alone: bool) -> bool:
    """Print what is held at the beginning and at the end; return whether nothing but memory has grown."""
    found = []
    if num_cycles:
        kind = "runs by Ray alone" if is_alone else "runs"
        measured = soak_in_one_process(num_cycles, warm_up, is_alone=is_alone)
        found.append((f"{num_cycles:,} {kind} in one process", measured))
    if num_starts:
        found.append((f"{num_starts:,} programs on one cluster", soak_by_programs(num_starts)))
    has_grown = False
    for title, (before, after, each_s) in found:
        table = empty_table(f"{title}, {each_s:.1f} s each", "Held", "At the beginning", "At the end")
        for name, first, last in zip(Held._fields, before, after, strict=True):
            table.add_row(name, f"{first:,.0f}", f"{last:,.0f}")
        TextConsole(width=120).print(table)
        has_grown |= bool(grown(before, after))
    print(f"{describe_machine()}\ncommand: {own_command()}")
    return not has_grown
