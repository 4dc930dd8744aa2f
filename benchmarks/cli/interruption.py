"""Makes sure that Ctrl-C ends a command, even at a moment at which Python ignores exceptions."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_AGAIN_AFTER_S: Final = 0.05
"""The time until Ctrl-C is repeated, in seconds. A destructor of Ray ends within a millisecond."""


@contextmanager
def repeating_ignored_interrupts() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` again if Python ignores it inside the block.

    Python ignores all exceptions in destructors and callbacks of weak references, and passes them to
    ``sys.unraisablehook``. Ray calls a destructor whenever a handle of an actor is deleted.
    """
    hook = sys.unraisablehook
    main_thread = threading.main_thread().ident
    assert main_thread is not None  # noqa: S101  # the main thread has started

    def repeat(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            hook(unraisable)
            return
        # An exception that is raised here would be ignored, too. A signal to the main thread also ends a wait for a
        # lock, which `_thread.interrupt_main` does not.
        timer = threading.Timer(_AGAIN_AFTER_S, signal.pthread_kill, (main_thread, signal.SIGINT))
        timer.daemon = True
        timer.start()

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = hook
