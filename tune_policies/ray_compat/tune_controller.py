"""How one of Tune's trials fails without being counted, asks for other resources, and is held back.

A scheduler can choose which waiting trial runs next, and has no public way to anything else of these: it is given a
controller that hides its lists, and Tune requests resources for waiting trials ahead of time. What is touched of
Tune's own is the same in Ray 2.50 and 2.60.

In each step Tune asks its scheduler for one trial, requests resources for every other waiting trial
(``TuneController._maybe_add_actors``), and gives processes that are kept for reuse to trials with the same request.
"""

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final, Protocol

from ray.actor import ActorHandle
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler

from tune_policies.cluster.labels import merged
from tune_policies.placement.packing import BundleGroup, num_slots_for
from tune_policies.plan.trial_slot import SLOT_ATTRIBUTE, TrialSlot
from tune_policies.ray_compat.version import Gone, check_members
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError

try:
    from ray.tune.execution.tune_controller import TuneController
except ImportError as error:
    TuneController = Gone(error, "a searcher that is asked for no trial too early")
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
"""The private members of Tune's controller that are touched here. A run that needs them fails as it begins."""


_MEMBERS_OF_ACTOR_MANAGER: Final = ("_live_actors_to_ray_actors_resources", "_resource_manager")
_MEMBERS_OF_RESOURCE_MANAGER: Final = (
    *("_pg_to_request", "_pg_to_staging_future", "_request_to_ready_pgs", "_request_to_staged_pgs"),
    "_staging_future_to_pg",
)


