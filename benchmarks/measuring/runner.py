"""Runs all rounds of all groups, each in fresh processes that take turns, and hands out the record as it grows."""

import math
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import psutil
import ray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tune_policies import ClusterCapacity, probe_cluster
from tune_policies.files.terminal import TextConsole
from tune_policies.files.writing import locked
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.ray_compat.connection import connection, find_ray
from tune_policies.values.errors import InvalidResourcesError, ProbeError

from ..record.machine import read_environment
from ..record.run_set import Arm, Environment, Failure, NoiseReading, ProcessRun, RunSet, Settings
from ..record.run_set_file import read_run_set, write_run_set
from .colocation import Colocation, PlannedDevice, colocate, parse_device, parse_devices, plan_device
from .interleaving import (
    INTERRUPTED,
    Group,
    check_same,
    given_up,
    groups_of,
    interleave,
    is_done,
    num_missing,
    order_of_groups,
    order_of_processes,
    without_round,
)
from .measured_process import MeasuredProcess, NoTimesError, Round, TimeIsUpError
from .noise import NoiseCounters, noise_between, read_noise, worse


def disagreements(runs: Iterable[ProcessRun]) -> Iterator[Failure]:
    """Yield a failure for each process whose losses differ from those of the first one that has some.

    Steps that only one of them has come to do not count.
    """
    with_losses = [run for run in runs if run.losses]
    for run in with_losses[1:]:
        first = with_losses[0]
        tolerance = max(first.tolerance, run.tolerance)
        for number, (expected, found) in enumerate(zip(first.losses, run.losses, strict=False), start=1):
            if not math.isclose(expected, found, rel_tol=tolerance, abs_tol=1e-9):
                yield Failure(
                    arm=run.arm,
                    round=run.round,
                    kind="disagreed",
                    message=f"step {number} of the first epoch gave {found:.6g} here and {expected:.6g} on "
                    f"{first.arm.device}, a relative difference above {tolerance:g}: the devices did not do the same "
                    "work, so do not compare their times. Seed what is random, or set Steps.tolerance",
                )
                break


_THREADS_REST_AFTER_S: Final = 0.05
"""Where processes share CPUs: OpenBLAS's threads wait for more work in a loop, for 2^26 clock ticks: 20 to 30 ms."""


class Measured(NamedTuple):
    """What was measured of a group in a round.

    Attributes:
        runs: Of the processes that have times.
        failures: Of the others, and of those whose results disagree.
        noise: How quiet it was meanwhile; ``None``: nothing was timed.
        ended_by: What ended it before its time; ``None``: nothing did.
    """

    runs: tuple[ProcessRun, ...]
    failures: tuple[Failure, ...]
    noise: NoiseReading | None
    ended_by: BaseException | None = None


class RunContext(NamedTuple):
    """What is the same for all groups of a run.

    Attributes:
        settings: What was asked for.
        plans: What a trial on each device reserves, by the device's name.
        colocation: Whether the processes of a group are there together.
        ends_at: When all must be over, by ``time.monotonic()``.
    """

    settings: Settings
    plans: Mapping[str, TrialPlan]
    colocation: Colocation
    ends_at: float


