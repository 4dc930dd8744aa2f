"""Which values of a parameter wait for `make test-rest`."""

import pytest


def further(*values):
    """Values that tell no more of a capability than the ones before them; a tuple is one value for several names."""
    rows = [value if type(value) is tuple else (value,) for value in values]
    return [pytest.param(*row, marks=pytest.mark.rest) for row in rows]
