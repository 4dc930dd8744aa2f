"""How long it takes to know whether there will be a GPU, beside the way of Ray's guide.

The guide starts a task that wants a GPU, and takes CPUs if it has not run after ``ray.wait(timeout=240)``. Here each
way decides on a real cluster, whose autoscaler starts real raylets with logical GPUs, or on a Ray without an autoscaler
whose GPUs are free, in use or absent.
"""

import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import ray

from tune_policies import CpuPolicy, GpuPolicy, ProbeWarning, plan_when_ready
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, TextTable
from tune_policies.policies.policy import ResourcePolicy

from .autoscaling_cluster import AutoscalingCluster, autoscaling_cluster, node_type
from .choices import DEVICE_TYPES, Scenario

_DEADLINE_S: Final = 5.0
"""The longest wait for a launch that never ends, and for the release of a GPU."""

_LOCAL_GPUS: Final = {Scenario.GPU_FREE: 1, Scenario.GPU_BUSY: 1, Scenario.GPU_ABSENT: 0}
"""The GPUs of the Ray in the scenarios about GPUs that are there already."""


class Run(NamedTuple):
    """One decision: how long it took, whether it was for a GPU, and how long the node's own start took, if one did."""

    seconds: float
    use_gpu: bool
    node_start_s: float | None = None


def measure_autoscaling(scenarios: list[Scenario], repetitions: int, guide_timeout_s: float) -> None:
    """Print a table: median and range of the seconds until the decision, and what the guide's way took.

    The guide's way runs as often if the GPUs are there already, and else once.
    """
    table = TextTable(title="Time until it is known whether there will be a GPU")
    for heading in (
        "Cluster",
        "Decision",
        "plan_when_ready (s)",
        "Range",
        "Node start (s)",
        "Beside it (s)",
        "Guide's way (s)",
        "Its range",
    ):
        table.add_column(heading, justify="left" if heading in ("Cluster", "Decision") else "right")
    for scenario in scenarios:
        runs, guides = _measure(scenario, repetitions, guide_timeout_s)
        seconds = [run.seconds for run in runs]
        starts = [(run.node_start_s, run.seconds - run.node_start_s) for run in runs if run.node_start_s is not None]
        start, beside = (f"{statistics.median(part):.2f}" for part in zip(*starts, strict=True)) if starts else ("", "")
        table.add_row(
            scenario,
            _decision(runs),
            f"{statistics.median(seconds):.2f}",
            _range(runs),
            start,
            beside,
            f"{statistics.median(guide.seconds for guide in guides):.2f} ({_decision(guides)})",
            _range(guides) if len(guides) > 1 else "",
        )
    TextConsole().print(table)
    TextConsole().print(
        f"{repetitions} runs of plan_when_ready in each cluster, {_DEADLINE_S:g} s deadline for a launch that hangs "
        f"and for a GPU in use. The guide's way with ray.wait(timeout={guide_timeout_s:g}): {repetitions} runs if the "
        "table has their range, else one. Autoscaler v2, which looks every second. "
        f"{describe_machine()}",
        soft_wrap=True,
    )
    print(f"command: {own_command()}")


def _decision(runs: list[Run]) -> str:
    return " or ".join(sorted({"GPU" if run.use_gpu else "CPU" for run in runs}))


def _range(runs: list[Run]) -> str:
    seconds = [run.seconds for run in runs]
    return f"{min(seconds):.2f} to {max(seconds):.2f}"