class GroupRun:
    """Measures a group in a round."""

    def __init__(self, group: Group, current: Round, context: RunContext) -> None:
        self._group = group
        self._round = current
        self._settings, self._plans, self._colocation, self._ends_at = context
        self._processes: list[MeasuredProcess] = []
        self._failures: dict[Arm, Failure] = {}
        self._noise: NoiseReading | None = None

    def measure(self) -> Measured:
        """Return what was measured, also where the user or the clock ends it; no process is left behind."""
        arms = order_of_processes(self._group, self._settings.seed, self._round.number)
        ended_by: BaseException | None = None
        try:
            for together in [arms] if self._colocation.is_together else [[arm] for arm in arms]:
                self._measure_together(together)
        except (KeyboardInterrupt, TimeIsUpError) as error:
            ended_by = error
        runs = [each.run() for each in self._processes if each.arm not in self._failures and each.has_times]
        runs.sort(key=lambda run: self._group.arms.index(run.arm))
        failures = (*self._failures.values(), *disagreements(runs))
        return Measured(tuple(runs), failures, self._noise, ended_by)

    def _measure_together(self, arms: Sequence[Arm]) -> None:
        processes: list[MeasuredProcess] = []
        try:
            for arm in arms:
                process = MeasuredProcess(arm, self._round, self._settings, self._ends_at)
                processes.append(process)
                plan = self._plans[arm.device]
                with self._noting_failure(process):
                    process.start(plan, self._colocation.options(arm, plan, self._group), parse_device(arm.device).name)
            before = list(self._read_noise(processes))
            self._interleave(processes)
            reading = noise_between(self._round.number, before, list(self._read_noise(processes)))
            self._noise = reading if self._noise is None else worse(self._noise, reading)
            for process in self._sound(processes):
                with self._noting_failure(process):
                    process.finish()
                if not process.has_times:  # it ended in good order before anything was timed
                    why = NoTimesError("timed_out", "; ".join(process.warnings) or "nothing of it was timed")
                    self._failures.setdefault(process.arm, process.failure(why))
        except (KeyboardInterrupt, TimeIsUpError):
            for process in processes:
                process.warnings.append(INTERRUPTED)
            raise
        finally:
            self._processes += processes
            for process in processes:
                process.end()

    def _interleave(self, processes: Sequence[MeasuredProcess]) -> None:
        sound = {process.arm: process for process in self._sound(processes)}
        phases = {arm: tuple(process.num_steps) for arm, process in sound.items()}
        num_sweeps = max((process.num_sweeps for process in sound.values()), default=0)
        seed = f"{self._settings.seed}/{self._round.number}/{self._group.workload}/{self._group.size}/turns"
        for number, sweep in enumerate(interleave(phases, num_sweeps, seed)):
            for arm, phase in sweep:
                if arm not in self._failures:
                    if self._colocation.shares_cpus_on is not None:
                        time.sleep(_THREADS_REST_AFTER_S)
                    with self._noting_failure(sound[arm]):
                        sound[arm].time_block(phase, number)

    def _sound(self, processes: Sequence[MeasuredProcess]) -> list[MeasuredProcess]:
        return [process for process in processes if process.arm not in self._failures]

    def _read_noise(self, processes: Sequence[MeasuredProcess]) -> Iterator[NoiseCounters]:
        """Yield what each process reads of its host, and what this one reads."""
        for process in self._sound(processes):
            with self._noting_failure(process):
                yield process.read_noise()
        yield read_noise()

    @contextmanager
    def _noting_failure(self, process: MeasuredProcess) -> Iterator[None]:
        """Let the others go on where a process gives no times any more, which ends it."""
        try:
            yield
        except NoTimesError as error:
            self._failures[process.arm] = process.failure(error)
            process.end()


GrowingRunSet = Generator[RunSet, None, None]
"""The record after each step, with all that was measured before."""


def new_run_set(settings: Settings, capacity: ClusterCapacity, environment: Environment, command: str) -> RunSet:
    """Return the record of a run before anything is measured.

    Raises:
        InvalidResourcesError: A device does not exist, or a trial cannot have so much of it.
    """
    devices = tuple(each.found for each in _planned(settings, capacity))
    return RunSet(
        command=command,
        seed=settings.seed,
        created_at=datetime.now(UTC),
        environment=environment,
        devices=devices,
        num_rounds=settings.num_rounds,
        settings=settings,
    )


def measure(run_set: RunSet, capacity: ClusterCapacity, *, ends_at: float = math.inf) -> GrowingRunSet:
    """Measure what a record lacks, and yield it after each group of each round.

    Ctrl-C ends the processes; the record is yielded with what they had measured, and the next ``next`` raises the
    ``KeyboardInterrupt``. The program must be connected to Ray.

    Args:
        run_set: What was measured until now, with the settings; see :func:`new_run_set`.
        capacity: The cluster.
        ends_at: When all must be over, by ``time.monotonic()``.

    Raises:
        InvalidResourcesError: The record does not say what was asked for, or a device does not exist.
        KeyboardInterrupt: The user ended it.
    """
    settings = run_set.settings
    if settings is None:
        raise InvalidResourcesError("the record does not say what was asked for: give it settings")
    plans = {str(each.device): each.plan for each in _planned(settings, capacity) if each.plan is not None}
    groups = groups_of(settings, list(plans)) if plans else ()
    # Groups have the same devices, so what holds for the first holds for all.
    colocation = colocate(groups[0], plans, capacity) if groups else Colocation(is_together=True)
    run_set = run_set.model_copy(update={"is_interleaved": colocation.is_together, "is_complete": False})
    yield run_set
    context, took_s = RunContext(settings, plans, colocation, ends_at), dict.fromkeys(groups, 0.0)
    for current in map(Round, range(settings.num_rounds)):
        for group in order_of_groups(groups, settings.seed, current.number):
            if is_done(run_set, group, current.number):
                continue
            if ends_at - time.monotonic() < took_s[group]:
                continue  # another one may be quicker
            run_set = without_round(run_set, group, current.number)
            began = time.monotonic()
            remaining = group.without(given_up(run_set))
            measured = GroupRun(remaining, current, context).measure()
            took_s[group] = time.monotonic() - began
            run_set = _with(run_set, measured)
            yield run_set
            if isinstance(measured.ended_by, KeyboardInterrupt):
                raise measured.ended_by
            if measured.ended_by is not None:
                return
    yield run_set.model_copy(update={"is_complete": num_missing(run_set) == 0})


