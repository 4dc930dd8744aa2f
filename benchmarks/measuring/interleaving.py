"""Determines the order of measurements, and what a resumed run must have in common with its record.

Configurations take turns in random order, so that drift of the machine affects all of them equally. The order depends
only on the seed, the round and the group, so a resumed run continues in the same order.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from tune_policies.values.errors import InvalidResourcesError

from ..record.missing_measurements import Group
from ..record.run_set import Configuration, Phase, RunSet
from ..record.settings import Settings

_Item = TypeVar("_Item")


def order_of_groups(groups: Sequence[Group], seed: int, number: int) -> list[Group]:
    """Return the groups in the order in which a round measures them."""
    return _shuffled(groups, f"{seed}/{number}/groups")


def order_of_processes(group: Group, seed: int, number: int) -> list[Configuration]:
    """Return the configurations of a group in the order in which their processes start in a round."""
    return _shuffled(group.configurations, f"{seed}/{number}/{group.workload}/{group.size}/processes")


def interleave(
    phases: Mapping[Configuration, Sequence[Phase]], num_sweeps: int, seed: str
) -> Iterator[list[tuple[Configuration, Phase]]]:
    """Yield the turns of each sweep in random order. A sweep has one turn for each phase of each configuration."""
    turns = [(configuration, phase) for configuration, planned in phases.items() for phase in planned]
    for number in range(num_sweeps):
        # In random order, a drift of the machine's speed affects all configurations alike.
        yield _shuffled(turns, f"{seed}/{number}")


def _shuffled(items: Sequence[_Item], seed: str) -> list[_Item]:
    # A generator of its own, so that other code that uses the global one does not change the order.
    return random.Random(seed).sample(items, len(items))  # noqa: S311


def settings_of(run_set: RunSet) -> Settings:
    """Return the settings of a record, or raise ``InvalidResourcesError`` if the record has no settings."""
    if run_set.settings is None:
        raise InvalidResourcesError(
            "the record does not contain the requested settings, so the run cannot continue. Start a new run"
        )
    return run_set.settings


def check_same(before: RunSet, now: RunSet) -> None:
    """Raise ``InvalidResourcesError`` if the machine or the versions of a resumed run have changed."""
    then, today = _comparable(before), _comparable(now)
    differ = [
        f"{name} was {then.get(name)}, but is now {today.get(name)}"
        for name in dict.fromkeys((*then, *today))
        if then.get(name) != today.get(name)
    ]
    if differ:
        raise InvalidResourcesError(
            f"the run cannot continue, because old and new times would not be comparable: {'; '.join(differ)}. "
            "Continue it on the same machine, or start a new run"
        )


def _comparable(run_set: RunSet) -> dict[str, object]:
    """Return the properties that must not change in a resumed run, by their names in messages."""
    machine = run_set.environment
    return {
        **machine.model_dump(include={"cpu_model", "num_cpus", "usable_cpus", "python"}),
        "list of GPUs": ", ".join(sorted(map(str, machine.gpus))) or "none",  # sorted, because NVML may renumber them
        **{f"version of {name}": version for name, version in sorted(machine.versions.items())},
        **{f"device {device.device}": device.slot for device in run_set.devices},
        **{f"type of {device.device}": device.accelerator_type for device in run_set.devices},
    }
