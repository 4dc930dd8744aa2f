"""Records how the trials of a run end, and counts them.

Tune's trial status does not distinguish trials that were stopped early or cut off from finished trials.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from .resource_usage import TrialCounts

# The constants of Tune's ``Trial``, without an import of Ray.
PENDING: Final = "PENDING"
PAUSED: Final = "PAUSED"
RUNNING: Final = "RUNNING"
TERMINATED: Final = "TERMINATED"
ERROR: Final = "ERROR"

Outcome = Literal["finished", "stopped_early", "failed", "cut_off"]
"""The possible outcomes of a trial."""


class TrialOutcomes:
    """The outcome of each trial, and the number of retries.

    Args:
        before: The counts in the earlier record of a restored run. The counts continue from them.
    """

    def __init__(self, before: TrialCounts) -> None:
        self._before = before
        self._outcome_of: dict[str, Outcome] = {}
        self._num_never_started = 0
        self.num_retries = before.num_retries

    def note(self, trial_id: str, outcome: Outcome) -> None:
        """Record the outcome of a trial, unless an outcome was recorded since its latest start."""
        self._outcome_of.setdefault(trial_id, outcome)

    def note_start(self, trial_id: str) -> None:
        """Discard the outcome of a trial, because it has started again."""
        self._outcome_of.pop(trial_id, None)

    def note_never_started(self) -> None:
        """Record that a trial was terminated before it started."""
        self._num_never_started += 1

    def of(self, trial_id: str, otherwise: Outcome) -> Outcome:
        """Return the outcome of a trial, or ``otherwise`` if none was recorded."""
        return self._outcome_of.get(trial_id, otherwise)

    def num_cut_off(self, trial_ids: Iterable[str]) -> int:
        """Return how many of these trials were cut off or have no outcome yet."""
        return sum(self.of(trial_id, "cut_off") == "cut_off" for trial_id in trial_ids)

    def counts(self, trials: Sequence[Any], num_fallbacks: int) -> TrialCounts:
        """Count the trials by how they ended.

        The counts of trials that were stopped early or cut off, or never started, come from the recorded outcomes and,
        in a restored run, also from the earlier record. All other terminated trials count as finished.

        Args:
            trials: All trials of the run.
            num_fallbacks: The number of trials that could not use their device and run without one.
        """
        statuses = Counter(trial.status for trial in trials)
        outcomes = Counter(self._outcome_of.values())
        terminated, failed = statuses[TERMINATED], statuses[ERROR]
        # Each count is limited to what the others leave, so that the counts always add up to the terminated trials.
        cut_off = min(self._before.num_cut_off + outcomes["cut_off"], terminated)
        never_started = min(self._before.num_never_started + self._num_never_started, terminated - cut_off)
        most = terminated - cut_off - never_started
        stopped_early = min(self._before.num_stopped_early + outcomes["stopped_early"], most)
        return TrialCounts(
            num_finished=most - stopped_early,
            num_stopped_early=stopped_early,
            num_failed=failed,
            num_cut_off=cut_off,
            num_never_started=never_started,
            num_unfinished=len(trials) - terminated - failed,
            num_retries=self.num_retries,
            num_fallbacks=num_fallbacks,
        )
