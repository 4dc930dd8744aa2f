"""The base class of the schedulers that control a run: ``PolicyScheduler`` and ``OomRetryScheduler``.

Several of them may be nested. The outermost one controls the run with a ``RunCore``, to which each of them contributes
its part. The other schedulers in between, and the user's own scheduler, see the run as in plain Tune, except that a
trial without a free slot is hidden from their choice.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tune_policies.ray_compat.run_control import handler_of

from .run_events import RunCore
from .wrapping_scheduler import WrappingScheduler, nested_schedulers


class RunScheduler(WrappingScheduler):
    """A scheduler that controls its run, or that contributes to the outermost such scheduler."""

    def __init__(self, inner: TrialScheduler | None) -> None:
        super().__init__(inner)
        self._core: RunCore | None = None
        self._error: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that ``Tuner`` pickles, without the state of a run."""
        return {name: value for name, value in vars(self).items() if name not in {"_core", "_error"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._core = None
        self._error = None

    def _join(self, core: RunCore) -> None:
        """Contribute to the core of a new run."""
        self._core = core

    def _controlled(self, tune_controller: Any) -> RunCore | None:
        """Return the core of the run if this scheduler controls it, or else ``None``.

        Tune calls the outermost scheduler first, so that scheduler controls the run.
        """
        # The core is found by the controller, because ``self._core`` may belong to an earlier run of this scheduler.
        core: RunCore | None = handler_of(tune_controller)
        if core is None:
            # This is the first call of a new run. The inner schedulers find the same core by the controller.
            core = RunCore(tune_controller, self)
            for part in nested_schedulers(self):
                if isinstance(part, RunScheduler):
                    part._join(core)
        if core.scheduler is not self:
            return None
        return core

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Add a trial that waits for a slot.

        An error here would make Tune restart a resumed run, so errors are raised in the next step.
        """
        core, is_new = None, True
        try:
            core = self._controlled(tune_controller)
            if core is not None:
                is_new = not core.knows(trial)
                if is_new:
                    core.add(trial)
                elif core.records[trial].is_hidden:
                    # The inner scheduler did not see the failure, so it still has the trial.
                    core.records[trial].is_hidden = False
                    core.tune.save_experiment()
                    core.wait(trial, is_new=False)
                    return
        # ``TuneController.__init__`` handles any error while it restores trials with "Restarting experiment."
        except Exception as error:  # noqa: BLE001
            self._error = self._error or error
            core = None
        # The inner scheduler gets the trial before the trial is parked, so that it sees the pending trial of plain
        # Tune.
        with _as_in_tune(core, tune_controller) as view:
            super().on_trial_add(view, trial)
        if core is not None:
            core.wait(trial, is_new=is_new)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Report the failure to the inner scheduler, unless the run requeues the trial and hides the failure."""
        core = self._controlled(tune_controller)
        if core is None:
            super().on_trial_error(tune_controller, trial)
            return
        core.complete_result(trial)
        core.release(trial)
        if not core.records[trial].is_hidden:
            with core.as_in_tune(tune_controller) as view:
                super().on_trial_error(view, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> Any:
        """Let the inner scheduler decide whether a trial continues, pauses or stops."""
        core = self._controlled(tune_controller)
        if core is None:
            return super().on_trial_result(tune_controller, trial, result)
        core.note_result(trial, result)
        with core.inner.shown_request(core.records.get(trial)), core.as_in_tune(tune_controller) as view:
            decision = super().on_trial_result(view, trial, result)
        # A decision of the inner scheduler to stop or pause takes precedence.
        if decision == TrialScheduler.CONTINUE and core.restarts(trial):
            decision = TrialScheduler.PAUSE
        if decision == TrialScheduler.PAUSE:
            core.inner.note_pause(trial)
        return decision

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Record the duration of a trial that completed, and report its end to the inner scheduler."""
        core = self._controlled(tune_controller)
        if core is not None:
            core.finish(trial)
        with _as_in_tune(core, tune_controller) as view:
            super().on_trial_complete(view, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Report the removal of a waiting trial to the inner scheduler."""
        core = self._controlled(tune_controller)
        if core is not None:
            core.release(trial)
        with _as_in_tune(core, tune_controller) as view:
            super().on_trial_remove(view, trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the trial that starts now, or ``None``.

        Raises:
            InfeasibleRequestError: No plan has been feasible for ``wait_for_nodes_s``, or no trial can proceed.
        """
        if self._error is not None:
            # The error is raised once, so that the scheduler can be used in another run.
            error, self._error = self._error, None
            raise error
        core = self._controlled(tune_controller)
        if core is None:
            return super().choose_trial_to_run(tune_controller)
        return core.step(super().choose_trial_to_run, tune_controller)


def _as_in_tune(core: RunCore | None, tune_controller: Any) -> AbstractContextManager[Any]:
    if core is None:
        return nullcontext(tune_controller)
    return core.as_in_tune(tune_controller)
