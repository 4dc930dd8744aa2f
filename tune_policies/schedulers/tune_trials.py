"""How one of Tune's trials fails without being counted, and how it asks for other resources."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ray.tune import PlacementGroupFactory
from ray.tune.execution.placement_groups import resource_dict_to_pg_factory
from ray.tune.experiment import Trial
from ray.tune.schedulers import ResourceChangingScheduler

from tune_policies.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.placement.remaining import BundleGroup
from tune_policies.plan import TrialPlan
from tune_policies.ray_adapter import PLAN_ATTRIBUTE
from tune_policies.slot import TrialSlot
from tune_policies.unpickled_once import UnpickledOnce

from .seating import num_slots

_logger = logging.getLogger(__name__)


class Adviser(Protocol):
    """What a trial asks of a scheduler."""

    def goes_back(self, trial: Trial, error: object) -> bool:
        """Return whether a trial that failed goes back, and its failure does not count.

        Raises:
            InfeasibleRequestError: It ran out of memory, and there is no more for it: it fails for good.
        """

    def plan_resources(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        """Return what a trial gets for which ``planned`` was meant."""


class AdvisedTrial(Trial):  # type: ignore[misc]  # Ray has no types
    """A trial of which schedulers say which failures do not count, and what it gets."""

    def handle_error(self, exc: Any = None) -> None:
        """Count the failure, unless the trial goes back; where there is nothing for it, its error says so."""
        state = self.temporary_state
        state.returned_by, state.why_not, state.was_saving = None, None, self.is_saving
        try:
            if self.status == Trial.RUNNING or self in state.controller._resetting_trials:
                state.returned_by = next((each for each in state.advisers if each.goes_back(self, exc)), None)
        except InfeasibleRequestError as error:
            state.why_not = str(error)
            _logger.error("%s ran out of memory and fails: %s", self, state.why_not)
            _note(exc, state.why_not)
        except Exception:  # whatever it is, it must not end the other trials
            _logger.exception("%s is left to Tune: whether it goes back could not be told", self)
        num_failures = self.run_metadata.num_failures
        super().handle_error(exc)
        if state.returned_by is None:
            state.has_failed = True
        else:
            self.run_metadata.num_failures = num_failures
            _let_go_back(self, state.controller)
        if state.why_not and self.error_file:
            with Path(self.error_file).open("a") as file:
                file.write(state.why_not + "\n")

    def should_recover(self) -> bool:
        """Return whether it goes back: as a scheduler says, or as Tune retries it."""
        state = self.temporary_state
        return state.returned_by is not None or (state.why_not is None and bool(super().should_recover()))

    def update_resources(self, resources: PlacementGroupFactory | dict[str, float]) -> None:
        """Ask for ``resources``, as the schedulers change them."""
        wanted = resource_dict_to_pg_factory(resources) if isinstance(resources, dict) else resources
        for adviser in self.temporary_state.advisers:
            wanted = adviser.plan_resources(self, wanted)
        super().update_resources(wanted)


def adopt(trial: Trial, adviser: Adviser, tune_controller: Any) -> None:
    """Let ``adviser`` say whether a failure of ``trial`` counts, and what the trial gets; beside others that do.

    Tune asks the trial itself, before any scheduler hears of it, and counts by ``max_failures`` alone: a room for
    failures that is large enough for us would give every other error free retries. A class is not saved with the trial,
    so a restored trial is adopted anew, and ``temporary_state`` is what Tune never saves.
    """
    state = trial.temporary_state
    if not isinstance(trial, AdvisedTrial):
        trial.__class__ = AdvisedTrial
        state.advisers, state.controller = [], unwrapped(tune_controller)
        state.returned_by = state.why_not = None
        state.was_saving = state.has_failed = False
    if adviser not in state.advisers:
        state.advisers.append(adviser)


def returned_by(trial: Trial) -> Adviser | None:
    """Return who let ``trial`` go back when it failed; ``None``: nobody, it is as Tune would have it."""
    return trial.temporary_state.returned_by if isinstance(trial, AdvisedTrial) else None


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


def save_experiment(tune_controller: Any, *, wait: bool = False) -> None:
    """Have Tune save the experiment now: what was learned is lost where the program is killed before its next time.

    Args:
        tune_controller: Tune's controller.
        wait: Whether to wait until all is in the run's folder, as where the run ends.
    """
    unwrapped(tune_controller).checkpoint(force=True, wait=wait)


def unwrapped(tune_controller: Any) -> Any:
    """Return Tune's controller itself: schedulers are given one that hides most of it."""
    return getattr(tune_controller, "_tune_controller", tune_controller)


