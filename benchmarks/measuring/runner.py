"""Runs all rounds of all groups in fresh processes that take turns, and yields the record as it grows."""

import math
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    """Yield a failure for each process whose losses differ from those of the first process with losses.

    Only steps that both have done are compared.
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
"""Pause if processes share CPUs: OpenBLAS's threads spin for 2^26 clock ticks, 20 to 30 ms, before they sleep."""


@dataclass
class GroupRun:
    """Measures a group in a round.

    Attributes:
        plans: The plan of a trial by device.
        ends_at: The time limit, by ``time.monotonic()``.
        noise: How quiet the machine was; ``None`` if nothing was timed.
    """

    group: Group
    current: Round
    settings: Settings
    plans: Mapping[str, TrialPlan]
    colocation: Colocation
    ends_at: float
    noise: NoiseReading | None = None
    _processes: list[MeasuredProcess] = field(default_factory=list)
    _failures: dict[Arm, Failure] = field(default_factory=dict)

    def measure(self) -> BaseException | None:
        """Measure, and return the exception if the user or the time limit interrupts. No process is left behind."""
        arms = order_of_processes(self.group, self.settings.seed, self.current.number)
        try:
            for together in [arms] if self.colocation.is_together else [[arm] for arm in arms]:
                self._measure_together(together)
        except (KeyboardInterrupt, TimeIsUpError) as error:
            return error
        return None

    def added_to(self, run_set: RunSet) -> RunSet:
        """Return the record with these measurements."""
        runs = [each.run() for each in self._processes if each.arm not in self._failures and each.has_times]
        runs.sort(key=lambda run: self.group.arms.index(run.arm))
        noise = {each.round: each for each in run_set.noise}
        if (reading := self.noise) is not None:  # a round has one reading for all its groups
            noise[reading.round] = worse(noise[reading.round], reading) if reading.round in noise else reading
        return run_set.model_copy(
            update={
                "runs": (*run_set.runs, *runs),
                "failures": (*run_set.failures, *self._failures.values(), *disagreements(runs)),
                "noise": tuple(noise.values()),
            }
        )

    def _measure_together(self, arms: Sequence[Arm]) -> None:
        processes: list[MeasuredProcess] = []
        try:
            for arm in arms:
                process = MeasuredProcess(arm, self.current, self.settings, self.ends_at)
                processes.append(process)
                plan = self.plans[arm.device]
                with self._noting_failure(process):
                    process.start(plan, self.colocation.options(arm, plan, self.group), parse_device(arm.device).name)
            before = list(self._read_noise(processes))
            self._interleave(processes)
            reading = noise_between(self.current.number, before, list(self._read_noise(processes)))
            self.noise = reading if self.noise is None else worse(self.noise, reading)
            for process in self._sound(processes):
                with self._noting_failure(process):
                    process.finish()
                if not process.has_times:  # it stopped in good order before anything was timed
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
        seed = f"{self.settings.seed}/{self.current.number}/{self.group.workload}/{self.group.size}/turns"
        for number, sweep in enumerate(interleave(phases, num_sweeps, seed)):
            for arm, phase in sweep:
                if arm not in self._failures:
                    if self.colocation.shares_cpus_on is not None:
                        time.sleep(_THREADS_REST_AFTER_S)
                    with self._noting_failure(sound[arm]):
                        sound[arm].time_block(phase, number)

    def _sound(self, processes: Sequence[MeasuredProcess]) -> list[MeasuredProcess]:
        return [process for process in processes if process.arm not in self._failures]

    def _read_noise(self, processes: Sequence[MeasuredProcess]) -> Iterator[NoiseCounters]:
        """Yield the readings of each process, and of this one."""
        for process in self._sound(processes):
            with self._noting_failure(process):
                yield process.read_noise()
        yield read_noise()

    @contextmanager
    def _noting_failure(self, process: MeasuredProcess) -> Iterator[None]:
        """Record the failure of a process and end it, so that the others continue."""
        try:
            yield
        except NoTimesError as error:
            self._failures[process.arm] = process.failure(error)
            process.end()


GrowingRunSet = Generator[RunSet, None, None]
"""The record after each step, with everything that was measured before."""


