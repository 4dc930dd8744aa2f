"""What is counted in a round, when a run must be over, and in which two ways a process is cut short."""

import time
from typing import Literal


class Round:
    """One round: what is counted over all its groups.

    Args:
        number: Which.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.began = time.monotonic()
        self._num_blocks = 0
        self._num_processes = 0

    def next_block(self) -> int:
        """Return the place of the next block."""
        self._num_blocks += 1
        return self._num_blocks - 1

    def next_process(self) -> int:
        """Return the place of the next process."""
        self._num_processes += 1
        return self._num_processes - 1


class NoTimesError(Exception):
    """A process that gives no times any more."""

    def __init__(self, kind: Literal["raised", "timed_out", "died"], message: str) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message


class TimeIsUpError(Exception):
    """The time for the whole run is over."""


class Deadline:
    """When the whole run must be over.

    Args:
        at: By ``time.monotonic()``; ``None``: it may take as long as it takes.
    """

    def __init__(self, at: float | None = None) -> None:
        self._at = at

    def left_s(self) -> float:
        """Return how many seconds are left."""
        return float("inf") if self._at is None else self._at - time.monotonic()
