"""Determines which measurements of a run are missing, and describes the problems of a run.

A run takes its measurements in rounds. In each round, it measures all groups, and a group is saved when it is complete.
"""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tune_policies.values.wording import counted, shorten_names

from .run_set import Configuration, RunSet
from .settings import Settings

GIVEN_UP: Final = frozenset({"raised", "timed_out"})
"""Kinds of failures that would recur. Later rounds skip a configuration with such a failure. If a process died, later
rounds measure its configuration again, because the process may have died by chance."""


class Group(NamedTuple):
    """Configurations of one workload and size that take turns: one per available device, and a control if requested."""

    workload: str
    size: int
    configurations: tuple[Configuration, ...]

    def without(self, configurations: Iterable[Configuration]) -> "Group":
        """Return the group without these configurations."""
        dropped = set(configurations)
        return self._replace(
            configurations=tuple(configuration for configuration in self.configurations if configuration not in dropped)
        )


def groups_of(settings: Settings, devices: Sequence[str]) -> tuple[Group, ...]:
    """Return the groups to measure on the available devices. The control is on the first device."""
    groups = []
    for workload, sizes in settings.sizes.items():
        for size in sizes:
            configurations = [Configuration(workload=workload, size=size, device=device) for device in devices]
            # One control is enough to show the noise of the machine, and each control takes the time of a
            # configuration.
            if settings.has_control and configurations:
                configurations.append(configurations[0].model_copy(update={"is_control": True}))
            groups.append(Group(workload, size, tuple(configurations)))
    return tuple(groups)


def given_up(run_set: RunSet) -> frozenset[Configuration]:
    """Return the configurations that later rounds skip after a failure."""
    return frozenset(failure.configuration for failure in run_set.failures if failure.kind in GIVEN_UP)


def is_done(run_set: RunSet, group: Group, number: int) -> bool:
    """Return whether all configurations of a group were measured or failed in this round, or are skipped."""
    measured = {run.configuration for run in run_set.runs if run.round == number}
    failed = {failure.configuration for failure in run_set.failures if failure.round == number}
    # A group without any remaining configuration is done too.
    return measured | failed | given_up(run_set) >= set(group.configurations)


def rounds_missing(run_set: RunSet) -> dict[Group, int]:
    """Return the groups that remain to be measured, each with the number of rounds in which it is missing.

    If the record does not contain the requested settings, the result is empty.
    """
    if run_set.settings is None:
        return {}
    # The cluster does not have the other devices, so their measurements are not missing.
    devices = [device.device for device in run_set.devices if device.slot is not None]
    missing = {}
    for group in groups_of(run_set.settings, devices):
        rounds = [number for number in range(run_set.num_rounds) if not is_done(run_set, group, number)]
        if rounds:
            missing[group] = len(rounds)
    return missing


def num_missing(run_set: RunSet) -> int:
    """Return the number of groups that remain to be measured, over all rounds."""
    return sum(rounds_missing(run_set).values())


def num_complete_rounds(run_set: RunSet) -> int:
    """Return the number of rounds in which all groups were measured, failed or are skipped."""
    # Without settings, only the measured configurations are known.
    if run_set.settings is None:
        return len({run.round for run in run_set.runs})
    devices = [device.device for device in run_set.devices if device.slot is not None]
    groups = groups_of(run_set.settings, devices)
    return sum(all(is_done(run_set, group, number) for group in groups) for number in range(run_set.num_rounds))


def problems_of(run_set: RunSet, file: Path | None = None) -> Iterator[str]:
    """Yield a sentence about each missing device and each failure, and one about the run if it is incomplete.

    Args:
        run_set: The measurements of a run.
        file: The file that contains them, for the command that continues the run.
    """
    for device in run_set.devices:
        if device.why_missing is not None:
            yield f"{device.device} was not measured: {device.why_missing}"
    yield from map(str, run_set.failed())
    yield from interruption(run_set, file)


def interruption(run_set: RunSet, file: Path | None = None) -> Iterator[str]:
    """Yield a sentence about what is missing and how to continue, if the run was interrupted."""
    if run_set.is_complete:
        return
    missing = rounds_missing(run_set)
    text = "the run was interrupted before it was complete"
    if missing:
        total = counted(run_set.num_rounds, "round")
        names = [f"{group.workload}[{group.size}] in {number} of {total}" for group, number in missing.items()]
        text += f", so it lacks {shorten_names(names)}"
    name = "FILE" if file is None else shlex.quote(str(file))
    yield f"{text}. To continue, run: tune-policies bench run --resume {name}"
