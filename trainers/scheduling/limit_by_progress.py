"""Measures the progress of trials, from which ``plan/admission_by_speed.py`` decides how many may run at once."""

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.plan.admission_by_speed import AdmissionControl, ProgressWindow
from tune_policies.policies.learning import LearningPolicy

_SIMILAR: Final = 1.25
"""A window ends when the number of running trials changes by more than this factor."""

_STARTING: Final = 0.25
"""Steps count if at most this part of the processes is starting, because a start keeps CPUs and disks busy."""

_MOST_STEPS: Final = 8
"""The mean number of steps of a trial after which a window without a decision ends, because speeds may change."""


class _OnlyResult(NamedTuple):
    """The first result of a process, unless a second one follows."""

    at_s: float
    trained_s: float
    num_running: int


@dataclass
class _Window:
    """The steps since a time, while a similar number of trials trains.

    Attributes:
        begun_with: The number of trials that trained when the window began.
        from_s: The time at which the window began, in seconds.
        trained_s: The time since the first process in the window began to train, in seconds.
        steps: The number of steps of each trial, and their time in seconds.
        num_steps: The number of all steps.
        num_training: The sum of the numbers of trials that trained, over all steps.
    """

    begun_with: int = 0
    from_s: float = 0.0
    trained_s: float = 0.0
    steps: dict[str, tuple[int, float]] = field(default_factory=dict)
    num_steps: int = 0
    num_training: int = 0


