"""Marks parameters that only ``make test-rest`` runs."""

import pytest


def further(*values):
    """Return less important values of a parameter. A tuple has the values of several parameters."""
    rows = [value if type(value) is tuple else (value,) for value in values]
    return [pytest.param(*row, marks=pytest.mark.rest) for row in rows]
