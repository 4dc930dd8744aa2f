"""How one of Tune's trials fails without being counted, what it remembers, and how it asks for other resources.

What a trial has taught is kept in the trial itself, which Tune saves with the experiment wherever that is, and which
comes back when the experiment is restored.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ray.tune import PlacementGroupFactory
from ray.tune.execution.placement_groups import resource_dict_to_pg_factory
from ray.tune.experiment import Trial

from tune_policies.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.resources import Count
from tune_policies.values import Value

from .lessons import Lesson
from .reservation import Reservation

_logger = logging.getLogger(__name__)


class TrialMemory(Value):
    """What a trial remembers of running out.

    Attributes:
        lessons: What it got each time, and for which config.
        num_same_share: How often it went back with the share that it had.
    """

    lessons: tuple[Lesson, ...] = ()
    num_same_share: Count = 0


class Escalating(Protocol):
    """What a trial asks of its scheduler."""

    def next_memory(self, trial: Trial, error: object) -> TrialMemory | None:
        """Return what a failed trial will remember if it goes back for want of memory; ``None``: it does not."""

    def plan_resources(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        """Return what a trial gets for which ``planned`` was meant."""


class EscalatingTrial(Trial):  # type: ignore[misc]  # Ray has no types
    """A trial whose failures for want of memory are not counted."""

    def handle_error(self, exc: Any = None) -> None:
        """Count the failure, unless the trial goes back; where there is no more for it, its error says so."""
        state = self.temporary_state
        state.next_memory, state.why_no_more, state.was_saving = None, None, self.is_saving
        try:
            if self.status == Trial.RUNNING or self in state.controller._resetting_trials:
                memory = state.escalating.next_memory(self, exc)
                if memory is not None:
                    remember(self, memory)
                state.next_memory = memory
        except InfeasibleRequestError as error:
            state.why_no_more = str(error)
            _logger.error("%s ran out of memory and fails: %s", self, state.why_no_more)
            _note(exc, state.why_no_more)
        except Exception:  # whatever it is, it must not end the other trials
            _logger.exception("%s is left to Tune: what would be next for it could not be told", self)
        num_failures = self.run_metadata.num_failures
        super().handle_error(exc)
        if state.next_memory is None:
            state.has_failed = True
        else:
            self.run_metadata.num_failures = num_failures
            _let_go_back(self, state.controller)
        if state.why_no_more and self.error_file:
            with Path(self.error_file).open("a") as file:
                file.write(state.why_no_more + "\n")

    def should_recover(self) -> bool:
        """Return whether it goes back: with more, or as Tune retries it."""
        state = self.temporary_state
        return state.next_memory is not None or (state.why_no_more is None and bool(super().should_recover()))

    def update_resources(self, resources: PlacementGroupFactory | dict[str, float]) -> None:
        """Ask for ``resources``, with what its config is known to need."""
        planned = resource_dict_to_pg_factory(resources) if isinstance(resources, dict) else resources
        super().update_resources(self.temporary_state.escalating.plan_resources(self, planned))


def adopt(trial: Trial, scheduler: Escalating, tune_controller: Any) -> None:
    """Let ``scheduler`` decide whether a failure of ``trial`` counts, and whether the trial goes on.

    Tune asks the trial itself, before any scheduler hears of it, and counts by ``max_failures`` alone: a room for
    failures that is large enough for us would give every other error free retries. A class is not saved with the trial,
    so a restored trial is adopted anew, and ``temporary_state`` is what Tune never saves.
    """
    trial.__class__ = EscalatingTrial
    state = trial.temporary_state
    state.escalating, state.controller = scheduler, _unwrapped(tune_controller)
    state.next_memory = state.why_no_more = None
    state.was_saving = state.has_failed = False


def _let_go_back(trial: Trial, controller: Any) -> None:
    """Undo what Tune noted of a failure that does not count. It has no public way for that.

    One in ``reset_config`` is that of a trial that waits, which Tune would not retry: it retries what runs, and has the
    same steps for a trial whose process does not start. With ``fail_fast`` it stops at the first failure that it saw.
    """
    if trial.status == Trial.PENDING:
        controller._resetting_trials.discard(trial)
        controller._set_trial_status(trial, Trial.RUNNING)
        if trial in controller._staged_trials:
            controller._unstage_trial_with_resources(trial)
    controller._has_errored = any(
        getattr(each.temporary_state, "has_failed", False) for each in controller.get_trials()
    )


def _note(error: object, text: str) -> None:
    """Add ``text`` to an error; to what Ray's error wraps, as Ray would lose it when it saves its own."""
    cause = getattr(error, "cause", None)
    noted = cause if isinstance(cause, BaseException) else error
    if isinstance(noted, BaseException):
        noted.add_note(text)


