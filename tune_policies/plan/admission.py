"""How many trials run at once, decided by their progress: more while their total speed rises, fewer if it falls.

Trials have steps of different sizes, so steps of different trials are not compared. Instead, the speed of each trial is
compared with its own speed at another number of concurrent trials. The total speed is proportional to the number of
trials times the median of these ratios. The idea is that of Gandiva (Xiao et al., OSDI 2018), which packs jobs on GPUs
by trial and error.

A run uses the class as follows. It counts the steps of each trial while the number of running trials is constant, and
leaves out the time before the second result of each trial, because imports and warm-up are not progress. When the
number changes, or after about a minute, it passes the window to ``after``, and starts at most ``limit`` trials. If the
limit falls, running trials continue.
"""

import math
from statistics import fmean, median, stdev
from typing import Final

from pydantic import Field

from tune_policies.values.resources import Count, PositiveCount
from tune_policies.values.value import ByName, Value

_FEWEST_STEPS: Final = 3
"""The minimum number of steps of a trial in a window, because single steps vary."""

_FEWEST_TRIALS: Final = 2
"""The minimum number of trials that are compared."""

_CONFIDENCE: Final = 2.0
"""A difference counts if it exceeds this number of standard errors."""

_ASSUMED_NOISE: Final = 0.05
"""The assumed standard deviation of the logarithm of a ratio, if it is larger than the observed one."""

_WORTHWHILE: Final = 1.03
"""More trials at once are kept only if the total speed rises by at least this factor."""

_MOST_WINDOWS: Final = 4
"""The maximum number of windows without a conclusion. After them, the total speeds count as equal."""


class ProgressWindow(Value):
    """The progress of trials while the same number of trials was running.

    Attributes:
        at_once: The number of running trials.
        steps: The number of steps and the time of each trial in seconds, without the time before its second result.
    """

    at_once: PositiveCount
    steps: ByName[tuple[Count, float]]

    @property
    def speeds(self) -> dict[str, float]:
        """The steps per second of each trial with enough steps."""
        return {
            trial: number / seconds
            for trial, (number, seconds) in self.steps.items()
            if number >= _FEWEST_STEPS and seconds > 0
        }

    def __add__(self, other: "ProgressWindow") -> "ProgressWindow":
        """Return both windows together. They must have the same number of running trials."""
        steps = dict(self.steps)
        for trial, (number, seconds) in other.steps.items():
            before, before_s = steps.get(trial, (0, 0.0))
            steps[trial] = (before + number, before_s + seconds)
        return ProgressWindow(at_once=self.at_once, steps=steps)


class AdmissionControl(Value):
    """The number of trials that may run at once, and the progress from which it follows.

    Attributes:
        limit: The number of trials that may run at once. It begins with the number of the start policy.
        most: The number of trials that fit according to the plan.
        kept: The progress at the best known number of trials, or ``None``.
        tried: The progress at ``limit`` so far, or ``None``.
        num_windows: The number of windows in ``tried``.
        too_many: The smallest number of trials that did not raise the total speed, or ``None``.
        reason: A sentence about the last decision.
    """

    limit: PositiveCount
    most: PositiveCount
    kept: ProgressWindow | None = None
    tried: ProgressWindow | None = None
    num_windows: Count = 0
    too_many: PositiveCount | None = None
    reason: str = Field(default="no progress is known yet")

    def with_most(self, most: int) -> "AdmissionControl":
        """Return the control after a new plan, in which ``most`` trials fit."""
        too_many = None if most != self.most else self.too_many
        return self.model_copy(update={"most": most, "limit": min(self.limit, most), "too_many": too_many})

    def after(self, window: ProgressWindow) -> "AdmissionControl":
        """Return the control after a window of progress. Windows with other numbers of trials are ignored."""
        if window.at_once != self.limit:
            return self
        tried = window if self.tried is None else self.tried + window
        control = self.model_copy(update={"tried": tried, "num_windows": self.num_windows + 1})
        if self.kept is None or self.kept.at_once == self.limit:
            return control._raised(tried) if len(tried.speeds) >= _FEWEST_TRIALS else control
        gain, error = _gain(self.kept, tried)
        if error is None:
            return control._given_up() if control.num_windows >= _MOST_WINDOWS else control
        what = f"{tried.at_once} trials at once are {gain:.2f} times as fast together as {self.kept.at_once}"
        distance = math.log(gain / _WORTHWHILE)
        if distance > _CONFIDENCE * error:
            return control._raised(tried, what)
        if distance < -_CONFIDENCE * error or control.num_windows >= _MOST_WINDOWS:
            return control._lowered(what)
        return control

    def _raised(self, kept: ProgressWindow, what: str = "") -> "AdmissionControl":
        """Return the control that keeps this number of trials, and tries more if more fit."""
        highest = self.most if self.too_many is None else min(self.most, (kept.at_once + self.too_many) // 2)
        more = max(kept.at_once, min(2 * kept.at_once, highest))
        reason = what or f"the speed of {kept.at_once} trials is known"
        return self._at(more, kept, reason, self.too_many)

    def _lowered(self, what: str) -> "AdmissionControl":
        """Return the control that runs fewer trials: halfway to the best known number, or this number."""
        kept = self.kept
        if kept is None:
            return self
        between = (kept.at_once + self.limit) // 2
        return self._at(between, kept, f"{what}, so fewer run at once", self.limit)

    def _given_up(self) -> "AdmissionControl":
        kept = self.kept
        if kept is None:
            return self
        return self._at(
            kept.at_once, kept, "the trials that ran before have ended, so speeds are not known", self.limit
        )

    def _at(self, limit: int, kept: ProgressWindow, reason: str, too_many: int | None) -> "AdmissionControl":
        changes = {"limit": limit, "kept": kept, "tried": None, "num_windows": 0, "reason": reason}
        return self.model_copy(update={**changes, "too_many": too_many})


def _gain(before: ProgressWindow, now: ProgressWindow) -> tuple[float, float | None]:
    """Return the ratio of the total speeds, and the standard error of its logarithm, or ``None`` if it is unknown.

    If few trials ran in both windows, the mean speeds of different trials are compared, with a larger error.
    """
    old, new = before.speeds, now.speeds
    ratios = [math.log(new[trial] / old[trial]) for trial in sorted(old.keys() & new.keys())]
    at_once = math.log(now.at_once / before.at_once)
    if len(ratios) >= _FEWEST_TRIALS:
        spread = max(_ASSUMED_NOISE, stdev(ratios))
        return math.exp(at_once + median(ratios)), spread / math.sqrt(len(ratios))
    if min(len(old), len(new)) < 2 * _FEWEST_TRIALS:
        return 1.0, None
    logs = [[math.log(speed) for speed in speeds.values()] for speeds in (old, new)]
    variance = sum(max(_ASSUMED_NOISE, stdev(values)) ** 2 / len(values) for values in logs)
    return math.exp(at_once + fmean(logs[1]) - fmean(logs[0])), math.sqrt(variance)
