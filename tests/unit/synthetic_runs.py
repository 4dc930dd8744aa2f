"""Times of two arms whose true ratio is known, with the noise and the drift of a machine, to try intervals on."""

from typing import NamedTuple

import numpy as np

from tune_policies.benchmarks.compare.judge import Floats


class Noise(NamedTuple):
    """What makes times differ, as parts of them.

    Attributes:
        of_block: Standard deviation of the logarithm of a block's time.
        of_process: The same of a process's, beside that of its blocks.
        linear_drift: By how much the machine becomes slower from the first round to the last.
        walk: Standard deviation of what it changes from a round to the next, at random.
    """

    of_block: float = 0.02
    of_process: float = 0.01
    linear_drift: float = 0.1
    walk: float = 0.03


def log_medians(
    ratio: float, *, num_draws: int, num_rounds: int, num_blocks: int = 9, noise: Noise | None = None, seed: int = 0
) -> tuple[Floats, Floats]:
    """Return the logarithms of the median times of each process of two arms, a row a draw and a column a round.

    Blocks are lognormal about their process, processes about their round, and a round is as slow for one arm as for the
    other.

    Args:
        ratio: By which the first arm is slower.
        num_draws: Independent runs.
        num_rounds: Processes of each arm.
        num_blocks: Blocks of each process.
        noise: What makes them differ.
        seed: Of what is random.
    """
    noise = noise or Noise()
    random = np.random.default_rng(seed)
    size = (num_draws, num_rounds)
    drift = np.linspace(0, noise.linear_drift, num_rounds) + random.normal(0, noise.walk, size).cumsum(axis=1)

    def arm(slower: float) -> Floats:
        process = random.normal(np.log(slower), noise.of_process, size) + drift
        blocks = random.normal(0, noise.of_block, (*size, num_blocks))
        medians: Floats = process + np.median(blocks, axis=2)
        return medians

    return arm(ratio), arm(1)
