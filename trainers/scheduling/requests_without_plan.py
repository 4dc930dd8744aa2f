"""The waiting trials and the requests of a run without a policy, in which each trial keeps its own request."""

from collections.abc import Collection
from typing import Final

from ray.tune.experiment import Trial

from .trial_requests import TrialRequests

_MAX_REQUESTS: Final = 16
"""The number of requests that wait for Ray.

Plain Tune keeps at least 200 (``TUNE_MAX_PENDING_TRIALS_PG``). Each of them is a placement group, which slows Ray down.
"""


class RequestsWithoutPlan:
    """The trials of a run without a policy that wait, or whose request waits for Ray.

    Attributes:
        waiting: The trials that have not requested resources, in the order in which they began to wait.
    """

    def __init__(self) -> None:
        self.waiting: dict[Trial, None] = {}
        self._requested: set[Trial] = set()

    @property
    def requested(self) -> Collection[Trial]:
        """The trials whose request Ray has not granted."""
        return self._requested

    @property
    def is_full(self) -> bool:
        """Whether no further trial may request resources now."""
        return len(self._requested) >= _MAX_REQUESTS

    @property
    def num_free(self) -> int:
        """The number of further trials that could request resources now."""
        return _MAX_REQUESTS - len(self._requested) - len(self.waiting)

    def request(self, trial: Trial) -> None:
        """Record that a waiting trial requests its resources."""
        self.waiting.pop(trial, None)
        self._requested.add(trial)

    def release(self, trial: Trial) -> None:
        """Forget a trial that ended, failed or paused."""
        self.waiting.pop(trial, None)
        self._requested.discard(trial)

    def update(self, requests: TrialRequests) -> None:
        """Forget the requests that Ray has granted, or whose trials have ended."""
        for trial in list(self._requested):
            if trial.status != Trial.PENDING or requests.has_process(trial):
                self._requested.discard(trial)
