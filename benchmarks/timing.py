"""Times several arms against each other in one run."""

import random
import statistics
import time
from collections.abc import Callable, Mapping
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


def interleaved_ms(arms: Mapping[str, Callable[[], Callable[[], object]]], repetitions: int) -> dict[str, Spread]:
    """Return milliseconds by arm. The arms are shuffled, so that a drift of the machine meets all of them.

    Args:
        arms: For each a function that prepares one run, untimed, and returns what is timed.
        repetitions: Timed runs of each arm, after one that is not counted.
    """
    order = [name for name in arms for _ in range(repetitions)]
    random.Random(0).shuffle(order)  # noqa: S311
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for prepare in arms.values():
        prepare()()
    for name in order:
        run = arms[name]()
        start = time.perf_counter()
        run()
        samples[name].append((time.perf_counter() - start) * 1e3)
    return {name: spread(values) for name, values in samples.items()}


def spread(values: list[float]) -> Spread:
    """Return median and interquartile range."""
    if len(values) < 2:
        return Spread(values[0], 0.0)
    quarters = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(quarters[1], quarters[2] - quarters[0])
