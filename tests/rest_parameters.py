"""Marks parameter values that only ``make test-rest`` runs."""

import pytest


def further(*values):
    """Mark less important values of a parameter, so that only ``make test-rest`` runs them.

    If a test has several parameters, each value is a tuple.
    """
    rows = [value if type(value) is tuple else (value,) for value in values]
    return [pytest.param(*row, marks=pytest.mark.rest) for row in rows]
