"""Whether Ctrl-C ended a run of Tune.

The results of a run do not contain why it ended. Tune replaces the handler of SIGINT when a run begins in the main
thread. At the first Ctrl-C, Tune restores the earlier handler and ends the run. After any other end, Tune's handler
remains.
"""

import os
import signal
import threading
from typing import Final

from tune_policies.ray_compat.connection import is_through_client

_DISABLED: Final = "TUNE_DISABLE_SIGINT_HANDLER"


class InterruptionWatch:
    """Detects whether Ctrl-C ends a run of Tune in this thread that begins after the watch was created."""

    def __init__(self) -> None:
        is_in_main_thread = threading.current_thread() is threading.main_thread()
        # Through a Ray Client, the run is in another process.
        self._is_replaced = is_in_main_thread and os.environ.get(_DISABLED, "0") == "0" and not is_through_client()
        self._handler = signal.getsignal(signal.SIGINT)

    def was_interrupted(self) -> bool:
        """Return whether Ctrl-C ended the run, which has returned its results."""
        return self._is_replaced and signal.getsignal(signal.SIGINT) is self._handler
