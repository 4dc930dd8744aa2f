"""The middle of several runs, and how far they lie apart."""

import statistics
from typing import NamedTuple


class Spread(NamedTuple):
    """The middle of several runs, and how far they lie apart.

    Attributes:
        median: In the unit of the samples.
        iqr: Interquartile range, in the same unit.
    """

    median: float
    iqr: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ±{self.iqr / 2:.2f}"


def spread(values: list[float]) -> Spread:
    """Return median and interquartile range."""
    if len(values) < 2:
        return Spread(values[0], 0.0)
    quarters = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(quarters[1], quarters[2] - quarters[0])
