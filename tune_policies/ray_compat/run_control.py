"""The control of a scheduler over a run of Tune: its waiting trials, its processes and its searcher.

A waiting trial is a paused trial, because Tune starts a paused trial only if the scheduler chooses it. Tune calls its
scheduler before it reads the status of a new trial. Everything else that a policy decides has no public hook in Ray:
``TuneRun`` replaces three parts of Tune's controller (its actor manager, its cache of actor classes and its searcher)
with parts that ask a ``RunHandler``. Tune saves none of them, so a run can be restored without this package.
The private members used here are the same in Ray 2.50 and 2.60.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import wrapt
from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.search import ConcurrencyLimiter

from tune_policies.ray_compat.placement_groups import PlacementGroups
from tune_policies.ray_compat.trial_actors import FailureHandler, TrialActors
from tune_policies.ray_compat.version import check_members
from tune_policies.values.resources import MOST

MEMBERS: Final = (
    *("_actor_cache", "_actor_manager", "_class_cache", "_has_errored", "_search_alg", "_set_trial_status"),
    "_unstage_trial_with_resources",
)
"""The private members of Tune's controller that a run uses. If any member is missing, the run fails early."""

_FEATURE: Final = "a scheduler that assigns slots to trials"


class RunHandler(FailureHandler, Protocol):
    """Decides about the processes and the searcher of a run."""

    def process_class(self, trainable_class: type) -> type:
        """Return the class that runs in the processes of a trainable's trials.

        It must return the same class each time, because Tune reuses processes only for the same class.
        """

    @property
    def has_waiting_trials(self) -> bool:
        """Whether trials wait, so that Tune should keep the processes of finished trials."""

    def num_suggestions(self, *, is_adaptive: bool) -> int:
        """Return the number of further trials that the searcher should suggest now.

        An adaptive searcher bases its suggestions on results, so its suggestions improve if they are made late.
        """


