"""Measures all groups in all rounds, in fresh processes that take turns, and yields the record after each group."""

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import ray
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tune_policies import ClusterCapacity, probe_cluster
from tune_policies.files.terminal import TextConsole
from tune_policies.files.writing import locked
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.ray_compat.connection import connection, find_ray
from tune_policies.values.errors import InvalidResourcesError, ProbeError
from tune_policies.values.wording import counted

from ..record.machine import read_environment
from ..record.missing_measurements import Group, given_up, groups_of, is_done, num_missing
from ..record.run_set import Configuration, Environment, Failure, NoiseReading, ProcessRun, RunSet
from ..record.run_set_file import read_run_set, write_run_set
from ..record.settings import Settings
from .device_plans import Colocation, PlannedDevice, colocate, parse_device, parse_devices, plan_device
from .interleaving import check_same, interleave, order_of_groups, order_of_processes, settings_of
from .measured_process import MeasuredProcess, NoTimesError, Round
from .noise import NoiseCounters, noise_between, read_noise


def disagreements(runs: Iterable[ProcessRun]) -> Iterator[Failure]:
    """Yield a failure for each process whose losses differ from the losses of the first process that reports losses.

    Only steps that both processes completed are compared.
    """
    # Any of the processes could be the wrong one. The first one is only the reference.
    with_losses = [run for run in runs if run.losses]
    for run in with_losses[1:]:
        first = with_losses[0]
        # The absolute tolerance is for losses near 0, for which any difference would be a large relative one.
        tolerance = max(first.tolerance, run.tolerance)
        for number, (expected, found) in enumerate(zip(first.losses, run.losses, strict=False), start=1):
            if not math.isclose(expected, found, rel_tol=tolerance, abs_tol=1e-9):
                yield Failure(
                    configuration=run.configuration,
                    round=run.round,
                    kind="disagreed",
                    message=f"the loss of step {number} in the first epoch is {found:.6g}, but {expected:.6g} on "
                    f"{first.configuration.device}, a relative difference above {tolerance:g}. The devices did not do "
                    "the same work, so do not compare their times. Seed all random numbers, or set Steps.tolerance",
                )
                break


_THREADS_REST_AFTER_S: Final = 0.05
"""The pause before a turn on shared CPUs, in seconds. OpenBLAS's threads spin for 2^26 clock ticks, or 20 to 30 ms,
before they sleep."""


@dataclass
class GroupRun:
    """The measurements of a group in one round.

    Attributes:
        plans: The plan of a trial, by device.
    """

    group: Group
    current: Round
    settings: Settings
    plans: Mapping[str, TrialPlan]
    colocation: Colocation
    _noise: list[NoiseReading] = field(default_factory=list)
    _processes: list[MeasuredProcess] = field(default_factory=list)
    _failures: dict[Configuration, Failure] = field(default_factory=dict)

    def measure(self) -> None:
        """Measure the group. If its processes cannot run concurrently, measure one process after the other.

        All processes have ended when this method returns.
        """
        ordered = order_of_processes(self.group, self.settings.seed, self.current.number)
        if self.colocation.is_together:
            self._measure_together(ordered)
        else:
            for configuration in ordered:
                self._measure_together([configuration])

    def added_to(self, run_set: RunSet) -> RunSet:
        """Return ``run_set`` with these measurements added."""
        runs = [
            process.run()
            for process in self._processes
            if process.configuration not in self._failures and process.has_times
        ]
        # The processes started in random order, but the record and the comparison of losses use a fixed order.
        runs.sort(key=lambda run: self.group.configurations.index(run.configuration))
        return run_set.model_copy(
            update={
                "runs": (*run_set.runs, *runs),
                "failures": (*run_set.failures, *self._failures.values(), *disagreements(runs)),
                "noise": (*run_set.noise, *self._noise),
            }
        )

    def _measure_together(self, configurations: Sequence[Configuration]) -> None:
        processes: list[MeasuredProcess] = []
        try:
            for configuration in configurations:
                process = MeasuredProcess(configuration, self.current, self.settings)
                processes.append(process)
                plan = self.plans[configuration.device]
                reserved = self.colocation.options(configuration, plan, self.group)
                with self._recording_failure(process):
                    process.start(plan, reserved, parse_device(configuration.device).name)
            # The counters are read around the timed blocks only, so that the start of the processes does not count as
            # noise.
            before = list(self._read_noise(processes))
            self._interleave(processes)
            self._noise.append(noise_between(self.current.number, before, list(self._read_noise(processes))))
            for process in self._running(processes):
                with self._recording_failure(process):
                    process.finish()
                if not process.has_times:  # the process stopped before anything was timed
                    why = NoTimesError("timed_out", "; ".join(process.warnings) or "nothing was timed")
                    self._failures.setdefault(process.configuration, process.failure(why))
        finally:
            self._processes += processes
            for process in processes:
                process.end()

    def _interleave(self, processes: Sequence[MeasuredProcess]) -> None:
        running = {process.configuration: process for process in self._running(processes)}
        phases = {configuration: tuple(process.num_steps) for configuration, process in running.items()}
        num_sweeps = max((process.num_sweeps for process in running.values()), default=0)
        seed = f"{self.settings.seed}/{self.current.number}/{self.group.workload}/{self.group.size}/turns"
        # A process with fewer blocks, such as a slow one without warm-ups, leaves the later turns to the others.
        for number, sweep in enumerate(interleave(phases, num_sweeps, seed)):
            for configuration, phase in sweep:
                if configuration not in self._failures:
                    if self.colocation.shares_cpus_on is not None:
                        time.sleep(_THREADS_REST_AFTER_S)
                    with self._recording_failure(running[configuration]):
                        running[configuration].time_block(phase, number)

    def _running(self, processes: Sequence[MeasuredProcess]) -> list[MeasuredProcess]:
        return [process for process in processes if process.configuration not in self._failures]

    def _read_noise(self, processes: Sequence[MeasuredProcess]) -> Iterator[NoiseCounters]:
        """Yield the counters that the running processes and this process read."""
        for process in self._running(processes):
            with self._recording_failure(process):
                yield process.read_noise()
        yield read_noise()

    @contextmanager
    def _recording_failure(self, process: MeasuredProcess) -> Iterator[None]:
        """If a process fails in the body of the ``with`` statement, record the failure and end the process.

        The other processes continue.
        """
        try:
            yield
        except NoTimesError as error:
            self._failures[process.configuration] = process.failure(error)
            process.end()


