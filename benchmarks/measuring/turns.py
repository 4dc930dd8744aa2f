"""In which random order arms take turns: what drifts in the machine then meets all of them alike.

The order follows from the seed of the run, the round and the group alone, so a run that is gone on with has the same.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ..record.run_set import Arm, Phase
from .arms import Group

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


def sweeps_of(phases: Mapping[Arm, Sequence[Phase]], num_sweeps: int, seed: str) -> Iterator[list[Turn]]:
    """Yield so many sweeps; in each, every phase of every arm has one turn, in an order of its own."""
    turns = [Turn(arm, phase) for arm, each in phases.items() for phase in each]
    for number in range(num_sweeps):
        yield _shuffled(turns, f"{seed}/{number}")


def seed_of_turns(group: Group, seed: int, number: int) -> str:
    """Return by what the turns of a group in a round are shuffled."""
    return f"{seed}/{number}/{group.workload}/{group.size}/turns"


def _shuffled(items: Sequence[_Item], seed: str) -> list[_Item]:
    return random.Random(seed).sample(items, len(items))  # noqa: S311
