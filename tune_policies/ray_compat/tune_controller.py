"""Lets schedulers decide which failures of a trial count, which resources it gets, and which class its process runs.

Tune has no public hooks for these decisions. The private members used here are the same in Ray 2.50 and 2.60.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from ray.actor import ActorHandle
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler

from tune_policies.ray_compat.last_result import UsageKeepingTrial
from tune_policies.ray_compat.version import Gone, check_members
from tune_policies.values.errors import InfeasibleRequestError

try:
    from ray.tune.execution.placement_groups import resource_dict_to_pg_factory
except ImportError as error:
    resource_dict_to_pg_factory = Gone(error, "a scheduler that gives trials other resources")

_logger = logging.getLogger(__name__)

MEMBERS: Final = (
    *("_actor_cache", "_actor_manager", "_actor_to_trial", "_has_errored", "_mark_trial_to_checkpoint"),
    *("_paused_trials", "_pending_trials", "_pending_trials_list", "_remove_actor", "_resetting_trials"),
    *("_max_pending_trials", "_maybe_update_trial_queue", "_resources_to_pending_trials", "_reuse_actors"),
    *("_running_trials", "_set_trial_status", "_staged_trials"),
    *("_trial_task_failure", "_trial_to_actor", "_unstage_trial_with_resources", "_wrapped"),
)
"""The private members of Tune's controller that a run uses. If any member is missing, the run fails early."""


