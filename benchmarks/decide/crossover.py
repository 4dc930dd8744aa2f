"""Finds the crossover, the size from which the GPU is the better device, and describes it in a sentence."""

from collections.abc import Mapping
from itertools import groupby
from typing import Final, NamedTuple

from tune_policies.plan.benchmark_decision import Answer

_RANKS: Final[dict[Answer, int]] = {"CPU": 0, "same": 1, "ambiguous": 1, "GPU": 2}
"""The rank of each answer. With a single crossover, the rank never decreases as the size increases."""


class Crossover(NamedTuple):
    """The crossover, the size from which the GPU is the better device.

    Attributes:
        above: The largest size for which the GPU is not the answer; ``None`` if there is no such size.
        at: The smallest measured size from which the GPU is always the answer, or ``None``.
    """

    above: int | None
    at: int | None


def crossover(answers: Mapping[int, Answer]) -> Crossover:
    """Return the crossover, given the answers by size."""
    above = max((size for size, answer in answers.items() if answer != "GPU"), default=None)
    # If the GPU is the answer for all sizes, the crossover is at the smallest one.
    larger = list(answers)
    if above is not None:
        larger = [size for size in answers if size > above]
    return Crossover(above, min(larger, default=None))


def describe(answers: Mapping[int, Answer], better: str = "faster") -> str:
    """Return a sentence about the crossover and the measured sizes. ``answers`` must not be empty."""
    sizes = sorted(answers)
    measured = f"measured from {sizes[0]} to {sizes[-1]}"
    if len(sizes) == 1:
        measured = f"measured at {sizes[0]} only"
    found = crossover(answers)
    ranks = [_RANKS[answers[size]] for size in sizes]
    if "GPU" not in answers.values():
        text = f"no crossover: the GPU is not clearly {better} at any size"
    elif found.above is None:
        text = f"no crossover: the GPU is {better} at all sizes"
    elif ranks == sorted(ranks):
        below = f"but not clearly at {found.above}"
        if answers[found.above] == "CPU":
            below = f"and the CPU up to size {found.above}"
        text = f"the GPU is {better} from size {found.at} on, {below}"
    else:
        changes = []
        for answer, alike in groupby(sizes, key=lambda size: answers[size]):
            changes.append(f"{next(alike)}: {answer}")  # the first size with this answer
        text = f"no single crossover, because the answer changes back ({', '.join(changes)})"
    return f"{text}; {measured}"
