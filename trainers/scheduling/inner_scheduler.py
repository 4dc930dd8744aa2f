"""What the inner scheduler sees of a run, and which waiting trial it chooses.

The inner scheduler is the user's scheduler, such as PBT, with the schedulers around it. It sees the run as in plain
Tune, where a trial that waits for resources is pending. When it chooses a trial, it sees only trials that may start.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ray.tune.experiment import Trial
from ray.tune.schedulers import HyperBandScheduler, ResourceChangingScheduler, TrialScheduler

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.ray_compat.run_control import TuneRun
from tune_policies.values.errors import InvalidResourcesError

from .trial_record import TrialRecord
from .wrapping_scheduler import check_is_scheduler, ignores_waiting, nested_schedulers, runs_first_waiting


def changes_resources(scheduler: TrialScheduler) -> bool:
    """Return whether a scheduler is or contains Ray's ``ResourceChangingScheduler``."""
    return any(isinstance(part, ResourceChangingScheduler) for part in nested_schedulers(scheduler))


def check_is_plain_scheduler(inner: TrialScheduler | None, with_policy: type[TrialScheduler]) -> None:
    """Check that the user's scheduler is a scheduler of Tune without a policy of its own.

    Args:
        inner: The user's scheduler, if any.
        with_policy: The class of schedulers that have a policy.

    Raises:
        InvalidResourcesError: It is another object, or it has a policy.
    """
    check_is_scheduler(inner)
    if any(isinstance(part, with_policy) for part in nested_schedulers(inner)):
        raise InvalidResourcesError(
            "inner already has a policy, but a run has only one. Omit one PolicyScheduler, or combine the policies, "
            "such as GpuPolicy() | CpuPolicy()"
        )


def check_inner_scheduler(scheduler: TrialScheduler, plan: TrialPlan) -> None:
    """Check that the user's scheduler can run trials with the slots of a plan.

    Raises:
        InvalidResourcesError: The scheduler changes the resources of trials, and the plan has several slot types.
    """
    has_several_types = len(plan.slots) > 1 or plan.by_config is not None
    if has_several_types and changes_resources(scheduler):
        raise InvalidResourcesError(
            "ResourceChangingScheduler requires the same request for all trials, but the plan has several slot "
            "types. Use a policy with one slot type, or omit ResourceChangingScheduler"
        )


class Choice(NamedTuple):
    """The function with which the inner scheduler chooses a trial, and the controller that it normally sees."""

    choose: Callable[[Any], Trial | None]
    tune_controller: Any