class FailureHook(Protocol):
    """A scheduler that decides which failures of a trial do not count, and which resources the trial gets."""

    def should_requeue(self, trial: Trial, error: object) -> bool:
        """Return whether Tune puts a failed trial back into its queue without counting the failure.

        Raises:
            InfeasibleRequestError: The trial ran out of memory, and there is no more for it: it fails for good.
        """

    def adjust_resources(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        """Return the resources that a trial gets where ``planned`` was asked for it."""


class HookedTrial(Trial):  # type: ignore[misc]  # Ray has no types
    """A trial that asks its hooks which failures count, which resources it gets, and which class runs its process."""

    def get_trainable_cls(self) -> type | None:
        """Return the class that Tune starts: the one that a scheduler makes of the trainable's, or this itself."""
        cls = super().get_trainable_cls()
        to_process = getattr(self.temporary_state, "process_class", None)
        return cls if cls is None or to_process is None else to_process(cls)  # type: ignore[no-any-return]

    def handle_error(self, exc: Any = None) -> None:
        """Count the failure, unless a hook requeues the trial. If a hook says why it cannot, add that to the error."""
        state = self.temporary_state
        state.is_told_again = _is_told_again(self, exc, state.controller)
        if state.is_told_again:
            _undo_failure(self, state.controller)
            return
        state.requeued_by, state.why_not_requeued, state.was_saving = None, None, self.is_saving
        try:
            if self.status == Trial.RUNNING or self in state.controller._resetting_trials:
                state.requeued_by = next((each for each in state.hooks if each.should_requeue(self, exc)), None)
        except InfeasibleRequestError as error:
            state.why_not_requeued = str(error)
            _logger.error("%s ran out of memory and fails: %s", self, state.why_not_requeued)
            _note(exc, state.why_not_requeued)
        except Exception:  # whatever it is, it must not end the other trials
            _logger.exception("%s is left to Tune: no scheduler could tell whether to requeue it", self)
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
        """Return whether a hook has requeued the trial, or Tune retries it."""
        state = self.temporary_state
        if state.is_told_again or state.requeued_by is not None:
            return True
        return state.why_not_requeued is None and bool(super().should_recover())

    def update_resources(self, resources: PlacementGroupFactory | dict[str, float]) -> None:
        """Ask for ``resources``, as the hooks adjust them."""
        wanted = resource_dict_to_pg_factory(resources) if isinstance(resources, dict) else resources
        for hook in self.temporary_state.hooks:
            wanted = hook.adjust_resources(self, wanted)
        super().update_resources(wanted)


def install_hook(
    trial: Trial, hook: FailureHook, tune_controller: Any, process_class: Callable[[type], type] | None = None
) -> None:
    """Let ``hook`` decide which failures of ``trial`` count, and which resources it gets; several hooks may.

    With ``process_class``, Tune starts the class that it returns for the trainable's class. It must return the same
    class each time: Tune reuses processes of one class.

    Tune asks the trial itself, before any scheduler hears of it, and counts by ``max_failures`` alone: a room for
    failures that is large enough for us would give every other error free retries. Neither a scheduler nor a callback
    is asked, and methods put on the object itself would be saved with it. A class is not saved with the trial, so a
    restored trial needs its hook anew, and ``temporary_state`` is what Tune never saves.
    """
    state = trial.temporary_state
    if not isinstance(trial, HookedTrial):
        check_members(unwrapped(tune_controller), MEMBERS, "a scheduler that gives trials other resources")
        trial.__class__ = HookedTrial
        state.hooks, state.controller = [], unwrapped(tune_controller)
        _take_memory_kills_for_deaths(state.controller._actor_manager)
        state.requeued_by = state.why_not_requeued = None
        state.was_saving = state.has_failed = state.is_told_again = False
    if hook not in state.hooks:
        state.hooks.append(hook)
    if process_class is not None:
        state.process_class = process_class


def hooks_of(trial: Trial) -> Sequence[FailureHook]:
    """Return the hooks of a trial, the outermost scheduler last."""
    return tuple(getattr(trial.temporary_state, "hooks", ()))


def fail_trial(tune_controller: Any, trial: Trial, error: Exception) -> None:
    """Fail a waiting trial with ``error``, as if its process had raised it. A scheduler can only stop a trial.

    Raises:
        Exception: ``error`` itself, in a run with ``fail_fast="raise"``.
    """
    controller = unwrapped(tune_controller)
    trial.init_local_path()  # it has no folder for its error yet
    if trial.status == Trial.PAUSED:  # of which Tune would only count the failure
        controller._set_trial_status(trial, Trial.PENDING)
    controller._trial_task_failure(trial, error)


def _take_memory_kills_for_deaths(actor_manager: Any) -> None:
    """Let Tune retry a trial whose process Ray's memory monitor has ended: Tune knows no such error, and ends the run.

    Only where the process dies while it trains: of its other calls, Tune takes every error for a death.
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


_MANY: Final = 10**9
"""So many trials are still to come where the searcher does not say."""


class GatedController(TuneController):  # type: ignore[misc]  # Ray has no types
    """A controller that asks its searcher for no more trials than could start."""

    def _maybe_update_trial_queue(self) -> None:
        num_free = self.num_free_of_policy()
        if num_free > 0:
            self._max_pending_trials = len(self._pending_trials) + num_free
            super()._maybe_update_trial_queue()
        self._max_pending_trials = _MANY  # the scheduler alone says how many start

    def __getstate__(self) -> dict[str, Any]:
        """Return what Tune saves, as if nothing had been changed: the run may be resumed without a policy."""
        state: dict[str, Any] = super().__getstate__()
        del state["num_free_of_policy"]
        return state | {"_max_pending_trials": state.pop("max_pending_of_tune")}


def gate_searcher(tune_controller: Any, num_free: Callable[[], int]) -> None:
    """Let Tune ask its searcher for ``num_free()`` trials in each step.

    By itself Tune asks for a trial before the one in front of it has started, so the searcher has seen one result less
    than it could. ``max_concurrent_trials`` prevents that, but has to be known before a scheduler is called. A grid or
    a random search learns nothing from results, and is not gated.
    """
    controller = unwrapped(tune_controller)
    if isinstance(controller, TuneController) and hasattr(controller.search_alg, "searcher"):
        controller.num_free_of_policy = num_free
        controller.max_pending_of_tune = controller._max_pending_trials
        controller.__class__ = GatedController


class _GpuWarningFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("Tune detects GPUs")


_gpu_warning_filter: Final = _GpuWarningFilter()
_TUNE_LOGGER: Final = "ray.tune.tune"


def hide_gpu_warning() -> None:
    """Hide Tune's warning that no trials use GPUs: it goes by the trainable's own request."""
    logging.getLogger(_TUNE_LOGGER).addFilter(_gpu_warning_filter)


def show_gpu_warning() -> None:
    """Let Tune print its warning again, for runs without a policy."""
    logging.getLogger(_TUNE_LOGGER).removeFilter(_gpu_warning_filter)


def requeued_by(trial: Trial) -> FailureHook | None:
    """Return the hook that requeued ``trial`` after its last failure; ``None``: none did, and Tune decided."""
    return trial.temporary_state.requeued_by if isinstance(trial, HookedTrial) else None


def was_saving(trial: Trial) -> bool:
    """Return whether ``trial``, whose failure was just handled, was saving its state, which Tune forgets then."""
    return bool(trial.temporary_state.was_saving)


def _is_told_again(trial: Trial, error: object, controller: Any) -> bool:
    """Return whether ``error`` is the death of a process that ``trial`` has no more.

    Of a process that dies while it restores a trial, or takes over its config, Tune tells a trial twice: once as it
    requeues the trial, and once more when the trial waits, which would end it for good whatever its ``max_failures``.
    """
    return (
        isinstance(error, RayActorError) and trial.status == Trial.PENDING and trial not in controller._trial_to_actor
    )


def _undo_failure(trial: Trial, controller: Any) -> None:
    """Undo what Tune noted of a failure that does not count. Tune has no public way for that.

    A trial that fails in ``reset_config`` is pending, and Tune retries only trials that run, so it becomes one. Tune
    takes the same steps where a trial's process does not start. With ``fail_fast`` Tune stops at the first failure that
    it has noted.
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
    if SLOT_ATTRIBUTE in vars(resources):
        setattr(other, SLOT_ATTRIBUTE, getattr(resources, SLOT_ATTRIBUTE))
    return other


def with_selectors(
    resources: PlacementGroupFactory, bundles: Sequence[Mapping[str, float]], selector: Mapping[str, str]
) -> PlacementGroupFactory:
    """Return the request of a trial that reserves several bundles, with each bundle on nodes that a selector selects.

    Args:
        resources: The trial's own request, which stays with the result.
        bundles: Its bundles as they are to be reserved, the trainable's own first.
        selector: Ray's label selector; empty: any node.
    """
    kwargs = dict(resources._kwargs)
    if selector:
        own = kwargs.get("bundle_label_selector") or [{}] * len(resources.bundles)
        kwargs["bundle_label_selector"] = [merged(dict(each), dict(selector)) for each in own]
    other = PlacementGroupFactory([dict(each) for each in bundles], resources.strategy, *resources._args, **kwargs)
    other.own_request = resources
    return other


def own_request(trial: Trial) -> PlacementGroupFactory | None:
    """Return what a trial that is added asks for by itself; ``None``: a policy has replaced it in an earlier run."""
    asked = planned_of(trial.placement_group_factory)
    if SLOT_ATTRIBUTE in vars(asked) or hasattr(asked, "own_request"):
        return getattr(asked, "own_request", None)
    return asked


def trainable_class(trial: Trial) -> type:
    """Return the class of the trial's trainable, also where another class sets up its process."""
    return Trial.get_trainable_cls(trial)  # type: ignore[no-any-return]


def planned_of(resources: PlacementGroupFactory) -> PlacementGroupFactory:
    """Return the request that ``resources`` was made of by ``with_bundles``; else itself."""
    return getattr(resources, "planned", resources)


def scheduler_inside(scheduler: TrialScheduler) -> TrialScheduler | None:
    """Return the scheduler around which Ray's ``ResourceChangingScheduler`` is, which has no public name for it."""
    return getattr(scheduler, "_base_scheduler", None)


def longest_trials(scheduler: TrialScheduler) -> dict[str, float]:
    """Return how long ``scheduler`` lets any trial run at most, its ``max_t``, by the key of a result that says so."""
    key = getattr(scheduler, "_time_attr", None)
    max_t = getattr(scheduler, "_max_t", getattr(scheduler, "_max_t_attr", None))
    stops = getattr(scheduler, "_stop_last_trials", False)
    return {key: max_t} if stops and isinstance(key, str) and isinstance(max_t, int | float) else {}


def pending_change(scheduler: ResourceChangingScheduler, trial: Trial) -> PlacementGroupFactory | None:
    """Return what ``scheduler`` is about to give ``trial``, for which it pauses it; ``None``: nothing else."""
    wanted = scheduler._trials_to_reallocate.get(trial)
    return resource_dict_to_pg_factory(wanted) if isinstance(wanted, dict) else wanted


def drop_change(scheduler: ResourceChangingScheduler, trial: Trial) -> None:
    """Let ``scheduler`` forget what it is about to give ``trial``."""
    scheduler._trials_to_reallocate.pop(trial, None)


def slot_before(trial: Trial) -> TrialSlot | None:
    """Return the slot that ``trial`` was given last, also before it was restored; ``None``: it was given none.

    What it reserves does not tell: Tune works that out anew for a restored trial.
    """
    text = getattr(trial, SLOT_ATTRIBUTE, None)
    try:
        return None if text is None else TrialSlot.from_json(text)
    except InvalidResourcesError as error:  # saved by another version of this
        _logger.warning("in which slot %s ran cannot be read: %s", trial, error)
        return None


def remember_slot(trial: Trial, slot: TrialSlot) -> None:
    """Have ``trial`` remember that it was given ``slot``, also once it is restored."""
    setattr(trial, SLOT_ATTRIBUTE, slot.to_json())  # Tune saves all attributes of a trial as JSON, with the experiment
    trial.invalidate_json_state()


def actor_of(trial: Trial) -> str | None:
    """Return the identifier of the actor that runs ``trial``; ``None``: it has none, or Tune does not say."""
    actor = getattr(getattr(trial, "temporary_state", None), "ray_actor", None)
    return actor._actor_id.hex() if isinstance(actor, ActorHandle) else None


def slots_taken(trial: Trial) -> int:
    """Return how many times the slot of ``trial`` holds what it asks for: once, unless a scheduler gave it more."""
    if not has_raised_resources(trial):
        return 1
    asked = trial.placement_group_factory
    return max(map(num_slots_for, bundles_of(asked), bundles_of(planned_of(asked))))


def has_raised_resources(trial: Trial) -> bool:
    """Return whether a scheduler gave ``trial`` other resources than were planned: it fits into no kept process."""
    asked = trial.placement_group_factory
    return planned_of(asked) is not asked


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


_WAITS = frozenset({Trial.PENDING, Trial.PAUSED})


class TuneQueue:
    """The trials of a run that wait.

    Args:
        tune_controller: Tune's controller, as it is given to a scheduler.
    """

    def __init__(self, tune_controller: Any) -> None:
        self._controller = unwrapped(tune_controller)
        what = "a scheduler that gives trials slots"
        check_members(self._controller, MEMBERS, what)
        check_members(self._controller._actor_manager, _MEMBERS_OF_ACTOR_MANAGER, what)
        check_members(self._controller._actor_manager._resource_manager, _MEMBERS_OF_RESOURCE_MANAGER, what)
        self._kept: Counter[PlacementGroupFactory] = Counter()
        self._staged_paused: set[Trial] = set()
        self._has_paused = False

    def is_of(self, tune_controller: Any) -> bool:
        """Return whether these are the trials of that controller's run."""
        return self._controller is unwrapped(tune_controller)

    @property
    def pending(self) -> AbstractSet[Trial]:
        """The trials that wait for their resources or their process."""
        return self._controller._pending_trials  # type: ignore[no-any-return]

    def to_hold_back(self, held: AbstractSet[Trial], assigned: AbstractSet[Trial]) -> list[Trial]:
        """Return the waiting trials that Tune would start though they have no slot, in Tune's order.

        All of a run's waiting trials pass through here in each step: most are held already, and cost next to nothing.
        """
        listed = dict.fromkeys(
            each for each in self._controller._pending_trials_list if each in self.pending and each not in assigned
        )
        unlisted = self.pending - held - assigned - listed.keys()
        return [*listed, *sorted(unlisted, key=lambda trial: trial.trial_id)]

    @property
    def num_paused(self) -> int:
        """How many trials are paused."""
        return len(self._controller._paused_trials)

    @property
    def num_to_come(self) -> int:
        """How many trials the searcher will still give."""
        search = self._controller.search_alg
        if search.is_finished():
            return 0
        total = getattr(search, "total_samples", None) or 0
        return max(0, total - len(self._controller.get_trials())) if total > 0 else _MANY

    def is_requested(self, trial: Trial) -> bool:
        """Return whether Tune has requested resources for ``trial``, which is not held back, or it has a process."""
        return trial in self._controller._staged_trials

    def hold_back(self, trials: Iterable[Trial]) -> None:
        """Keep Tune from starting these waiting trials.

        To Tune they are as if requested: it keeps the processes of finished trials for reuse only while some are. How
        many it keeps is said by ``keep_processes`` alone: one that is kept for a trial that gets no slot there holds
        what another waits for.
        """
        held = set(trials)
        for trial in held:
            self._controller._resources_to_pending_trials[trial.placement_group_factory].discard(trial)
            if trial not in self._controller._staged_trials:
                self._controller._staged_trials.add(trial)
                # As Tune does for what it requests: the results of a run that is stopped name each trial's folder.
                trial.init_local_path()
                self._controller._mark_trial_to_checkpoint(trial)
        if held:
            self._controller._pending_trials_list = [
                trial for trial in self._controller._pending_trials_list if trial not in held
            ]

    def forget(self, trial: Trial) -> None:
        """Hold ``trial`` back no more: it has a slot, or ended while it waited."""
        self._controller._staged_trials.discard(trial)

    def let_start(self, trial: Trial) -> None:
        """Let Tune start a trial in this step that was held back or is paused; with the resources that it now has."""
        self.forget(trial)
        if trial.status == Trial.PENDING:
            self._controller._resources_to_pending_trials[trial.placement_group_factory].add(trial)
            self._controller._pending_trials_list.append(trial)
        else:
            self._controller._set_trial_status(trial, Trial.PENDING)

    def stage_paused(self) -> None:
        """Let Tune keep the processes of trials that pause: it keeps one only while other trials are requested.

        Where trials pause, those that run may do so next.
        """
        self._has_paused |= bool(self._controller._paused_trials)
        if not self._controller._reuse_actors or not self._has_paused:
            return
        may_pause = self._controller._paused_trials | self._controller._running_trials
        for trial in self._staged_paused - may_pause:
            if trial.is_finished():
                self.forget(trial)
        self._staged_paused = may_pause
        self._controller._staged_trials |= may_pause

    def requested_groups(self) -> list[str]:
        """Return the identifiers of the placement groups in which waiting trials are to start."""
        manager = self._controller._actor_manager._resource_manager
        unused = [group for groups in manager._request_to_ready_pgs.values() for group in groups]
        return [group.id.hex() for group in (*manager._pg_to_staging_future, *unused, *self._groups_of_pending())]

    def _groups_of_pending(self) -> dict[Any, Trial]:
        """Return the placement groups that are used by processes which have not started yet."""
        live = self._controller._actor_manager._live_actors_to_ray_actors_resources
        return {
            live[actor][1].placement_group: trial
            for trial in self.pending
            if (actor := self._controller._trial_to_actor.get(trial)) in live
            and trial not in self._controller._resetting_trials
        }

    def request_group_again(self, group_id: str) -> PlacementGroupFactory | None:
        """Replace a placement group that does not exist any more by a new one; return the request.

        To Tune, a group that was removed is ready, and it waits for the process that it starts there.
        """
        manager = self._controller._actor_manager._resource_manager
        for group, trial in self._groups_of_pending().items():
            if group.id.hex() == group_id and self.withdraw(trial):
                return trial.placement_group_factory
        groups = (
            *manager._pg_to_staging_future,
            *(each for some in manager._request_to_ready_pgs.values() for each in some),
        )
        group = next((each for each in groups if each.id.hex() == group_id), None)
        if group is None:  # Tune has withdrawn the request since
            return None
        request: PlacementGroupFactory = manager._pg_to_request.pop(group)
        manager._request_to_staged_pgs[request].discard(group)
        manager._request_to_ready_pgs[request].discard(group)
        if (future := manager._pg_to_staging_future.pop(group, None)) is not None:
            manager._staging_future_to_pg.pop(future)
        manager.request_resources(request)
        return request

    def fail(self, trial: Trial, error: Exception) -> None:
        """Fail a waiting trial."""
        fail_trial(self._controller, trial, error)

    def withdraw(self, trial: Trial) -> bool:
        """Take back what was requested for a waiting trial; ``False``: it is on its way into a process."""
        return withdraw(self._controller, trial)

    def keep_processes(self, wanted: Counter[PlacementGroupFactory]) -> None:
        """Have Tune keep so many processes with these resources for reuse, and no others."""
        if not self._controller._reuse_actors or wanted == self._kept:
            return
        kept, self._kept = self._kept, wanted
        for resources in wanted.keys() | kept.keys():
            more = wanted[resources] - kept[resources]
            if more > 0:
                self._controller._actor_cache.increase_max(resources, more)
            elif more < 0:
                self._controller._actor_cache.decrease_max(resources, -more)

    def view(self, is_shown: Callable[[Trial], bool]) -> "QueueView":
        """Return the controller for the inner scheduler, without the waiting trials that may not start now."""
        return QueueView(self._controller._wrapped(), is_shown)


class QueueView:
    """Tune's controller as a scheduler sees it, with some trials only."""

    def __init__(self, tune_controller: Any, is_shown: Callable[[Trial], bool]) -> None:
        self._tune_controller = unwrapped(tune_controller)
        self._wrapped_controller = tune_controller
        self._is_shown = is_shown

    def get_trials(self) -> list[Trial]:
        """Return the trials that run or have ended, and those that wait and may start now."""
        return [
            trial
            for trial in self._wrapped_controller.get_trials()
            if trial.status not in _WAITS or self._is_shown(trial)
        ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped_controller, name)
