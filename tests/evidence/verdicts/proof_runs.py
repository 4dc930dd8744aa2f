"""Makes the runs of the proofs: the whole harness, on a real Ray with logical devices."""

import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final, NamedTuple

import ray
from rich.progress import track

from tune_policies import ClusterCapacity, ProbeWarning, probe_cluster
from tune_policies.benchmarks.compare.judge import Comparison, Outcome, compare_arms
from tune_policies.benchmarks.compare.machine_check import blocks_of_step
from tune_policies.benchmarks.compare.verdicts import problems_of_readings, verdicts
from tune_policies.benchmarks.measuring.runner import measure, new_run_set
from tune_policies.benchmarks.record.machine import describe_machine, own_command, read_environment
from tune_policies.benchmarks.record.run_set import Arm, NoiseReading, Phase, RunSet, Settings
from tune_policies.files.child_python import child_python
from tune_policies.files.reading import MAX_RECORD_BYTES, read_value
from tune_policies.files.terminal import TextConsole
from tune_policies.files.writing import locked, replace_file
from tune_policies.values.errors import InvalidResourcesError, MeasurementError

from . import known_steps
from .neighbour import busy_neighbour
from .proof import SAME_WITHIN, ProofRecord, ProofRun
from .timed_by_torch import TimedByTorch

TORCH_TIMEOUT_S: Final = 120

CASES: Final = {
    "aa": ((Outcome.SAME, known_steps.equal),),
    "change": ((Outcome.SECOND, known_steps.five_percent),),
    "busy": ((Outcome.SAME, known_steps.equal), (Outcome.SECOND, known_steps.five_percent)),
}
"""By proof the workloads that take turns, and what a verdict on the CPU against the GPU should say."""


class ProofSize(NamedTuple):
    """How much is run.

    Attributes:
        num_runs: Runs, with a verdict each.
        num_rounds: Processes of each arm in a run.
        num_blocks: Blocks of each process.
        seed: Of the first run; the others follow.
    """

    num_runs: int
    num_rounds: int
    num_blocks: int
    seed: int = 0


def run_proof(name: str, size: ProofSize, output: Path | None = None) -> ProofRecord:
    """Make the runs of a proof, and write the record after each; runs that are in the file already are not made again.

    Raises:
        InvalidResourcesError: The file holds another proof, or one of another machine or of runs of another length.
        MeasurementError: A run gave no verdict.
    """
    fresh = ProofRecord(
        name=name,
        command=own_command(),
        machine=describe_machine("numpy"),
        num_rounds=size.num_rounds,
        num_blocks=size.num_blocks,
    )
    with locked(output) if output is not None else nullcontext():
        return _go_on(_begun(fresh, output), size, output)


def _go_on(record: ProofRecord, size: ProofSize, output: Path | None) -> ProofRecord:
    if len(record.runs) >= size.num_runs:
        return record
    hashed_blocks = blocks_of_step()
    with _logical_devices() as capacity:
        for number in track(range(len(record.runs), size.num_runs), record.name, console=TextConsole(stderr=True)):
            record = record.model_copy(
                update={"runs": (*record.runs, _run(record.name, number, hashed_blocks, size, capacity))}
            )
            if output is not None:
                replace_file(output, f"{record.to_json()}\n")
    return record


def _begun(fresh: ProofRecord, output: Path | None) -> ProofRecord:
    """Return what a file holds of a proof, to go on with it; without a file nothing was made yet."""
    if output is None or not output.exists():
        return fresh
    before = read_value(output, ProofRecord, "record of a proof", hint="name another file", max_bytes=MAX_RECORD_BYTES)
    if (before.name, before.machine) != (fresh.name, fresh.machine):
        raise InvalidResourcesError(
            f"{output} holds the proof {before.name!r} on {before.machine}, not {fresh.name!r} on {fresh.machine}:"
            " name another file"
        )
    if (before.num_rounds, before.num_blocks) != (fresh.num_rounds, fresh.num_blocks):
        raise InvalidResourcesError(
            f"{output} holds runs of {before.num_rounds} rounds with {before.num_blocks} blocks each, not of"
            f" {fresh.num_rounds} with {fresh.num_blocks}: name another file, or ask for as many"
        )
    return before