class TuneRun:
    """The parts of a run that a scheduler controls.

    Args:
        tune_controller: Tune's controller, as Tune passes it to a scheduler.
        handler: The decisions of the scheduler.

    Attributes:
        actors: The processes of the trials.
        groups: The placement groups of the trials.
        max_requested: How many trials that an adaptive searcher has suggested may wait until Ray grants their requests.
    """

    def __init__(self, tune_controller: Any, handler: RunHandler) -> None:
        controller = unwrapped(tune_controller)
        check_members(controller, MEMBERS, _FEATURE)
        self._controller = controller
        self.max_requested = _max_requested(controller.search_alg)
        self.groups = PlacementGroups()
        self.actors = TrialActors(self.groups)
        self.actors.handler = handler
        self._kept: Counter[PlacementGroupFactory] = Counter()
        # Tune adds the first trial before it requests any resources, so the replaced actor manager is still empty.
        controller._actor_manager = self.actors
        # ``TuneController._schedule_trial_actor`` gets the class of each process from this cache.
        controller._class_cache = _ProcessClasses(controller._class_cache, handler.process_class)
        controller._search_alg = _GatedSearch(controller._search_alg, handler)

    def is_of(self, tune_controller: Any) -> bool:
        """Return whether this object controls the run of ``tune_controller``."""
        return self._controller is unwrapped(tune_controller)

    @property
    def trials(self) -> list[Trial]:
        """All trials of the run, in Tune's order."""
        return self._controller.get_trials()  # type: ignore[no-any-return]

    @property
    def num_future_trials(self) -> int | None:
        """The number of trials that the searcher has yet to suggest, or ``None`` if it is not known or unlimited."""
        search = self._controller.search_alg
        if search.has_ended:
            return 0
        total = number_of_trials(getattr(search, "total_samples", None))
        if total is None:
            return None
        return max(0, total - len(self.trials))

    def start_together(self) -> None:
        """Let Tune create trials while the processes of other trials are starting, which can take half a minute.

        Otherwise, an adaptive searcher is asked for a trial only after the process of the trial before has started. The
        handler must limit the number of suggestions.
        """
        self._controller.update_max_pending_trials(MOST)

    def register(self, trial: Trial) -> None:
        """Let callbacks of Tune find this run."""
        trial.temporary_state.policy_run = self.actors.handler

    def park(self, trial: Trial, *, is_new: bool) -> None:
        """Let a pending trial wait until the scheduler chooses it.

        Args:
            trial: A trial that Tune passes to ``on_trial_add``, or has passed to it before.
            is_new: Whether Tune has not registered the trial yet. Otherwise, Tune lists it as pending, for example
                because it was requeued after a failure.
        """
        if is_new:
            # ``TuneController.add_trial`` calls the scheduler first, and then adds the trial to the list of its status.
            trial.set_status(Trial.PAUSED)
        else:
            self._controller._set_trial_status(trial, Trial.PAUSED)
        trial.init_local_path()  # the results of a stopped run list the folder of each trial

    def withdraw(self, trial: Trial) -> None:
        """Withdraw the request of a trial that was chosen but has no process yet, so that it waits again."""
        # Tune requests resources again only for a trial that is not staged.
        self._controller._unstage_trial_with_resources(trial)
        # Without a checkpoint, ``pause_trial`` removes the trial's actor at once, which cancels its request.
        self._controller.pause_trial(trial, should_checkpoint=False)

    def stop(self, trial: Trial) -> None:
        """Stop a trial that is not running."""
        self._controller.stop_trial(trial)

    def report_uncounted(self, trial: Trial, report: Callable[[], None]) -> None:
        """Let Tune requeue a failed trial without counting the failure for ``max_failures`` and ``fail_fast``.

        The trial is also requeued if its earlier failures already exceed ``max_failures``, as after
        ``resume_errored``: Tune keeps the count of a trial that it resumes.
        """
        failures, has_errored = trial.run_metadata.num_failures, self._controller._has_errored
        trial.temporary_state.restoring_from = None  # a failed restore has its own count of failures

        def recover_uncounted() -> bool:
            # Tune has counted the failure, and asks once before it notifies the scheduler. The scheduler may save the
            # experiment, and Tune saves the count and all attributes of a trial.
            del trial.should_recover
            trial.run_metadata.num_failures = failures
            return True

        trial.should_recover = recover_uncounted
        try:
            report()
        finally:
            vars(trial).pop("should_recover", None)
            trial.run_metadata.num_failures = failures
            # Tune caches the saved state of a trial, which still contains the counted failure.
            trial.run_metadata.invalidate_cache()
            self._controller._has_errored = has_errored  # with ``fail_fast``, this flag ends the run

    def report_permanent(self, trial: Trial, report: Callable[[], None]) -> None:
        """Let Tune fail a trial without further retries."""
        # ``Trial.should_recover`` compares the count of failures with ``max_failures``. ``Trial.handle_error`` does not
        # count a failure on a preempted node, or in a restore that is tried again (``TUNE_RESTORE_RETRY_NUM``).
        trial.should_recover = lambda: False
        try:
            report()
        finally:
            del trial.should_recover

    def save_experiment(self, *, wait: bool = False) -> None:
        """Make Tune save the experiment now instead of at the next regular save.

        Args:
            wait: Whether to wait until the run's folder is written.
        """
        self._controller.checkpoint(force=True, wait=wait)

    def keep_processes(self, wanted: Counter[PlacementGroupFactory]) -> None:
        """Set the number of idle processes that Tune keeps for reuse, by resource request."""
        if wanted == self._kept:
            return
        # Only the differences are applied, because Tune counts its staged trials in the same numbers
        # (``_maybe_add_actors``).
        kept, self._kept = self._kept, wanted
        for request in wanted.keys() | kept.keys():
            more = wanted[request] - kept[request]
            if more > 0:
                self._controller._actor_cache.increase_max(request, more)
            elif more < 0:
                self._controller._actor_cache.decrease_max(request, -more)

    @contextmanager
    def shown_as_pending(
        self, tune_controller: Any, waiting: Iterable[Trial], listed: list[Trial]
    ) -> "Iterator[RunView]":
        """Show waiting trials as pending in a block, because an inner scheduler distinguishes new and paused trials.

        Args:
            tune_controller: The controller that Tune passed to the scheduler.
            waiting: The trials to show as pending. Trials with another status than ``PAUSED`` keep it.
            listed: The trials that the controller for the inner scheduler lists.

        Yields:
            The controller for the inner scheduler.
        """
        shown = [trial for trial in waiting if trial.status == Trial.PAUSED]
        view = RunView(tune_controller, listed, shown)
        view.show()
        try:
            yield view
        finally:
            view.hide()


