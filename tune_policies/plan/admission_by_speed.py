"""How many trials run at once, decided by their progress: more while all of them together become faster.

A policy that has learned lets more trials run at once. Trials may share something that no resource describes, such as
the bandwidth of memory or of a disk. So a few more trials start, and then the total speed of all trials is compared
before and after. If the trials do not slow down each other, the number grows four times. If they do, a few more start
again, until the trials are not faster together. Steps of different trials differ, so each trial is compared with
itself: the total speed is proportional to the number of trials times the median ratio of their speeds. The idea is that
of Gandiva (Xiao et al., OSDI 2018), which packs jobs by trial and error.
"""

import math
from collections.abc import Mapping, Set
from statistics import fmean, median, stdev
from typing import Final

from tune_policies.values.field_types import ByName
from tune_policies.values.resources import Count, PositiveCount, Speed
from tune_policies.values.value import Value

# These numbers were developed with simulated programs, and ``docs/evidence/sizing.md`` compares them on other ones.
GROWTH: Final = 4
"""The factor by which the number of trials grows at most, and if trials are known not to slow down each other."""

_IMPEDED_GROWTH: Final = 2
"""The factor by which the number of trials grows at most if they slow down each other, but are faster together."""

_CAREFUL_GROWTH: Final = 1.5
"""The factor by which the number of trials may grow before it is known whether they slow down each other."""

_RISKED: Final = 1 / 8
"""The part of the remaining trials that may start before it is known whether they slow down each other. If they do, and
have no checkpoints, they are slow until they end."""

_UNIMPEDED: Final = 0.9
"""Trials do not slow down each other if each of them keeps this part of its speed although more trials run."""

_MANY_MORE: Final = 1.4
"""The factor by which more trials must run, so that their speed shows whether they slow down each other."""

_EFFICIENT: Final = 0.5
"""The number of trials grows further only if each of them keeps more than this part of its speed. Otherwise, the
added trials mostly wait for something that all trials share."""

_FEWEST_DIFFERENT: Final = 4
"""The minimum number of trials before and after together, if no trial ran in both windows."""

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
        at_once: The mean number of trials that trained.
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
        reason: What the last decision found about the speed of trials, or ``""``.
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

    def after(self, window: ProgressWindow, num_left: int) -> "AdmissionControl":
        """Return the control after a window of progress, or the same control if it decides nothing.

        ``num_left`` is the number of trials that run or wait.
        """
        if not window.speeds:
            return self
        best = self.best
        limit = careful_limit(window.at_once, num_left)
        # The first window, and a later one with the same number of trials, is only what further windows are compared
        # with.
        if best is None or window.at_once == best.at_once:
            return self._with_best(window, max(limit, self.limit or 0))
        if window.at_once < best.at_once:
            return self  # the last trials of a run
        comparison = _compare(best.speeds, window.speeds)
        if comparison is None:
            # Other trials run than before, and too few to compare different trials, so the comparison starts again from
            # here.
            return self._with_best(window, limit)
        log_ratio, error = comparison
        # The part of its speed that a trial keeps. A slow-down that is expected, because trials share a GPU, does not
        # count.
        kept = math.exp(log_ratio) * best.expected_speed / window.expected_speed
        gain = window.at_once / best.at_once * kept
        trials, times = f"{window.at_once} trials at once", f"{gain:.2f} times as fast together as {best.at_once}"
        # All trials together are clearly faster, so more of them may start. If so few were added that their effect may
        # go unnoticed, the number grows only as far as ``careful_limit``.
        if gain > _FASTER and kept > _EFFICIENT:
            reason = f"{trials} are {times}"
            if kept < _UNIMPEDED:
                limit = min(limit, _IMPEDED_GROWTH * window.at_once)
            elif window.at_once >= _MANY_MORE * best.at_once:
                limit = GROWTH * window.at_once
                reason = f"{trials} do not slow down each other"
            return self._with_best(window, limit, reason)
        if gain > _FASTER:
            # All trials together are faster, but each of them is much slower. A number between both is tried: the
            # geometric mean, because the number of trials grows by factors.
            fewer = round(math.sqrt(best.at_once * window.at_once))
            return self._with_fewer(fewer, window, f"{trials} are only {times}")
        # A small loss can be noise, so the number stays as it is, and only a clear loss reduces it.
        if math.log(gain / _SLOWER) >= -_CONFIDENCE * error:
            reason = f"{trials} are not faster together than {best.at_once}"
            return self.model_copy(update={"limit": window.at_once, "reason": reason})
        return self._with_fewer(best.at_once, window, f"{trials} are {times}")

    def _with_fewer(self, fewer: int, window: ProgressWindow, reason: str) -> "AdmissionControl":
        return self.model_copy(update={"limit": fewer, "slower_at": window.at_once, "reason": reason})

    def _with_best(self, window: ProgressWindow, limit: int, reason: str = "") -> "AdmissionControl":
        """Return the control that compares with ``window``, and lets up to ``limit`` trials run at once."""
        if self.slower_at is not None:
            # The best number is between one that is known to be good and one that is known to be too large.
            limit = max(window.at_once, (window.at_once + self.slower_at) // 2)
        return self.model_copy(update={"best": window, "limit": limit, "reason": reason})


def careful_limit(at_once: int, num_left: int) -> int:
    """Return how many trials may run at once before it is known whether they slow down each other.

    Args:
        at_once: The number of trials that run at once, which do not wait for each other as far as is known.
        num_left: The number of trials that run or wait.
    """
    more = max(1, math.floor((_CAREFUL_GROWTH - 1) * at_once), math.floor(_RISKED * num_left))
    return min(at_once + more, GROWTH * at_once)


def _compare(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, float] | None:
    """Return the logarithm of the ratio of the speeds per trial and its standard error, or ``None`` if unknown.

    If no trial ran before and after, the mean logarithms of both groups are compared. Their variance is assumed to be
    equal, because a group may contain a single trial.
    """
    # With logarithms, a trial at twice its speed and a trial at half its speed are equally far from no change.
    ratios = [math.log(after[trial] / before[trial]) for trial in sorted(before.keys() & after.keys())]
    if ratios:
        return median(ratios), _noise(ratios) / math.sqrt(len(ratios))
    if len(before) + len(after) < _FEWEST_DIFFERENT:
        return None
    logs_before = [math.log(speed) for speed in before.values()]
    logs_after = [math.log(speed) for speed in after.values()]
    mean_before, mean_after = fmean(logs_before), fmean(logs_after)
    squares = [(log - mean_before) ** 2 for log in logs_before] + [(log - mean_after) ** 2 for log in logs_after]
    # Two means were estimated from the same values, which takes two degrees of freedom.
    noise = max(_ASSUMED_NOISE, math.sqrt(sum(squares) / (len(squares) - 2)))
    return mean_after - mean_before, noise * math.sqrt(1 / len(before) + 1 / len(after))


def _noise(logarithms: list[float]) -> float:
    """Return the standard deviation of logarithms, or the assumed one if it is larger."""
    if len(logarithms) < 2:
        return _ASSUMED_NOISE
    return max(_ASSUMED_NOISE, stdev(logarithms))
