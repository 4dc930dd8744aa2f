"""Runs calls to Ray or a remote file system in threads with a timeout, because such calls may hang.

Unlike the threads of ``concurrent.futures``, these threads do not keep the program alive.
"""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")


class BackgroundTask(Generic[T]):
    """Runs one function at a time in a thread. A copy of a task is a new, idle task."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._answers: SimpleQueue[T | Exception] = SimpleQueue()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()  # Tune pickles its schedulers, but a thread cannot be pickled

    def start(self, work: Callable[[], T]) -> bool:
        """Start ``work`` unless earlier work is still running. Return whether it was started."""
        if not self.wait(0):
            return False

        def run() -> None:
            try:
                self._answers.put(work())
            except Exception as error:  # noqa: BLE001  # `take` returns it
                self._answers.put(error)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        return True

    def take(self) -> T | Exception | None:
        """Return the next result or exception of finished work, or ``None`` if there is none."""
        try:
            return self._answers.get_nowait()
        except Empty:
            return None

    def wait(self, timeout_s: float) -> bool:
        """Wait for the work to end. Return whether it ended within ``timeout_s`` seconds."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


def answer_within(timeout_s: float, work: Callable[[], T]) -> T:
    """Run ``work`` in a thread and return its result.

    Raises:
        TimeoutError: ``work`` did not end within ``timeout_s`` seconds.
        Exception: The error that ``work`` raised.
    """
    task: BackgroundTask[T] = BackgroundTask()
    task.start(work)
    if not task.wait(timeout_s):
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    answer = task.take()
    if isinstance(answer, Exception):
        raise answer
    return cast("T", answer)