def _measure(scenario: Scenario, repetitions: int, guide_timeout_s: float) -> tuple[list[Run], list[Run]]:
    """Return the runs of ``plan_when_ready``, then those of the guide's way."""
    if scenario in _LOCAL_GPUS:
        with _local_ray(num_gpus=_LOCAL_GPUS[scenario]), _gpu_in_use(scenario is Scenario.GPU_BUSY):
            runs = [_decide_on_free() for _ in range(repetitions)]
            return runs, [_guides_way(None, guide_timeout_s) for _ in range(repetitions)]
    measured = DEVICE_TYPES[:repetitions]
    if scenario is Scenario.NO_AUTOSCALER:
        with _local_ray():
            return [_decide(name, 60.0) for name in measured], [_guides_way(DEVICE_TYPES[-1], guide_timeout_s)]
    types = () if scenario is Scenario.NO_SUCH_TYPE else DEVICE_TYPES
    node_types = {name: node_type(CPU=1, GPU=1, **{f"accelerator_type:{name}": 1}) for name in types}
    timeout_s = _DEADLINE_S if scenario is Scenario.LAUNCH_HANGS else 60.0
    with autoscaling_cluster(node_types or {"cpu": node_type(CPU=1)}, v2=True) as cluster:
        ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
        runs = [_one(scenario, cluster, name, lambda name: _decide(name, timeout_s)) for name in measured]
        return runs, [_one(scenario, cluster, DEVICE_TYPES[-1], lambda name: _guides_way(name, guide_timeout_s))]


def _one(scenario: Scenario, cluster: AutoscalingCluster, name: str, decide: Callable[[str], Run]) -> Run:
    """Return one decision about a GPU of the type ``name``, whose launch goes as the scenario says."""
    modes = {Scenario.LAUNCH_FAILS: "fail", Scenario.LAUNCH_HANGS: "hang"}
    cluster.launches(**{name: modes.get(scenario, "start")})
    with _seen_alive(name) as seen:
        run = decide(name)
    cluster.end_launches()
    return run._replace(node_start_s=seen[0] - cluster.launched_at(name)) if seen else run


@contextmanager
def _seen_alive(name: str) -> Iterator[list[float]]:
    """Yield a list that gets the time at which a node of the type was first seen alive."""
    seen: list[float] = []
    done = threading.Event()

    def watch() -> None:
        while not seen and not done.wait(0.05):
            if any(node["Alive"] and f"accelerator_type:{name}" in node["Resources"] for node in ray.nodes()):
                seen.append(time.time())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def _decide(name: str, timeout_s: float) -> Run:
    return _timed(GpuPolicy(accelerator_type=name) | CpuPolicy(), timeout_s, only_free=False)


def _decide_on_free() -> Run:
    return _timed(GpuPolicy(cpus=1) | CpuPolicy(cpus=1), _DEADLINE_S, only_free=True)


def _timed(policy: ResourcePolicy, timeout_s: float, *, only_free: bool) -> Run:
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ProbeWarning)  # logical GPUs have no NVML
        plan = plan_when_ready(policy, timeout_s=timeout_s, only_free=only_free)
    return Run(time.perf_counter() - start, plan.use_gpu)


def _guides_way(name: str | None, timeout_s: float) -> Run:
    """Return the decision of the guide's way about a GPU of the type ``name``, or of any type.

    A task that does not run stays pending until its cluster ends. Ray 2.60 aborts the program if a task is cancelled
    while its result arrives: "Check failed: it != submissible_tasks_.end() Tried to complete task that was not
    pending".
    """
    start = time.perf_counter()
    task = ray.remote(num_gpus=1, accelerator_type=name)(lambda: True).remote()
    ready, _ = ray.wait([task], timeout=timeout_s)
    return Run(time.perf_counter() - start, bool(ready))


class _GpuUser:
    """An actor that only reserves a GPU."""

    def is_there(self) -> bool:
        return True


@contextmanager
def _gpu_in_use(is_in_use: bool) -> Iterator[None]:
    """Let an actor use a GPU in the block, if ``is_in_use``."""
    if is_in_use:
        user = ray.remote(num_cpus=0, num_gpus=1)(_GpuUser).remote()
        ray.get(user.is_there.remote(), timeout=60)
    yield  # Ray ends the actor with the program


@contextmanager
def _local_ray(num_gpus: int = 0) -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=1,
        num_gpus=num_gpus,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
    )
    try:
        yield
    finally:
        ray.shutdown()