class RunView:
    """Wraps Tune's controller for an inner scheduler that sees waiting trials as pending.

    Tune's own functions see the real status.
    """

    def __init__(self, tune_controller: Any, trials: list[Trial], waiting: list[Trial]) -> None:
        self._wrapped_controller = tune_controller
        self._trials = trials
        self._waiting = waiting

    def show(self) -> None:
        """Show the waiting trials as pending."""
        for trial in self._waiting:
            if trial.status == Trial.PAUSED:
                trial.status = Trial.PENDING  # not ``set_status``, which would make Tune save the trial

    def hide(self) -> None:
        """Restore the real status of the waiting trials."""
        for trial in self._waiting:
            if trial.status == Trial.PENDING:
                trial.status = Trial.PAUSED

    def get_trials(self) -> list[Trial]:
        """Return the shown trials."""
        return self._trials

    def pause_trial(self, *args: Any, **kwargs: Any) -> None:
        """Pause a trial."""
        # ``TuneController._set_trial_status`` asserts that a trial is in the set of its status.
        self.hide()
        self._wrapped_controller.pause_trial(*args, **kwargs)
        self.show()

    def stop_trial(self, *args: Any, **kwargs: Any) -> None:
        """Stop a trial."""
        self.hide()
        self._wrapped_controller.stop_trial(*args, **kwargs)
        self.show()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped_controller, name)


class _ProcessClasses:
    """Replaces Tune's cache of remote classes: Tune starts the process class of a trainable."""

    def __init__(self, of_tune: Any, process_class: Callable[[type], type]) -> None:
        self._of_tune = of_tune
        self._process_class = process_class

    def get(self, trainable_class: type) -> Any:
        return self._of_tune.get(self._process_class(trainable_class))


class _GatedSearch(wrapt.ObjectProxy):  # type: ignore[type-arg]
    """Tune's searcher, which suggests trials only if they are needed.

    Tune asks for trials until enough of them are pending, but no trial is pending while it waits for a slot. The
    searcher also counts as unfinished while trials wait, because otherwise Tune would end the processes that they can
    reuse.
    """

    def __init__(self, search: Any, handler: RunHandler) -> None:
        super().__init__(search)
        # ``wrapt`` stores only attributes with the prefix ``_self_`` in the proxy, and all others in the wrapped
        # searcher.
        self._self_handler = handler

    @property
    def has_ended(self) -> bool:
        """Whether the searcher itself has no more trials."""
        return bool(self.__wrapped__.is_finished())

    def is_finished(self) -> bool:
        """Return whether no more trials will start."""
        return self.has_ended and not self._self_handler.has_waiting_trials

    def next_trial(self) -> Trial | None:
        """Return the next trial of the searcher, or ``None`` if no further trial is needed now."""
        search = self.__wrapped__
        # ``SearchGenerator`` wraps a ``Searcher``, which learns from results. ``BasicVariantGenerator`` has no
        # searcher.
        if search.is_finished() or self._self_handler.num_suggestions(is_adaptive=hasattr(search, "searcher")) < 1:
            return None
        return search.next_trial()


def _max_requested(search: Any) -> int:
    """Return Tune's limit of pending trials for an adaptive searcher (``_get_max_pending_trials`` in Tune)."""
    searcher = getattr(search, "searcher", None)
    while searcher is not None:
        if isinstance(searcher, ConcurrencyLimiter):
            return int(searcher.max_concurrent)
        searcher = getattr(searcher, "searcher", None)
    return 1


def number_of_trials(total_samples: float | None) -> int | None:
    """Return the number of trials of a whole run, or ``None`` if it is not known or unlimited.

    Args:
        total_samples: What Tune passes for it. It is 0 until ``tune.run`` has called ``add_configurations``. With
            ``num_samples=-1``, it is ``sys.maxsize``, multiplied by the size of a grid.
    """
    if total_samples is not None and 0 < total_samples <= MOST:
        return int(total_samples)
    return None


def unwrapped(tune_controller: Any) -> Any:
    """Return Tune's controller itself instead of the wrapper that Tune passes to schedulers."""
    if isinstance(tune_controller, RunView):
        return unwrapped(tune_controller._wrapped_controller)
    # The methods of the wrapper are bound to the controller.
    return tune_controller.get_trials.__self__


def handler_of_trial(trial: Trial) -> Any:
    """Return the ``RunHandler`` of the run of ``trial``, or ``None``. A callback of Tune gets only trials."""
    return getattr(trial.temporary_state, "policy_run", None)  # Tune saves no temporary state


def handler_of(tune_controller: Any) -> Any:
    """Return the ``RunHandler`` that controls the run of ``tune_controller``, or ``None`` if no ``TuneRun`` does."""
    actors = getattr(unwrapped(tune_controller), "_actor_manager", None)
    if isinstance(actors, TrialActors):
        return actors.handler
    return None