def new_run_set(settings: Settings, capacity: ClusterCapacity, environment: Environment, command: str) -> RunSet:
    """Return the initial record of a run, without measurements. For the errors, see :func:`parse_devices`."""
    return RunSet(
        command=command,
        seed=settings.seed,
        created_at=datetime.now(UTC),
        environment=environment,
        devices=tuple(planned.found for planned in _planned(settings, capacity)),
        num_rounds=settings.num_rounds,
        settings=settings,
    )


def measure(run_set: RunSet, capacity: ClusterCapacity) -> Iterator[RunSet]:
    """Take the missing measurements of a record, and yield the record after each group of each round.

    The program must be connected to Ray. Ctrl-C ends the processes and discards the measurements of the current group.

    Raises:
        InvalidResourcesError: The record has no settings, or a device is unknown.
    """
    settings = settings_of(run_set)
    plans = {str(planned.device): planned.plan for planned in _planned(settings, capacity) if planned.plan is not None}
    groups = groups_of(settings, list(plans)) if plans else ()
    # All groups have the same devices.
    colocation = colocate(groups[0], plans, capacity) if groups else Colocation(is_together=True)
    # The first record shows which devices are missing, even if the run is interrupted before it measures anything.
    run_set = run_set.model_copy(update={"is_interleaved": colocation.is_together, "is_complete": False})
    yield run_set
    for current in map(Round, range(settings.num_rounds)):
        for group in order_of_groups(groups, settings.seed, current.number):
            # A resumed run has measured this group already.
            if is_done(run_set, group, current.number):
                continue
            group_run = GroupRun(group.without(given_up(run_set)), current, settings, plans, colocation)
            group_run.measure()
            run_set = group_run.added_to(run_set)
            yield run_set
    yield run_set.model_copy(update={"is_complete": num_missing(run_set) == 0})


def _planned(settings: Settings, capacity: ClusterCapacity) -> list[PlannedDevice]:
    return [plan_device(device, capacity, settings.cpus) for device in parse_devices(settings.devices)]


class Session(NamedTuple):
    """The settings of a run, and the file of its record.

    Attributes:
        settings: The measurements to take, or ``None`` to resume the run recorded in ``output``.
        command: The command line to record.
        output: The file of the record.
        address: The address of the Ray cluster, as for ``ray.init``.
        timeout_s: The maximum time to wait for a response from Ray, in seconds.
    """

    settings: Settings | None
    command: str
    output: Path
    address: str | None = None
    timeout_s: float = 30


