"""Measures the progress of the trials of a run, from which ``plan/admission.py`` decides how many may run at once."""

from typing import Final

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.plan.admission import AdmissionControl, ProgressWindow
from tune_policies.policies.learning import LearningPolicy

_SIMILAR: Final = 1.25
"""A window ends when the number of running trials changes by more than this factor."""

_STARTING: Final = 0.25
"""Steps count if at most this part of the processes is starting, because a start keeps CPUs and disks busy."""

_MOST_STEPS: Final = 8
"""The mean number of steps of a trial after which a window without a decision ends, because speeds may change."""


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
        self._policy: LearningPolicy | None = None
        self._is_limiting = False
        self._most_before = 0
        self._starting: set[str] = set()
        self._at_once = 0
        self._steps: dict[str, tuple[int, float]] = {}
        self._num_steps = 0
        self._last_s: dict[str, float] = {}
        self._from_s = 0.0

    def limit(self, capacity: ClusterCapacity) -> int | None:
        """Return how many trials may run at once, or ``None``.

        As many trials as under the start policy may always run. If nodes are added or lost, the progress before does
        not count.
        """
        if capacity != self._capacity:
            self._capacity = capacity
            self._control = AdmissionControl(limit=self._control.limit)
        if not self._is_limiting or self._control.limit is None:
            return None
        return max(self._control.limit, self._most_before)

    def begin(self, policy: LearningPolicy) -> None:
        """Record that the policy has learned, so that more trials may run than under the start policy."""
        self._policy = policy
        if self._is_limiting:
            return
        self._is_limiting = True
        self._decide(max(self._last_s.values(), default=0.0))

    def note_start(self, trial_id: str) -> None:
        """Record that a process of a trial starts."""
        self._starting.add(trial_id)
        self._last_s.pop(trial_id, None)

    def note_end(self, trial_id: str) -> None:
        """Record that a process of a trial has ended."""
        self._starting.discard(trial_id)
        self._last_s.pop(trial_id, None)

    def note_result(self, trial_id: str, num_running: int, now_s: float) -> str:
        """Record a result. Return why no more trials, or fewer, run at once from now on, or ``""``."""
        self._starting.discard(trial_id)
        if not self._is_limiting:
            self._most_before = max(self._most_before, num_running)
        is_similar = self._at_once / _SIMILAR <= num_running <= self._at_once * _SIMILAR
        if not is_similar or len(self._starting) > _STARTING * num_running:
            # A process whose first result comes now has trained for about one step.
            step_s = self._control.step_s if self._starting else 0.0
            self._begin(num_running, now_s - step_s)
        self._at_once = max(self._at_once, num_running)
        before_s = self._last_s.get(trial_id)
        self._last_s[trial_id] = now_s
        if before_s is None or before_s < self._from_s:
            return ""
        number, seconds = self._steps.get(trial_id, (0, 0.0))
        self._steps[trial_id] = number + 1, seconds + now_s - before_s
        self._num_steps += 1
        if self._num_steps % self._at_once and not self._is_first_comparison(trial_id):
            return ""
        return self._decide(now_s)

    def _is_first_comparison(self, trial_id: str) -> bool:
        """Return whether all running trials that can be compared with themselves have now made one step."""
        compared = self._control.compared & self._last_s.keys()
        return self._steps[trial_id][0] == 1 and trial_id in compared and compared <= self._steps.keys()

    def _decide(self, now_s: float) -> str:
        """Decide by the current window. Return why no more trials, or fewer, run at once, or ``""``."""
        if not self._at_once:
            return ""
        before = self._control
        expected = 1.0
        if self._policy is not None:
            expected = self._policy.expected_speed(self._at_once, self._capacity)
        window = ProgressWindow(at_once=self._at_once, steps=self._steps, expected_speed=expected)
        self._control = before.after(window)
        has_new_limit = self._control.limit != before.limit
        if has_new_limit or self._num_steps >= _MOST_STEPS * self._at_once:
            self._begin(self._at_once, now_s)
        if self._control.reason != before.reason:
            return self._control.reason
        return ""

    def _begin(self, num_running: int, from_s: float) -> None:
        """Begin a window with the steps that begin at ``from_s`` or later."""
        self._at_once = num_running
        self._steps = {}
        self._num_steps = 0
        self._from_s = from_s
