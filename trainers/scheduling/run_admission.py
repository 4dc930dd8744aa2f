"""Measures the progress of the trials of a run, from which ``plan/admission.py`` decides how many may run at once."""

from typing import Final

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.plan.admission import AdmissionControl, ProgressWindow

_SIMILAR: Final = 1.25
"""A window ends when the number of running trials changes by more than this factor."""

_STEPS_PER_TRIAL: Final = 2
"""The mean number of steps of a trial after which a window ends, because single steps vary."""


class RunAdmission:
    """The progress of one run.

    A step is the time between two results of a trial in one window. So the time until the first result of a process,
    with its imports and its warm-up, is no step.

    Args:
        capacity: The nodes at the start of the run.
    """

    def __init__(self, capacity: ClusterCapacity) -> None:
        self._capacity = capacity
        self._control = AdmissionControl()
        self._at_once = 0
        self._steps: dict[str, tuple[int, float]] = {}
        self._last_s: dict[str, float] = {}

    def limit(self, capacity: ClusterCapacity) -> int | None:
        """Return how many trials may run at once, or ``None``. On other nodes, all trials that fit may run again."""
        if capacity != self._capacity:
            self._capacity, self._control = capacity, AdmissionControl()
        return self._control.limit

    def note_start(self, trial_id: str) -> None:
        """Record that a process of a trial starts."""
        self._last_s.pop(trial_id, None)

    def note_result(self, trial_id: str, num_running: int, now_s: float) -> str:
        """Record a result. Return why fewer trials run at once from now on, or ``""``."""
        if not self._at_once / _SIMILAR <= num_running <= self._at_once * _SIMILAR:
            self._begin(num_running)
        self._at_once = max(self._at_once, num_running)
        before_s = self._last_s.get(trial_id)
        self._last_s[trial_id] = now_s
        if before_s is None:
            return ""
        number, seconds = self._steps.get(trial_id, (0, 0.0))
        self._steps[trial_id] = number + 1, seconds + now_s - before_s
        if sum(number for number, _ in self._steps.values()) < _STEPS_PER_TRIAL * self._at_once:
            return ""
        return self.close()

    def close(self) -> str:
        """End the window, and decide. Return why fewer trials run at once from now on, or ``""``."""
        if not self._at_once:
            return ""
        before = self._control
        self._control = before.after(ProgressWindow(at_once=self._at_once, steps=self._steps))
        self._begin(self._at_once)
        return self._control.reason if self._control.limit != before.limit else ""

    def _begin(self, num_running: int) -> None:
        self._at_once = num_running
        self._steps = {}
        self._last_s = {}
