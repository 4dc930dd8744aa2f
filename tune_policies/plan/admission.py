"""How many trials run at once, decided by their progress: more while all of them together become faster.

A policy that has learned lets more trials run at once. Trials may share something that no resource describes, such as
the bandwidth of memory or of a disk. So the number grows at most four times, and then the total speed of all trials is
compared before and after. As long as the trials do not slow down each other, it grows four times again. When they do,
it doubles at most, until the trials are not faster together. Steps of different trials differ, so each trial is
compared with itself: the total speed is proportional to the number of trials times the median ratio of their speeds.
The idea is that of Gandiva (Xiao et al., OSDI 2018), which packs jobs by trial and error.
"""

import math
from collections.abc import Mapping, Set
from statistics import fmean, median, stdev
from typing import Final

from tune_policies.values.resources import Count, PositiveCount, Speed
from tune_policies.values.value import ByName, Value

_GROWTH: Final = 4
"""The factor by which the number of trials grows while trials do not slow down each other."""

_CAREFUL_GROWTH: Final = 2
"""The factor by which the number of trials grows while they slow down each other, but become faster together."""

_UNIMPEDED: Final = 0.9
"""Trials do not slow down each other if each of them keeps this part of its speed."""

_EFFICIENT: Final = 0.5
"""The number of trials grows further only if each of them keeps more than this part of its speed. Otherwise, the
added trials mostly wait for something that all trials share."""

_FEWEST_DIFFERENT: Final = 3
"""The minimum number of trials before and after, if no trial ran in both windows."""

_CONFIDENCE: Final = 2.0
"""A difference counts if it exceeds this number of standard errors."""

_ASSUMED_NOISE: Final = 0.1
"""The assumed standard deviation of the logarithm of a ratio, if it is larger than the observed one."""

_FASTER: Final = 1.05
"""More trials run at once if the total speed exceeds this multiple of the earlier speed."""

_SLOWER: Final = 0.97
"""Fewer trials run at once if the total speed falls below this part of the earlier speed."""


class ProgressWindow(Value):
    """The progress of trials while about the same number of trials was running.

    Attributes:
        at_once: The largest number of running trials.
        steps: The number of steps of each trial, and their time in seconds, without the time before its first result.
        expected_speed: The expected speed of a trial, relative to a trial that shares nothing.
    """

    at_once: PositiveCount
    steps: ByName[tuple[Count, float]]
    expected_speed: Speed = 1.0

    @property
    def speeds(self) -> Mapping[str, float]:
        """The steps per second of each trial with at least one step."""
        return {trial: number / seconds for trial, (number, seconds) in self.steps.items() if number and seconds > 0}


class AdmissionControl(Value):
    """The number of trials that may run at once, and the progress from which it follows.

    Attributes:
        limit: The number of trials that may run at once, or ``None`` if no progress is known.
        best: The progress at the number of trials with the highest known total speed, or ``None``.
        slower_at: The smallest number of trials that was slower than ``best`` or hardly faster, or ``None``.
        reason: A sentence about the last decision, or ``""``.
    """

    limit: PositiveCount | None = None
    best: ProgressWindow | None = None
    slower_at: PositiveCount | None = None
    reason: str = ""

    @property
    def compared(self) -> Set[str]:
        """The trials whose progress is compared with their own progress in ``best``."""
        if self.best is None:
            return frozenset()
        return self.best.speeds.keys()

    @property
    def step_s(self) -> float:
        """The median time of a step in ``best``, in seconds, or 0 if it is unknown."""
        if self.best is None or not self.best.speeds:
            return 0.0
        return 1 / median(self.best.speeds.values())

    def after(self, window: ProgressWindow) -> "AdmissionControl":
        """Return the control after a window of progress, or the same control if it decides nothing."""
        if not window.speeds:
            return self
        best = self.best
        if best is None or window.at_once == best.at_once:
            return self._with_best(window)
        if window.at_once < best.at_once:
            return self  # the last trials of a run
        comparison = _compare(best.speeds, window.speeds)
        if comparison is None:
            return self._with_best(window)
        log_ratio, error = comparison
        kept = math.exp(log_ratio) * best.expected_speed / window.expected_speed
        gain = window.at_once / best.at_once * kept
        if gain > _FASTER and kept > _EFFICIENT:
            return self._with_best(window, _GROWTH if kept >= _UNIMPEDED else _CAREFUL_GROWTH)
        if gain > _FASTER:
            fewer = round(math.sqrt(best.at_once * window.at_once))
            return self._with_fewer(fewer, window, f"only {gain:.2f} times as fast together as {best.at_once}")
        if math.log(gain / _SLOWER) >= -_CONFIDENCE * error:
            reason = f"{window.at_once} trials at once are not faster together than {best.at_once}, so no more start"
            return self.model_copy(update={"limit": window.at_once, "reason": reason})
        fewer = (best.at_once + window.at_once) // 2
        return self._with_fewer(fewer, window, f"{gain:.2f} times as fast together as {best.at_once}")

    def _with_fewer(self, fewer: int, window: ProgressWindow, why: str) -> "AdmissionControl":
        reason = f"{window.at_once} trials at once are {why}, so at most {fewer} run at once"
        return self.model_copy(update={"limit": fewer, "slower_at": window.at_once, "reason": reason})

    def _with_best(self, window: ProgressWindow, growth: int = _GROWTH) -> "AdmissionControl":
        """Return the control that compares with ``window``, and lets more trials run at once."""
        if self.slower_at is None:
            limit = growth * window.at_once
        else:
            limit = max(window.at_once, (window.at_once + self.slower_at) // 2)
        return self.model_copy(update={"best": window, "limit": limit, "reason": ""})


def _compare(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float] | None:
    """Return the logarithm of the ratio of the speeds per trial and its standard error, or ``None`` if unknown."""
    ratios = [math.log(after[trial] / before[trial]) for trial in sorted(before.keys() & after.keys())]
    if ratios:
        return median(ratios), _noise(ratios) / math.sqrt(len(ratios))
    if min(len(before), len(after)) < _FEWEST_DIFFERENT:
        return None
    logs = [[math.log(speed) for speed in speeds.values()] for speeds in (before, after)]
    errors = [_noise(speeds) / math.sqrt(len(speeds)) for speeds in logs]
    return fmean(logs[1]) - fmean(logs[0]), math.hypot(*errors)


def _noise(logarithms: list[float]) -> float:
    """Return the standard deviation of logarithms, or the assumed one if it is larger."""
    if len(logarithms) < 2:
        return _ASSUMED_NOISE
    return max(_ASSUMED_NOISE, stdev(logarithms))
