"""Whether Ctrl-C ended a run of Tune, and whether trials are left to run.

The results of a run do not contain why it ended. Tune replaces the handler of SIGINT when a run begins in the main
thread. At the first Ctrl-C, Tune restores the earlier handler and ends the run. After any other end, Tune's handler
remains.
"""

import os
import signal
import threading
from typing import Any, Final

from tune_policies.ray_compat.connection import is_through_client
from tune_policies.ray_compat.run_control import handler_of_trial

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


def has_ended(results: Any) -> bool:
    """Return whether all trials of a run had ended when Tune saved the experiment for the last time.

    A resumed run then has nothing left to do. The trials in the results do not show this, because Tune terminates the
    trials that are still running after it has saved the experiment.

    Args:
        results: The ``ExperimentAnalysis`` or the ``ResultGrid`` of a run under a scheduler of this package.
    """
    analysis = getattr(results, "_experiment_analysis", results)
    try:
        saved = analysis._load_trials()
    except Exception:  # noqa: BLE001  # file systems raise various errors, and a run can be resumed without an answer
        return False
    if not saved or not all(trial.is_finished() for trial in saved):
        return False
    handler = handler_of_trial(analysis.trials[0])
    # A searcher creates trials only when they are needed.
    return handler is not None and handler.tune.num_future_trials == 0
