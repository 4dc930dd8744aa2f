"""Runs all rounds of all groups, and hands out the record as it grows, so that nothing measured is lost."""

import time
from collections.abc import Generator
from datetime import UTC, datetime

from tune_policies import ClusterCapacity
from tune_policies.errors import InvalidResourcesError

from ..record.environment import Environment
from ..record.run_set import NoiseReading, RunSet
from ..record.settings import Settings
from .arms import given_up, groups_of, is_done, num_missing, without_round
from .deadline import Deadline, Round
from .devices import PlannedDevice, parse_devices, plan_device
from .group_run import GroupRun, Measured
from .noise import worse
from .seating import Seating, seat
from .turns import order_of_groups

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


def measure(run_set: RunSet, capacity: ClusterCapacity, *, deadline_at: float | None = None) -> GrowingRunSet:
    """Measure what a record lacks, and yield it after each group of each round.

    Ctrl-C ends the processes; the record is yielded with what they had measured, and the next ``next`` raises the
    ``KeyboardInterrupt``. The program must be connected to Ray.

    Args:
        run_set: What was measured until now, with the settings; see :func:`new_run_set`.
        capacity: The cluster.
        deadline_at: When all must be over, by ``time.monotonic()``; ``None``: when all is measured.

    Raises:
        InvalidResourcesError: The record does not say what was asked for, or a device does not exist.
        KeyboardInterrupt: The user ended it.
    """
    settings = run_set.settings
    if settings is None:
        raise InvalidResourcesError("the record does not say what was asked for: give it settings")
    plans = {str(each.device): each.plan for each in _planned(settings, capacity) if each.plan is not None}
    groups = groups_of(settings, list(plans)) if plans else ()
    seating = seat(groups[0], plans, capacity) if groups else Seating(is_together=True)  # groups have the same devices
    run_set = run_set.model_copy(update={"is_interleaved": seating.is_together, "is_complete": False})
    yield run_set
    deadline, took_s = Deadline(deadline_at), dict.fromkeys(groups, 0.0)
    for current in map(Round, range(settings.num_rounds)):
        for group in order_of_groups(groups, settings.seed, current.number):
            if is_done(run_set, group, current.number):
                continue
            if deadline.left_s() < took_s[group]:
                continue  # another one may be quicker
            run_set = without_round(run_set, group, current.number)
            began = time.monotonic()
            remaining = group.without(given_up(run_set))
            measured = GroupRun(remaining, current, plans, seating, settings, deadline).measure()
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
    return run_set.model_copy(
        update={
            "runs": (*run_set.runs, *measured.runs),
            "failures": (*run_set.failures, *measured.failures),
            "noise": _noted(run_set.noise, measured.noise),
        }
    )


def _noted(noise: tuple[NoiseReading, ...], reading: NoiseReading | None) -> tuple[NoiseReading, ...]:
    """Return the readings, one for each round; of several in a round the noisiest counts."""
    if reading is None:
        return noise
    same = [each for each in noise if each.round == reading.round]
    others = [each for each in noise if each.round != reading.round]
    return (*others, worse(same[0], reading) if same else reading)
