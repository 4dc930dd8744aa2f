"""A Tune scheduler that retries a trial that ran out of memory with more, from its latest checkpoint.

``oom_retry`` decides how much a retry gets, and ``oom_history`` which other trials need as much.
``ray_compat.tune_controller`` changes Tune's trials.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler

from tune_policies.cluster.capacity import NodeCapacity
from tune_policies.oom import OutOfMemory, classify_oom
from tune_policies.ray_compat.gcs import read_cluster_state
from tune_policies.ray_compat.tune_controller import (
    adopt,
    bundles_of,
    drop_change,
    pending_change,
    planned_of,
    request_instead,
    reservation_of,
    returned_by,
    save_experiment,
    with_bundles,
)
from tune_policies.values.errors import InvalidResourcesError, ProbeError
from tune_policies.values.resources import check_gpus
from tune_policies.values.units import is_number

from .oom_history import Lesson, TrialMemory, floor_for, recall, remember, traits_of
from .oom_retry import MemoryFloor, allowed, floor_of, next_floor, what_next
from .wrapping_scheduler import SchedulerAround, schedulers_in

_logger = logging.getLogger(__name__)

_READ_TIMEOUT_S: Final = 10.0


class OomRetryScheduler(SchedulerAround):
    """A Tune scheduler around another: a trial that ran out of memory goes back with more.

    It resumes from its latest checkpoint with a larger share of a GPU, or more host memory. That counts as no failure:
    ``max_failures`` and ``fail_fast`` are for all other errors, and work for them as without this scheduler. The
    scheduler inside does not see it either, except for HyperBand, and where a trial ran out as it saved a checkpoint.

    A config like one that ran out starts with what that one got: one that is equal but for fractions, and in whole
    numbers not smaller. A restored experiment goes on with what it has learned, as far as that is there.

    A trial that was within its own share when its neighbours had filled the GPU first goes back as it is, twice.

    Args:
        inner: The scheduler that decides everything else; ``None``: Tune's default, first come first served.
        growth: How many times as much a trial gets, rounded up to the next part that a GPU is divided into.
        max_gpus: The most GPUs of a trial. One that runs out with as many fails, and its error says so.
        memory_keys: The keys of the config that decide how much memory a trial needs, those inside others as
            ``"model/width"``; ``None``: all but fractions.

    Raises:
        InvalidResourcesError: ``growth`` is not above 1, or ``max_gpus`` no amount of GPUs above 0.
    """

    def __init__(
        self,
        inner: TrialScheduler | None = None,
        *,
        growth: float = 2.0,
        max_gpus: float = 1.0,
        memory_keys: Sequence[str] | None = None,
    ) -> None:
        super().__init__(inner)
        self._growth = check_growth(growth)
        self._max_gpus = check_max_gpus(max_gpus)
        self._memory_keys = memory_keys
        self._lessons: list[Lesson] = []
        self._planned: dict[Trial, PlacementGroupFactory] = {}
        self._has_learned = False
        self._nodes: Sequence[NodeCapacity] | None = None
        self._warned: set[Trial] = set()

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Give a trial that is new, or restored, what its config needs."""
        if trial in self._planned:  # it goes back
            save_experiment(tune_controller)
            super().on_trial_add(tune_controller, trial)
            return
        resources = trial.placement_group_factory
        # The scheduler inside sees what was planned: Ray's ResourceChangingScheduler takes no trials that differ.
        trial.update_resources(planned_of(resources))
        super().on_trial_add(tune_controller, trial)
        self._adopt(tune_controller, trial, resources)

    def _adopt(self, tune_controller: Any, trial: Trial, resources: PlacementGroupFactory) -> None:
        self._planned[trial] = planned_of(resources)
        adopt(trial, self, tune_controller)
        lessons = recall(trial).lessons
        if resources != self._planned[trial]:
            traits = traits_of(trial.config, self._memory_keys)
            lessons = (*lessons, Lesson(traits=traits, floor=floor_of(bundles_of(resources))))
        if lessons and self._nodes is None:
            self._read_nodes()
        self._learn(lessons)
        trial.update_resources(self._planned[trial])

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Let a trial that ran out go back with more; any other is for the scheduler inside."""
        if returned_by(trial) is self:
            self._learn(recall(trial).lessons)
            trial.update_resources(self._planned[trial])
        super().on_trial_error(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Let the scheduler inside decide; no trial pauses for resources that it already has, with more memory."""
        decision = super().on_trial_result(tune_controller, trial, result)
        for scheduler in schedulers_in(self):
            if isinstance(scheduler, ResourceChangingScheduler):
                wanted = pending_change(scheduler, trial)
                if wanted is not None and self._lifted(trial, wanted) == trial.placement_group_factory:
                    drop_change(scheduler, trial)
                    return str(TrialScheduler.CONTINUE)
        return decision

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Give waiting trials what has been learned since; the scheduler inside chooses."""
        if self._lessons:
            for trial in list(tune_controller.get_live_trials()):
                # A trial that was paused may have got another's config.
                if trial.status == Trial.PAUSED or (self._has_learned and trial.status == Trial.PENDING):
                    self._request(tune_controller, trial)
        self._has_learned = False
        return super().choose_trial_to_run(tune_controller)

    def plan_resources(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        """Take ``planned`` as what ``trial`` was to have; return that, with what its config is known to need."""
        self._planned[trial] = planned
        return self._lifted(trial, planned)

    def goes_back(self, trial: Trial, error: object) -> bool:
        """Return whether ``trial``, which failed, goes back for want of memory; it remembers what it ran out with.

        Raises:
            InfeasibleRequestError: It ran out of memory, and there is no more for it.
        """
        memory = self._next_memory(trial, error)
        if memory is not None:
            remember(trial, memory)
        return memory is not None

    def _next_memory(self, trial: Trial, error: object) -> TrialMemory | None:
        memory, out_of_memory = recall(trial), classify_oom(error)
        match what_next(bundles_of(trial.placement_group_factory), out_of_memory, memory.num_same_share):
            case "same":
                _logger.warning("%s goes back with its share: its neighbours had filled the GPU", trial)
                return memory.model_copy(update={"num_same_share": memory.num_same_share + 1})
            case "more":
                lesson = self._lesson(trial, out_of_memory)
                return None if lesson is None else TrialMemory(lessons=(*memory.lessons, lesson))
            case _:
                return None

    def _lesson(self, trial: Trial, out_of_memory: OutOfMemory) -> Lesson | None:
        reservation = reservation_of(trial.placement_group_factory)
        nodes = self._read_nodes()
        if nodes is None:
            return None
        floor = next_floor(reservation, out_of_memory, growth=self._growth, max_gpus=self._max_gpus, nodes=nodes)
        _logger.warning(
            "%s ran out of %s memory: from %s to %s",
            trial,
            "host" if out_of_memory.kind == "host" else "GPU",
            floor_of(reservation.bundles),
            floor_of(floor.lift(reservation.bundles)),
        )
        return Lesson(traits=traits_of(trial.config, self._memory_keys), floor=floor)

    def _read_nodes(self) -> Sequence[NodeCapacity] | None:
        try:
            self._nodes = read_cluster_state(_READ_TIMEOUT_S).nodes
        except ProbeError as error:
            _logger.warning("a trial needs more memory, but what there is could not be read: %s", error)
            return None
        return self._nodes

    def _learn(self, lessons: Sequence[Lesson]) -> None:
        new = [lesson for lesson in lessons if lesson not in self._lessons]
        self._lessons += new
        self._has_learned |= bool(new)

    def _lifted(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        bundles = bundles_of(planned)
        try:
            lifted = self._floor(trial, planned).lift(bundles)
        except Exception:  # a config may hold anything, and must not end the other trials
            if trial not in self._warned:
                _logger.exception("%s gets what was planned: what its config needs could not be told", trial)
            self._warned.add(trial)
            return planned
        return planned if lifted == bundles else with_bundles(planned, lifted)

    def _floor(self, trial: Trial, planned: PlacementGroupFactory) -> MemoryFloor:
        if not self._lessons:
            return MemoryFloor()
        learned = floor_for(traits_of(trial.config, self._memory_keys), self._lessons)
        floor = allowed(learned, reservation_of(planned), max_gpus=self._max_gpus, nodes=self._nodes)
        if floor != learned and trial not in self._warned:
            _logger.warning("%s is known to need %s, of which %s is allowed here", trial, learned, floor)
            self._warned.add(trial)
        return floor

    def _request(self, tune_controller: Any, trial: Trial) -> None:
        wanted = self._lifted(trial, self._planned[trial])
        if wanted == trial.placement_group_factory:
            return
        if trial.status == Trial.PENDING:
            request_instead(tune_controller, trial, self._planned[trial])
        else:
            trial.update_resources(self._planned[trial])


def check_growth(growth: float) -> float:
    """Return ``growth`` if it is a number above 1, else raise ``InvalidResourcesError``."""
    if not is_number(growth) or not 1 < growth < float("inf"):
        raise InvalidResourcesError(f"growth must be a number above 1, got {growth!r}")
    return float(growth)


def check_max_gpus(max_gpus: float) -> float:
    """Return ``max_gpus`` if it is an amount of GPUs above 0, else raise ``InvalidResourcesError``."""
    checked = check_gpus(max_gpus, name="max_gpus")
    if checked == 0:
        raise InvalidResourcesError("max_gpus must be above 0, got 0")
    return checked
