"""The bounded knapsack problem in its covering form: how many of each item hold enough at the lowest cost.

Dynamic programming over what is still missing solves it exactly.
"""

from collections.abc import Iterator, Sequence
from functools import cmp_to_key, reduce
from math import gcd
from typing import NamedTuple

_Link = tuple["_Link | None", str, int]
"""How a cost came about: what was before, and then how many of what."""


class Item(NamedTuple):
    """What can be taken several times.

    Attributes:
        name: Its name. Ties go to the first by name.
        holds: How many one piece holds.
        most: How many pieces there can be.
        cost: Of one piece, what counts most first; no part is below 0.
    """

    name: str
    holds: int
    most: int
    cost: tuple[int, ...]


def cheapest_cover(items: Sequence[Item], needed: int) -> dict[str, int] | None:
    """Return how many of each item hold ``needed`` at the lowest cost; ``None``: all of them together do not."""
    usable = sorted(item for item in items if item.holds > 0 and item.most > 0)
    if needed <= 0:
        return {}
    if sum(item.holds * item.most for item in usable) < needed:
        return None
    step = reduce(gcd, (item.holds for item in usable))
    usable = [item._replace(holds=item.holds // step) for item in usable]
    missing = -(-needed // step)
    surely = _surely(usable, missing)
    rest = [item._replace(most=item.most - surely[item.name]) for item in usable]
    found = _search(rest, missing - sum(item.holds * surely[item.name] for item in usable))
    counts = {item.name: surely[item.name] + found.get(item.name, 0) for item in usable}
    return {name: count for name, count in counts.items() if count}


def _surely(items: Sequence[Item], needed: int) -> dict[str, int]:
    """Return how many of each item belong to some cheapest set, so that no search need find them.

    Take an item that holds n, and any n pieces of others: some of these together hold a multiple of n. Where they cost
    more for what they hold, pieces of the item can replace them. Some cheapest set is left when no more can be
    replaced. It has fewer than n pieces of worse items, or nearly all pieces of this one.
    """
    largest = max(item.holds for item in items)
    counts, by_better = {}, 0
    for item in sorted(items, key=cmp_to_key(_compare)):
        by_need = -(-(needed - by_better - item.holds * largest) // item.holds)
        counts[item.name] = max(0, min(item.most - largest, by_need))
        by_better += item.holds * item.most
    return counts


def _compare(one: Item, other: Item) -> int:
    """Return below 0 if one costs less than the other for what it holds, above 0 if it costs more."""
    costs = [cost * other.holds for cost in one.cost]
    others = [cost * one.holds for cost in other.cost]
    return (costs > others) - (costs < others)


def _search(items: Sequence[Item], needed: int) -> dict[str, int]:
    if needed <= 0:
        return {}
    # No cheapest set has more things than are needed, so with such a base the first number of a cost counts most.
    base = 1 + needed * max(max(item.cost) for item in items)
    unknown: tuple[int, _Link | None] | None = None
    found = [unknown] * (needed + 1)
    found[0] = (0, None)
    for item in items:
        cost = reduce(lambda total, each: total * base + each, item.cost)
        for number, order in _portions(item, needed):
            for missing in order:
                before = found[max(0, missing - number * item.holds)]
                if before is None:
                    continue
                now = found[missing]
                if now is None or before[0] + number * cost < now[0]:
                    found[missing] = (before[0] + number * cost, (before[1], item.name, number))
    return _counts(found[needed])


def _portions(item: Item, needed: int) -> Iterator[tuple[int, range]]:
    """Yield portions of an item that add up to every number of it, and the order in which to go through each.

    Upwards a portion may be taken again and again, downwards once only.
    """
    if item.most * item.holds >= needed + item.holds:
        yield 1, range(1, needed + 1)
        return
    left, portion = item.most, 1
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
