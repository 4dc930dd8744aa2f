"""How much a run measures by default, and with ``--quick``."""

from typing import Final, NamedTuple


class Effort(NamedTuple):
    """How much a run measures: its number of rounds, the blocks per process, and the time limit of a process."""

    num_rounds: int
    num_blocks: int
    process_timeout_s: float


THOROUGH: Final = Effort(num_rounds=5, num_blocks=10, process_timeout_s=60)
"""The default of a run."""

QUICK: Final = Effort(num_rounds=3, num_blocks=5, process_timeout_s=30)
"""The default of a run with ``--quick``. Fewer than 3 rounds do not show how much processes differ."""