class InnerScheduler:
    """The inner scheduler of a run.

    Args:
        scheduler: The outermost scheduler of the run.
        tune: The run of Tune.

    Attributes:
        has_hyperband: Whether the scheduler is or contains Tune's ``HyperBandScheduler``.
        changes_resources: Whether the scheduler is or contains Ray's ``ResourceChangingScheduler``.
        runs_first: Whether the scheduler always chooses the first trial that may start.
        has_paused: Whether the scheduler has paused a trial in this run.
    """

    def __init__(self, scheduler: TrialScheduler, tune: TuneRun) -> None:
        schedulers = list(nested_schedulers(scheduler))
        self._tune = tune
        self.has_hyperband = any(isinstance(part, HyperBandScheduler) for part in schedulers)
        self.changes_resources = changes_resources(scheduler)
        self.runs_first = runs_first_waiting(scheduler)
        self._ignores_waiting = ignores_waiting(scheduler)
        self.has_paused = False
        self._pausing: set[Trial] = set()

    # Pauses.

    def note_pause(self, trial: Trial) -> None:
        """Record that a running trial pauses, which Tune first saves."""
        self.has_paused = True
        self._pausing.add(trial)

    def update(self) -> None:
        """Follow the status that Tune gave the trials since the last step."""
        # Tune saves a trial before it changes the status, so a pausing trial is still running.
        self._pausing = {trial for trial in self._pausing if trial.status == Trial.RUNNING}

    @property
    def is_pausing(self) -> bool:
        """Whether Tune is pausing a trial."""
        # ``TuneController._schedule_trial_pause`` sets the status to TERMINATED before PAUSED.
        is_handling_event = self._tune.actors.is_handling_event
        return any(trial.status == Trial.RUNNING or is_handling_event for trial in self._pausing)

    def num_paused(self, trials: Iterable[Trial], waiting: Collection[Trial]) -> int:
        """Return how many of the trials the scheduler has paused. The trials that wait for a slot do not count."""
        if not self.has_paused:
            return 0
        return sum(trial.status == Trial.PAUSED and trial not in waiting for trial in trials)

    # Choices.

    def preferred(self, choice: Choice, startable: Sequence[Trial], waiting: Mapping[Trial, None]) -> Trial | None:
        """Return the trial that the scheduler chooses among the trials that may start, or ``None``."""
        # FIFO, ASHA and median stopping start the first trial, so they need not be asked.
        if self.runs_first and startable:
            return startable[0]
        # Such a scheduler resumes paused trials, too (``FIFOScheduler.choose_trial_to_run``).
        if self.runs_first and not self.has_paused:
            return None
        # ``HyperBandScheduler`` chooses by status instead of listing trials. Hidden trials keep the status PAUSED, so
        # it does not choose them.
        hidden = waiting.keys() - set(startable)
        listed = [trial for trial in self._tune.trials if trial not in hidden]
        with self._tune.shown_as_pending(choice.tune_controller, startable, listed) as view:
            return choice.choose(view)

    def in_preferred_order(
        self, choice: Choice, startable: Iterator[Trial], waiting: Mapping[Trial, None], assigned: Collection[Trial]
    ) -> Iterator[Trial]:
        """Yield the trial that the scheduler chooses, unless it has a slot, and then the other trials that may start.

        Args:
            choice: The choice of the scheduler.
            startable: The waiting trials that may start, in order.
            waiting: All waiting trials.
            assigned: The trials that have a slot.
        """
        first = None
        if not self.runs_first or self.has_paused:  # otherwise, finding all trials takes time for no purpose
            found = list(startable)
            first = self.preferred(choice, found, waiting)
            startable = iter(found)
        # The scheduler may choose a trial again whose request is pending (``choose_trial_to_run`` must be idempotent).
        if first is not None and first not in assigned:
            yield first
        for trial in startable:
            if trial is not first:
                yield trial

    def forgotten(self, records: Iterable[Trial]) -> list[Trial]:
        """Return the paused trials that ``HyperBandScheduler`` never resumes or stops, if no trial is active.

        If the last running trial of a bracket in its last round fails, ``HyperBandScheduler.on_trial_remove`` does not
        process the bracket, and its paused trials wait indefinitely. Without running trials, no event can change this.

        Args:
            records: The trials of the run. None of them has a slot or waits for one.
        """
        if self._tune.num_future_trials != 0:
            return []
        unfinished = [trial for trial in records if not trial.is_finished()]
        if any(trial.status != Trial.PAUSED for trial in unfinished):
            return []
        return unfinished

    # Views.

    @contextmanager
    def as_in_tune(self, tune_controller: Any, waiting: Collection[Trial]) -> Iterator[Any]:
        """Show the run as plain Tune does: trials that wait for a slot are pending.

        Yields:
            The controller for the inner scheduler.
        """
        if self._ignores_waiting or not waiting:
            yield tune_controller
            return
        with self._tune.shown_as_pending(tune_controller, list(waiting), self._tune.trials) as view:
            yield view

    @contextmanager
    def shown_request(self, record: TrialRecord | None) -> Iterator[None]:
        """Show a trial's request in a block as the scheduler that changes resources has set it.

        Otherwise, that scheduler would set the same request again after each result, because the request was rounded or
        raised.
        """
        if record is None or not self.changes_resources:
            yield
            return
        trial = record.trial
        request = trial.placement_group_factory
        shown = record.changed or record.planned
        # Not ``Trial.update_resources``, which refuses running trials and makes Tune save the trial again.
        trial.placement_group_factory = shown
        try:
            yield
        finally:
            # If the scheduler has set another request, this request stays, and ``TrialRequests.update`` notes it.
            if trial.placement_group_factory is shown:
                trial.placement_group_factory = request
