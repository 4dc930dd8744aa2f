"""The cheapest set of things that together hold so many: how many of each kind.

It is the covering form of the bounded knapsack problem, solved exactly by dynamic programming over what is still
missing.
"""

from collections.abc import Iterator, Sequence
from functools import cmp_to_key, reduce
from math import gcd
from typing import NamedTuple

_Link = tuple["_Link | None", str, int]
"""How a cost came about: what was before, and then how many of what."""


class Kind(NamedTuple):
    """Things of one kind.

    Attributes:
        name: Its name, by which ties are broken.
        holds: How many one of them holds.
        most: How many of them there can be.
        cost: Of one of them, what counts most first; none is below 0.
    """

    name: str
    holds: int
    most: int
    cost: tuple[int, ...]


def cheapest_cover(kinds: Sequence[Kind], needed: int) -> dict[str, int] | None:
    """Return how many of each kind hold ``needed`` at the lowest cost; ``None``: all of them together do not."""
    usable = sorted(kind for kind in kinds if kind.holds > 0 and kind.most > 0)
    if needed <= 0:
        return {}
    if sum(kind.holds * kind.most for kind in usable) < needed:
        return None
    step = reduce(gcd, (kind.holds for kind in usable))
    usable = [kind._replace(holds=kind.holds // step) for kind in usable]
    missing = -(-needed // step)
    surely = _surely(usable, missing)
    rest = [kind._replace(most=kind.most - surely[kind.name]) for kind in usable]
    found = _search(rest, missing - sum(kind.holds * surely[kind.name] for kind in usable))
    counts = {kind.name: surely[kind.name] + found.get(kind.name, 0) for kind in usable}
    return {name: count for name, count in counts.items() if count}


def _surely(kinds: Sequence[Kind], needed: int) -> dict[str, int]:
    """Return how many of each kind belong to some cheapest set, so that no search need find them.

    Of as many things as one of a kind holds, some hold a multiple of that together. So, where they cost more for what
    they hold, things of this kind can replace them. There is a cheapest set in which this is done, and no longer can
    be: there are fewer things of worse kinds than one of this kind holds, or nearly all of this kind are in the set.
    """
    largest = max(kind.holds for kind in kinds)
    counts, by_better = {}, 0
    for kind in sorted(kinds, key=cmp_to_key(_compare)):
        by_need = -(-(needed - by_better - kind.holds * largest) // kind.holds)
        counts[kind.name] = max(0, min(kind.most - largest, by_need))
        by_better += kind.holds * kind.most
    return counts


def _compare(one: Kind, other: Kind) -> int:
    """Return below 0 if one costs less than the other for what it holds, above 0 if it costs more."""
    costs = [cost * other.holds for cost in one.cost]
    others = [cost * one.holds for cost in other.cost]
    return (costs > others) - (costs < others)


def _search(kinds: Sequence[Kind], needed: int) -> dict[str, int]:
    if needed <= 0:
        return {}
    # No cheapest set has more things than are needed, so with such a base the first number of a cost counts most.
    base = 1 + needed * max(max(kind.cost) for kind in kinds)
    unknown: tuple[int, _Link | None] | None = None
    found = [unknown] * (needed + 1)
    found[0] = (0, None)
    for kind in kinds:
        cost = reduce(lambda total, each: total * base + each, kind.cost)
        for number, order in _portions(kind, needed):
            for missing in order:
                before = found[max(0, missing - number * kind.holds)]
                if before is None:
                    continue
                now = found[missing]
                if now is None or before[0] + number * cost < now[0]:
                    found[missing] = (before[0] + number * cost, (before[1], kind.name, number))
    return _counts(found[needed])


def _portions(kind: Kind, needed: int) -> Iterator[tuple[int, range]]:
    """Yield portions of a kind, from which every number of it can be put together, and the order for each.

    Upwards a portion may be taken again and again, downwards once.
    """
    if kind.most * kind.holds >= needed + kind.holds:
        yield 1, range(1, needed + 1)
        return
    left, portion = kind.most, 1
    while left > 0:
        number = min(portion, left)
        yield number, range(needed, 0, -1)
        left -= number
        portion *= 2


def _counts(found: tuple[int, _Link | None] | None) -> dict[str, int]:
    counts: dict[str, int] = {}
    link = None if found is None else found[1]
    while link is not None:
        link, name, number = link
        counts[name] = counts.get(name, 0) + number
    return dict(sorted(counts.items()))
