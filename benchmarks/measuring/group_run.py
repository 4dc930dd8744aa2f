"""Measures one group of arms in one round: fresh processes, one start after the other, then turns block by block."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from tune_policies.plan import TrialPlan

from ..record.run_set import Arm, Failure, NoiseReading, ProcessRun
from ..record.settings import Settings
from .arms import Group
from .deadline import Deadline, NoTimesError, Round, TimeIsUpError
from .devices import parse_device
from .losses import disagreements
from .measured_process import MeasuredProcess
from .noise import NoiseCounters, noise_between, read_noise, worse
from .seating import Seating
from .turns import order_of_processes, seed_of_turns, sweeps_of

_THREADS_REST_AFTER_S: Final = 0.05
"""OpenBLAS's threads wait for more work in a loop, without sleeping, for 2^26 clock ticks: 20 to 30 ms."""


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


class GroupRun:
    """Measures a group in a round.

    Args:
        group: What is measured.
        current: The round.
        plans: What a trial on each device reserves, by the device's name.
        seating: Whether the processes are there together.
        settings: What was asked for.
        deadline: Of the whole run.
    """

    def __init__(
        self,
        group: Group,
        current: Round,
        plans: Mapping[str, TrialPlan],
        seating: Seating,
        settings: Settings,
        deadline: Deadline,
    ) -> None:
        self._group = group
        self._round = current
        self._plans = plans
        self._seating = seating
        self._settings = settings
        self._deadline = deadline
        self._processes: list[MeasuredProcess] = []
        self._failures: dict[Arm, Failure] = {}
        self._noise: NoiseReading | None = None

    def measure(self) -> Measured:
        """Return what was measured, also where the user or the clock ends it; no process is left behind."""
        arms = order_of_processes(self._group, self._settings.seed, self._round.number)
        ended_by: BaseException | None = None
        try:
            for together in [arms] if self._seating.is_together else [[arm] for arm in arms]:
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
                process = MeasuredProcess(arm, self._round, self._settings, self._deadline)
                processes.append(process)
                self._start(process)
            before = list(self._read_noise(processes))
            self._take_turns(processes)
            self._note_noise(before, list(self._read_noise(processes)))
            for process in self._sound(processes):
                with self._noting_failure(process):
                    process.finish()
                if not process.has_times:
                    self._failures.setdefault(process.arm, process.without_times())
        except (KeyboardInterrupt, TimeIsUpError):
            for process in processes:
                process.interrupt()
            raise
        finally:
            self._processes += processes
            for process in processes:
                process.end()

    def _start(self, process: MeasuredProcess) -> None:
        arm = process.arm
        plan = self._plans[arm.device]
        with self._noting_failure(process):
            process.start(plan, self._seating.options(arm, plan, self._group), parse_device(arm.device).name)

    def _take_turns(self, processes: Sequence[MeasuredProcess]) -> None:
        sound = {process.arm: process for process in self._sound(processes)}
        phases = {arm: tuple(process.num_steps) for arm, process in sound.items()}
        num_sweeps = max((process.num_sweeps for process in sound.values()), default=0)
        seed = seed_of_turns(self._group, self._settings.seed, self._round.number)
        for number, sweep in enumerate(sweeps_of(phases, num_sweeps, seed)):
            for arm, phase in sweep:
                if arm not in self._failures:
                    self._let_others_rest()
                    with self._noting_failure(sound[arm]):
                        sound[arm].time_block(phase, number)

    def _let_others_rest(self) -> None:
        """Wait where processes share CPUs: the threads of numerical libraries go on for a while after their work."""
        if self._seating.shares_cpus_on is not None:
            time.sleep(_THREADS_REST_AFTER_S)

    def _sound(self, processes: Sequence[MeasuredProcess]) -> list[MeasuredProcess]:
        return [process for process in processes if process.arm not in self._failures]

    def _read_noise(self, processes: Sequence[MeasuredProcess]) -> Iterator[NoiseCounters]:
        """Yield what each process reads of its host, and what this one reads."""
        for process in self._sound(processes):
            with self._noting_failure(process):
                yield process.read_noise()
        yield read_noise()

    def _note_noise(self, before: Sequence[NoiseCounters], after: Sequence[NoiseCounters]) -> None:
        reading = noise_between(self._round.number, before, after)
        self._noise = reading if self._noise is None else worse(self._noise, reading)

    @contextmanager
    def _noting_failure(self, process: MeasuredProcess) -> Iterator[None]:
        """Let the others go on where a process gives no times any more, which ends it."""
        try:
            yield
        except NoTimesError as error:
            self._failures[process.arm] = process.failure(error)
            process.end()
