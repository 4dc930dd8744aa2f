"""Controls the waiting trials of a run: the trials that Tune may start, their requests, and the reuse of processes.

Ray's public API lets a scheduler choose the waiting trial that runs next, but hides the controller's lists of trials.
In each step, Tune calls its scheduler to choose one trial, and requests resources for every other waiting trial
(``TuneController._maybe_add_actors``). Tune reuses a kept process only for a trial with the same request.
The private members used here are the same in Ray 2.50 and 2.60.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Final

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial

from tune_policies.ray_compat.tune_controller import MEMBERS, fail_trial, unwrapped
from tune_policies.ray_compat.version import Gone, check_members

try:
    from ray.tune.execution.tune_controller import TuneController
except ImportError as error:
    TuneController = Gone(error, "a searcher that does not suggest trials too early")

_MANY: Final = 10**9
"""A number of trials that means "no limit" or, for the remaining trials of a searcher, "unknown"."""

_WAITS = frozenset({Trial.PENDING, Trial.PAUSED})

_MEMBERS_OF_ACTOR_MANAGER: Final = ("_live_actors_to_ray_actors_resources", "_resource_manager")

_MEMBERS_OF_RESOURCE_MANAGER: Final = (
    *("_pg_to_request", "_pg_to_staging_future", "_request_to_ready_pgs", "_request_to_staged_pgs"),
    "_staging_future_to_pg",
)


class TuneQueue:
    """The waiting trials of a run.

    Args:
        tune_controller: Tune's controller, as Tune passes it to a scheduler.
    """

    def __init__(self, tune_controller: Any) -> None:
        self._controller = unwrapped(tune_controller)
        what = "a scheduler that assigns slots to trials"
        check_members(self._controller, MEMBERS, what)
        check_members(self._controller._actor_manager, _MEMBERS_OF_ACTOR_MANAGER, what)
        check_members(self._controller._actor_manager._resource_manager, _MEMBERS_OF_RESOURCE_MANAGER, what)
        self._kept: Counter[PlacementGroupFactory] = Counter()
        self._staged_paused: set[Trial] = set()
        self._has_paused = False

    def is_of(self, tune_controller: Any) -> bool:
        """Return whether this queue belongs to the run of ``tune_controller``."""
        return self._controller is unwrapped(tune_controller)

    @property
    def pending(self) -> AbstractSet[Trial]:
        """The trials that wait for resources or for their process."""
        return self._controller._pending_trials  # type: ignore[no-any-return]

    def trials_to_defer(self, held: AbstractSet[Trial], assigned: AbstractSet[Trial]) -> list[Trial]:
        """Return the waiting trials without a slot that Tune would start, in Tune's order.

        The trials in ``held`` are already deferred, and the trials in ``assigned`` have a slot. The method is called in
        each step, so it must spend almost no time on trials that are already deferred.
        """
        listed = dict.fromkeys(
            each for each in self._controller._pending_trials_list if each in self.pending and each not in assigned
        )
        unlisted = self.pending - held - assigned - listed.keys()
        return [*listed, *sorted(unlisted, key=lambda trial: trial.trial_id)]

    @property
    def num_paused(self) -> int:
        """The number of paused trials."""
        return len(self._controller._paused_trials)

    @property
    def num_future_trials(self) -> int:
        """The number of trials that the searcher has yet to suggest, or ``_MANY`` if the number is not known."""
        search = self._controller.search_alg
        if search.is_finished():
            return 0
        total = getattr(search, "total_samples", None) or 0
        return max(0, total - len(self._controller.get_trials())) if total > 0 else _MANY

    def is_requested(self, trial: Trial) -> bool:
        """Return whether Tune has requested resources for ``trial``, or treats it as requested."""
        return trial in self._controller._staged_trials

    def defer(self, trials: Iterable[Trial]) -> None:
        """Keep Tune from starting these waiting trials.

        The trials are marked as requested, because Tune keeps the processes of finished trials for reuse only while
        requests exist. ``keep_processes`` limits the number of kept processes, because a process that no trial reuses
        would occupy resources for which another trial waits.
        """
        held = set(trials)
        for trial in held:
            self._controller._resources_to_pending_trials[trial.placement_group_factory].discard(trial)
            if trial not in self._controller._staged_trials:
                self._controller._staged_trials.add(trial)
                # Tune does this for each request, because the results of a stopped run list the folder of each trial.
                trial.init_local_path()
                self._controller._mark_trial_to_checkpoint(trial)
        if held:
            self._controller._pending_trials_list = [
                trial for trial in self._controller._pending_trials_list if trial not in held
            ]

    def forget(self, trial: Trial) -> None:
        """Stop deferring ``trial``, because it was assigned a slot or has ended."""
        self._controller._staged_trials.discard(trial)

    def start_deferred(self, trial: Trial) -> None:
        """Let Tune start a trial that was deferred or is paused, with its current resource request."""
        self.forget(trial)
        if trial.status == Trial.PENDING:
            self._controller._resources_to_pending_trials[trial.placement_group_factory].add(trial)
            self._controller._pending_trials_list.append(trial)
        else:
            self._controller._set_trial_status(trial, Trial.PENDING)

    def stage_paused(self) -> None:
        """Make Tune keep the processes of trials that pause.

        By default, Tune keeps them only while resource requests exist. Once a trial of the run has paused, any running
        trial may pause next.
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
        """Return the IDs of the placement groups that are requested for waiting trials."""
        return [group.id.hex() for group in (*self._groups_without_process(), *self._groups_of_pending())]

    def own_groups(self) -> set[str]:
        """Return the IDs of all placement groups of the run, both requested and in use."""
        return {group.id.hex() for group in self._controller._actor_manager._resource_manager._pg_to_request}

    def _groups_without_process(self) -> list[Any]:
        """Return the placement groups that are not placed yet, or in which no process has been started."""
        manager = self._controller._actor_manager._resource_manager
        ready = (group for groups in manager._request_to_ready_pgs.values() for group in groups)
        return [*manager._pg_to_staging_future, *ready]

    def _groups_of_pending(self) -> dict[Any, Trial]:
        """Return the placement groups of processes that have not started yet, each with its trial."""
        live = self._controller._actor_manager._live_actors_to_ray_actors_resources
        return {
            live[actor][1].placement_group: trial
            for trial in self.pending
            if (actor := self._controller._trial_to_actor.get(trial)) in live
            and trial not in self._controller._resetting_trials
        }

    def request_group_again(self, group_id: str) -> PlacementGroupFactory | None:
        """Request a lost placement group again. Return its request, or ``None`` if Tune no longer needs it.

        Without a new request, Tune considers a removed group ready and waits indefinitely for a process to start in it.
        """
        manager = self._controller._actor_manager._resource_manager
        for group, trial in self._groups_of_pending().items():
            if group.id.hex() == group_id and self.withdraw(trial):
                return trial.placement_group_factory
        group = next((each for each in self._groups_without_process() if each.id.hex() == group_id), None)
        if group is None:  # Tune has withdrawn the request
            return None
        request: PlacementGroupFactory = manager._pg_to_request.pop(group)
        manager._request_to_staged_pgs[request].discard(group)
        manager._request_to_ready_pgs[request].discard(group)
        if (future := manager._pg_to_staging_future.pop(group, None)) is not None:
            manager._staging_future_to_pg.pop(future)
        manager.request_resources(request)
        return request

    def fail(self, trial: Trial, error: Exception) -> None:
        """Fail a waiting trial with ``error``."""
        fail_trial(self._controller, trial, error)

    def withdraw(self, trial: Trial) -> bool:
        """Withdraw the request of a waiting trial; see :func:`withdraw`."""
        return withdraw(self._controller, trial)

    def keep_processes(self, wanted: Counter[PlacementGroupFactory]) -> None:
        """Set the number of processes that Tune keeps for reuse, by resource request."""
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
        """Return a controller for the inner scheduler that hides waiting trials for which ``is_shown`` is false."""
        wrapped = self._controller._wrapped()
        return QueueView(
            wrapped, lambda: [each for each in wrapped.get_trials() if each.status not in _WAITS or is_shown(each)]
        )

    def view_of(self, trials: list[Trial]) -> "QueueView":
        """Return a controller with only these trials, for a scheduler that chooses the first waiting trial.

        Tune calls its scheduler in each step, so listing all trials would make the steps slower as the run grows.
        """
        return QueueView(self._controller._wrapped(), lambda: trials)


