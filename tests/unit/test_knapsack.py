"""The cheapest set of things that hold so many."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tune_policies.kuberay.design.knapsack import Kind, cheapest_cover


def test_the_cheapest_set_may_be_mixed():
    kinds = [Kind("large", 8, 9, (70,)), Kind("small", 1, 9, (10,))]

    assert cheapest_cover(kinds, 10) == {"large": 1, "small": 2}


def test_nothing_is_needed_for_nothing():
    assert cheapest_cover([Kind("a", 1, 1, (1,))], 0) == {}


def test_what_all_together_do_not_hold_has_no_cover():
    assert cheapest_cover([Kind("a", 3, 2, (1,)), Kind("b", 0, 9, (0,))], 7) is None


def test_ties_go_to_the_first_name_whatever_the_order():
    kinds = [Kind("b", 2, 9, (3, 1)), Kind("a", 2, 9, (3, 1))]

    assert cheapest_cover(kinds, 4) == cheapest_cover(kinds[::-1], 4) == {"a": 2}


def test_many_are_covered_in_no_time():
    """Else this would be a search through a million numbers of each kind."""
    kinds = [Kind("a", 7, 10**6, (9, 1)), Kind("b", 3, 10**6, (4, 1)), Kind("c", 1, 2, (1, 1))]

    assert cheapest_cover(kinds, 1_000_001) == {"a": 142_857, "c": 2}


kinds = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 12), st.tuples(st.integers(0, 9), st.integers(0, 3))), max_size=3
).map(lambda rows: [Kind(f"kind-{i}", *row) for i, row in enumerate(rows)])


@given(kinds=kinds, needed=st.integers(0, 90))
def test_no_other_set_is_cheaper(kinds, needed):
    found = cheapest_cover(kinds, needed)

    def cost(counts):
        return tuple(sum(number * kind.cost[i] for number, kind in zip(counts, kinds, strict=True)) for i in (0, 1))

    numbers = product(*(range(kind.most + 1) for kind in kinds))
    covers = [each for each in numbers if sum(n * kind.holds for n, kind in zip(each, kinds, strict=True)) >= needed]
    assert (found is None) == (not covers)
    if found is not None:
        counts = [found.get(kind.name, 0) for kind in kinds]
        assert sum(n * kind.holds for n, kind in zip(counts, kinds, strict=True)) >= needed
        assert all(n <= kind.most for n, kind in zip(counts, kinds, strict=True))
        assert cost(counts) == min(map(cost, covers))
