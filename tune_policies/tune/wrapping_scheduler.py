"""A Tune scheduler around another, which may let failed trials go back without their failures being counted."""

from collections.abc import Iterator
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, HyperBandScheduler, TrialScheduler

from tune_policies.ray_compat.tune_controller import returned_by, scheduler_inside, was_saving


class SchedulerAround(TrialScheduler):  # type: ignore[misc]  # Ray has no types
    """Leaves all decisions to the scheduler inside, and keeps from it the failures that do not count.

    Args:
        inner: The scheduler that decides everything else; ``None``: Tune's default, first come first served.
    """

    def __init__(self, inner: TrialScheduler | None) -> None:
        super().__init__()
        self._inner = inner or FIFOScheduler()
        self._returning: set[Trial] = set()

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Pass on a trial, unless the scheduler inside was not told that it had failed."""
        if trial in self._returning:
            self._returning.remove(trial)
        else:
            self._inner.on_trial_add(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Pass on that a trial failed, unless it goes back and this scheduler has decided so."""
        # Tune saves a trial that reached a milestone of HyperBand, whose brackets know no trial that has the result of
        # a milestone, and waits. As for any trial that Tune retries, they forget it and take it in anew.
        is_kept_from_inner = returned_by(trial) is self and not (
            was_saving(trial) or any(isinstance(each, HyperBandScheduler) for each in schedulers_in(self))
        )
        if is_kept_from_inner:
            self._returning.add(trial)
        else:
            self._inner.on_trial_error(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Let the scheduler inside choose."""
        return self._inner.choose_trial_to_run(tune_controller)

    @property
    def metric(self) -> str | None:
        """The metric that the scheduler inside reads."""
        return self._inner.metric  # type: ignore[no-any-return]

    @property
    def supports_buffered_results(self) -> bool:
        """Whether the scheduler inside takes several results at once."""
        return bool(self._inner.supports_buffered_results)

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Pass on the metric and its mode."""
        return bool(self._inner.set_search_properties(metric, mode, **spec))

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Let the scheduler inside decide what becomes of a trial."""
        return str(self._inner.on_trial_result(tune_controller, trial, result))

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Pass on that a trial is done."""
        self._inner.on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Pass on that a waiting trial is taken out."""
        self._inner.on_trial_remove(tune_controller, trial)

    def debug_string(self) -> str:
        """Say what Tune prints of a scheduler."""
        return str(self._inner.debug_string())

    def save(self, checkpoint_path: str) -> None:
        """Save the scheduler inside; what is known of trials is saved with them."""
        self._inner.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        """Restore the scheduler inside."""
        self._inner.restore(checkpoint_path)


def schedulers_in(scheduler: TrialScheduler | None) -> Iterator[TrialScheduler]:
    """Yield a scheduler and those inside it, the outermost first."""
    while scheduler is not None:
        yield scheduler
        scheduler = getattr(scheduler, "_inner", None) or scheduler_inside(scheduler)