def _planned(settings: Settings, capacity: ClusterCapacity) -> list[PlannedDevice]:
    return [plan_device(device, capacity, settings.cpus) for device in parse_devices(settings.devices)]


def _with(run_set: RunSet, measured: Measured) -> RunSet:
    noise = {each.round: each for each in run_set.noise}
    if (reading := measured.noise) is not None:  # a round has one reading for all its groups
        noise[reading.round] = worse(noise[reading.round], reading) if reading.round in noise else reading
    return run_set.model_copy(
        update={
            "runs": (*run_set.runs, *measured.runs),
            "failures": (*run_set.failures, *measured.failures),
            "noise": tuple(noise.values()),
        }
    )


class Session(NamedTuple):
    """What is measured, where, and where it is written.

    Attributes:
        settings: What is asked for; ``None``: what the file says that is gone on with.
        command: By which.
        output: The file of the record.
        resume: The file of a run that is gone on with; ``None``: a new one.
        address: Of Ray, as for ``ray.init``.
        timeout_s: Deadline for Ray to answer, in seconds.
        budget_s: After so many seconds the program ends, from its start on; ``None``: when all is measured.
    """

    settings: Settings | None
    command: str
    output: Path
    resume: Path | None = None
    address: str | None = None
    timeout_s: float = 30
    budget_s: float | None = None


class InterruptedRunError(Exception):
    """The user ended the run.

    Attributes:
        run_set: What was measured, which is in the file.
    """

    def __init__(self, run_set: RunSet) -> None:
        super().__init__(run_set)
        self.run_set = run_set


def measure_to_file(session: Session) -> RunSet:
    """Measure, and return what is in the file at the end.

    Raises:
        InvalidResourcesError: The file is there already, is none that can be gone on with, or is being written by
            another process; a device or a size makes no sense.
        ProbeError: Ray does not answer.
        InterruptedRunError: The user ended it.
    """
    with locked(session.output):  # a second process would go on from the same runs, and one would lose what it adds
        return _measure_to_file(session)


def _measure_to_file(session: Session) -> RunSet:
    before = None if session.resume is None else read_run_set(session.resume)
    if session.output != session.resume and session.output.exists():
        raise InvalidResourcesError(
            f"{session.output} exists already, and a new run would replace it: name another file, or continue it with "
            f"--resume {session.output}"
        )
    if before is not None and before.is_complete and session.settings in (None, before.settings):
        if session.output != session.resume:
            write_run_set(before, session.output)
        return before
    settings = session.settings or (before.settings if before else None)
    if settings is None:
        raise InvalidResourcesError(
            f"{session.resume} does not say what was asked for: start a new run, into a new file"
        )
    ends_at = math.inf
    if session.budget_s is not None:
        ends_at = time.monotonic() + session.budget_s - (time.time() - psutil.Process().create_time())
    with ray_of_a_run(session.address, session.timeout_s):
        capacity = probe_cluster(timeout_s=session.timeout_s)
        run_set = new_run_set(settings, capacity, read_environment(), session.command)
        if before is not None:
            check_same(before, run_set)
            run_set = before
        return _write_all(measure(run_set, capacity, ends_at=ends_at), run_set, session.output)


def _write_all(growing: GrowingRunSet, run_set: RunSet, output: Path) -> RunSet:
    total = num_missing(run_set)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = TextConsole(stderr=True)
    try:
        with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
            bar = progress.add_task("measuring", total=total)
            for run_set in growing:
                write_run_set(run_set, output)
                progress.update(bar, completed=total - num_missing(run_set))
    except KeyboardInterrupt:
        write_run_set(run_set, output)  # it may have come while this was done
        raise InterruptedRunError(run_set) from None
    finally:
        growing.close()  # ends the processes, where it was not the one that was ended
    return run_set


@contextmanager
def ray_of_a_run(address: str | None, timeout_s: float) -> Iterator[None]:
    """Stay connected to the Ray that is named or found, else to one that is started for the time of the run.

    Raises:
        ProbeError: Ray does not answer in time, or none can be started.
    """
    if ray.is_initialized() or find_ray(address) is not None:
        with connection(address, timeout_s, local="starts a Ray for the run"):
            yield
        return
    try:
        # Its dashboard would use CPU while others are measured.
        ray.init(address="local", include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    except Exception as error:  # a Ray that does not start says so by a plain `Exception`
        raise ProbeError(f"cannot start a Ray: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()