def save_experiment(tune_controller: Any) -> None:
    """Have Tune save the experiment now: what was learned is lost where the program is killed before its next time."""
    _unwrapped(tune_controller).checkpoint(force=True)


def _unwrapped(tune_controller: Any) -> Any:
    return getattr(tune_controller, "_tune_controller", tune_controller)


def recall(trial: Trial) -> TrialMemory:
    """Return what ``trial`` remembers, also from before it was restored."""
    text = getattr(trial, "escalation_memory", None)
    try:
        return TrialMemory() if text is None else TrialMemory.from_json(text)
    except InvalidResourcesError as error:  # saved by another version of this
        _logger.warning("what %s remembers cannot be read: %s", trial, error)
        return TrialMemory()


def remember(trial: Trial, memory: TrialMemory) -> None:
    """Have ``trial`` remember ``memory``, also once it is restored."""
    # Tune saves all attributes of a trial as JSON, with the experiment.
    trial.escalation_memory = memory.to_json()
    trial.invalidate_json_state()


def bundles_of(resources: PlacementGroupFactory) -> list[Mapping[str, float]]:
    """Return the bundles, the trainable's own first, though it be empty."""
    return [{}, *resources.bundles] if resources.head_bundle_is_empty else list(resources.bundles)


def reservation_of(resources: PlacementGroupFactory) -> Reservation:
    """Return what is asked for, and where it may be. Ray keeps the selectors of the bundles to itself."""
    selectors = resources._kwargs.get("bundle_label_selector") or [{}] * len(resources.bundles)
    head: list[dict[str, str]] = [{}] if resources.head_bundle_is_empty else []
    return Reservation(bundles_of(resources), resources.strategy, [*head, *selectors])


def with_bundles(resources: PlacementGroupFactory, bundles: Sequence[Mapping[str, float]]) -> PlacementGroupFactory:
    """Return the same request with other bundles. The rest of it, such as label selectors, Ray keeps to itself."""
    other = PlacementGroupFactory(
        [dict(bundle) for bundle in bundles], resources.strategy, *resources._args, **resources._kwargs
    )
    other.planned = resources  # a trial that Tune starts anew, once it is restored, has nothing else left
    return other


def planned_of(resources: PlacementGroupFactory) -> PlacementGroupFactory:
    """Return the request that ``resources`` was made of by ``with_bundles``; else itself."""
    return getattr(resources, "planned", resources)


def request_instead(tune_controller: Any, trial: Trial, resources: PlacementGroupFactory) -> None:
    """Take back what was requested for a waiting trial, and request ``resources``.

    Tune requests resources for waiting trials ahead of time, and has no public way to take that back. The first steps
    are those that it takes itself when a waiting trial gets another trial's process.
    """
    controller = _unwrapped(tune_controller)
    if trial in controller._resetting_trials:
        return  # it is on its way into a process that it gets from another trial
    actor = controller._trial_to_actor.pop(trial, None)
    if actor is not None:
        controller._actor_to_trial.pop(actor)
        controller._remove_actor(tracked_actor=actor)
    if trial in controller._staged_trials:
        controller._unstage_trial_with_resources(trial)
    controller._resources_to_pending_trials[trial.placement_group_factory].discard(trial)
    trial.update_resources(resources)
    controller._resources_to_pending_trials[trial.placement_group_factory].add(trial)
    controller._pending_trials_list.append(trial)