class RunAdmission:
    """The progress of one run.

    A step is the time between two results of a process, without the time before its first result, which contains its
    imports and its warm-up. Steps count from the moment when most processes train, because processes that start use
    CPUs and disks, but not what training shares. If each process reports only once, its training is a step.

    Args:
        capacity: The nodes at the start of the run.
    """

    def __init__(self, capacity: ClusterCapacity) -> None:
        self._capacity = capacity
        self._control = AdmissionControl()
        self._policy: LearningPolicy | None = None
        self._is_limiting = False
        self._most_before = 0
        self._num_left = 0
        self._starting: set[str] = set()
        self._are_starting = False
        self._only_results: dict[str, _OnlyResult] = {}
        self._last_s: dict[str, float] = {}
        self._shortest_s = math.inf
        self._window = _Window()

    def limit(self, capacity: ClusterCapacity) -> int | None:
        """Return how many trials may run at once, or ``None``.

        As many trials as under the start policy may always run. If nodes are added or lost, the progress before does
        not count.
        """
        if capacity != self._capacity:
            self._capacity = capacity
            # The limit stays, but a comparison with the progress on other nodes would be wrong.
            self._control = AdmissionControl(limit=self._control.limit)
        if not self._is_limiting or self._control.limit is None:
            return None
        return max(self._control.limit, self._most_before)

    def begin(self, policy: LearningPolicy, num_allowed: int) -> None:
        """Record that the policy has learned, so that more trials may run than under the start policy.

        Args:
            policy: The policy that has learned.
            num_allowed: The number of trials that the plan before allowed. A restored run can learn from its finished
                trials before it runs another one.
        """
        self._policy = policy
        if self._is_limiting:
            return
        self._is_limiting = True
        self._most_before = max(self._most_before, num_allowed)
        # Without any measured progress, the run starts from the number of trials that the start policy allowed.
        if self._control.best is None:
            self._control = AdmissionControl(limit=self._most_before)
        # The steps under the start policy are the first window, which ends with the latest result.
        if self._window.num_steps:
            self._decide(max(self._last_s.values(), default=0.0))

    def note_start(self, trial_id: str) -> None:
        """Record that a process of a trial starts."""
        self._starting.add(trial_id)

    @property
    def is_effect_known(self) -> bool:
        """Whether the last decision compared more trials at once with fewer."""
        return bool(self._control.reason)

    def note_end(self, trial_id: str) -> str:
        """Record that a process of a trial has ended. Return why another number may run at once, or ``""``."""
        self._starting.discard(trial_id)
        self._last_s.pop(trial_id, None)
        only = self._only_results.pop(trial_id, None)
        if only is None or not self._reports_once:
            return ""
        return self._count(trial_id, only.trained_s, only.at_s, only.num_running)

    def note_result(self, trial_id: str, *, num_running: int, num_left: int, now_s: float, trained_s: float) -> str:
        """Record a result. Return why another number of trials may run at once from now on, or ``""``.

        Args:
            trial_id: The trial that reports.
            num_running: The number of running trials, including trials whose processes start.
            num_left: The number of trials that run or wait.
            now_s: The time of the result in seconds.
            trained_s: The time since the process began to train, in seconds.
        """
        self._starting.discard(trial_id)
        self._num_left = num_left
        if not self._is_limiting:
            # The numbers until the policy has learned are those of the start policy.
            self._most_before = max(self._most_before, num_running)
        # First, the step that this result ends. The first result of a process ends no step, but it may remain the only
        # one.
        before_s = self._last_s.get(trial_id)
        self._last_s[trial_id] = now_s
        if before_s is None:
            self._only_results[trial_id] = _OnlyResult(now_s, trained_s, num_running)
        else:
            self._shortest_s = min(self._shortest_s, now_s - before_s)
        # Second, the number of trials that train. While no process has reported twice, a process without a result may
        # train.
        num_training = num_running
        if not self._reports_once:
            num_training -= len(self._starting)
        # Third, a new window begins if the number has changed, or while processes start.
        were_starting = self._are_starting
        self._are_starting = len(self._starting) > _STARTING * num_running and not self._reports_once
        begun_with = self._window.begun_with
        is_similar = begun_with / _SIMILAR <= num_training <= begun_with * _SIMILAR
        if were_starting or self._are_starting or not is_similar:
            self._begin(num_training, now_s)
        if before_s is None:
            if not self._window.num_steps and not self._are_starting:
                self._window.trained_s = trained_s
            return ""
        return self._count(trial_id, now_s - before_s, now_s, num_training)

    @property
    def _reports_once(self) -> bool:
        """Whether no process has reported twice so far."""
        return math.isinf(self._shortest_s)

    def _count(self, trial_id: str, step_s: float, now_s: float, num_training: int) -> str:
        """Count a step that ends now, if it began in the window. Return the reason for a decision, or ``""``."""
        window = self._window
        # A step that began before the window ran beside another number of trials. When the window began, its processes
        # had already trained for ``trained_s``.
        if now_s - step_s < window.from_s - min(window.trained_s, self._shortest_s):
            return ""
        number, seconds = window.steps.get(trial_id, (0, 0.0))
        window.steps[trial_id] = number + 1, seconds + step_s
        window.num_steps += 1
        window.num_training += num_training
        # Decide after as many steps as trials run, because a part of such a round contains more steps of the faster
        # trials.
        if window.num_steps % window.begun_with and not self._is_first_comparison(trial_id):
            return ""
        return self._decide(now_s)

    def _is_first_comparison(self, trial_id: str) -> bool:
        """Return whether all running trials that can be compared with themselves have now made one step."""
        compared = self._control.compared & self._last_s.keys()
        steps = self._window.steps
        return steps[trial_id][0] == 1 and trial_id in compared and compared <= steps.keys()

    def _decide(self, now_s: float) -> str:
        """Decide by the current window. Return why another number of trials may run at once, or ``""``."""
        before, window = self._control, self._window
        # The mean over all steps, because the number may change a little within a window.
        at_once = max(1, round(window.num_training / window.num_steps))
        expected = 1.0
        if self._policy is not None:
            expected = self._policy.expected_speed(at_once, self._capacity)
        progress = ProgressWindow(at_once=at_once, steps=window.steps, expected_speed=expected)
        self._control = before.after(progress, self._num_left)
        has_new_limit = self._control.limit != before.limit
        if has_new_limit or window.num_steps >= _MOST_STEPS * window.begun_with:
            self._begin(window.begun_with, now_s)
        if self._control.reason != before.reason:
            return self._control.reason
        return ""

    def _begin(self, num_training: int, now_s: float) -> None:
        """Begin a window with the steps since ``now_s``."""
        self._window = _Window(max(1, num_training), now_s)
