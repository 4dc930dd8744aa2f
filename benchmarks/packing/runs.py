"""Trials per hour on one GPU: one trial at a time, several beside each other, and as many as a measured plan says.

Every arm runs the same trainings through Ray Tune, the start of their processes included; the order of the runs is
random.
"""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, NamedTuple

import ray
from ray import tune

from tune_policies import ClusterCapacity, GpuMemoryPolicy, GpuPolicy, InvalidResourcesError, TrialPlan, probe_cluster
from tune_policies.files.locking import locked
from tune_policies.files.reading import MAX_RECORD_BYTES, read_text
from tune_policies.files.writing import check_new, replace_file
from tune_policies.resources import TICKS, from_ticks
from tune_policies.terminal import tell
from tune_policies.trainers import measure_gpu_memory, with_plan
from tune_policies.usage.record import GPU_MEMORY_KEY

from ..environment import describe_machine, own_command
from .packing_record import UNREAD_GPU, ThroughputRecord, ThroughputSample
from .packing_report import draw_throughput, print_throughput
from .trainings import Training, config_of, train_workload

NUM_REPORTS: Final = 4
WAVES: Final = 2
"""Trials on a GPU after each other in one run, so that the time between two of them counts."""


class Sweep(NamedTuple):
    """What is run.

    Attributes:
        trainings: What the trials do.
        trials_per_gpu: Numbers of trials that share the GPU, beside 1 and what the plan says.
        repetitions: Runs of each arm.
        work: Share of each training's steps that a trial does.
        cpus_per_trial: CPUs of a trial under the measured plan.
        use_mps: Whether every arm of several trials is run under MPS, too.
    """

    trainings: Sequence[Training]
    trials_per_gpu: Sequence[int]
    repetitions: int
    work: float
    cpus_per_trial: float = 1
    use_mps: bool = False


class FailedRunError(Exception):
    """A run that does not count."""


class Arm(NamedTuple):
    """One way to run a training: its name, and the plan under which so many trials share the GPU."""

    name: str
    training: Training
    trials_per_gpu: int
    plan: TrialPlan
    isolation: Literal["mps"] | None = None


