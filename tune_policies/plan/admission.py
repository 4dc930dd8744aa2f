"""How many trials run at once, decided by their progress: fewer if a larger number makes all of them slower together.

A policy that has learned lets more trials run at once. Trials may share something that no resource describes, such as
the bandwidth of memory or of a disk. So the total speed of all trials is compared before and after. Steps of different
trials differ, so each trial is compared with itself: the total speed is proportional to the number of trials times the
median ratio of their speeds. The idea is that of Gandiva (Xiao et al., OSDI 2018), which packs jobs by trial and error.
"""

import math
from collections.abc import Mapping
from statistics import median, stdev
from typing import Final

from tune_policies.values.resources import Count, PositiveCount
from tune_policies.values.value import ByName, Value

_FEWEST_TRIALS: Final = 2
"""The minimum number of trials that are compared."""

_CONFIDENCE: Final = 2.0
"""A difference counts if it exceeds this number of standard errors."""

_ASSUMED_NOISE: Final = 0.1
"""The assumed standard deviation of the logarithm of a ratio, if it is larger than the observed one."""

_SLOWER: Final = 0.97
"""Fewer trials run at once if the total speed falls below this part of the earlier speed."""


class ProgressWindow(Value):
    """The progress of trials while about the same number of trials was running.

    Attributes:
        at_once: The largest number of running trials.
        steps: The number of steps of each trial, and their time in seconds, without the time before its first result.
    """

    at_once: PositiveCount
    steps: ByName[tuple[Count, float]]

    @property
    def speeds(self) -> Mapping[str, float]:
        """The steps per second of each trial with at least one step."""
        return {trial: number / seconds for trial, (number, seconds) in self.steps.items() if number and seconds > 0}


class AdmissionControl(Value):
    """The number of trials that may run at once, and the progress from which it follows.

    Attributes:
        limit: The number of trials that may run at once, or ``None`` if all trials that fit may run.
        best: The progress at the number of trials with the highest known total speed, or ``None``.
        reason: A sentence about the last decision, or ``""``.
    """

    limit: PositiveCount | None = None
    best: ProgressWindow | None = None
    reason: str = ""

    def after(self, window: ProgressWindow) -> "AdmissionControl":
        """Return the control after a window of progress with more trials at once, or with the first trials."""
        best = self.best
        if best is None:
            enough = len(window.speeds) >= _FEWEST_TRIALS
            return self.model_copy(update={"best": window}) if enough else self
        if window.at_once <= best.at_once:
            return self
        old, new = best.speeds, window.speeds
        ratios = [math.log(new[trial] / old[trial]) for trial in sorted(old.keys() & new.keys())]
        if len(ratios) < _FEWEST_TRIALS:
            return self
        gain = window.at_once / best.at_once * math.exp(median(ratios))
        error = max(_ASSUMED_NOISE, stdev(ratios)) / math.sqrt(len(ratios))
        if math.log(gain) > _CONFIDENCE * error:
            return self.model_copy(update={"best": window})
        if math.log(gain / _SLOWER) < -_CONFIDENCE * error:
            fewer = (best.at_once + window.at_once) // 2
            reason = (
                f"{window.at_once} trials at once are {gain:.2f} times as fast together as {best.at_once}, "
                f"so at most {fewer} run at once"
            )
            return self.model_copy(update={"limit": fewer, "reason": reason})
        return self
