"""Which waiting trials Ray Tune may start: it starts all that it knows of, and has no public way to hold one back.

In each step Tune asks its scheduler for one trial, then requests resources for every other trial that waits
(``TuneController._maybe_add_actors``), and gives processes that are kept for reuse to trials with the same request.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from .tune_trials import unwrapped, withdraw

_MANY = 10**9
"""So many trials are still to come where the searcher does not say."""


_WAITS = frozenset({Trial.PENDING, Trial.PAUSED})


class TuneQueue:
    """The trials of a run that wait.

    Args:
        tune_controller: Tune's controller, as it is given to a scheduler.
    """

    def __init__(self, tune_controller: Any) -> None:
        self._controller = unwrapped(tune_controller)
        self._kept: Counter[PlacementGroupFactory] = Counter()

    def is_of(self, tune_controller: Any) -> bool:
        """Return whether these are the trials of that controller's run."""
        return self._controller is unwrapped(tune_controller)

    @property
    def scheduler(self) -> TrialScheduler:
        """The scheduler of the run, which may be around others."""
        return self._controller._scheduler_alg

    @property
    def is_resumed(self) -> bool:
        """Whether the run is one that goes on."""
        return bool(self._controller.resumed)

    @property
    def pending(self) -> AbstractSet[Trial]:
        """The trials that wait for their resources or their process."""
        return self._controller._pending_trials  # type: ignore[no-any-return]

    def to_hold_back(self, held: AbstractSet[Trial], seated: AbstractSet[Trial]) -> list[Trial]:
        """Return the waiting trials that Tune would start though they have no slot, in Tune's order.

        All of a run's waiting trials pass through here in each step: most are held already, and cost next to nothing.
        """
        listed = dict.fromkeys(
            each for each in self._controller._pending_trials_list if each in self.pending and each not in seated
        )
        unlisted = self.pending - held - seated - listed.keys()
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
        """Return what the scheduler inside is shown: the same, without the waiting trials that may not start now."""
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
