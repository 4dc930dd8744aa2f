"""Forecasts the end of a run from its trials, without I/O. ``plan.end_forecast`` contains the statistics."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tune_policies.plan.end_forecast import EndForecast, RunningTrial, forecast_end

from .resource_usage import format_hours

_RUNNING: Final = "RUNNING"
_TERMINATED: Final = "TERMINATED"
_TIME: Final = "time_total_s"
"""The key of the time that a trial has run, in a result of Tune."""


def forecast_of_run(
    trials: Sequence[Any], *, num_trials: int | None, at_once: int, ends: Mapping[str, float], num_stopped: int
) -> EndForecast | None:
    """Return when a run will end, in seconds from now, or ``None`` if this cannot be known yet.

    Args:
        trials: All trials that Tune knows.
        num_trials: The number of trials of the whole run, or ``None`` if it is not known.
        at_once: The number of trials that can run at once.
        ends: The value of each time attribute at which the scheduler stops every trial, in addition to ``stop={…}``.
        num_stopped: The number of trials that a scheduler stopped early.
    """
    finished_s, running, num_started = [], [], 0
    for trial in trials:
        result = trial.run_metadata.last_result or {}
        elapsed_s = float(result.get(_TIME, 0))
        if trial.status == _TERMINATED and elapsed_s > 0:
            finished_s.append(elapsed_s)
        if trial.status == _RUNNING:
            running.append(RunningTrial(elapsed_s=elapsed_s, progress=_progress(trial, result, ends)))
        num_started += trial.is_finished() or trial.status == _RUNNING
    if not running:
        return None
    num_waiting = max(len(trials), num_trials or 0) - num_started
    stopped_fraction = min(1.0, num_stopped / len(finished_s)) if finished_s else 0.0
    return forecast_end(
        finished_s, running, num_waiting=num_waiting, at_once=at_once, stopped_fraction=stopped_fraction
    )


def _progress(trial: Any, result: Mapping[str, Any], ends: Mapping[str, float]) -> float | None:
    """Return the completed fraction of a trial, or ``None`` if its end is not known."""
    fractions = []
    for name, end in (*trial.stopping_criterion.items(), *ends.items()):
        value = result.get(name)
        if isinstance(value, int | float) and value >= 0 and end > 0:
            fractions.append(min(1.0, value / end))
    return max(fractions, default=None)


def describe_forecast(forecast: EndForecast) -> str:
    """Return a forecast as text, such as ``ends in 3.1 min (2.5 min to 4 min with 90 % probability)``."""
    low, middle, high = (
        format_hours(seconds / 3600) for seconds in (forecast.low_s, forecast.median_s, forecast.high_s)
    )
    return f"ends in {middle} ({low} to {high} with 90 % probability)"