def new_run_set(settings: Settings, capacity: ClusterCapacity, environment: Environment, command: str) -> RunSet:
    """Return the record of a run before anything is measured; errors as in ``parse_device``."""
    return RunSet(
        command=command,
        seed=settings.seed,
        created_at=datetime.now(UTC),
        environment=environment,
        devices=tuple(each.found for each in _planned(settings, capacity)),
        num_rounds=settings.num_rounds,
        settings=settings,
    )


def measure(run_set: RunSet, capacity: ClusterCapacity, *, ends_at: float = math.inf) -> GrowingRunSet:
    """Measure what a record lacks, and yield the record after each group of each round.

    The program must be connected to Ray. Ctrl-C ends the processes: the record is yielded with their measurements, and
    the next ``next`` raises the ``KeyboardInterrupt``. ``ends_at`` is the time limit, by ``time.monotonic()``.

    Raises:
        InvalidResourcesError: The record has no settings, or a device does not exist.
    """
    settings = run_set.settings
    if settings is None:
        raise InvalidResourcesError("the record does not say what was asked for: give it settings")
    plans = {str(each.device): each.plan for each in _planned(settings, capacity) if each.plan is not None}
    groups = groups_of(settings, list(plans)) if plans else ()
    # All groups have the same devices.
    colocation = colocate(groups[0], plans, capacity) if groups else Colocation(is_together=True)
    run_set = run_set.model_copy(update={"is_interleaved": colocation.is_together, "is_complete": False})
    yield run_set
    took_s = dict.fromkeys(groups, 0.0)
    for current in map(Round, range(settings.num_rounds)):
        for group in order_of_groups(groups, settings.seed, current.number):
            if is_done(run_set, group, current.number):
                continue
            if ends_at - time.monotonic() < took_s[group]:
                continue  # another group may be quicker
            run_set = without_round(run_set, group, current.number)
            began = time.monotonic()
            remaining = group.without(given_up(run_set))
            group_run = GroupRun(remaining, current, settings, plans, colocation, ends_at)
            ended_by = group_run.measure()
            took_s[group] = time.monotonic() - began
            run_set = group_run.added_to(run_set)
            yield run_set
            if isinstance(ended_by, KeyboardInterrupt):
                raise ended_by
            if ended_by is not None:
                return
    yield run_set.model_copy(update={"is_complete": num_missing(run_set) == 0})


def _planned(settings: Settings, capacity: ClusterCapacity) -> list[PlannedDevice]:
    return [plan_device(device, capacity, settings.cpus) for device in parse_devices(settings.devices)]


class Session(NamedTuple):
    """What to measure, and the file of the record.

    Attributes:
        settings: ``None`` for those of the file to resume.
        resume: The file of a run to resume; ``None`` for a new run.
        address: Ray's address, as for ``ray.init``.
        timeout_s: Deadline for Ray to answer, in seconds.
        budget_s: Time limit in seconds since the start of the program.
    """

    settings: Settings | None
    command: str
    output: Path
    resume: Path | None = None
    address: str | None = None
    timeout_s: float = 30
    budget_s: float | None = None


class InterruptedRunError(Exception):
    """The user ended the run; ``run_set`` is the record, which is in the file."""

    def __init__(self, run_set: RunSet) -> None:
        super().__init__(run_set)
        self.run_set = run_set


def measure_to_file(session: Session) -> RunSet:
    """Measure, and return the record that is in the file at the end.

    Raises:
        InvalidResourcesError: The file exists already, cannot be resumed, or is being written by another process; or
            a device or a size is not valid.
        ProbeError: Ray does not answer.
        InterruptedRunError: The user ended the run.
    """
    with locked(session.output):  # otherwise two processes could resume the same run, and lose each other's times
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
        write_run_set(run_set, output)  # the interrupt may have come while it was written
        raise InterruptedRunError(run_set) from None
    finally:
        growing.close()  # ends the processes if the interrupt came outside the generator
    return run_set


@contextmanager
def ray_of_a_run(address: str | None, timeout_s: float) -> Iterator[None]:
    """Connect to the Ray that is named or found, or start one for the run; raise ``ProbeError`` if that fails."""
    if ray.is_initialized() or find_ray(address) is not None:
        with connection(address, timeout_s, local="starts a Ray for the run"):
            yield
        return
    try:
        # The dashboard would use CPU time during the measurement.
        ray.init(address="local", include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    except Exception as error:  # Ray raises a plain `Exception` if it does not start
        raise ProbeError(f"cannot start a Ray: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()