def measure_to_file(session: Session) -> RunSet:
    """Measure, write the record to the file of the session after each group, and return the final record.

    Raises:
        InvalidResourcesError: The file already exists, cannot be resumed or is being written by another process, or a
            device or size is not valid.
        ProbeError: Ray does not respond.
    """
    output, settings, before = session.output, session.settings, None
    with locked(output):  # otherwise two processes could resume the same run and overwrite each other's times
        if settings is None:
            before = read_run_set(output)
            # Return before Ray starts, because there is nothing left to measure.
            if before.is_complete:
                return before
            settings = settings_of(before)
        elif output.exists():
            raise InvalidResourcesError(
                f"{output} already exists. Choose another file, or continue the run with --resume {output}"
            )
        with ray_of_a_run(session.address, session.timeout_s):
            # A new record shows the present machine, which must equal the machine of the record to continue.
            capacity = probe_cluster(timeout_s=session.timeout_s)
            run_set = new_run_set(settings, capacity, read_environment(), session.command)
            if before is not None:
                check_same(before, run_set)
                run_set = before
            return _write_all(measure(run_set, capacity), run_set, output)


def _write_all(growing: Iterator[RunSet], run_set: RunSet, output: Path) -> RunSet:
    """Write each record to the file, and show on stderr how much of the run remains: a bar, or lines in a log."""
    total = num_missing(run_set)
    progress_lines = ProgressLines(total, run_set.num_rounds, time.monotonic())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    remaining = (TextColumn("elapsed, remaining"), TimeRemainingColumn())
    console = TextConsole(stderr=True)
    is_terminal = sys.stderr.isatty()
    if total and not is_terminal:
        print(progress_lines.first(), file=sys.stderr, flush=True)
    with Progress(*columns, *remaining, console=console, transient=True, disable=not is_terminal) as progress:
        bar = progress.add_task("measuring", total=total)
        for run_set in growing:
            write_run_set(run_set, output)
            num_done = total - num_missing(run_set)
            progress.update(bar, completed=num_done)
            text = progress_lines.after(num_done, time.monotonic())
            if text and not is_terminal:
                print(text, file=sys.stderr, flush=True)
    return run_set


_LINE_EVERY_S: Final = 60
"""The time between two lines about the progress, in seconds. The first group of measurements always has a line."""


@dataclass
class ProgressLines:
    """The lines about the progress of a run for a log file.

    Attributes:
        num_groups: The number of groups of processes to measure, over all rounds.
        num_rounds: The number of rounds of the run.
        started_at: The time at which the run began, in seconds of a monotonic clock.
    """

    num_groups: int
    num_rounds: int
    started_at: float
    _last_at: float | None = None

    def first(self) -> str:
        """Return the line before the first measurement."""
        return (
            f"measuring {counted(self.num_groups, 'group')} of processes (each workload and size, in "
            f"{counted(self.num_rounds, 'round')}). After the first, the remaining time is printed"
        )

    def after(self, num_done: int, now: float) -> str | None:
        """Return the line to print after ``num_done`` groups, or ``None`` if it is too early for another line."""
        # Before the first group, the remaining time is unknown. After the last one, the results follow.
        if not 0 < num_done < self.num_groups:
            return None
        if self._last_at is not None and now - self._last_at < _LINE_EVERY_S:
            return None
        self._last_at = now
        left_s = (now - self.started_at) / num_done * (self.num_groups - num_done)
        about = f"{max(1, round(left_s))} s"
        if left_s >= 100:
            about = f"{round(left_s / 60)} min"
        return f"ran {num_done} of {counted(self.num_groups, 'group')}, about {about} left"


@contextmanager
def ray_of_a_run(address: str | None, timeout_s: float) -> Iterator[None]:
    """Connect to the given or running Ray cluster, or start Ray on this machine for the run.

    Raises:
        ProbeError: Ray does not start or does not respond.
    """
    # A Ray that was started here would not know the devices of a running cluster.
    if ray.is_initialized() or find_ray(address) is not None:
        with connection(address, timeout_s, local="starts a Ray instance for the run"):
            yield
        return
    print("starting a Ray instance for the run", file=sys.stderr, flush=True)
    try:
        # The dashboard would use CPU time during the measurement.
        ray.init(address="local", include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    except Exception as error:  # Ray raises a plain `Exception` if it does not start
        raise ProbeError(f"cannot start a Ray instance: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()
