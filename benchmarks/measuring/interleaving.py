"""What is measured, and when: groups of arms, their random turns, and what a run that was ended still lacks.

What drifts in the machine meets all arms alike, as they take turns at random. The order follows from the seed, the
round and the group alone, so a run that is resumed has the same order.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from tune_policies.values.errors import InvalidResourcesError

from ..record.run_set import Arm, Phase, RunSet, Settings

INTERRUPTED: Final = "the run was ended before all its blocks were timed"
"""The warning of a process that was ended by the user, or by the end of the time for the whole run."""

GIVEN_UP: Final = frozenset({"raised", "timed_out"})
"""Failures that come again, so that the arm is not tried in later rounds. A process that died may have met bad luck."""


class Group(NamedTuple):
    """The arms of one workload and size, which are measured in turns.

    Attributes:
        workload: Its name.
        size: In its unit.
        arms: One for each device that is there, and a control.
    """

    workload: str
    size: int
    arms: tuple[Arm, ...]

    def without(self, arms: Iterable[Arm]) -> "Group":
        """Return the group with fewer arms."""
        dropped = set(arms)
        return self._replace(arms=tuple(arm for arm in self.arms if arm not in dropped))


def groups_of(settings: Settings, devices: Sequence[str]) -> tuple[Group, ...]:
    """Return what is measured on the devices that are there; the control is a second arm on the first of them."""
    groups = []
    for workload, sizes in settings.sizes.items():
        for size in sizes:
            arms = [Arm(workload=workload, size=size, device=device) for device in devices]
            if settings.has_control and arms:
                arms.append(arms[0].model_copy(update={"is_control": True}))
            groups.append(Group(workload, size, tuple(arms)))
    return tuple(groups)


def given_up(run_set: RunSet) -> frozenset[Arm]:
    """Return the arms that are not tried again."""
    return frozenset(failure.arm for failure in run_set.failures if failure.kind in GIVEN_UP)


def is_done(run_set: RunSet, group: Group, number: int) -> bool:
    """Return whether a group was measured in a round, as far as it can be."""
    lost = given_up(run_set) | {failure.arm for failure in run_set.failures if failure.round == number}
    whole = {run.arm for run in run_set.runs if run.round == number and INTERRUPTED not in run.warnings}
    return all(arm in whole or arm in lost for arm in group.arms)


def without_round(run_set: RunSet, group: Group, number: int) -> RunSet:
    """Return the record without what was measured of a group in a round: only whole groups can be compared."""
    arms = set(group.arms)
    return run_set.model_copy(
        update={
            "runs": tuple(run for run in run_set.runs if run.round != number or run.arm not in arms),
            "failures": tuple(each for each in run_set.failures if each.round != number or each.arm not in arms),
        }
    )


def num_missing(run_set: RunSet) -> int:
    """Return how many groups are still to be measured, over all rounds."""
    if run_set.settings is None:
        return 0
    groups = groups_of(run_set.settings, [each.device for each in run_set.devices if each.slot is not None])
    rounds = range(run_set.num_rounds)
    return sum(not is_done(run_set, group, number) for group in groups for number in rounds)


_Item = TypeVar("_Item")


class Turn(NamedTuple):
    """Whose turn it is, and for what."""

    arm: Arm
    phase: Phase


def order_of_groups(groups: Sequence[Group], seed: int, number: int) -> list[Group]:
    """Return the order of the groups in a round."""
    return _shuffled(groups, f"{seed}/{number}/groups")


def order_of_processes(group: Group, seed: int, number: int) -> list[Arm]:
    """Return in which order the processes of a group are started in a round."""
    return _shuffled(group.arms, f"{seed}/{number}/{group.workload}/{group.size}/processes")


def interleave(phases: Mapping[Arm, Sequence[Phase]], num_sweeps: int, seed: str) -> Iterator[list[Turn]]:
    """Yield so many sweeps; in each, every phase of every arm has one turn, in an order of its own."""
    turns = [Turn(arm, phase) for arm, each in phases.items() for phase in each]
    for number in range(num_sweeps):
        yield _shuffled(turns, f"{seed}/{number}")


def _shuffled(items: Sequence[_Item], seed: str) -> list[_Item]:
    return random.Random(seed).sample(items, len(items))  # noqa: S311


def check_same(before: RunSet, now: RunSet) -> None:
    """Check that a run can be gone on with: what was measured and what will be must be comparable.

    Raises:
        InvalidResourcesError: It was asked for something else, or the machine or the versions have changed.
    """
    if before.settings is None:
        raise InvalidResourcesError(
            "the file does not say what was asked for, so its run cannot continue: start a new one"
        )
    then, today = _comparable(before), _comparable(now)
    differ = [
        f"{name} was {then.get(name)}, and is {today.get(name)}"
        for name in dict.fromkeys((*then, *today))
        if then.get(name) != today.get(name)
    ]
    if differ:
        raise InvalidResourcesError(
            f"the run cannot continue, as old and new times could not be compared: {'; '.join(differ)}. "
            "Ask for the same on the same machine, or start a new file"
        )


def _comparable(run_set: RunSet) -> dict[str, object]:
    """Return what must be the same, by what it is called."""
    machine = run_set.environment
    return {
        **(run_set.settings.model_dump() if run_set.settings else {}),
        **machine.model_dump(include={"cpu_model", "num_cpus", "usable_cpus", "python"}),
        "GPUs": ", ".join(sorted(map(str, machine.gpus))) or "none",  # in any order, as NVML may number them anew
        **{f"version of {name}": version for name, version in sorted(machine.versions.items())},
        **{f"device {each.device}": each.slot for each in run_set.devices},
        **{f"type of {each.device}": each.accelerator_type for each in run_set.devices},
    }