class FailureHook(Protocol):
    """A scheduler that decides which failures of a trial count, and which resources the trial gets."""

    def should_requeue(self, trial: Trial, error: object) -> bool:
        """Return whether Tune should requeue a failed trial without counting the failure.

        Raises:
            InfeasibleRequestError: The trial cannot get the resources to continue, so it fails permanently.
        """

    def adjust_resources(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        """Return the resources to request for a trial instead of ``planned``."""


class HookedTrial(UsageKeepingTrial):
    """A trial with hooks that adjust its resources and decide which failures count.

    Its process can run a class other than the trainable's class.
    """

    def get_trainable_cls(self) -> type | None:
        """Return the trainable's class, or the class that ``process_class`` returns for it."""
        cls = super().get_trainable_cls()
        to_process = getattr(self.temporary_state, "process_class", None)
        return cls if cls is None or to_process is None else to_process(cls)  # type: ignore[no-any-return]

    def handle_error(self, exc: Any = None) -> None:
        """Count the failure unless a hook requeues the trial. If requeuing is infeasible, add the reason to ``exc``."""
        state = self.temporary_state
        state.is_duplicate_report = _is_reported_again(self, exc, state.controller)
        if state.is_duplicate_report:
            _undo_failure(self, state.controller)
            return
        state.requeued_by, state.why_not_requeued, state.was_saving = None, None, self.is_saving
        try:
            if self.status == Trial.RUNNING or self in state.controller._resetting_trials:
                state.requeued_by = next((each for each in state.hooks if each.should_requeue(self, exc)), None)
        except InfeasibleRequestError as error:
            state.why_not_requeued = str(error)
            _logger.error("%s is not requeued and fails: %s", self, state.why_not_requeued)
            _add_note(exc, state.why_not_requeued)
        except Exception:  # an error in a hook must not stop the other trials
            _logger.exception(
                "the decision whether to requeue %s raised an error, so Tune handles the failure of the trial", self
            )
        num_failures = self.run_metadata.num_failures
        super().handle_error(exc)
        if state.requeued_by is None:
            state.has_failed = True
        else:
            self.run_metadata.num_failures = num_failures
            _undo_failure(self, state.controller)
        if state.why_not_requeued and self.error_file:
            with Path(self.error_file).open("a") as file:
                file.write(state.why_not_requeued + "\n")

    def should_recover(self) -> bool:
        """Return whether a hook requeued the trial, Tune retries it, or the failure was already reported."""
        state = self.temporary_state
        if state.is_duplicate_report or state.requeued_by is not None:
            return True
        return state.why_not_requeued is None and bool(super().should_recover())

    def update_resources(self, resources: PlacementGroupFactory | dict[str, float]) -> None:
        """Request ``resources`` after the hooks have adjusted them."""
        wanted = resource_dict_to_pg_factory(resources) if isinstance(resources, dict) else resources
        for hook in self.temporary_state.hooks:
            wanted = hook.adjust_resources(self, wanted)
        super().update_resources(wanted)


def install_hook(
    trial: Trial, hook: FailureHook, tune_controller: Any, process_class: Callable[[type], type] | None = None
) -> None:
    """Let ``hook`` decide which failures of a trial count and which resources it gets. A trial can have several hooks.

    If ``process_class`` is given, Tune starts the class that this function returns for the trainable's class. It must
    return the same class each time, because Tune reuses processes only for the same class.

    The hook is installed on the trial, because Tune calls ``Trial.handle_error`` before any scheduler or callback. A
    larger ``max_failures`` would apply to all errors, and methods on the trial object would be saved with the trial.
    Tune saves neither the class of a trial nor its ``temporary_state``, so a restored trial needs its hook again.
    """
    state = trial.temporary_state
    if not isinstance(trial, HookedTrial):
        check_members(unwrapped(tune_controller), MEMBERS, "a scheduler that gives trials other resources")
        trial.__class__ = HookedTrial
        state.hooks, state.controller = [], unwrapped(tune_controller)
        _report_memory_kills_as_actor_deaths(state.controller._actor_manager)
        state.requeued_by = state.why_not_requeued = None
        state.was_saving = state.has_failed = state.is_duplicate_report = False
    if hook not in state.hooks:
        state.hooks.append(hook)
    if process_class is not None:
        state.process_class = process_class


def hooks_of(trial: Trial) -> Sequence[FailureHook]:
    """Return the hooks of a trial, with the outermost scheduler last."""
    return tuple(getattr(trial.temporary_state, "hooks", ()))


def fail_trial(tune_controller: Any, trial: Trial, error: Exception) -> None:
    """Fail a waiting trial with ``error``, as if its process had raised it.

    Ray's public API lets a scheduler stop a trial, but not fail it.

    Raises:
        Exception: ``error`` itself, in a run with ``fail_fast="raise"``.
    """
    controller = unwrapped(tune_controller)
    trial.init_local_path()  # creates the folder for the error file
    if trial.status == Trial.PAUSED:  # Tune counts the failure of a paused trial, but does not end it
        controller._set_trial_status(trial, Trial.PENDING)
    controller._trial_task_failure(trial, error)


def _report_memory_kills_as_actor_deaths(actor_manager: Any) -> None:
    """Let Tune retry a trial whose process Ray's memory monitor has killed.

    Tune does not expect an ``OutOfMemoryError`` in training, so the error would end the run. In other calls to the
    process, Tune treats every error as the death of the process.
    """
    handle = getattr(actor_manager, "_actor_task_failed", None)
    if handle is None or hasattr(handle, "takes_memory_kills"):
        return

    @functools.wraps(handle)
    def handle_death(tracked_actor_task: Any, exception: Exception) -> None:
        is_memory_kill = isinstance(exception, OutOfMemoryError)
        handle(tracked_actor_task, RayActorError(error_msg=str(exception)) if is_memory_kill else exception)

    handle_death.takes_memory_kills = True  # type: ignore[attr-defined]
    actor_manager._actor_task_failed = handle_death


_tune_logger: Final = logging.getLogger("ray.tune.tune")


def _is_not_gpu_warning(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Tune detects GPUs")


def hide_gpu_warning() -> None:
    """Hide Tune's warning that no trial uses GPUs, because Tune checks only the trainable's own request."""
    _tune_logger.addFilter(_is_not_gpu_warning)


def show_gpu_warning() -> None:
    """Let Tune print its warning again, for runs without a policy."""
    _tune_logger.removeFilter(_is_not_gpu_warning)


def requeued_by(trial: Trial) -> FailureHook | None:
    """Return the hook that requeued ``trial`` after its last failure, or ``None`` if no hook did."""
    return trial.temporary_state.requeued_by if isinstance(trial, HookedTrial) else None


def was_saving(trial: Trial) -> bool:
    """Return whether ``trial`` was saving its state when it failed. Tune clears its own flag after the failure."""
    return bool(trial.temporary_state.was_saving)


def _is_reported_again(trial: Trial, error: object, controller: Any) -> bool:
    """Return whether Tune reports the death of a process a second time.

    If a process dies while it restores a trial or is reset for it, Tune reports the death twice: when it requeues the
    trial, and again while the trial waits. The second report would end the trial regardless of ``max_failures``.
    """
    return (
        isinstance(error, RayActorError) and trial.status == Trial.PENDING and trial not in controller._trial_to_actor
    )


def _undo_failure(trial: Trial, controller: Any) -> None:
    """Undo the changes that Tune made because of a failure that does not count.

    A trial that fails in ``reset_config`` is pending, but Tune retries only running trials, so the status is changed to
    running. Tune takes the same steps if the process of a trial does not start. With ``fail_fast``, Tune stops the run
    at the first recorded failure.
    """
    if trial.status == Trial.PENDING:
        controller._resetting_trials.discard(trial)
        controller._set_trial_status(trial, Trial.RUNNING)
        if trial in controller._staged_trials:
            controller._unstage_trial_with_resources(trial)
    controller._has_errored = any(
        getattr(each.temporary_state, "has_failed", False) for each in controller.get_trials()
    )


def _add_note(error: object, text: str) -> None:
    """Add a note to an error, or to the error that it wraps, because Ray does not save the notes of its own errors."""
    cause = getattr(error, "cause", None)
    noted = cause if isinstance(cause, BaseException) else error
    if isinstance(noted, BaseException):
        noted.add_note(text)


def save_experiment(tune_controller: Any, *, wait: bool = False) -> None:
    """Make Tune save the experiment now instead of at the next regular save.

    Args:
        tune_controller: Tune's controller.
        wait: Whether to wait until the run's folder is written.
    """
    unwrapped(tune_controller).checkpoint(force=True, wait=wait)


def unwrapped(tune_controller: Any) -> Any:
    """Return Tune's controller itself instead of the wrapper that Tune passes to schedulers."""
    return getattr(tune_controller, "_tune_controller", tune_controller)


def trainable_class(trial: Trial) -> type:
    """Return the class of the trial's trainable, even if the trial's process runs another class."""
    return Trial.get_trainable_cls(trial)  # type: ignore[no-any-return]


def scheduler_inside(scheduler: TrialScheduler) -> TrialScheduler | None:
    """Return the scheduler inside Ray's ``ResourceChangingScheduler``, or ``None`` for other schedulers."""
    return getattr(scheduler, "_base_scheduler", None)


def longest_trials(scheduler: TrialScheduler) -> dict[str, float]:
    """Return the ``max_t`` at which ``scheduler`` stops every trial, by time attribute, or ``{}`` if it has none."""
    key = getattr(scheduler, "_time_attr", None)
    max_t = getattr(scheduler, "_max_t", getattr(scheduler, "_max_t_attr", None))
    stops = getattr(scheduler, "_stop_last_trials", False)
    return {key: max_t} if stops and isinstance(key, str) and isinstance(max_t, int | float) else {}


def pending_change(scheduler: ResourceChangingScheduler, trial: Trial) -> PlacementGroupFactory | None:
    """Return the new resources for which ``scheduler`` pauses ``trial``, or ``None`` if no change is pending."""
    wanted = scheduler._trials_to_reallocate.get(trial)
    return resource_dict_to_pg_factory(wanted) if isinstance(wanted, dict) else wanted


def drop_change(scheduler: ResourceChangingScheduler, trial: Trial) -> None:
    """Cancel the new resources that ``scheduler`` is about to give ``trial``."""
    scheduler._trials_to_reallocate.pop(trial, None)


def actor_of(trial: Trial) -> str | None:
    """Return the ID of the actor that runs ``trial``, or ``None`` if it has none."""
    actor = getattr(getattr(trial, "temporary_state", None), "ray_actor", None)
    return actor._actor_id.hex() if isinstance(actor, ActorHandle) else None