def _run(name: str, number: int, hashed_blocks: int, size: ProofSize, capacity: ClusterCapacity) -> ProofRun:
    truth, workload = CASES[name][number % len(CASES[name])]
    settings = Settings(
        sizes={_path(workload.__name__): (hashed_blocks,)},
        devices=("cpu", "gpu"),
        num_rounds=size.num_rounds,
        num_blocks=size.num_blocks,
        seed=size.seed + number,
        # A control only adds doubts, so without it a wrong verdict comes more easily.
        has_control=False,
    )
    began = time.monotonic()
    with busy_neighbour() if name == "busy" else nullcontext():
        run_set = _measured(settings, capacity)
    return ProofRun(truth=truth, comparison=_verdict(run_set), seconds=time.monotonic() - began)


def measure_agreement(workload: str, size: int, num_rounds: int) -> Comparison:
    """Compare a step's time as a run records it with what PyTorch's timer says in a plain process, round by round.

    Both time the same step with that timer and one thread, one after the other. A run takes means of blocks of 30 ms,
    between which its process waits, and Ray starts it with a lower priority; the plain process works for a second, of
    which the median counts. Where others use the CPUs, these are not the same, so a load makes the answer ambiguous.

    Raises:
        MeasurementError: One of the two gave no time.
    """
    settings = Settings(sizes={workload: (size,)}, devices=("cpu",), num_rounds=num_rounds, has_control=False)
    by_torch: dict[int, tuple[float, ...]] = {}
    noise: list[NoiseReading] = []
    with _logical_devices() as capacity:
        for run_set in measure(_new(settings, capacity), capacity):  # the last one is used
            for number in {run.round for run in run_set.runs} - by_torch.keys():
                timed = _timed_by_torch(workload, size, number)
                by_torch[number] = (timed.step_s,)
                noise.append(timed.noise)
    arm = Arm(workload=workload, size=size, device="cpu")
    _check(run_set)
    times = run_set.times_s(arm, Phase.COMPUTE) or run_set.times_s(arm, Phase.TRANSFERS)  # as the plain process does
    doubts = [*problems_of_readings((*run_set.noise, *noise), run_set.environment.num_cpus)]
    return compare_arms(times, by_torch, same_within=SAME_WITHIN, doubts=doubts)


def measure_overhead_of_steps(microseconds: tuple[int, ...], num_rounds: int) -> dict[int, list[float]]:
    """Return what is recorded of steps that wait on the clock for so long, as parts above it, block by block.

    Raises:
        MeasurementError: A process gave no time.
    """
    workload = _path(known_steps.waiting.__name__)
    settings = Settings(sizes={workload: microseconds}, devices=("cpu",), num_rounds=num_rounds, has_control=False)
    with _logical_devices() as capacity:
        run_set = _measured(settings, capacity)
    overheads = {}
    for size in microseconds:
        times = run_set.times_s(Arm(workload=workload, size=size, device="cpu"), Phase.TRANSFERS)
        overheads[size] = [step_s / (size / 1e6) - 1 for blocks in times.values() for step_s in blocks]
    return overheads


@contextmanager
def _logical_devices() -> Iterator[ClusterCapacity]:
    # The CPUs are logical, too: arms that take turns must be there at once, on a machine of two CPUs as on any other.
    ray.init(
        address="local", num_cpus=4, num_gpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ProbeWarning)  # that nothing is known of a GPU which is only logical
            capacity = probe_cluster()
        yield capacity
    finally:
        ray.shutdown()


def _new(settings: Settings, capacity: ClusterCapacity) -> RunSet:
    return new_run_set(settings, capacity, read_environment(("numpy",)), own_command())


def _measured(settings: Settings, capacity: ClusterCapacity) -> RunSet:
    *_, run_set = measure(_new(settings, capacity), capacity)
    _check(run_set)
    return run_set


def _check(run_set: RunSet) -> None:
    if problems := " ".join(run_set.problems()):
        raise MeasurementError(f"a run of the proof was not whole: {problems}", run_set)


def _verdict(run_set: RunSet) -> Comparison:
    (found,) = verdicts(run_set, Phase.TRANSFERS, SAME_WITHIN)
    return found.comparison


def _timed_by_torch(workload: str, size: int, number: int) -> TimedByTorch:
    asked = child_python("-m", f"{__package__}.torch_timer", workload, str(size), str(number))
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=TORCH_TIMEOUT_S, check=True)
    except subprocess.CalledProcessError as error:
        raise MeasurementError(f"PyTorch's timer failed: {error.stderr.strip().splitlines()[-1:]}") from error
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(f"PyTorch's timer gave no time within {TORCH_TIMEOUT_S} s") from error
    return TimedByTorch.from_json(done.stdout)


def _path(function: str) -> str:
    return f"{known_steps.__name__}:{function}"
