"""Tests that the knapsack search finds the cheapest cover."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tune_policies.kuberay.design.cheapest_nodes import Item, cheapest_cover


def test_the_cover_of_an_amount_of_zero_is_empty():
    assert cheapest_cover([Item("a", 1, 1, (1,))], 0) == {}


def test_ties_in_cost_are_resolved_by_name():
    items = [Item("b", 2, 9, (3, 1)), Item("a", 2, 9, (3, 1))]

    assert cheapest_cover(items, 4) == cheapest_cover(items[::-1], 4) == {"a": 2}


def test_a_million_pieces_are_covered_fast():
    """A naive search would try a million counts of each item."""
    items = [Item("a", 7, 10**6, (9, 1)), Item("b", 3, 10**6, (4, 1)), Item("c", 1, 2, (1, 1))]

    assert cheapest_cover(items, 1_000_001) == {"a": 142_857, "c": 2}


items = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 12), st.tuples(st.integers(0, 9), st.integers(0, 3))), max_size=3
).map(lambda rows: [Item(f"item-{i}", *row) for i, row in enumerate(rows)])


@given(items=items, needed=st.integers(0, 90))
def test_no_other_cover_is_cheaper(items, needed):
    found = cheapest_cover(items, needed)

    def cost(counts):
        return tuple(sum(number * item.cost[i] for number, item in zip(counts, items, strict=True)) for i in (0, 1))

    numbers = product(*(range(item.most + 1) for item in items))
    covers = [each for each in numbers if sum(n * item.holds for n, item in zip(each, items, strict=True)) >= needed]
    assert (found is None) == (not covers)
    if found is not None:
        counts = [found.get(item.name, 0) for item in items]
        assert sum(n * item.holds for n, item in zip(counts, items, strict=True)) >= needed
        assert all(n <= item.most for n, item in zip(counts, items, strict=True))
        assert cost(counts) == min(map(cost, covers))
