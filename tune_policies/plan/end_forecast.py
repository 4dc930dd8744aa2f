"""When a run will end, with a 90 % interval, from its finished and running trials.

The interval contains what is not known: the durations of waiting trials, their distribution, which few trials show only
roughly, and the remaining time of running trials. A plain bootstrap of finished trials ignores the second, and is
biased because short trials finish first. So running trials count with their expected durations, and each simulated run
draws its own distribution: half of the runs a log-normal one with unknown parameters, half the Bayesian bootstrap
(Rubin, Annals of Statistics 9(1), 1981). Waiting trials start in the slot that is free first.

A run calls ``forecast_end`` with all its trials whenever it shows its progress. The same trials give the same forecast.
"""

import math
from collections.abc import Callable, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING, Final

from pydantic import Field

from tune_policies.values.field_types import Many
from tune_policies.values.resources import Count
from tune_policies.values.value import Value

if TYPE_CHECKING:
    from numpy import float64
    from numpy.random import Generator
    from numpy.typing import NDArray

_DRAWS: Final = 400
"""The number of simulated runs."""

_MOST_PLACED: Final = 300
"""The maximum number of waiting trials that are placed one by one. The work of further trials is divided evenly."""

_MOST_DRAWN: Final = 1_000
"""The maximum number of waiting trials whose durations are drawn, because a run may have millions of them.

The mean of these durations counts for the others.
"""

_PRIOR_SPREAD: Final = 0.5
"""The assumed standard deviation of the logarithm of durations before trials have finished, worth one trial."""

_PROGRESS_NOISE: Final = 0.08
"""The standard deviation of the logarithm of the remaining time of a trial whose progress is known."""


class RunningTrial(Value):
    """A running trial.

    Attributes:
        elapsed_s: The time for which the trial has run, in seconds.
        progress: The completed fraction of the trial, such as ``training_iteration`` divided by ``max_t`` or by the
            stop criterion, or ``None`` if it is unknown.
    """

    elapsed_s: float = Field(ge=0)
    progress: float | None = Field(default=None, ge=0, le=1)


class EndForecast(Value):
    """When a run will end, in seconds from now: the median, and a 90 % interval."""

    low_s: float
    median_s: float
    high_s: float

    def exceeds(self, deadline_s: float) -> bool:
        """Return whether the interval extends beyond a deadline, in seconds from now."""
        return self.high_s > deadline_s


class RunProgress(Value):
    """The trials of a run, as far as they matter for its end.

    Attributes:
        finished_s: The durations of the trials that have ended, in seconds, also of those that were stopped early.
        running: The running trials.
        num_waiting: The number of trials that have not started, as far as it is known.
        stopped_fraction: The fraction of ended trials that a scheduler stopped early.
        start_s: The time from the end of a trial to the start of the next one in its slot, in seconds.
    """

    finished_s: Many[float] = ()
    running: Many[RunningTrial] = ()
    num_waiting: Count = 0
    stopped_fraction: float = Field(default=0.0, ge=0, le=1)
    start_s: float = Field(default=0.0, ge=0)

    def forecast(self, at_once: int) -> EndForecast | None:
        """Return when the run will end if ``at_once`` trials run at once. See ``forecast_end``."""
        return forecast_end(
            self.finished_s,
            self.running,
            num_waiting=self.num_waiting,
            at_once=at_once,
            stopped_fraction=self.stopped_fraction,
            start_s=self.start_s,
        )

    def at_once_before(self, deadline_s: float, at_once: int) -> int | None:
        """Return how many trials must run at once so that the interval is within the deadline, in seconds from now.

        ``None`` means that no number is enough.
        """
        most = at_once + self.num_waiting
        return _first(at_once, most, lambda number: self._meets(deadline_s, number))

    def fewer_before(self, deadline_s: float, at_once: int) -> int | None:
        """Return how many waiting trials must be left out so that the interval is within the deadline, or ``None``."""

        def meets(left_out: int) -> bool:
            fewer = self.model_copy(update={"num_waiting": self.num_waiting - left_out})
            return fewer._meets(deadline_s, at_once)

        return _first(1, self.num_waiting, meets)

    def _meets(self, deadline_s: float, at_once: int) -> bool:
        forecast = self.forecast(at_once)
        return forecast is not None and not forecast.exceeds(deadline_s)


