"""Measures trials per hour on one GPU: with one trial, with several concurrent trials, and with a planned number.

The plan is computed from a measured memory profile. All runs perform the same trainings with Ray Tune, in random order,
and their times include the start of processes. Each step copies its data from host memory, as with a data loader.
"""

import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, NamedTuple

import ray
from ray import tune

from tune_policies import ClusterCapacity, GpuMemoryPolicy, GpuPolicy, PolicyScheduler, TrialPlan, probe_cluster
from tune_policies.files.reading import MAX_RECORD_BYTES, read_text
from tune_policies.files.terminal import print_to_stderr
from tune_policies.files.writing import check_new, locked, write_new
from tune_policies.trainers import measure_gpu_memory
from tune_policies.trainers.gpu_memory.mps import query_mps_daemon
from tune_policies.trainers.usage.gpu_memory_records import GPU_MEMORY_KEY
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import TICKS, from_ticks

from ..record.machine import describe_machine, own_command
from ..record.packing_record import DEFAULT_SIZES, UNREAD_GPU, PackingMode, ThroughputRecord, ThroughputSample
from ..workloads.registry import check_workload, load_workload
from ..workloads.steps import checked_loss, checked_steps
from .timed_workload import wait_for_devices


class Training(NamedTuple):
    """The work of a trial: a number of steps of a workload. ``name`` identifies the training in the record."""

    name: str
    workload: str
    size: int
    num_steps: int


_DEFAULT_STEPS: Final = {"mlp": 20_000, "cnn": 15_000, "resnet18": 1_000, "transformer": 4_000}

_DEFAULTS: Final = {name: Training(name, name, size, _DEFAULT_STEPS[name]) for name, size in DEFAULT_SIZES.items()}
"""Default trainings by name. Each takes a few seconds on a GPU."""


def find_training(workload: str, size: int | None, num_steps: int | None) -> Training:
    """Return a training of a workload.

    ``size`` is required if the workload has no defaults, and ``num_steps`` is required if ``size`` is given.

    Raises:
        InvalidResourcesError: The workload does not exist, or its size or number of steps is missing.
    """
    check_workload(workload)
    if size is None and workload in _DEFAULTS:
        default = _DEFAULTS[workload]
        return default._replace(num_steps=num_steps or default.num_steps)
    if size is None or num_steps is None:
        missing = []
        if size is None:
            missing.append("a size")
        if num_steps is None:
            missing.append("--steps")
        raise InvalidResourcesError(
            f"{workload}: pass {' and '.join(missing)}, such as tune-policies bench packing {workload}@{size or 64} "
            f"--steps {num_steps or 1000}. A trial must take several seconds, because startup dominates shorter trials"
        )
    return Training(f"{workload}[{size}]", workload, size, num_steps)


def default_trainings() -> list[Training]:
    """Return the trainings that run by default."""
    return [find_training(name, None, None) for name in _DEFAULTS]


def config_of(training: Training, seed: Any, *, uses_mps: bool = False) -> dict[str, Any]:
    """Return the config of a trial. ``seed`` only distinguishes the trials of a run."""
    return {
        "uses_mps": uses_mps,
        "workload": training.workload,
        "size": training.size,
        "num_steps": training.num_steps,
        "seed": seed,
        "folder": str(Path.cwd()),
    }


