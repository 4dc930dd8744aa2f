"""Trials per hour on one GPU: one trial at a time, several beside each other, and as many as a measured plan says.

Every arm runs the same trainings through Ray Tune, the start of their processes included; the order of the runs is
random.
"""

import random
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, NamedTuple

import ray
from ray import tune

from trainers import measure_gpu_memory, with_plan
from tune_policies import ClusterCapacity, GpuMemoryPolicy, GpuPolicy, InvalidResourcesError, TrialPlan, probe_cluster

from .environment import describe_machine
from .throughput_record import ThroughputRecord, ThroughputSample
from .throughput_report import draw_throughput, print_throughput
from .workloads import WORKLOADS, train_workload

NUM_REPORTS: Final = 4
WAVES: Final = 2
"""Trials on a GPU after each other in one run, so that the time between two of them counts."""


class Sweep(NamedTuple):
    """What is run.

    Attributes:
        workloads: Names of the workloads.
        trials_per_gpu: Numbers of trials that share the GPU, beside 1 and what the plan says.
        repetitions: Runs of each arm.
        work: Share of each workload's steps that a trial does.
        use_mps: Whether every arm of several trials is run under MPS, too.
    """

    workloads: Sequence[str]
    trials_per_gpu: Sequence[int]
    repetitions: int
    work: float
    use_mps: bool = False


class Arm(NamedTuple):
    """One way to run a workload: its name, and the plan under which so many trials share the GPU."""

    name: str
    workload: str
    trials_per_gpu: int
    plan: TrialPlan
    isolation: Literal["mps"] | None = None


def measure_throughput(sweep: Sweep, output: Path | None, plot: Path | None) -> None:
    """Run the sweep, print its table, and write the record and the plot where asked to.

    Raises:
        InfeasibleRequestError: There is no GPU.
        InvalidResourcesError: There are several: trials on one are counted.
    """
    ray.init(address="local", include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        record = _run(sweep)
    finally:
        ray.shutdown()
    if output is not None:
        output.write_text(record.to_json() + "\n")
    print_throughput(record)
    if plot is not None:
        draw_throughput(record, plot)


def _run(sweep: Sweep) -> ThroughputRecord:
    capacity = probe_cluster()
    num_gpus = sum(node.resources.gpus for node in capacity.nodes)
    if num_gpus > 1:
        raise InvalidResourcesError(
            f"trials on one GPU are counted, and there are {num_gpus:g}: name one in CUDA_VISIBLE_DEVICES"
        )
    arms = [arm for workload in sweep.workloads for arm in _arms(capacity, workload, sweep)]
    runs = [arm for arm in arms for _ in range(sweep.repetitions)]
    random.Random(0).shuffle(runs)  # noqa: S311
    samples = []
    for number, arm in enumerate(runs, start=1):
        print(f"{number}/{len(runs)}: {arm.workload}, {arm.name}, {arm.trials_per_gpu} at once", file=sys.stderr)
        samples.append(run_arm(arm, sweep.work))
    return ThroughputRecord(
        gpu=", ".join(gpu.name for node in capacity.nodes for gpu in node.devices or ()) or "GPU that was not read",
        machine=describe_machine("torch"),
        command=f"python -m benchmarks {' '.join(sys.argv[1:])}",
        samples=tuple(samples),
        plans={arm.workload: arm.plan.explain() for arm in arms if arm.name == "plan"},
    )


def _arms(capacity: ClusterCapacity, workload: str, sweep: Sweep) -> list[Arm]:
    alone = Arm("alone", workload, 1, GpuPolicy().plan(capacity))
    numbers = [number for number in sorted(set(sweep.trials_per_gpu)) if number > 1]
    shared = [
        Arm("packed", workload, number, GpuPolicy(gpus=round(1 / number, 4)).plan(capacity)) for number in numbers
    ]
    planned = _measured_plan(capacity, workload)
    shared.append(Arm("plan", workload, planned.max_concurrent_trials, planned))
    if sweep.use_mps:
        shared += [arm._replace(name=f"{arm.name} with mps", isolation="mps") for arm in shared]
    return [alone, *shared]


def _measured_plan(capacity: ClusterCapacity, workload: str) -> TrialPlan:
    config = _config(workload, work=0.01, seed=0)
    profile = measure_gpu_memory(train_workload, [config], capacity=capacity)
    # A CPU each, or the trials wait for the CPU that feeds the GPU.
    return GpuMemoryPolicy(profile=profile, cpus=1).plan(capacity)


def _config(workload: str, *, work: float, seed: Any) -> dict[str, Any]:
    steps = max(NUM_REPORTS, round(WORKLOADS[workload].num_steps * work))
    return {"workload": workload, "num_steps": steps, "num_reports": NUM_REPORTS, "seed": seed}


def run_arm(arm: Arm, work: float) -> ThroughputSample:
    """Run two waves of trials, and return how long they took."""
    num_trials = WAVES * arm.trials_per_gpu
    run = partial(
        tune.run,
        with_plan(train_workload, arm.plan, isolation=arm.isolation),
        config=_config(arm.workload, work=work, seed=tune.grid_search(list(range(num_trials)))),
        max_concurrent_trials=arm.trials_per_gpu,
        verbose=0,
    )
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        start = time.perf_counter()
        results = run(storage_path=folder)
        seconds = time.perf_counter() - start
    losses = {trial.config["seed"]: trial.last_result["loss"] for trial in results.trials}
    return ThroughputSample(
        workload=arm.workload,
        arm=arm.name,
        trials_per_gpu=arm.trials_per_gpu,
        num_trials=num_trials,
        seconds=seconds,
        losses=tuple(losses[seed] for seed in sorted(losses)),
    )
