"""Determines what is measured and when: groups of arms, their random turns, and what an interrupted run still lacks.

Arms take random turns, so that drift of the machine affects all of them alike. The order depends only on the seed, the
round and the group, so that a resumed run has the same order.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from tune_policies.values.errors import InvalidResourcesError

from ..record.run_set import Arm, Phase, RunSet, Settings

INTERRUPTED: Final = "the run was ended before all its blocks were timed"
"""The warning of a process that was ended by the user, or by the time limit of the whole run."""

GIVEN_UP: Final = frozenset({"raised", "timed_out"})
"""Failures that would occur again, so that later rounds skip the arm. A process may die for a passing reason."""


class Group(NamedTuple):
    """The arms of one workload and size, which take turns: one for each available device, and a control."""

    workload: str
    size: int
    arms: tuple[Arm, ...]

    def without(self, arms: Iterable[Arm]) -> "Group":
        """Return the group without these arms."""
        dropped = set(arms)
        return self._replace(arms=tuple(arm for arm in self.arms if arm not in dropped))


def groups_of(settings: Settings, devices: Sequence[str]) -> tuple[Group, ...]:
    """Return the groups to measure on the available devices. The control is a second arm on the first device."""
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
    """Return whether a round of a group was measured, as far as possible."""
    lost = given_up(run_set) | {failure.arm for failure in run_set.failures if failure.round == number}
    whole = {run.arm for run in run_set.runs if run.round == number and INTERRUPTED not in run.warnings}
    return all(arm in whole or arm in lost for arm in group.arms)


def without_round(run_set: RunSet, group: Group, number: int) -> RunSet:
    """Return the record without a round of a group, because only whole groups can be compared."""
    arms = set(group.arms)
    return run_set.model_copy(
        update={
            "runs": tuple(run for run in run_set.runs if run.round != number or run.arm not in arms),
            "failures": tuple(each for each in run_set.failures if each.round != number or each.arm not in arms),
        }
    )


def num_missing(run_set: RunSet) -> int:
    """Return how many groups remain to be measured, over all rounds."""
    if run_set.settings is None:
        return 0
    groups = groups_of(run_set.settings, [each.device for each in run_set.devices if each.slot is not None])
    return sum(not is_done(run_set, group, number) for group in groups for number in range(run_set.num_rounds))


_Item = TypeVar("_Item")


class Turn(NamedTuple):
    """The arm whose turn it is, and the phase of its block."""

    arm: Arm
    phase: Phase


def order_of_groups(groups: Sequence[Group], seed: int, number: int) -> list[Group]:
    """Return the order of the groups in a round."""
    return _shuffled(groups, f"{seed}/{number}/groups")


def order_of_processes(group: Group, seed: int, number: int) -> list[Arm]:
    """Return the order in which the processes of a group start in a round."""
    return _shuffled(group.arms, f"{seed}/{number}/{group.workload}/{group.size}/processes")


def interleave(phases: Mapping[Arm, Sequence[Phase]], num_sweeps: int, seed: str) -> Iterator[list[Turn]]:
    """Yield the turns of each sweep, in which every phase of every arm has one turn, in random order."""
    turns = [Turn(arm, phase) for arm, each in phases.items() for phase in each]
    for number in range(num_sweeps):
        yield _shuffled(turns, f"{seed}/{number}")


def _shuffled(items: Sequence[_Item], seed: str) -> list[_Item]:
    return random.Random(seed).sample(items, len(items))  # noqa: S311


def check_same(before: RunSet, now: RunSet) -> None:
    """Raise ``InvalidResourcesError`` if the settings, machine or versions of a resumed run have changed."""
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
    """Return what must stay the same, by its name in messages."""
    machine = run_set.environment
    return {
        **(run_set.settings.model_dump() if run_set.settings else {}),
        **machine.model_dump(include={"cpu_model", "num_cpus", "usable_cpus", "python"}),
        "GPUs": ", ".join(sorted(map(str, machine.gpus))) or "none",  # sorted, because NVML may renumber them
        **{f"version of {name}": version for name, version in sorted(machine.versions.items())},
        **{f"device {each.device}": each.slot for each in run_set.devices},
        **{f"type of {each.device}": each.accelerator_type for each in run_set.devices},
    }
