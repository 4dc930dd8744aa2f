"""Forecasts the end of a run from its trials, without I/O. ``plan.end_forecast`` contains the statistics."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tune_policies.plan.end_forecast import EndForecast, RunningTrial, RunProgress
from tune_policies.values.units import format_money
from tune_policies.values.wording import counted

from .resource_usage import format_hours
from .trial_outcomes import RUNNING, TERMINATED

_TIME: Final = "time_total_s"
"""The key of the time that a trial has run, in a result of Tune."""


class SlotTimes(NamedTuple):
    """The times that the trials of a run spent in slots, in seconds.

    Attributes:
        total_s: The time of each trial in all its slots, including failed attempts, keyed by trial ID.
        current_s: The time of each running trial in its current slot, keyed by trial ID.
        reported: The IDs of the running trials that have reported a result in their current slot. The last result of
            the others is from an earlier attempt.
        start_s: The time from the end of a trial to the start of the next one in its slot.
    """

    total_s: Mapping[str, float] = {}
    current_s: Mapping[str, float] = {}
    reported: Collection[str] = ()
    start_s: float = 0.0


def progress_of_run(
    trials: Sequence[Any],
    *,
    num_trials: int | None,
    ends: Mapping[str, float],
    num_stopped: int,
    times: SlotTimes,
) -> RunProgress | None:
    """Return what the trials of a run tell about its end, or ``None`` if they tell nothing about it.

    They tell nothing if no trial is running or waiting, or if the number of trials of the run is not known.

    Args:
        trials: All trials that Tune knows.
        num_trials: The number of trials of the whole run, or ``None`` if it is not known or unlimited.
        ends: The value of each time attribute at which the scheduler stops every trial, in addition to ``stop={…}``.
        num_stopped: The number of trials that a scheduler stopped early.
        times: The times that the trials spent in slots. Tune's results do not contain the time of failed attempts and
            the time in which processes start.
    """
    if num_trials is None:
        return None
    finished_s, running, num_started = [], [], 0
    for trial in trials:
        result = trial.run_metadata.last_result or {}
        elapsed_s = float(result.get(_TIME, 0))
        if trial.status == TERMINATED and elapsed_s > 0:
            # Tune's time does not include failed attempts, and the time in slots is not known for trials of an earlier
            # part of a run.
            finished_s.append(max(elapsed_s, times.total_s.get(trial.trial_id, 0.0)))
        if trial.status == RUNNING:
            current_s = times.current_s.get(trial.trial_id, 0.0)
            progress = None
            if trial.trial_id in times.reported:
                progress = _progress(trial, result, ends)
            else:
                # The last result is from an earlier attempt, which does not show how far this one is.
                elapsed_s = current_s
            if progress is None:
                elapsed_s = max(elapsed_s, current_s)
            running.append(RunningTrial(elapsed_s=elapsed_s, progress=progress))
        num_started += trial.is_finished() or trial.status == RUNNING
    num_waiting = max(len(trials), num_trials) - num_started
    if not running and not num_waiting:
        return None
    stopped_fraction = 0.0
    if finished_s:
        stopped_fraction = min(1.0, num_stopped / len(finished_s))
    return RunProgress(
        finished_s=tuple(finished_s),
        running=tuple(running),
        num_waiting=num_waiting,
        stopped_fraction=stopped_fraction,
        start_s=times.start_s,
    )


_STEADY: Final = frozenset({"training_iteration", "time_total_s", "timesteps_total", "episodes_total"})
"""The criteria of ``stop`` that grow steadily."""


def _progress(trial: Any, result: Mapping[str, Any], ends: Mapping[str, float]) -> float | None:
    """Return the completed fraction of a trial, or ``None`` if its end is not known."""
    fractions = []
    # A metric such as the accuracy does not grow steadily, so only counts and times of Tune show the progress.
    steady = {name: end for name, end in trial.stopping_criterion.items() if name in _STEADY}
    for name, end in (*steady.items(), *ends.items()):
        value = result.get(name)
        if isinstance(value, int | float) and value >= 0 and end > 0:
            fractions.append(min(1.0, value / end))
    # The trial ends at the first of its ends, which is the one with the largest fraction.
    return max(fractions, default=None)


def describe_forecast(forecast: EndForecast, price_per_hour: float | None = None, elapsed_s: float = 0.0) -> str:
    """Return a forecast as text, such as ``ends in 3.1 min (2.5 min to 4 min with 90 % probability)``.

    Args:
        forecast: The forecast.
        price_per_hour: The price of the cluster per hour, to add the cost at the end, or ``None``.
        elapsed_s: The time since the run began, in seconds, which also has a cost.
    """
    ends_s = (forecast.low_s, forecast.median_s, forecast.high_s)
    low, middle, high = (format_hours(seconds / 3600) for seconds in ends_s)
    text = f"ends in {middle} ({low} to {high} with 90 % probability)"
    if price_per_hour is None:
        return text
    low, middle, high = (format_money(price_per_hour * (elapsed_s + seconds) / 3600) for seconds in ends_s)
    return f"{text}, and costs {middle} ({low} to {high})"


def deadline_warning(progress: RunProgress, deadline_s: float, *, at_once: int, num_nodes: int) -> str:
    """Return a warning if the interval leaves the deadline, with what would help, or ``""``.

    Args:
        progress: The trials of the run.
        deadline_s: The deadline in seconds from now.
        at_once: The number of trials that can run at once.
        num_nodes: The number of nodes on which they run, or 0 if it is not known.
    """
    forecast = progress.forecast(at_once)
    if forecast is None or not forecast.exceeds(deadline_s):
        return ""
    left = "over"
    if deadline_s > 0:
        left = f"in {format_hours(deadline_s / 3600)}"
    text = f"the run {describe_forecast(forecast)}, but its deadline is {left}"
    help_texts = []
    needed = progress.at_once_before(deadline_s, at_once)
    if needed is not None:
        more = f"{needed} trials at once instead of {at_once}"
        if num_nodes:
            more_nodes = math.ceil((needed - at_once) * num_nodes / at_once)
            more += f" ({counted(more_nodes, 'more node')} like the present ones)"
        help_texts.append(more)
    fewer = progress.fewer_before(deadline_s, at_once)
    if fewer is not None:
        samples = "1 sample less" if fewer == 1 else f"{fewer} samples fewer"
        help_texts.append(samples)
    if not help_texts:
        return f"{text}. Neither more nodes nor fewer samples are enough, because of the trials that are running"
    return f"{text}. Enough would be {', or '.join(help_texts)}"
