"""Random times of two configurations whose ratio is known, with the noise and drift of a machine."""

from typing import NamedTuple

import numpy as np

from tune_policies.benchmarks.compare.time_ratio import Floats


class Noise(NamedTuple):
    """The sources of the relative variation in measured times.

    Attributes:
        of_block: The standard deviation of the logarithm of a block's time.
        of_process: The standard deviation of the logarithm of a process's time, without the variation of its blocks.
        linear_drift: The increase of the logarithm of all times from the first round to the last.
        walk: The standard deviation of the random change of the logarithm of all times from one round to the next.
    """

    of_block: float = 0.02
    of_process: float = 0.01
    linear_drift: float = 0.1
    walk: float = 0.03


def log_medians(
    ratio: float, *, num_draws: int, num_rounds: int, num_blocks: int = 9, noise: Noise | None = None, seed: int = 0
) -> tuple[Floats, Floats]:
    """Return the logarithms of the median times of the processes of two configurations, with shape (draws, rounds).

    The times of blocks are log-normally distributed around the time of their process, and the times of processes are
    log-normally distributed around the time of their round. The drift of a round is the same for both configurations.

    Args:
        ratio: The time of the first configuration divided by the time of the second configuration.
        num_draws: The number of independent runs.
        num_rounds: The number of rounds. Each round has one process of each configuration.
        num_blocks: The number of blocks of each process.
        noise: The variation of times. ``None`` means the default of each source.
        seed: The random seed.
    """
    noise = noise or Noise()
    random = np.random.default_rng(seed)
    size = (num_draws, num_rounds)
    drift = np.linspace(0, noise.linear_drift, num_rounds) + random.normal(0, noise.walk, size).cumsum(axis=1)

    def configuration(relative_time: float) -> Floats:
        process = random.normal(np.log(relative_time), noise.of_process, size) + drift
        blocks = random.normal(0, noise.of_block, (*size, num_blocks))
        medians: Floats = process + np.median(blocks, axis=2)
        return medians

    return configuration(ratio), configuration(1)