class QueueView:
    """Wraps Tune's controller for a scheduler that must not see all trials."""

    def __init__(self, tune_controller: Any, get_trials: Callable[[], list[Trial]]) -> None:
        self._tune_controller = unwrapped(tune_controller)
        self._wrapped_controller = tune_controller
        self.get_trials = get_trials

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped_controller, name)


def withdraw(controller: Any, trial: Trial) -> bool:
    """Withdraw the request of a waiting trial. Return ``False`` if a reused process is being reset for it.

    Tune requests resources for waiting trials ahead of time, and has no public way to withdraw a request. This function
    takes the same steps as Tune when a waiting trial reuses the process of another trial.
    """
    if trial in controller._resetting_trials:
        return False
    actor = controller._trial_to_actor.pop(trial, None)
    if actor is None:
        controller._staged_trials.discard(trial)  # a deferred trial has no request
    else:
        controller._actor_to_trial.pop(actor)
        controller._remove_actor(tracked_actor=actor)
        if trial in controller._staged_trials:
            controller._unstage_trial_with_resources(trial)
    controller._resources_to_pending_trials[trial.placement_group_factory].discard(trial)
    return True


def request_instead(tune_controller: Any, trial: Trial, resources: PlacementGroupFactory) -> None:
    """Replace the request of a waiting trial with ``resources``, unless a reused process is being reset for it."""
    controller = unwrapped(tune_controller)
    if not withdraw(controller, trial):
        return
    trial.update_resources(resources)
    controller._resources_to_pending_trials[trial.placement_group_factory].add(trial)
    controller._pending_trials_list.append(trial)


class GatedController(TuneController):  # type: ignore[misc]  # Ray has no types
    """A controller that requests trials from its searcher only if they can start."""

    def _maybe_update_trial_queue(self) -> None:
        num_free = self.num_free_of_policy()
        if num_free > 0:
            self._max_pending_trials = len(self._pending_trials) + num_free
            super()._maybe_update_trial_queue()
        self._max_pending_trials = _MANY  # only the scheduler limits how many trials start

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that Tune would save without this class, because a run may be resumed without a policy."""
        state: dict[str, Any] = super().__getstate__()
        del state["num_free_of_policy"]
        return state | {"_max_pending_trials": state.pop("max_pending_of_tune")}


def gate_searcher(tune_controller: Any, num_free: Callable[[], int]) -> None:
    """Let Tune request at most ``num_free()`` trials from its searcher in each step.

    Otherwise, Tune requests a trial before the previous trial has started, so each suggestion is based on one fewer
    result. ``max_concurrent_trials`` would prevent that, but Tune reads it before it calls a scheduler. Grid and random
    search do not use results, so they are not changed.
    """
    controller = unwrapped(tune_controller)
    if isinstance(controller, TuneController) and hasattr(controller.search_alg, "searcher"):
        controller.num_free_of_policy = num_free
        controller.max_pending_of_tune = controller._max_pending_trials
        controller.__class__ = GatedController
