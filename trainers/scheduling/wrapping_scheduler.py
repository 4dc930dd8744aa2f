"""A base class for schedulers that wrap another scheduler and pass all calls on."""

from collections.abc import Iterator
from typing import Any, Final

from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, MedianStoppingRule, TrialScheduler

from tune_policies.ray_compat.tune_schedulers import scheduler_inside
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import shorten

_OWN_TRIAL_ONLY: Final = (FIFOScheduler, AsyncHyperBandScheduler, MedianStoppingRule)
"""The schedulers of Tune that look only at the results of trials."""


class WrappingScheduler(TrialScheduler):  # type: ignore[misc]  # Ray has no types
    """Passes all calls to the inner scheduler.

    Args:
        inner: The scheduler that makes all other decisions. The default is Tune's ``FIFOScheduler``.

    Attributes:
        inner: The inner scheduler.
    """

    def __init__(self, inner: TrialScheduler | None) -> None:
        super().__init__()
        check_is_scheduler(inner)
        self.inner = FIFOScheduler() if inner is None else inner

    @property
    def metric(self) -> str | None:
        """The metric of the inner scheduler."""
        return self.inner.metric  # type: ignore[no-any-return]

    @property
    def supports_buffered_results(self) -> bool:
        """Whether the inner scheduler accepts several results at once."""
        return bool(self.inner.supports_buffered_results)

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Pass the metric and its mode to the inner scheduler."""
        return bool(self.inner.set_search_properties(metric, mode, **spec))

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Add a trial to the inner scheduler."""
        self.inner.on_trial_add(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Report the failure of a trial to the inner scheduler."""
        self.inner.on_trial_error(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> Any:
        """Let the inner scheduler decide whether a trial continues, pauses or stops."""
        return self.inner.on_trial_result(tune_controller, trial, result)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Report the completion of a trial to the inner scheduler."""
        self.inner.on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Report the removal of a waiting trial to the inner scheduler."""
        self.inner.on_trial_remove(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Let the inner scheduler choose the next trial to run."""
        return self.inner.choose_trial_to_run(tune_controller)

    def debug_string(self) -> str:
        """Return the text that Tune prints about the inner scheduler."""
        return str(self.inner.debug_string())

    def save(self, checkpoint_path: str) -> None:
        """Save the inner scheduler. The state of this scheduler is saved with the trials."""
        self.inner.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        """Restore the inner scheduler."""
        self.inner.restore(checkpoint_path)


def check_is_scheduler(inner: object) -> None:
    """Raise ``InvalidResourcesError`` if the inner scheduler is neither a scheduler of Tune nor ``None``."""
    if inner is not None and not isinstance(inner, TrialScheduler):
        raise InvalidResourcesError(f"inner must be a scheduler of Tune, got {shorten(inner)}")


def nested_schedulers(scheduler: TrialScheduler | None) -> Iterator[TrialScheduler]:
    """Yield ``scheduler`` and the schedulers that it wraps, outermost first."""
    while scheduler is not None:
        yield scheduler
        scheduler = scheduler.inner if isinstance(scheduler, WrappingScheduler) else scheduler_inside(scheduler)


def ignores_waiting(scheduler: TrialScheduler) -> bool:
    """Return whether a scheduler never looks at trials that wait for a slot. A user's own scheduler may do so."""
    # The exact type, because a subclass of such a scheduler may look at them.
    return all(
        isinstance(part, WrappingScheduler) or type(part) in _OWN_TRIAL_ONLY for part in nested_schedulers(scheduler)
    )


def runs_first_waiting(scheduler: TrialScheduler) -> bool:
    """Return whether a scheduler always runs the first waiting trial, as FIFO, ASHA and median stopping do."""
    # The class of the function decides, because a user's subclass of these schedulers may choose otherwise.
    return all(
        isinstance(part, WrappingScheduler) or type(part).choose_trial_to_run is FIFOScheduler.choose_trial_to_run
        for part in nested_schedulers(scheduler)
    )
