"""A Tune scheduler that gives each trial a slot of a plan as one becomes free, and plans anew as nodes come and go.

``slot_assignment`` decides which slots are free for which trial, and whether a free one is better left idle.
``run_plan`` follows the nodes. ``ray_compat.tune_controller`` holds back the trials that have no slot.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler

from tune_policies.placement.layout import Placement
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.probe.probe_cluster import plan_on_cluster
from tune_policies.ray_compat.tune_controller import (
    TuneQueue,
    has_raised_resources,
    install_failure_hook,
    plan_of_trainable,
    policy_of_trainable,
    remember_slot,
    save_experiment,
    slot_before,
    slots_taken,
)
from tune_policies.values.errors import InvalidResourcesError

from .run_plan import PlanChange, RunPlan, check_seconds, lost_node, nodes_of
from .slot_assignment import SlotAssignment, TrialTimer, free_slots, place_of
from .wrapping_scheduler import WrappingScheduler, nested_schedulers

_logger = logging.getLogger(__name__)


class PolicyScheduler(WrappingScheduler):
    """Wraps a Tune scheduler, and gives each trial a slot of the plan as one becomes free, the best type first.

    Use it with ``with_plan(trainable, plan)``, and without ``max_concurrent_trials``: the plan says how many trials run
    at once. The inner scheduler decides everything else, as without this one.

    A slow slot stays idle if the faster slots finish all waiting trials before the slow slot would finish one more.
    The scheduler knows how fast slots are from the plan's speeds, and from the trials that have ended. If the searcher
    does not say how many trials are to come, every slot is used.

    A trial that is lost with its node, or with that of its Train workers, is requeued, and resumes from its latest
    checkpoint. That counts as no failure: ``max_failures`` and ``fail_fast`` are for all other errors.

    Args:
        inner: The scheduler that decides everything else; ``None``: Tune's default, first come first served.
        plan: The plan of a policy; or a policy, which then plans on the program's cluster, and anew as ``policy`` does.
        policy: Plans anew when nodes come, go or change; trials that run stay as they are. ``None``: the plan stays.
        may_move: Whether a trial that was paused or requeued may resume on another kind of devices.
        replan_interval_s: How often the nodes of the cluster are read, in seconds.
        wait_for_nodes_s: How long the run waits for nodes where the policy has no plan for those that are left, in
            seconds. Then it ends with the policy's ``InfeasibleRequestError``, and can be resumed.

    Raises:
        InvalidResourcesError: The plan goes by configs, a number of seconds is not above 0, or ``inner`` is or wraps
            Ray's ``ResourceChangingScheduler``. In the run: that scheduler wraps this one.
    """

    def __init__(
        self,
        inner: TrialScheduler | None,
        plan: TrialPlan | ResourcePolicy,
        *,
        policy: ResourcePolicy | None = None,
        may_move: bool = False,
        replan_interval_s: float = 5.0,
        wait_for_nodes_s: float = 600.0,
    ) -> None:
        super().__init__(inner)
        _check_none_changes_resources(inner)
        if isinstance(plan, ResourcePolicy):
            policy = policy or plan
            plan = plan_on_cluster(plan)
        self._run_plan = RunPlan(
            plan,
            policy,
            interval_s=check_seconds(replan_interval_s, "replan_interval_s"),
            wait_for_nodes_s=check_seconds(wait_for_nodes_s, "wait_for_nodes_s"),
        )
        self._may_move = may_move
        self._slot_types = self._run_plan.slot_types
        self._timer = TrialTimer(self._slot_types)
        self._last_slots: dict[Trial, TrialSlot] = {}
        self._reset_run(None)

    def _reset_run(self, queue: TuneQueue | None) -> None:
        """Forget the trials of an earlier run; ``None``: the next run is still to come."""
        self._queue = queue
        self._has_begun = False
        self._assignments: dict[Trial, SlotAssignment] = {}
        self._waiting: dict[Trial, None] = {}
        self._left_idle: dict[int, int] = {}
        self._free: list[tuple[Placement, int]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a ``Tuner`` saves, without the queue of the run that goes on."""
        return {**self.__dict__, "_queue": None}

    @property
    def caps_trials(self) -> bool:
        """Whether no run under this scheduler needs ``max_concurrent_trials``."""
        return True

    @property
    def plan(self) -> TrialPlan:
        """The plan that holds now."""
        return self._run_plan.plan

    @property
    def changes(self) -> tuple[PlanChange, ...]:
        """The plans that replaced the first, in turn."""
        return tuple(self._run_plan.changes)

    def slot_of(self, trial: Trial) -> TrialSlot | None:
        """Return the slot that ``trial`` has, or had last; ``None``: it has had none yet."""
        assignment = self._assignments.get(trial)
        return self._last_slots.get(trial) if assignment is None else assignment.slot

    def slots_left_idle(self) -> dict[int, int]:
        """Return how many free slots of each type the last decision left idle; types with none are left out."""
        return dict(self._left_idle)

    def replan(self, plan: TrialPlan, why: str = "a new plan was given") -> None:
        """Use ``plan`` from now on. Trials that run stay as they are; those that wait for their start get a new slot.

        Raises:
            InvalidResourcesError: The plan goes by configs.
        """
        self._run_plan.replan(plan, why)

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Add a trial, which waits until it has a slot."""
        if self._queue is None or not self._queue.is_of(tune_controller):
            queue = TuneQueue(tune_controller)
            _check_none_changes_resources(queue.scheduler)
            self._reset_run(queue)
            self._run_plan.begin()
        install_failure_hook(trial, self, tune_controller)
        if trial not in self._last_slots and trial.latest_checkpoint_result is not None:  # it is restored
            slot = slot_before(trial)
            if slot is not None:
                self._last_slots[trial] = slot
        super().on_trial_add(tune_controller, trial)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Add the trial's duration, and pass on that it is done."""
        assignment = self._assignments.get(trial)
        if assignment is not None:
            self._last_slots[trial] = assignment.slot
            self._timer.finish(trial, assignment.slot, time.monotonic())
        super().on_trial_complete(tune_controller, trial, result)

    def should_requeue(self, trial: Trial, error: object) -> bool:
        """Return whether a failed trial was lost with its node, or with that of its Train workers."""
        node_id = lost_node(error)
        if node_id is None:
            return False
        _logger.warning(
            "%s was lost with node %s and is requeued, which does not count as a failure", trial, node_id[:8]
        )
        self._run_plan.avoid_node(node_id)
        return True

    def adjust_resources(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        """Return ``planned`` as it is."""
        return planned

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Give waiting trials the free slots, first to the trial that the inner scheduler chooses.

        Raises:
            InfeasibleRequestError: The policy has had no plan for the nodes that are left for ``wait_for_nodes_s``.
        """
        queue = self._queue or TuneQueue(tune_controller)
        self._take_plan_of_trainable(queue)
        if self._run_plan.follow_nodes(is_resumed=queue.is_resumed):
            self._apply_plan(queue)
        if self._run_plan.timeout_error is not None:
            save_experiment(tune_controller, wait=True)
            raise self._run_plan.timeout_error
        self._update(queue)
        chosen = super().choose_trial_to_run(queue.view(self._may_start()))
        self._update(queue)  # the inner scheduler may have changed what trials ask for
        started = self._assign_slots(queue, chosen)
        self._keep_idle_processes(queue)
        return chosen if chosen in started else None

    def _take_plan_of_trainable(self, queue: TuneQueue) -> None:
        """Use the trainable's plan and policy where a run is resumed: ``Tuner.restore`` takes no scheduler."""
        trial = next(iter(queue.pending), None)
        if self._has_begun or trial is None:
            return
        self._has_begun = True
        if queue.is_resumed and (plan := plan_of_trainable(trial)) is not None:
            self._run_plan.go_on_with(plan, policy_of_trainable(trial))

    def _apply_plan(self, queue: TuneQueue) -> None:
        """Go on with new placements. Withdraw requests for those that are gone: their nodes may never come back.

        What is asked for on any node stays: its process may be starting, and would begin anew with each change.
        """
        left = {factory: place.count for place, factory in self._run_plan.factories.items() if place.node_id is None}
        for trial, assignment in sorted(self._assignments.items(), key=lambda each: not each[1].has_started):
            resources = trial.placement_group_factory
            if assignment.node_id is None and left.get(resources, 0) >= assignment.num_slots:
                left[resources] -= assignment.num_slots
            elif trial.status == Trial.PENDING and queue.is_requested(trial):
                queue.withdraw(trial)
        if self._slot_types is not self._run_plan.slot_types:
            self._slot_types = self._run_plan.slot_types
            self._timer.change_types(self._slot_types)
            self._assignments = {
                trial: assignment._replace(slot_type=self._slot_types.type_of(assignment.slot))
                for trial, assignment in self._assignments.items()
            }
        self._find_nodes(trial for trial, assignment in self._assignments.items() if assignment.has_started)

    def _find_nodes(self, trials: Iterable[Trial]) -> None:
        """Note the nodes of trials that were started on any node, where the plan now says which slots each node has."""
        anywhere = [trial for trial in trials if self._assignments[trial].node_id is None]
        if not anywhere or all(placement.node_id is None for placement in self._run_plan.placements):
            return
        for trial, node_id in nodes_of(anywhere).items():
            self._assignments[trial] = self._assignments[trial]._replace(node_id=node_id)

    def _update(self, queue: TuneQueue) -> None:
        """Read which trials have a slot, and hold back those that wait for one."""
        before, self._assignments = self._assignments, self._current_assignments(queue)
        self._find_nodes(
            trial
            for trial, assignment in self._assignments.items()
            if assignment.has_started and not before[trial].has_started
        )
        self._free = None
        for trial in self._waiting.keys() - queue.pending:
            del self._waiting[trial]
            queue.forget(trial)
        to_hold_back = queue.to_hold_back(self._waiting.keys(), self._assignments.keys())
        self._waiting.update(dict.fromkeys(to_hold_back))
        queue.hold_back(to_hold_back)

    def _current_assignments(self, queue: TuneQueue) -> dict[Trial, SlotAssignment]:
        now_s = time.monotonic()
        current = {}
        for trial, assignment in self._assignments.items():
            has_started = trial.status == Trial.RUNNING
            if has_started:
                self._last_slots[trial] = assignment.slot
                self._timer.start(trial, now_s)
            else:
                self._timer.stop(trial, now_s)
            if has_started or (trial.status == Trial.PENDING and queue.is_requested(trial)):
                num_slots = slots_taken(trial, assignment.slot)
                current[trial] = assignment._replace(has_started=has_started, num_slots=num_slots)
        return current

    def _free_placements(self) -> list[tuple[Placement, int]]:
        """Return the placements with free slots, the better types first, and how many each has."""
        if self._free is None:
            placements = self._run_plan.placements
            free = free_slots(placements, self._assignments.values())
            self._free = [(placement, count) for placement, count in zip(placements, free, strict=True) if count > 0]
        return self._free

    def _may_start(self) -> Callable[[Trial], bool]:
        """Return a function that says whether a slot is free for a waiting trial. Each step asks it of each."""
        open_types = {placement.slot_type for placement, _ in self._free_placements()}

        def may_start(trial: Trial) -> bool:
            if not open_types or trial in self._assignments:
                return False
            return trial not in self._last_slots or not open_types.isdisjoint(self._allowed(trial))

        return may_start

    def _allowed(self, trial: Trial) -> set[int]:
        """Return the types with placements in which ``trial`` may run; all of these where it may run in none."""
        there = {placement.slot_type for placement in self._run_plan.placements}
        last_slot = None if self._may_move else self._last_slots.get(trial)
        return there.intersection(self._slot_types.allowed_types(last_slot)) or there

    def _assign_slots(self, queue: TuneQueue, chosen: Trial | None) -> set[Trial]:
        self._left_idle = Counter()
        if not self._free_placements():
            return set()
        first = [chosen] if chosen is not None and chosen not in self._assignments else []
        started: set[Trial] = set()
        idle: set[int] = set()
        for trial in [*first, *(each for each in self._waiting if each is not chosen)]:
            if not self._free_placements():
                break
            # A slot that is better left idle still goes to a trial that may run in no other.
            if trial not in self._last_slots and all(each.slot_type in idle for each, _ in self._free_placements()):
                continue
            if self._assign_slot(queue, trial, idle):
                started.add(trial)
                self._waiting.pop(trial, None)
                self._free = None
        for placement, count in self._free_placements():
            if placement.slot_type in idle:
                self._left_idle[placement.slot_type] += count
        return started

    def _assign_slot(self, queue: TuneQueue, trial: Trial, idle: set[int]) -> bool:
        """Give ``trial`` a slot if one is free for it, and add to ``idle`` the types that are better left idle."""
        allowed = self._allowed(trial)
        is_bound = any(placement.slot_type not in allowed for placement in self._run_plan.placements)
        for placement, free in self._free_placements():
            if placement.slot_type not in allowed:
                continue
            if not is_bound and self._should_idle(placement.slot_type, queue, idle):
                continue
            factory = self._run_plan.factories[placement]
            if trial.placement_group_factory is not factory:
                trial.update_resources(factory)
            taken = slots_taken(trial, self._slot_types.slots[placement.slot_type])
            if free < min(taken, placement.count):
                continue
            queue.let_start(trial)
            slot = self._slot_types.slots[placement.slot_type]
            remember_slot(trial, slot)
            self._assignments[trial] = SlotAssignment(
                slot,
                placement.slot_type,
                placement.node_id,
                num_slots=taken,
                has_started=False,
                worker_nodes=placement.worker_nodes,
            )
            return True
        return False

    def _should_idle(self, slot_type: int, queue: TuneQueue, idle: set[int]) -> bool:
        if slot_type not in idle:
            num_waiting = len(self._waiting) + queue.num_paused + queue.num_to_come
            if self._timer.should_idle(
                slot_type, self._run_plan.placements, self._assignments, num_waiting, time.monotonic()
            ):
                idle.add(slot_type)
        return slot_type in idle

    def _keep_idle_processes(self, queue: TuneQueue) -> None:
        """Let Tune keep processes for reuse while trials wait, but none where they hold what a new one waits for."""
        wanted: Counter[PlacementGroupFactory] = Counter()
        if self._waiting:
            in_the_way = {
                assignment.place
                for trial, assignment in self._assignments.items()
                if not assignment.has_started and has_raised_resources(trial)
            }
            for placement in self._run_plan.placements:
                if place_of(placement) not in in_the_way:
                    wanted[self._run_plan.factories[placement]] += placement.count
        queue.keep_processes(wanted)


def _check_none_changes_resources(scheduler: TrialScheduler | None) -> None:
    if any(isinstance(each, ResourceChangingScheduler) for each in nested_schedulers(scheduler)):
        raise InvalidResourcesError(
            "ResourceChangingScheduler gives trials other resources while they run, and PolicyScheduler would put each "
            "back into its slot after every step: leave one of them out. ResourceChangingScheduler alone, with a "
            "trainable under the plan, begins with the plan's resources"
        )
