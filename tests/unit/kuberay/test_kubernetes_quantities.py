"""Tests that Kubernetes quantities are parsed exactly, and rounded up as in Ray's autoscaler."""

from fractions import Fraction

import pytest

from tune_policies.kuberay.reading.kubernetes_quantities import parse_quantity, ray_amount
from tune_policies.values.errors import InvalidResourcesError


@pytest.mark.parametrize(
    ("quantity", "amount"),
    [
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("0.1", Fraction(1, 10)),
        ("100n", Fraction(1, 10**7)),
        ("8Gi", 8 * 2**30),
        ("8G", 8 * 10**9),
        ("2k", 2000),
        ("1e3", 1000),
        ("12E", 12 * 10**18),
        ("12E2", 1200),
        ("1Ei", 2**60),
        ("25e-1", Fraction(5, 2)),
        (4, 4),
        (0.5, Fraction(1, 2)),
    ],
)
def test_a_quantity_is_parsed_exactly(quantity, amount):
    assert parse_quantity(quantity) == amount


@pytest.mark.parametrize(("quantity", "amount"), [("500m", 1), ("1001m", 2), ("2", 2), ("0", 0), ("1n", 1)])
def test_ray_rounds_amounts_up_to_whole_units(quantity, amount):
    assert ray_amount(quantity) == amount


@pytest.mark.parametrize(
    ("quantity", "message"),
    [
        ("8GB", "write '8G'"),
        ("8 GiB", "write '8Gi'"),
        ("16Gbytes", "write '16G'"),
        ("1K", "write '1k'"),
        ("-1", "must be 0 or more"),
        ("", "write a number such as"),
        ("four", "write a number such as"),
        ("1e400", "not a Kubernetes quantity"),
        ("1" * 200, "not a Kubernetes quantity"),
        pytest.param(10**5000, "too long to show", id="a number of thousands of digits"),
        (float("nan"), "nan is not a Kubernetes quantity"),
        (float("inf"), "inf is not a Kubernetes quantity"),
        (True, "True is not a Kubernetes quantity"),
        (None, "None is not a Kubernetes quantity"),
        ("٣", "not a Kubernetes quantity"),
    ],
)
def test_the_error_for_an_invalid_quantity_contains_a_fix(quantity, message):
    with pytest.raises(InvalidResourcesError, match=message):
        parse_quantity(quantity)
