"""Finds the size from which on the GPU is faster, with as few processes as possible.

Sizes are powers of two. They are galloped through from the small end to the largest, one round each, so that a change
back at large sizes is seen: the time of a step need not grow evenly with the size. Where the faster device changes
between two of them, the sizes between are bisected, again with one round each. Beside a change, sizes at which one
round does not tell are measured in all rounds. Nothing is said of sizes beyond those that were measured.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import log, log2
from typing import Final, NamedTuple

from tune_policies.plan.decision import Answer
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import check_count

from ..compare.judge import Comparison, Outcome


class Looked(NamedTuple):
    """What was found at a size.

    Attributes:
        num_rounds: How many rounds were asked for.
        comparison: The CPU, as the first, compared to the GPU; ``None``: it could not be measured.
    """

    num_rounds: int
    comparison: Comparison | None

    @property
    def is_clear(self) -> bool:
        """Whether one of them is surely the faster one."""
        return self.comparison is not None and self.comparison.outcome in (Outcome.FIRST, Outcome.SECOND)

    @property
    def ratio(self) -> float:
        """How many times as long the CPU takes."""
        return 1.0 if self.comparison is None else self.comparison.ratio

    def is_on_gpu(self, num_rounds: int) -> bool:
        """Whether the GPU is surely the faster one; or seems to be, where so many rounds were not asked for yet."""
        return self.ratio > 1 and (self.is_clear or self.num_rounds < num_rounds)


class Step(NamedTuple):
    """What is to be measured next.

    Attributes:
        size: Of the workload.
        num_rounds: How many rounds of it there should be in all.
    """

    size: int
    num_rounds: int


class Change(NamedTuple):
    """Two neighbouring measured sizes with different answers."""

    below: int
    at: int


class Crossover(NamedTuple):
    """Where the GPU begins to be the answer, and stays it.

    Attributes:
        above: The largest size for which it is not, below ``at``; ``None``: it is for all that were measured.
        at: The smallest size from which on it is for all that were measured; ``None``: for none.
        changes: Where the answer changes; with more than one it changes back.
    """

    above: int | None
    at: int | None
    changes: tuple[Change, ...]


def powers_of_two(least: int, most: int) -> tuple[int, ...]:
    """Return the powers of two from ``least`` to ``most``.

    Raises:
        InvalidResourcesError: There is none between.
    """
    least, most = check_count(least, least=1, name="min_size"), check_count(most, least=1, name="max_size")
    sizes = tuple(2**exponent for exponent in range((least - 1).bit_length(), int(log2(most)) + 1))
    if not sizes:
        raise InvalidResourcesError(f"there is no power of two from {least} to {most}: raise the largest size")
    return sizes


def search(
    measure: Callable[[int, int], Comparison | None], sizes: Sequence[int], num_rounds: int
) -> dict[int, Looked]:
    """Return what ``measure`` found for the sizes that matter.

    Args:
        measure: Takes a size and how many rounds of it there should be in all, and compares the CPU, as the first, to
            the GPU; ``None``: it could not be measured.
        sizes: The powers of two to look at, ascending.
        num_rounds: How many rounds decide where one does not.
    """
    found: dict[int, Looked] = {}
    while (step := next_step(found, sizes, num_rounds)) is not None:
        found[step.size] = Looked(step.num_rounds, measure(*step))
    return found


def next_step(found: Mapping[int, Looked], sizes: Sequence[int], num_rounds: int) -> Step | None:
    """Return what is to be measured next; ``None``: the crossover is known as well as it will be."""
    for size in _galloped(sizes):
        if size not in found:
            return Step(size, 1)
    known = [size for size in sizes if size in found and found[size].comparison is not None]
    is_on_gpu = [found[size].is_on_gpu(num_rounds) for size in known]
    changes = [at for at, (low, high) in enumerate(pairwise(is_on_gpu)) if low != high]
    for at in changes:
        between = [size for size in sizes if known[at] < size < known[at + 1] and size not in found]
        if between:
            return Step(between[len(between) // 2], 1)
    # Each side of a change, the nearer to a tie first, as that may move the change; then what is next to them.
    beside = [known[at + side] for at in changes for side in (0, 1)]
    further = [known[at + side] for at in changes for side in (-1, 2) if 0 <= at + side < len(known)]
    for size in (*sorted(beside, key=lambda size: abs(log(found[size].ratio))), *further):
        if not found[size].is_clear and found[size].num_rounds < num_rounds:
            return Step(size, num_rounds)
    return None


def crossover(answers: Mapping[int, Answer]) -> Crossover:
    """Return where the GPU begins to be the answer, and stays it."""
    sizes = sorted(answers)
    changes = tuple(Change(low, high) for low, high in pairwise(sizes) if answers[low] != answers[high])
    others = [size for size in sizes if answers[size] != "GPU"]
    from_there = [size for size in sizes if not others or size > others[-1]]
    return Crossover(others[-1] if others else None, from_there[0] if from_there else None, changes)


def describe(answers: Mapping[int, Answer], better: str = "faster") -> str:
    """Return the crossover in words, with the sizes for which it holds.

    Args:
        answers: By size; one at least.
        better: What the better device is.
    """
    sizes = sorted(answers)
    measured = f"measured from {sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"measured at {sizes[0]} only"
    found = crossover(answers)
    ranks = [_RANKS[answers[size]] for size in sizes]
    if "GPU" not in answers.values():
        text = "no crossover: for no size is the GPU surely " + better
    elif found.above is None:
        text = f"no crossover: for all sizes the GPU is {better}"
    elif ranks == sorted(ranks):
        text = f"from {found.at} on the GPU is {better}, and at {found.above} not surely"
    else:
        changes = ", ".join(f"{size}: {answers[size]}" for size in _told(answers))
        between = f"{found.changes[0].below} and {found.changes[-1].at}"
        text = f"no one crossover, as the answer changes back; it is ambiguous between {between} ({changes})"
    return f"{text}; {measured}"


_RANKS: Final[dict[Answer, int]] = {"CPU": 0, "same": 1, "ambiguous": 1, "GPU": 2}
"""In which order answers follow each other where there is one crossover."""


def _told(answers: Mapping[int, Answer]) -> Iterable[int]:
    """Return the first size, and those at which the answer is another than before."""
    sizes = sorted(answers)
    return [sizes[0], *(high for low, high in pairwise(sizes) if answers[low] != answers[high])]


def _galloped(sizes: Sequence[int]) -> list[int]:
    """Return the sizes at 0, 1, 3, 7, …, and the last."""
    places = [2**i - 1 for i in range(len(sizes).bit_length())]
    return [sizes[at] for at in dict.fromkeys((*(at for at in places if at < len(sizes)), len(sizes) - 1))]
