"""Tests of label selectors in Ray's format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune_policies import InvalidResourcesError
from tune_policies.cluster.labels import check_selector, format_selector, matcher, merged

conditions = st.builds(
    lambda negated, values: ("!" if negated else "") + (values[0] if len(values) == 1 else f"in({','.join(values)})"),
    st.booleans(),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True),
)
selectors = st.dictionaries(st.sampled_from(["zone", "disk"]), conditions)
labels = st.dictionaries(st.sampled_from(["zone", "disk"]), st.sampled_from("abcd"))


@pytest.mark.parametrize(
    ("condition", "value", "matches"),
    [
        ("eu", "eu", True),
        ("eu", "us", False),
        ("eu", None, False),
        ("!eu", "eu", False),
        ("!eu", None, True),
        ("in(eu,us)", "us", True),
        ("in(eu,us)", None, False),
        ("!in(eu,us)", "us", False),
        ("!in(eu,us)", "asia", True),
    ],
)
def test_a_condition_matches_a_value_or_a_missing_label(condition, value, matches):
    assert matcher({"zone": condition})({} if value is None else {"zone": value}) is matches


@given(selectors, selectors, labels)
def test_a_merged_selector_matches_the_nodes_that_both_selectors_match(one, other, node):
    both = matcher(merged(one, other))

    assert both(node) == (matcher(one)(node) and matcher(other)(node))


def test_blanks_are_removed_because_ray_would_match_no_node_with_them():
    assert check_selector({"zone": "in(eu, us)"}) == {"zone": "in(eu,us)"}


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("zone=eu", "must map label keys to conditions, got 'zone=eu'"),
        ({"zone": ""}, "'' is not a condition on label 'zone'. Write 'a', '!a', 'in\\(a,b\\)' or '!in\\(a,b\\)'"),
        ({"zone": "in()"}, "'in\\(\\)' is not a condition"),
        ({"zone": "!!eu"}, "'!!eu' is not a condition"),
        ({"zone": 1}, "1 is not a condition"),
        ({"zo ne": "eu"}, "'zo ne' is not a label key"),
        ({1: "eu"}, "1 is not a label key"),
    ],
)
def test_an_invalid_selector_raises_an_error_with_the_valid_forms(selector, message):
    with pytest.raises(InvalidResourcesError, match=message):
        check_selector(selector)


def test_a_long_selector_is_shortened_in_messages():
    text = format_selector({"zone": f"in({','.join(f'zone-{i}' for i in range(99))})"})

    assert len(text) == 120
    assert text.endswith("...")


def test_node_identifiers_are_shortened_in_messages():
    assert format_selector({"ray.io/node-id": f"!{'01234567' * 7}"}) == "ray.io/node-id=!01234567"