def bundles_of(resources: PlacementGroupFactory) -> list[Mapping[str, float]]:
    """Return the bundles, the trainable's own first, though it be empty."""
    return [{}, *resources.bundles] if resources.head_bundle_is_empty else list(resources.bundles)


def reservation_of(resources: PlacementGroupFactory) -> BundleGroup:
    """Return what is asked for, and where it may be. Ray keeps the selectors of the bundles to itself."""
    selectors = resources._kwargs.get("bundle_label_selector") or [{}] * len(resources.bundles)
    head: list[dict[str, str]] = [{}] if resources.head_bundle_is_empty else []
    return BundleGroup(bundles_of(resources), resources.strategy, [*head, *selectors])


def with_bundles(resources: PlacementGroupFactory, bundles: Sequence[Mapping[str, float]]) -> PlacementGroupFactory:
    """Return the same request with other bundles. The rest of it, such as label selectors, Ray keeps to itself."""
    other = PlacementGroupFactory(
        [dict(bundle) for bundle in bundles], resources.strategy, *resources._args, **resources._kwargs
    )
    other.planned = resources  # a trial that Tune starts anew, once it is restored, has nothing else left
    other.slot = getattr(resources, "slot", None)
    return other


def planned_of(resources: PlacementGroupFactory) -> PlacementGroupFactory:
    """Return the request that ``resources`` was made of by ``with_bundles``; else itself."""
    return getattr(resources, "planned", resources)


def pending_change(scheduler: ResourceChangingScheduler, trial: Trial) -> PlacementGroupFactory | None:
    """Return what ``scheduler`` is about to give ``trial``, for which it pauses it; ``None``: nothing else."""
    wanted = scheduler._trials_to_reallocate.get(trial)
    return resource_dict_to_pg_factory(wanted) if isinstance(wanted, dict) else wanted


def drop_change(scheduler: ResourceChangingScheduler, trial: Trial) -> None:
    """Let ``scheduler`` forget what it is about to give ``trial``."""
    scheduler._trials_to_reallocate.pop(trial, None)


def plan_of_trainable(trial: Trial) -> TrialPlan | None:
    """Return the plan with which ``with_plan`` made the trainable; ``None``: it did not."""
    carried = getattr(trial.get_trainable_cls(), PLAN_ATTRIBUTE, None)
    return carried.value if isinstance(carried, UnpickledOnce) else None


def slot_before(trial: Trial) -> TrialSlot | None:
    """Return the slot that ``trial`` was given last, also before it was restored; ``None``: it was given none.

    What it reserves does not tell: Tune works that out anew for a restored trial.
    """
    text = getattr(trial, "policy_slot", None)
    try:
        return None if text is None else TrialSlot.from_json(text)
    except InvalidResourcesError as error:  # saved by another version of this
        _logger.warning("in which slot %s ran cannot be read: %s", trial, error)
        return None


def remember_slot(trial: Trial, slot: TrialSlot) -> None:
    """Have ``trial`` remember that it was given ``slot``, also once it is restored."""
    trial.policy_slot = slot.to_json()  # Tune saves all attributes of a trial as JSON, with the experiment
    trial.invalidate_json_state()


def slots_taken(trial: Trial, slot: TrialSlot) -> int:
    """Return how many times ``slot`` holds what ``trial`` asks for: once, unless a scheduler gave it more."""
    asked = trial.placement_group_factory
    if planned_of(asked) is asked:
        return 1
    return num_slots(bundles_of(asked)[0], bundles_of(slot.placement_group_factory())[0])


def request_instead(tune_controller: Any, trial: Trial, resources: PlacementGroupFactory) -> None:
    """Take back what was requested for a waiting trial, and request ``resources``."""
    controller = unwrapped(tune_controller)
    if not withdraw(controller, trial):
        return
    trial.update_resources(resources)
    controller._resources_to_pending_trials[trial.placement_group_factory].add(trial)
    controller._pending_trials_list.append(trial)


def withdraw(controller: Any, trial: Trial) -> bool:
    """Take back what was requested for a waiting trial; ``False``: it is on its way into another trial's process.

    Tune requests resources for waiting trials ahead of time, and has no public way to take that back. The steps are
    those that it takes itself when a waiting trial gets another trial's process.
    """
    if trial in controller._resetting_trials:
        return False
    actor = controller._trial_to_actor.pop(trial, None)
    if actor is None:
        controller._staged_trials.discard(trial)  # it is held back: nothing was requested
    else:
        controller._actor_to_trial.pop(actor)
        controller._remove_actor(tracked_actor=actor)
        if trial in controller._staged_trials:
            controller._unstage_trial_with_resources(trial)
    controller._resources_to_pending_trials[trial.placement_group_factory].discard(trial)
    return True