def _first(least: int, most: int, holds: Callable[[int], bool]) -> int | None:
    """Return the first number for which ``holds`` is true, if it is true for all larger ones, or ``None``."""
    if least > most or not holds(most):
        return None
    while least < most:
        middle = (least + most) // 2
        if holds(middle):
            most = middle
        else:
            least = middle + 1
    return most


def forecast_end(
    finished_s: Sequence[float],
    running: Sequence[RunningTrial],
    *,
    num_waiting: int,
    at_once: int,
    stopped_fraction: float = 0.0,
    start_s: float = 0.0,
) -> EndForecast | None:
    """Return when the run will end, or ``None`` if no duration is known.

    Args:
        finished_s: The durations of the trials that have ended, in seconds, also of those that were stopped early.
        running: The running trials.
        num_waiting: The number of trials that have not started, as far as it is known.
        at_once: The number of trials that run at once.
        stopped_fraction: The fraction of ended trials that a scheduler stopped early. Running trials whose progress is
            known end early with this probability times the part that is left, after a random part of their remaining
            time.
        start_s: The time from the end of a trial to the start of the next one in its slot, in seconds.
    """
    import numpy as np

    if not finished_s and not any(trial.progress for trial in running):
        return None
    rng = np.random.default_rng(len(finished_s) * 1_000 + num_waiting)  # a fixed seed for each state of the run
    # A trial that failed at once can have a duration of 0, which has no logarithm.
    known = [max(duration, 1e-3) for duration in finished_s]
    left = np.zeros((_DRAWS, len(running)))
    open_ended = []
    for i, trial in enumerate(running):
        if not trial.progress or trial.elapsed_s <= 0:
            open_ended.append((i, trial.elapsed_s))
            continue
        total = trial.elapsed_s / trial.progress
        part_left = 1 - trial.progress
        # The further a trial has come, the less likely a scheduler is to stop it. On average, half of the time left is
        # then saved.
        stops = stopped_fraction * part_left
        known.append(total * (1 - stops * part_left / 2))
        # The first results of a trial say less about its remaining time than the later ones.
        noise = _PROGRESS_NOISE * (1 + part_left)
        left[:, i] = (total - trial.elapsed_s) * np.exp(noise * rng.standard_normal(_DRAWS))
        is_stopped = rng.random(_DRAWS) < stops
        left[:, i] *= np.where(is_stopped, rng.random(_DRAWS), 1)
    # The trials that have run longest come first, because their expected durations count for those of the other ones.
    for _, since in sorted(open_ended, reverse=True, key=lambda trial: trial[1]):
        # Without the trials that still run, durations would be biased, because short trials end first. The geometric
        # mean, because the distribution is that of the logarithms. 1.6 is the geometric mean of the multiple below.
        longer_ones = [duration for duration in known if duration > since]
        known.append(geometric_mean(longer_ones) if longer_ones else 1.6 * since)
    num_drawn = min(num_waiting, _MOST_DRAWN)
    durations = _draw(np.array(known), num_drawn + 8 * len(open_ended), rng)
    for k, (i, since) in enumerate(open_ended):
        # Eight durations are drawn for each of these trials, so that at least one of them usually exceeds its elapsed
        # time.
        mine = durations[:, num_drawn + 8 * k : num_drawn + 8 * (k + 1)]
        is_longer = mine > since
        # The first longer one, because the smallest of several draws would be too small.
        first = mine[np.arange(_DRAWS), is_longer.argmax(axis=1)]
        # If no drawn duration is longer, the trial is expected to take a random multiple of its elapsed time.
        multiple = since * (1 + rng.exponential(0.7, _DRAWS))
        left[:, i] = np.where(is_longer.any(axis=1), first, multiple) - since
    ends = _place(left, durations[:, :num_drawn] + start_s, num_waiting, max(1, at_once))
    tail = _tail(float(np.log(known).std()), knows_progress=not open_ended)
    low, middle, high = np.quantile(ends, (tail, 0.5, 1 - tail))
    return EndForecast(low_s=float(low), median_s=float(middle), high_s=float(high))