def measure_throughput(sweep: Sweep, output: Path | None, plot: Path | None, *, force: bool = False) -> None:
    """Run the sweep, print its table, and write the record and the plot where asked to.

    Args:
        sweep: What is run.
        output: Of the record.
        plot: Of the plot.
        force: Whether to replace files that are there.

    Raises:
        InfeasibleRequestError: There is no GPU.
        InvalidResourcesError: There are several: trials on one are counted. A file is in the way and not to be
            replaced, or cannot be written.
    """
    for path in (output, plot):
        if path is not None:
            check_new(path, force=force)
    with locked(output) if output is not None else nullcontext():
        ray.init(address="local", include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        try:
            for record in _records(sweep):
                if output is not None:  # after each run, so that nothing measured is lost
                    replace_file(output, record.to_json() + "\n")
        finally:
            ray.shutdown()
    print_throughput(record)
    if plot is not None:
        draw_throughput(record, plot, force=force)


def _records(sweep: Sweep) -> Iterator[ThroughputRecord]:
    """Yield the record after each run."""
    capacity = probe_cluster()
    num_gpus = sum(node.resources.gpus for node in capacity.nodes)
    if num_gpus > 1:
        raise InvalidResourcesError(
            f"trials on one GPU are counted, and there are {num_gpus:g}: name one in CUDA_VISIBLE_DEVICES"
        )
    arms = [arm for training in sweep.trainings for arm in _arms(capacity, training, sweep)]
    runs = [arm for arm in arms for _ in range(sweep.repetitions)]
    random.Random(0).shuffle(runs)  # noqa: S311
    record = ThroughputRecord(
        gpu=", ".join(gpu.name for node in capacity.nodes for gpu in node.devices or ()) or UNREAD_GPU,
        machine=describe_machine("torch"),
        command=own_command(),
        plans={arm.training.name: arm.plan.explain() for arm in arms if arm.name == "plan"},
    )
    yield record
    for number, arm in enumerate(runs, start=1):
        name = f"{arm.training.name}, {arm.name}, {arm.trials_per_gpu} at once"
        tell(f"{number}/{len(runs)}: {name}")
        try:
            record = record.with_sample(run_arm(arm, sweep.work))
        except FailedRunError as error:
            tell(f"left out: {error}")
            record = record.with_failure(f"{name}: {error}")
        yield record


def _arms(capacity: ClusterCapacity, training: Training, sweep: Sweep) -> list[Arm]:
    alone = Arm("alone", training, 1, GpuPolicy().plan(capacity))
    numbers = [number for number in sorted(set(sweep.trials_per_gpu)) if number > 1]
    shared = [
        Arm("packed", training, number, GpuPolicy(gpus=from_ticks(TICKS // number)).plan(capacity))
        for number in numbers
    ]
    planned = _measured_plan(capacity, training, sweep.cpus_per_trial)
    shared.append(Arm("plan", training, planned.max_concurrent_trials, planned))
    if sweep.use_mps:
        shared += [arm._replace(name=f"{arm.name} with mps", isolation="mps") for arm in shared]
    return [alone, *shared]


def _measured_plan(capacity: ClusterCapacity, training: Training, cpus: float) -> TrialPlan:
    config = config_of(training, work=0.01, num_reports=NUM_REPORTS, seed=0)
    profile = measure_gpu_memory(train_workload, [config], capacity=capacity)
    # Neither the seed nor the number of steps, in which the runs differ, decides how much memory a training takes.
    return GpuMemoryPolicy(profile=profile, cpus=cpus).plan(capacity).for_config(config)


def run_arm(arm: Arm, work: float) -> ThroughputSample:
    """Run two waves of trials, and return how long they took.

    Raises:
        FailedRunError: A trial failed, or had more of the GPU than the arm says.
    """
    num_trials = WAVES * arm.trials_per_gpu
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        start = time.perf_counter()
        trials = tune.run(
            with_plan(train_workload, arm.plan, isolation=arm.isolation),
            config=config_of(
                arm.training, work=work, num_reports=NUM_REPORTS, seed=tune.grid_search(list(range(num_trials)))
            ),
            max_concurrent_trials=arm.trials_per_gpu,
            storage_path=folder,
            raise_on_failed_trial=False,
            verbose=0,
        ).trials
        seconds = time.perf_counter() - start
        _check(arm, trials)
    by_seed = sorted(trials, key=lambda trial: int(trial.config["seed"]))
    return ThroughputSample(
        workload=arm.training.name,
        arm=arm.name,
        trials_per_gpu=arm.trials_per_gpu,
        num_trials=num_trials,
        seconds=seconds,
        trial_seconds=tuple(trial.last_result["time_total_s"] for trial in by_seed),
        losses=tuple(trial.last_result["loss"] for trial in by_seed),
    )


def _check(arm: Arm, trials: Sequence[Any]) -> None:
    for trial in trials:
        if trial.status != "TERMINATED":
            file = trial.error_file
            said = read_text(file, max_bytes=MAX_RECORD_BYTES, errors="replace").strip() if file else "no error"
            raise FailedRunError(f"a trial failed: {said.splitlines()[-1]}")
        if trial.placement_group_factory.required_resources.get("GPU", 0) * arm.trials_per_gpu > 1:
            raise FailedRunError(f"a trial had more than 1/{arm.trials_per_gpu} of the GPU")
        used = trial.last_result.get(GPU_MEMORY_KEY, {})
        if arm.isolation and used.get("isolation") != arm.isolation:
            why = "; ".join(used.get("warnings", "").splitlines())
            raise FailedRunError(f"{arm.isolation} did not hold the trials: {why}")
