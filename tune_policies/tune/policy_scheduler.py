"""A Tune scheduler that gives each trial a slot of a plan as one becomes free, and plans anew as nodes come and go.

Which slots are free for whom is decided in ``seating``, and whether one is better left idle in ``pace``; ``tune_queue``
holds back the trials that have none, and ``run_plan`` follows the nodes.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler

from tune_policies.placement.layout import Placement
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.ray_compat.tune_controller import (
    TuneQueue,
    install_failure_hook,
    plan_of_trainable,
    remember_slot,
    save_experiment,
    slot_before,
    slots_taken,
)
from tune_policies.values.errors import InvalidResourcesError

from .node_watch import lost_node
from .run_plan import PlanChange, RunPlan, check_seconds
from .slot_assignment import Seat, free_slots
from .trial_durations import RunPace
from .wrapping_scheduler import WrappingScheduler, nested_schedulers

_logger = logging.getLogger(__name__)


class PolicyScheduler(WrappingScheduler):
    """A Tune scheduler around another: each trial gets a slot of the plan as one becomes free, the better kind first.

    Use it with ``with_plan(trainable, plan)``, and without ``max_concurrent_trials``: the plan says how many trials run
    at once. The scheduler inside decides everything else, as without this one.

    A slot is left idle on purpose where the faster slots finish all that waits before one more trial would in the slow
    slot. How fast slots are it knows from the plan's speeds, from the first trial on, and from the trials that have
    ended. Where the searcher does not say how many trials are to come, every slot is used.

    A trial that is lost with its node goes back, and goes on from its latest checkpoint. That counts as no failure:
    ``max_failures`` and ``fail_fast`` are for all other errors.

    Args:
        inner: The scheduler that decides everything else; ``None``: Tune's default, first come first served.
        plan: The plan of a policy.
        policy: Plans anew when nodes come, go or change; trials that run stay as they are. ``None``: the plan stays.
        may_move: Whether a trial that is paused, or goes back, may go on on another kind of devices.
        replan_interval_s: How often the nodes of the cluster are read, in seconds.
        wait_for_nodes_s: How long the run waits for nodes where the policy has no plan for those that are left. Then it
            ends with the policy's ``InfeasibleRequestError``, and can be resumed.

    Raises:
        InvalidResourcesError: The plan goes by configs, a number of seconds is not above 0, or ``inner`` is, or is
            around, Ray's ``ResourceChangingScheduler``. In the run: that one is around this scheduler.
    """

    def __init__(
        self,
        inner: TrialScheduler | None,
        plan: TrialPlan,
        *,
        policy: ResourcePolicy | None = None,
        may_move: bool = False,
        replan_interval_s: float = 5.0,
        wait_for_nodes_s: float = 600.0,
    ) -> None:
        super().__init__(inner)
        _check_none_changes_resources(inner)
        self._run_plan = RunPlan(
            plan,
            policy,
            interval_s=check_seconds(replan_interval_s, "replan_interval_s"),
            wait_for_nodes_s=check_seconds(wait_for_nodes_s, "wait_for_nodes_s"),
        )
        self._may_move = may_move
        self._kinds = self._run_plan.kinds
        self._pace = RunPace(self._kinds)
        self._ran_in: dict[Trial, TrialSlot] = {}
        self._begin(None)

    def _begin(self, queue: TuneQueue | None) -> None:
        """Begin with the trials of a run; ``None``: of one that is still to come."""
        self._queue = queue
        self._has_begun = False
        self._seats: dict[Trial, Seat] = {}
        self._waiting: dict[Trial, None] = {}
        self._held_back: dict[int, int] = {}
        self._open: list[tuple[Placement, int]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a tuner saves, from which a run begins anew: nothing of one that goes on."""
        return {**self.__dict__, "_queue": None}

    @property
    def plan(self) -> TrialPlan:
        """The plan that holds now."""
        return self._run_plan.plan

    @property
    def changes(self) -> tuple[PlanChange, ...]:
        """The plans that took the place of the first, in turn."""
        return tuple(self._run_plan.changes)

    def slot_of(self, trial: Trial) -> TrialSlot | None:
        """Return the slot that ``trial`` has, or had last; ``None``: it has had none yet."""
        seat = self._seats.get(trial)
        return self._ran_in.get(trial) if seat is None else seat.slot

    def held_back(self) -> dict[int, int]:
        """Return how many free slots of each kind were left idle on purpose when last decided; kinds without: none."""
        return dict(self._held_back)

    def replan(self, plan: TrialPlan, why: str = "a new plan was given") -> None:
        """Take ``plan`` from now on. Trials that run stay as they are; those that wait for their start get anew.

        Raises:
            InvalidResourcesError: The plan goes by configs.
        """
        self._run_plan.replan(plan, why)

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Take note of a trial; it waits until it has a slot."""
        if self._queue is None or not self._queue.is_of(tune_controller):
            queue = TuneQueue(tune_controller)
            _check_none_changes_resources(queue.scheduler)
            self._begin(queue)
            self._run_plan.begin()
        install_failure_hook(trial, self, tune_controller)
        if trial not in self._ran_in and trial.latest_checkpoint_result is not None:  # it is restored
            slot = slot_before(trial)
            if slot is not None:
                self._ran_in[trial] = slot
        super().on_trial_add(tune_controller, trial)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Learn how long the trial took, and pass on that it is done."""
        seat = self._seats.get(trial)
        if seat is not None:
            self._ran_in[trial] = seat.slot
            self._pace.finished(trial, seat.slot, time.monotonic())
        super().on_trial_complete(tune_controller, trial, result)

    def should_requeue(self, trial: Trial, error: object) -> bool:
        """Return whether a trial that failed was lost with its node."""
        node_id = lost_node(error)
        if node_id is None:
            return False
        _logger.warning("%s was lost with node %s and goes back: that is no failure", trial, node_id[:8])
        self._run_plan.lost(node_id)
        return True

    def adjust_resources(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        """Leave what a trial gets as it is."""
        return planned

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Give waiting trials the slots that are free, first to the one that the scheduler inside chooses.

        Raises:
            InfeasibleRequestError: For too long the policy has had no plan for the nodes that are left.
        """
        queue = self._queue or TuneQueue(tune_controller)
        self._take_plan_of_trainable(queue)
        if self._run_plan.follow_nodes(is_resumed=queue.is_resumed):
            self._take_plan(queue)
        if self._run_plan.overdue is not None:
            save_experiment(tune_controller, wait=True)
            raise self._run_plan.overdue
        self._update(queue)
        chosen = super().choose_trial_to_run(queue.view(self._may_start()))
        self._update(queue)  # the scheduler inside may have changed what trials ask for
        started = self._seat_trials(queue, chosen)
        self._keep_processes(queue)
        return chosen if chosen in started else None

    def _take_plan_of_trainable(self, queue: TuneQueue) -> None:
        """Where a run goes on, take the plan of its trainable: to ``Tuner.restore`` no scheduler can be given."""
        if not self._has_begun and queue.is_resumed:
            plan = next(map(plan_of_trainable, queue.pending), None)
            if plan is not None:
                self._run_plan.replan(plan, "the run goes on with this plan")
        self._has_begun = True

    def _take_plan(self, queue: TuneQueue) -> None:
        """Go on with other places; take back what was requested for those before, which may never be there any more."""
        for trial in self._seats:
            if trial.status == Trial.PENDING and queue.is_requested(trial):
                queue.withdraw(trial)
        if self._kinds is not self._run_plan.kinds:
            self._kinds = self._run_plan.kinds
            self._pace.change_kinds(self._kinds)
            self._seats = {trial: seat._replace(kind=self._kinds.of(seat.slot)) for trial, seat in self._seats.items()}

    def _update(self, queue: TuneQueue) -> None:
        """Bring up to date which trials have a slot, and hold back those that wait for one."""
        self._seats = self._seats_now(queue)
        self._open = None
        for trial in self._waiting.keys() - queue.pending:
            del self._waiting[trial]
            queue.forget(trial)
        to_hold_back = queue.to_hold_back(self._waiting.keys(), self._seats.keys())
        self._waiting.update(dict.fromkeys(to_hold_back))
        queue.hold_back(to_hold_back)

    def _seats_now(self, queue: TuneQueue) -> dict[Trial, Seat]:
        now_s = time.monotonic()
        seats = {}
        for trial, seat in self._seats.items():
            has_started = trial.status == Trial.RUNNING
            if has_started:
                self._ran_in[trial] = seat.slot
                self._pace.runs(trial, now_s)
            else:
                self._pace.rests(trial, now_s)
            if has_started or (trial.status == Trial.PENDING and queue.is_requested(trial)):
                num_slots = slots_taken(trial, seat.slot)
                seats[trial] = seat._replace(has_started=has_started, num_slots=num_slots)
        return seats

    def _open_places(self) -> list[tuple[Placement, int]]:
        """Return the places with a free slot, the better kinds first, and how many each has."""
        if self._open is None:
            places = self._run_plan.places
            free = free_slots(places, self._seats.values())
            self._open = [(place, count) for place, count in zip(places, free, strict=True) if count > 0]
        return self._open

    def _may_start(self) -> Callable[[Trial], bool]:
        """Return what tells whether a slot is free for a waiting trial. It is asked of each of them, in each step."""
        open_kinds = {place.kind for place, _ in self._open_places()}

        def may_start(trial: Trial) -> bool:
            if not open_kinds or trial in self._seats:
                return False
            return trial not in self._ran_in or not open_kinds.isdisjoint(self._allowed(trial))

        return may_start

    def _allowed(self, trial: Trial) -> set[int]:
        """Return the kinds in which ``trial`` may run, of those that have a place; at least one, if any has."""
        there = {place.kind for place in self._run_plan.places}
        return there.intersection(self._kinds.allowed(None if self._may_move else self._ran_in.get(trial))) or there

    def _seat_trials(self, queue: TuneQueue, chosen: Trial | None) -> set[Trial]:
        self._held_back = Counter()
        if not self._open_places():
            return set()
        first = [chosen] if chosen is not None and chosen not in self._seats else []
        started: set[Trial] = set()
        idle: set[int] = set()
        for trial in [*first, *(each for each in self._waiting if each is not chosen)]:
            if all(place.kind in idle for place, _ in self._open_places()):
                break
            if self._seat(queue, trial, idle):
                started.add(trial)
                self._waiting.pop(trial, None)
                self._open = None
        for place, count in self._open_places():
            if place.kind in idle:
                self._held_back[place.kind] += count
        return started

    def _seat(self, queue: TuneQueue, trial: Trial, idle: set[int]) -> bool:
        """Give ``trial`` a slot, if one is free for it; ``idle`` collects kinds that are better left idle."""
        allowed = self._allowed(trial)
        is_bound = any(place.kind not in allowed for place in self._run_plan.places)
        for place, free in self._open_places():
            if place.kind not in allowed:
                continue
            if not is_bound and self._is_better_idle(place.kind, queue, idle):
                continue
            factory = self._run_plan.factories[place.kind, place.node_id]
            if trial.placement_group_factory is not factory:
                trial.update_resources(factory)
            taken = slots_taken(trial, self._kinds.slots[place.kind])
            if free < min(taken, place.count):
                continue
            queue.let_start(trial)
            slot = self._kinds.slots[place.kind]
            remember_slot(trial, slot)
            self._seats[trial] = Seat(slot, place.kind, place.node_id, num_slots=taken, has_started=False)
            return True
        return False

    def _is_better_idle(self, kind: int, queue: TuneQueue, idle: set[int]) -> bool:
        if kind not in idle:
            num_waiting = len(self._waiting) + queue.num_paused + queue.num_to_come
            if self._pace.is_better_idle(kind, self._run_plan.places, self._seats, num_waiting, time.monotonic()):
                idle.add(kind)
        return kind in idle

    def _keep_processes(self, queue: TuneQueue) -> None:
        """Let Tune keep processes for reuse while trials wait; none where a trial waits for more than a slot has."""
        wanted: Counter[PlacementGroupFactory] = Counter()
        if self._waiting:
            gathering = {
                (seat.kind, seat.node_id)
                for seat in self._seats.values()
                if seat.num_slots > 1 and not seat.has_started
            }
            for place in self._run_plan.places:
                if (place.kind, place.node_id) not in gathering:
                    wanted[self._run_plan.factories[place.kind, place.node_id]] += place.count
        queue.keep_processes(wanted)


def _check_none_changes_resources(scheduler: TrialScheduler | None) -> None:
    if any(isinstance(each, ResourceChangingScheduler) for each in nested_schedulers(scheduler)):
        raise InvalidResourcesError(
            "ResourceChangingScheduler gives trials other resources while they run, and PolicyScheduler would put each "
            "back into its slot after every step: leave one of them out. ResourceChangingScheduler alone, with "
            "with_plan(trainable, plan), begins with the plan's resources"
        )