def _tail(spread: float, *, knows_progress: bool) -> float:
    """Return the part of the simulated ends that is outside the interval on each side.

    It is chosen so that 90 % of the runs of ``tests.evidence sizing`` end inside. The simulated ends of trials with
    uneven durations, and of running trials whose progress is not known, vary too little.

    Args:
        spread: The standard deviation of the logarithms of the durations.
        knows_progress: Whether the progress of all running trials is known.
    """
    if knows_progress:
        return 0.04
    return max(0.017, 0.035 - 0.02 * spread) + max(0.0, 0.025 - 0.1 * spread)


def _draw(known: "NDArray[float64]", number: int, rng: "Generator") -> "NDArray[float64]":
    """Return ``number`` durations for each simulated run, each run with its own distribution of durations."""
    import numpy as np

    logs = np.log(known)
    n = len(logs)
    # One pseudo-trial with the prior spread keeps the variance of few trials from being far too small.
    spread = math.sqrt((((logs - logs.mean()) ** 2).sum() + _PRIOR_SPREAD**2) / n)
    freedom = max(n, 3)
    # The spread of few durations is uncertain, so each run draws its own: the variance has a scaled inverse chi-squared
    # distribution. With the maximum of 2, one of a hundred trials takes over a hundred times the median.
    sigma = np.minimum(spread * np.sqrt(freedom / rng.chisquare(freedom, _DRAWS)), 2.0)
    mean = logs.mean() + sigma / math.sqrt(n) * rng.standard_normal(_DRAWS)
    drawn: NDArray[float64] = np.exp(mean[:, None] + sigma[:, None] * rng.standard_normal((_DRAWS, number)))
    # Half of the runs resample the known durations, once there are enough of them to show the form of the distribution.
    of_bootstrap = 0.5 if n >= 8 else 0.0
    is_bootstrap = rng.random(_DRAWS) < of_bootstrap
    count = int(is_bootstrap.sum())
    if count and number:
        # The Bayesian bootstrap: each run has random weights for the known durations, here as cumulative sums.
        weights = rng.dirichlet(np.ones(n), count).cumsum(axis=1)
        picks = zip(weights, rng.random((count, number)), strict=True)
        # A sum of floats can end slightly below 1, so the position is limited to the last duration.
        at = np.array([np.searchsorted(weight, pick) for weight, pick in picks]).clip(max=n - 1)
        # The noise smooths the few known durations, and shrinks with their number like the bandwidth of Silverman's
        # rule.
        jitter = 0.5 * spread * n**-0.2 * rng.standard_normal((count, number))
        drawn[is_bootstrap] = np.exp(logs[at] + jitter)
    return drawn


def _place(left: "NDArray[float64]", waiting: "NDArray[float64]", num_waiting: int, at_once: int) -> "NDArray[float64]":
    """Return the end of each simulated run. Each waiting trial starts in the slot that is free first.

    ``waiting`` contains the drawn durations of the first of ``num_waiting`` trials.
    """
    import numpy as np

    placed, further = waiting[:, :_MOST_PLACED], waiting[:, _MOST_PLACED:]
    # More free slots than trials to place would stay free.
    num_free = min(max(0, at_once - left.shape[1]), max(1, placed.shape[1]))
    slots = np.pad(left, ((0, 0), (0, num_free)))  # a copy
    if further.shape[1]:
        per_drawn = (num_waiting - placed.shape[1]) / further.shape[1]
        slots += (further.sum(axis=1) * per_drawn / at_once)[:, None]
    rows = np.arange(len(slots))
    for i in range(placed.shape[1]):
        first = slots.argmin(axis=1)
        slots[rows, first] += placed[:, i]
    ends: NDArray[float64] = slots.max(axis=1)
    return ends
