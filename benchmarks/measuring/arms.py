"""What is to be measured: groups of arms that are compared, and which of them a run that was ended still lacks."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ..record.run_set import Arm, RunSet
from ..record.settings import Settings

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