def train_workload(config: dict[str, Any]) -> None:
    """Run the steps of a config from :func:`config_of`, on the GPU if the trial reserves one, and report losses.

    All trials do the same work, because each workload uses a fixed seed.
    """
    if not config["uses_mps"]:
        # Otherwise, CUDA uses MPS if a daemon is running, even without limits.
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = _WITHOUT_DAEMON
    # Ray's workers import from the folder of the driver's script. For an installed command, this is not the working
    # directory, in which the user's workload is.
    if config["folder"] not in sys.path:
        sys.path.insert(0, config["folder"])
    device = "gpu" if ray.is_initialized() and ray.get_gpu_ids() else "cpu"
    name = config["workload"]
    steps = checked_steps(load_workload(name)(config["size"], device), name)
    # Rounded up, so that a trial does not report more than ``NUM_REPORTS`` times.
    chunk = -(-config["num_steps"] // NUM_REPORTS)
    for done in range(1, config["num_steps"] + 1):
        result = steps.with_transfers()
        if done % chunk == 0 or done == config["num_steps"]:
            wait_for_devices(result)  # otherwise the report could be sent before the work is done
            loss = 0.0 if result is None else checked_loss(result, name, done)
            tune.report({"loss": loss, "steps": done})


# CUDA looks for the daemon's pipe in this folder.
_WITHOUT_DAEMON: Final = "/nonexistent"

NUM_REPORTS: Final = 4
"""The number of reports of a trial."""
ROUNDS: Final = 2
"""The number of successive trials in each slot. With two trials, the measured time includes the time between them."""


class Sweep(NamedTuple):
    """The runs to perform.

    Attributes:
        trials_per_gpu: Numbers of concurrent trials to measure, in addition to one trial and the number in the plan.
        repetitions: The number of runs for each way to share the GPU.
        cpus_per_trial: The number of CPUs of a trial in the plan that is computed from the measured profile.
        use_mps: Whether to repeat the runs with concurrent trials under MPS.
    """

    trainings: Sequence[Training]
    trials_per_gpu: Sequence[int]
    repetitions: int
    cpus_per_trial: float = 1
    use_mps: bool = False


class FailedRunError(Exception):
    """A trial of a run failed or had the wrong resources, so the run is omitted from the record."""


class Sharing(NamedTuple):
    """A way to share the GPU: a plan that runs ``trials_per_gpu`` trials of a training concurrently."""

    mode: PackingMode
    training: Training
    trials_per_gpu: int
    plan: TrialPlan

    @property
    def isolation(self) -> Literal["mps"] | None:
        """The mechanism that limits trials to their fraction of the GPU, or ``None``."""
        if self.mode.uses_mps:
            return "mps"
        return None


def measure_throughput(sweep: Sweep, output: Path | None, *, force: bool = False) -> ThroughputRecord:
    """Run the sweep, write the record to ``output``, and return it.

    Raises:
        InfeasibleRequestError: The cluster has no GPU.
        InvalidResourcesError: The cluster has several GPUs, no MPS daemon responds although ``use_mps`` is set,
            ``output`` exists although ``force`` is not set, or it cannot be written.
    """
    if sweep.use_mps:
        reason = query_mps_daemon()
        if reason:
            raise InvalidResourcesError(f"--mps requires an MPS daemon, but {reason}")
    if output is not None:
        check_new(output, force=force, example=json.dumps(dict.fromkeys(ThroughputRecord.model_fields)))
    lock = nullcontext() if output is None else locked(output)
    with lock:
        ray.init(address="local", include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        try:
            for number, record in enumerate(_records(sweep)):
                if output is not None:  # write after each run, so that no measurement is lost
                    write_new(output, record.to_json() + "\n", force=force or number > 0)
        finally:
            ray.shutdown()
    return record


def _records(sweep: Sweep) -> Iterator[ThroughputRecord]:
    """Yield the record before the first run and after each run."""
    capacity = probe_cluster()
    num_gpus = sum(node.resources.gpus for node in capacity.nodes)
    if num_gpus > 1:
        raise InvalidResourcesError(
            f"packing requires one GPU, but the cluster has {num_gpus:g}. Set CUDA_VISIBLE_DEVICES to one of them"
        )
    runs = []
    plans = {}
    for training in sweep.trainings:
        for sharing in _sharings(capacity, training, sweep):
            runs += [sharing] * sweep.repetitions
            if sharing.mode is PackingMode.PLAN:
                plans[training.name] = sharing.plan.explain()
    # In random order, a drift of the machine affects all ways to share the GPU alike.
    random.Random(0).shuffle(runs)  # noqa: S311
    gpus: list[str] = []
    for node in capacity.nodes:
        gpus += [gpu.name for gpu in node.devices or ()]
    record = ThroughputRecord(
        gpu=", ".join(gpus) or UNREAD_GPU,
        machine=describe_machine("torch"),
        command=own_command(),
        plans=plans,
    )
    yield record
    for number, sharing in enumerate(runs, start=1):
        name = f"{sharing.training.name}, {sharing.mode}, {sharing.trials_per_gpu} at once"
        print_to_stderr(f"{number}/{len(runs)}: {name}")
        try:
            record = record.with_sample(run_trials(sharing))
        except FailedRunError as error:
            print_to_stderr(f"the run is omitted: {error}")
            record = record.with_failure(f"{name}: {error}")
        yield record


_WITH_MPS: Final = {
    PackingMode.PACKED: PackingMode.PACKED_WITH_MPS,
    PackingMode.PLAN: PackingMode.PLAN_WITH_MPS,
}


def _sharings(capacity: ClusterCapacity, training: Training, sweep: Sweep) -> list[Sharing]:
    try:
        on_whole_gpu = GpuPolicy().plan(capacity)
    except InfeasibleRequestError as error:
        raise error.with_texts(fallback="") from None  # trials on CPUs would not share a GPU
    alone = Sharing(PackingMode.ALONE, training, 1, on_whole_gpu)
    shared = [
        Sharing(PackingMode.PACKED, training, number, GpuPolicy(gpus=from_ticks(TICKS // number)).plan(capacity))
        for number in sorted(set(sweep.trials_per_gpu))
        if number > 1
    ]
    # The seed and the number of steps do not affect the memory use of a training, so a short training is enough.
    config = config_of(training._replace(num_steps=NUM_REPORTS), seed=0)
    profile = measure_gpu_memory(train_workload, [config], capacity=capacity)
    planned = GpuMemoryPolicy(profile=profile, cpus=sweep.cpus_per_trial).plan(capacity).for_config(config)
    shared.append(Sharing(PackingMode.PLAN, training, planned.max_concurrent_trials, planned))
    if sweep.use_mps:
        shared += [sharing._replace(mode=_WITH_MPS[sharing.mode]) for sharing in shared]
    return [alone, *shared]


def run_trials(sharing: Sharing) -> ThroughputSample:
    """Run ``ROUNDS`` trials in each slot, and return the sample with their times and losses.

    Raises:
        FailedRunError: A trial failed, reserved more than its fraction of the GPU, or was not limited by MPS.
    """
    num_trials = ROUNDS * sharing.trials_per_gpu
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        start = time.perf_counter()
        # A plan may fit more trials than should run at once here.
        plan = sharing.plan.capped(sharing.trials_per_gpu, limited_by="max_concurrent_trials")
        trials = tune.run(
            train_workload,
            scheduler=PolicyScheduler(plan, isolation=sharing.isolation),
            config=config_of(
                sharing.training,
                seed=tune.grid_search(list(range(num_trials))),
                uses_mps=sharing.mode.uses_mps,
            ),
            storage_path=folder,
            raise_on_failed_trial=False,
            verbose=0,
        ).trials
        seconds = time.perf_counter() - start
        _check(sharing, trials)
    by_seed = sorted(trials, key=lambda trial: int(trial.config["seed"]))
    return ThroughputSample(
        workload=sharing.training.name,
        mode=sharing.mode,
        trials_per_gpu=sharing.trials_per_gpu,
        num_trials=num_trials,
        seconds=seconds,
        trial_seconds=tuple(trial.last_result["time_total_s"] for trial in by_seed),
        losses=tuple(trial.last_result["loss"] for trial in by_seed),
    )


def _check(sharing: Sharing, trials: Sequence[Any]) -> None:
    for trial in trials:
        if trial.status != "TERMINATED":
            file = trial.error_file
            if file:
                reason = read_text(file, max_bytes=MAX_RECORD_BYTES, errors="replace").strip()
            else:
                reason = "no error was recorded"
            raise FailedRunError(f"a trial failed: {reason.splitlines()[-1]}")
        # Otherwise, fewer trials than recorded would have run at once.
        if trial.placement_group_factory.required_resources.get("GPU", 0) * sharing.trials_per_gpu > 1:
            raise FailedRunError(f"a trial reserved more than 1/{sharing.trials_per_gpu} of the GPU")
        used = trial.last_result.get(GPU_MEMORY_KEY, {})
        if sharing.isolation and used.get("isolation") != sharing.isolation:
            why = "; ".join(used.get("warnings", "").splitlines())
            raise FailedRunError(f"{sharing.isolation} did not limit the trials: {why}")
