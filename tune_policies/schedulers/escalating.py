"""A Tune scheduler that gives a trial that ran out of memory more, and lets it go on from its checkpoint.

What is next, and for whom, is decided in ``escalation``. Here is how Ray is told: what a trial has taught is kept in
the trial itself, which Tune saves with the experiment wherever that is, and which comes back when it is restored.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ray.tune import PlacementGroupFactory
from ray.tune.execution.placement_groups import resource_dict_to_pg_factory
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from tune_policies.errors import InfeasibleRequestError, InvalidResourcesError, ProbeError
from tune_policies.oom import OutOfMemory, classify_oom
from tune_policies.probing.cluster_state import read_cluster_state
from tune_policies.resources import Count, check_gpus
from tune_policies.units import is_number
from tune_policies.values import Value

from .escalation import Lesson, floor_for, floor_of, next_floor, traits_of, what_next

_logger = logging.getLogger(__name__)

_READ_TIMEOUT_S: Final = 10.0


class _Memory(Value):
    """What a trial remembers of running out.

    Attributes:
        lessons: What it got each time, and for which config.
        num_same_share: How often it went back with the share that it had.
    """

    lessons: tuple[Lesson, ...] = ()
    num_same_share: Count = 0


class EscalatingScheduler(TrialScheduler):  # type: ignore[misc]  # Ray has no types
    """A Tune scheduler around another: a trial that ran out of memory goes back with more.

    It resumes from its latest checkpoint with a larger share of a GPU, or more host memory. That counts as no failure:
    ``max_failures`` is for all other errors, and works for them as it does without this scheduler. The scheduler inside
    does not see it either. A config like one that ran out starts with what that one got: one that is equal but for
    fractions, and in whole numbers not smaller. A restored experiment goes on with what it has learned.

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
        super().__init__()
        self._inner = inner or FIFOScheduler()
        self._growth = check_growth(growth)
        self._max_gpus = check_max_gpus(max_gpus)
        self._memory_keys = memory_keys
        self._lessons: list[Lesson] = []
        self._planned: dict[Trial, PlacementGroupFactory] = {}
        self._returning: set[Trial] = set()
        self._has_learned = False

    # What this scheduler adds.

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Give a trial that is new, or restored, what its config needs."""
        if trial in self._returning:
            self._returning.remove(trial)
            return
        if trial not in self._planned:
            self._planned[trial] = trial.placement_group_factory
            _adopt(trial, self)
            self._learn(_recall(trial).lessons)
            trial.update_resources(trial.placement_group_factory)
        self._inner.on_trial_add(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Let a trial that ran out go back with more; any other is for the scheduler inside."""
        memory = trial.temporary_state.next_memory
        trial.temporary_state.next_memory = None
        if memory is None:
            self._inner.on_trial_error(tune_controller, trial)
            return
        _remember(trial, memory)
        self._learn(memory.lessons)
        trial.update_resources(self._planned[trial])
        self._returning.add(trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Give waiting trials what has been learned since; the scheduler inside chooses."""
        if self._lessons:
            for trial in list(tune_controller.get_live_trials()):
                # A trial that was paused may have got another's config.
                if trial.status == Trial.PAUSED or (self._has_learned and trial.status == Trial.PENDING):
                    self._request(tune_controller, trial)
        self._has_learned = False
        return self._inner.choose_trial_to_run(tune_controller)

    def plan_resources(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        """Take ``planned`` as what ``trial`` was to have; return that, with what its config is known to need."""
        self._planned[trial] = planned
        return self._lifted(trial)

    def next_memory(self, trial: Trial, error: object) -> _Memory | None:
        """Return what ``trial``, which failed, will remember if it goes back for want of memory; ``None``: it does not.

        Raises:
            InfeasibleRequestError: It ran out of memory, and there is no more for it.
        """
        memory, out_of_memory = _recall(trial), classify_oom(error)
        match what_next(out_of_memory, memory.num_same_share):
            case "leave":
                return None
            case "same":
                _logger.warning("%s goes back with its share: its neighbours had filled the GPU", trial)
                return memory.model_copy(update={"num_same_share": memory.num_same_share + 1})
            case _:
                lesson = self._lesson(trial, out_of_memory)
                return _Memory(lessons=(*memory.lessons, lesson))

    def _lesson(self, trial: Trial, out_of_memory: OutOfMemory) -> Lesson:
        bundles = _bundles(trial.placement_group_factory)
        try:
            nodes = read_cluster_state(_READ_TIMEOUT_S).nodes
        except ProbeError as error:
            raise InfeasibleRequestError(
                "more memory", "what the nodes have could not be read", out_of_memory.kind, str(error)
            ) from error
        floor = next_floor(bundles, out_of_memory, growth=self._growth, max_gpus=self._max_gpus, nodes=nodes)
        _logger.warning(
            "%s ran out of %s memory: from %s to %s",
            trial,
            "host" if out_of_memory.kind == "host" else "GPU",
            floor_of(bundles),
            floor_of(floor.lift(bundles)),
        )
        return Lesson(traits=traits_of(trial.config, self._memory_keys), floor=floor)

    def _learn(self, lessons: Sequence[Lesson]) -> None:
        new = [lesson for lesson in lessons if lesson not in self._lessons]
        self._lessons += new
        self._has_learned |= bool(new)

    def _lifted(self, trial: Trial) -> PlacementGroupFactory:
        floor = floor_for(traits_of(trial.config, self._memory_keys), self._lessons)
        planned = self._planned[trial]
        bundles = _bundles(planned)
        lifted = floor.lift(bundles)
        return planned if lifted == bundles else _with_bundles(planned, lifted)

    def _request(self, tune_controller: Any, trial: Trial) -> None:
        wanted = self._lifted(trial)
        if wanted == trial.placement_group_factory:
            return
        if trial.status == Trial.PENDING:
            _request_instead(tune_controller, trial, self._planned[trial])
        else:
            trial.update_resources(self._planned[trial])

    # What the scheduler inside does.

    @property
    def metric(self) -> str | None:
        """The metric that the scheduler inside reads."""
        return self._inner.metric  # type: ignore[no-any-return]

    @property
    def supports_buffered_results(self) -> bool:
        """Whether the scheduler inside takes several results at once."""
        return bool(self._inner.supports_buffered_results)

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Pass on the metric and its mode."""
        return bool(self._inner.set_search_properties(metric, mode, **spec))

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Let the scheduler inside decide what becomes of a trial."""
        return str(self._inner.on_trial_result(tune_controller, trial, result))

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Pass on that a trial is done."""
        self._inner.on_trial_complete(tune_controller, trial, result)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Pass on that a waiting trial is taken out."""
        self._inner.on_trial_remove(tune_controller, trial)

    def debug_string(self) -> str:
        """Say what Tune prints of a scheduler."""
        return str(self._inner.debug_string())

    def save(self, checkpoint_path: str) -> None:
        """Save the scheduler inside; what was learned is saved with the trials."""
        self._inner.save(checkpoint_path)

    def restore(self, checkpoint_path: str) -> None:
        """Restore the scheduler inside."""
        self._inner.restore(checkpoint_path)


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


class _EscalatingTrial(Trial):  # type: ignore[misc]  # Ray has no types
    """A trial whose failures for want of memory are not counted."""

    def handle_error(self, exc: Any = None) -> None:
        state = self.temporary_state
        state.next_memory, state.why_no_more = None, None
        try:
            if self.status == Trial.RUNNING:
                state.next_memory = state.escalating.next_memory(self, exc)
        except InfeasibleRequestError as error:
            state.why_no_more = str(error)
            _logger.error("%s ran out of memory and fails: %s", self, state.why_no_more)
            getattr(exc, "cause", exc).add_note(state.why_no_more)  # Ray's wrapper would lose it when it is saved
        num_failures = self.run_metadata.num_failures
        super().handle_error(exc)
        if state.next_memory is not None:
            self.run_metadata.num_failures = num_failures
        if state.why_no_more and self.error_file:
            with Path(self.error_file).open("a") as file:
                file.write(state.why_no_more + "\n")

    def should_recover(self) -> bool:
        state = self.temporary_state
        return state.next_memory is not None or (state.why_no_more is None and bool(super().should_recover()))

    def update_resources(self, resources: PlacementGroupFactory | dict[str, float]) -> None:
        planned = resource_dict_to_pg_factory(resources) if isinstance(resources, dict) else resources
        super().update_resources(self.temporary_state.escalating.plan_resources(self, planned))


def _adopt(trial: Trial, scheduler: EscalatingScheduler) -> None:
    """Let ``scheduler`` decide whether a failure of ``trial`` counts, and whether the trial goes on.

    Tune asks the trial itself, before any scheduler hears of it, and counts by ``max_failures`` alone: a room for
    failures that is large enough for us would give every other error free retries. A class is not saved with the trial,
    so a restored trial is adopted anew, and ``temporary_state`` is what Tune never saves.
    """
    trial.__class__ = _EscalatingTrial
    trial.temporary_state.escalating = scheduler
    trial.temporary_state.next_memory = None
    trial.temporary_state.why_no_more = None


def _recall(trial: Trial) -> _Memory:
    text = getattr(trial, "escalation_memory", None)
    return _Memory() if text is None else _Memory.from_json(text)


def _remember(trial: Trial, memory: _Memory) -> None:
    # Tune saves all attributes of a trial as JSON, with the experiment.
    trial.escalation_memory = memory.to_json()
    trial.invalidate_json_state()


def _bundles(resources: PlacementGroupFactory) -> list[Mapping[str, float]]:
    return [{}, *resources.bundles] if resources.head_bundle_is_empty else list(resources.bundles)


def _with_bundles(resources: PlacementGroupFactory, bundles: Sequence[Mapping[str, float]]) -> PlacementGroupFactory:
    """Return the same request with other bundles. The rest of it, such as label selectors, Ray keeps to itself."""
    return PlacementGroupFactory(
        [dict(bundle) for bundle in bundles], resources.strategy, *resources._args, **resources._kwargs
    )


def _request_instead(tune_controller: Any, trial: Trial, resources: PlacementGroupFactory) -> None:
    """Take back what was requested for a waiting trial, and request ``resources``.

    Tune requests resources for waiting trials ahead of time, and has no public way to take that back. The first steps
    are those that it takes itself when a waiting trial gets another trial's process.
    """
    controller = getattr(tune_controller, "_tune_controller", tune_controller)
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
