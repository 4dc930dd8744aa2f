"""Runs what may take long beside a loop that must not wait: reading a cluster, writing to far storage."""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """One piece of work at a time, in a thread of its own that does not keep the program alive."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._answers: SimpleQueue[T | Exception] = SimpleQueue()

    @property
    def is_busy(self) -> bool:
        """Whether the work is not done yet."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], T]) -> bool:
        """Begin ``work``; return whether there was no other in its way."""
        if self.is_busy:
            return False

        def run() -> None:
            try:
                self._answers.put(work())
            except Exception as error:  # noqa: BLE001  # it is handed over where the answer is taken
                self._answers.put(error)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        return True

    def take(self) -> T | Exception | None:
        """Return an answer that was not taken yet, or the error instead of it; ``None``: there is none."""
        try:
            return self._answers.get_nowait()
        except Empty:
            return None

    def wait(self, timeout_s: float) -> bool:
        """Wait for the work that runs; return whether it ended in time."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.is_busy
