"""A Tune scheduler that carries a policy into a run: resources, concurrency, placement, and the set-up of processes.

``slot_assignment`` decides which slots are free for which trial, and whether a free one is better left idle.
``own_slots`` gives trials with several bundles their slot. ``run_plan`` follows the nodes. ``trial_process`` runs in
the process of a trial. ``ray_compat.tune_controller`` holds back the trials that have no slot.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import cache, partial
from typing import Any, Literal

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler

from tune_policies.oom.unusable_device import is_unusable_device
from tune_policies.placement.layout import Placement
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import SLOT_ATTRIBUTE, TrialSlot
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.ray_compat.tune_controller import (
    actor_of,
    hide_gpu_warning,
    install_hook,
    save_experiment,
    show_gpu_warning,
)
from tune_policies.ray_compat.tune_queue import TuneQueue, gate_searcher
from tune_policies.ray_compat.tune_request import (
    bundles_of,
    has_fallen_back,
    has_raised_resources,
    own_request,
    planned_of,
    remember_fallback,
    remember_slot,
    slot_before,
    slots_taken,
    with_bundles,
)
from tune_policies.tune.own_slots import OwnSlot
from tune_policies.tune.run_plan import PlanChange, RunPlan, check_seconds, lost_node, nodes_of
from tune_policies.tune.slot_assignment import SlotAssignment, TrialTimer, free_slots, place_of
from tune_policies.tune.task_watch import watch_tasks
from tune_policies.tune.wrapping_scheduler import WrappingScheduler, nested_schedulers
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.value import counted, shorten

from .process_setup import LimitOptions, limit_options
from .run_watch import RunWatch
from .trial_process import process_class

_logger = logging.getLogger(__name__)


class PolicyScheduler(WrappingScheduler):
    """Runs the trials of ``tune.run`` and ``Tuner`` under a policy. This is all that a run needs.

    ``tune.run(train_fn, scheduler=PolicyScheduler(AutoPolicy()))``. The policy plans on the cluster when the run
    begins, and the plan is printed. Each trial gets a slot of the plan as one becomes free, the best type first, and no
    more trials run at once than the plan says. The process of a trial is set up before your code runs: its devices, its
    thread count and its GPU memory limit. Each result has the trial's slot under ``"slot"``, and with GPUs the use of
    their memory under ``"gpu_memory"``. The inner scheduler decides everything else.

    A trainable that requests one bundle gets the policy's resources instead, and the run prints what it replaced.
    Several bundles, as of an RLlib algorithm, stay as they are: the policy decides how many such trials run at once,
    and where.

    A slow slot stays idle if the faster slots finish all waiting trials before the slow slot would finish one more. The
    scheduler knows how fast slots are from the plan's speeds, and from the trials that have ended. If the searcher does
    not say how many trials are to come, every slot is used.

    If nodes come, go or change, the policy plans again. A trial that is lost with its node, or with that of its Train
    workers, is requeued, and resumes from its latest checkpoint. That counts as no failure: ``max_failures`` and
    ``fail_fast`` are for all other errors.

    The constructor plans nothing: errors of planning are raised as the run begins.

    Args:
        policy: The policy; or a plan, which then stays as it is and is not printed.
        inner: The scheduler that decides everything else; ``None``: Tune's default, first come first served.
        isolation: ``"mps"``: let NVIDIA's MPS daemon limit the trials too, where one answers.
        on_void_limit: What to do if a memory limit cannot be enforced, because of a setting or because the framework
            sees no GPU: raise an error, or add a warning to the result. To rehearse on GPUs that only Ray counts, pass
            ``"warn"``.
        may_move: Whether a trial that was paused or requeued may resume on another kind of devices.
        falls_back: Whether a trial that cannot use its device, because others hold its memory or the driver fails,
            resumes without one, as the next choice of the policy says: ``GpuPolicy() | CpuPolicy()``. This does not
            count as a failure. ``trial_plan().use_gpu`` tells the trial which choice it got.
        replan_interval_s: How often the nodes of the cluster are read, in seconds.
        wait_for_nodes_s: How long the run waits for nodes if the policy has no plan for those that are left, in
            seconds. Then it ends with the policy's ``InfeasibleRequestError``, and can be resumed.

    Raises:
        InvalidResourcesError: An argument is not valid. In the run: the policy contradicts what a trainable requests,
            or a decision was measured with other versions than are installed.
        InfeasibleRequestError: In the run: not even one trial fits.
        ProbeError: In the run: the cluster cannot be read.
        MemoryLimitError: In a trial: its GPU memory cannot be limited, or others hold the memory of its share.
    """

    def __init__(
        self,
        policy: ResourcePolicy | TrialPlan,
        inner: TrialScheduler | None = None,
        *,
        isolation: Literal["mps"] | None = None,
        on_void_limit: Literal["raise", "warn"] = "raise",
        may_move: bool = False,
        falls_back: bool = False,
        replan_interval_s: float = 5.0,
        wait_for_nodes_s: float = 600.0,
    ) -> None:
        if not isinstance(policy, ResourcePolicy | TrialPlan):
            raise InvalidResourcesError(
                f"policy must be a policy such as AutoPolicy(), or the plan of one, got {shorten(policy)}"
            )
        if inner is not None and not isinstance(inner, TrialScheduler):
            raise InvalidResourcesError(f"inner must be a scheduler of Tune's, got {shorten(inner)}")
        if falls_back and (isinstance(policy, TrialPlan) or len(policy.choices) < 2):
            raise InvalidResourcesError(
                f"falls_back=True needs a policy with a second choice, got {shorten(policy)}: use one such as "
                "GpuPolicy() | CpuPolicy()"
            )
        super().__init__(inner)
        self._policy = policy
        self._limits = LimitOptions(isolation=isolation, on_void_limit=on_void_limit)
        self._may_move = may_move
        self._falls_back = falls_back
        self._replan_interval_s = check_seconds(replan_interval_s, "replan_interval_s")
        self._wait_for_nodes_s = check_seconds(wait_for_nodes_s, "wait_for_nodes_s")
        self._run_plan: RunPlan | None = None
        self._reset_run()

    def _reset_run(self) -> None:
        """Forget the trials of an earlier run."""
        self._queue: TuneQueue | None = None
        self._assignments: dict[Trial, SlotAssignment] = {}
        self._last_slots: dict[Trial, TrialSlot] = {}
        self._waiting: dict[Trial, None] = {}
        self._bundles: dict[Trial, PlacementGroupFactory] = {}
        self._given: dict[Trial, PlacementGroupFactory] = {}
        self._changed: dict[Trial, list[Mapping[str, float]]] = {}
        self._fallen_back: set[Trial] = set()
        self._printed: set[str] = set()
        self._watch = RunWatch()
        self._reported: set[Trial] = set()
        self._left_idle: dict[int, int] = {}
        self._free: list[tuple[Placement, int]] | None = None
        self._error: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a ``Tuner`` saves: the policy and its options, but nothing of a run."""
        kept = ("_inner", "_policy", "_limits", "_may_move", "_falls_back", "_replan_interval_s", "_wait_for_nodes_s")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._requeued = set()
        self._run_plan = None
        self._reset_run()

    def around(self, inner: TrialScheduler | None) -> "PolicyScheduler":
        """Return a scheduler with the same policy and options around another inner one."""
        other = PolicyScheduler(self._policy, inner)
        other.use_options_of(self)
        return other

    def use_options_of(self, other: "PolicyScheduler") -> None:
        """Use the policy and the options of another scheduler from the next run on."""
        self.__dict__ |= {name: value for name, value in other.__getstate__().items() if name != "_inner"}
        self._run_plan = None

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Plan on the cluster of the run that begins, and print the plan; pass on the metric and its mode.

        Raises:
            InfeasibleRequestError: Not even one trial fits.
            InvalidResourcesError: A decision was measured with other versions than are installed.
            ProbeError: The cluster cannot be read.
        """
        self._begin()
        hide_gpu_warning()
        return super().set_search_properties(metric, mode, **spec)

    def _begin(self) -> RunPlan:
        self._reset_run()
        self._run_plan = RunPlan(
            self._policy, interval_s=self._replan_interval_s, wait_for_nodes_s=self._wait_for_nodes_s
        )
        plan = self._run_plan.plan
        changes_resources = any(isinstance(each, ResourceChangingScheduler) for each in nested_schedulers(self._inner))
        if changes_resources and (len(plan.slots) > 1 or plan.by_config is not None):
            raise InvalidResourcesError(
                "ResourceChangingScheduler starts from one request for all trials, and the plan has several slot "
                "types: use a policy that gives all trials the same, or leave ResourceChangingScheduler out"
            )
        self._slot_types = self._run_plan.slot_types
        self._timer = TrialTimer(self._slot_types)
        limits = limit_options(self._limits.isolation, self._limits.on_void_limit)
        self._process_class = cache(partial(process_class, limits=limits))
        return self._run_plan

    @property
    def _planned(self) -> RunPlan:
        return self._run_plan or self._begin()

    @property
    def plan(self) -> TrialPlan | None:
        """The plan that applies now; ``None``: no run has begun."""
        return None if self._run_plan is None else self._planned.plan

    @property
    def changes(self) -> tuple[PlanChange, ...]:
        """The plans that replaced the first, in turn."""
        return () if self._run_plan is None else tuple(self._planned.changes)

    def slot_of(self, trial: Trial) -> TrialSlot | None:
        """Return the slot that ``trial`` has, or had last; ``None``: it has had none yet."""
        assignment = self._assignments.get(trial)
        return self._last_slots.get(trial) if assignment is None else assignment.slot

    @property
    def num_fallbacks(self) -> int:
        """The number of trials that could not use their device and run without one."""
        return len(self._fallen_back)

    def slots_left_idle(self) -> dict[int, int]:
        """Return how many free slots of each type the last decision left idle; types with none are left out."""
        return dict(self._left_idle)

    def replan(self, plan: TrialPlan, why: str = "a new plan was given") -> None:
        """Use ``plan`` from now on. Trials that run stay as they are; those that wait get a new slot."""
        self._planned.replan(plan, why)

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Add a trial, which waits until it has a slot.

        An error here would make Tune restart a run that it resumes, so errors are raised with the next step.
        """
        try:
            self._add(tune_controller, trial)
        except Exception as error:  # noqa: BLE001
            self._error = self._error or error
        super().on_trial_add(tune_controller, trial)

    def _add(self, tune_controller: Any, trial: Trial) -> None:
        run_plan = self._planned
        if self._queue is None or not self._queue.is_of(tune_controller):
            self._queue = TuneQueue(tune_controller)
            show_gpu_warning()
            watch_tasks()
            gate_searcher(tune_controller, self._num_startable)
        self._queue.forget(trial)  # it may be requeued, and have been staged while it ran
        asked = own_request(trial)
        install_hook(trial, self, tune_controller, self._process_class)
        if trial.is_finished():
            return
        if self._falls_back and has_fallen_back(trial):
            self._fallen_back.add(trial)
        if trial not in self._last_slots and trial.latest_checkpoint_result is not None:  # it is restored
            slot = slot_before(trial)
            if slot is not None:
                self._last_slots[trial] = slot
        if asked is not None and len(bundles_of(asked)) > 1:
            self._bundles[trial] = asked
        elif asked is not None:
            planned = run_plan.plan.common_slot.placement_group_factory()
            self._report_replaced(asked, planned)
            # Ray's ResourceChangingScheduler starts from what it sees here.
            self._given[trial] = trial.placement_group_factory = planned

    def _num_startable(self) -> int:
        """Return how many further trials could start: a config should rest on as many results as possible."""
        assert self._queue is not None  # noqa: S101  # it is asked for the trials of a queue
        self._update(self._queue)
        if self._planned.plan.by_config is not None:
            free = self._planned.plan.max_concurrent_trials - len(self._assignments)
        elif self._bundles:
            most = max((each.slot.max_concurrent_trials for each in self._assignments.values()), default=1)
            free = int((1 - self._used_fraction()) * most)
        else:
            free = sum(count for _, count in self._free_placements())
        return free - len(self._waiting)

    def _report_replaced(self, asked: PlacementGroupFactory, planned: PlacementGroupFactory) -> None:
        if asked.bundles in (planned.bundles, [{"CPU": 1.0}]):  # the last is Tune's default
            return
        self._print_once(
            f"the trainable requests {asked.required_resources}, which the policy replaces by "
            f"{planned.required_resources}"
        )

    def _print_once(self, text: str) -> None:
        if text not in self._printed:
            self._printed.add(text)
            print(text)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Add the trial's duration, and pass on that it is done."""
        assignment = self._assignments.get(trial)
        if assignment is not None:
            self._last_slots[trial] = assignment.slot
            self._timer.finish(trial, assignment.slot, time.monotonic())
        super().on_trial_complete(tune_controller, trial, result)

    def should_requeue(self, trial: Trial, error: object) -> bool:
        """Return whether a failed trial was lost with its node or that of its Train workers, or falls back to CPUs.

        Raises:
            InfeasibleRequestError: The trial cannot use its device, and no other choice of the policy fits.
        """
        node_id = lost_node(error)
        if node_id is None:
            return self._fall_back(trial, error)
        _logger.warning(
            "%s was lost with node %s and is requeued, which does not count as a failure", trial, node_id[:8]
        )
        self._planned.avoid_node(node_id)
        return True

    def _fall_back(self, trial: Trial, error: object) -> bool:
        """Let a trial that cannot use its device resume without one; return whether it does."""
        slot = self.slot_of(trial)
        if not self._falls_back or slot is None or not slot.has_device or trial in self._bundles:
            return False
        if not is_unusable_device(error):
            return False
        own = self._planned.slot_without_device()
        remember_fallback(trial)
        self._fallen_back.add(trial)
        _logger.warning(
            "%s cannot use its device and resumes with %s, which does not count as a failure", trial, own.slot
        )
        return True

    def adjust_resources(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        """Return ``planned``; if another scheduler gives a trial other resources, in the slot that the trial has."""
        if SLOT_ATTRIBUTE not in vars(planned):
            if trial.status == Trial.PAUSED:  # else it is Tune, with the resources_per_trial of a run that it resumes
                self._changed[trial] = bundles_of(planned)
            planned = self._given.get(trial, planned)
        self._given[trial] = planned = planned_of(planned)
        changed = self._changed.get(trial)
        return planned if changed is None else with_bundles(planned, changed)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Give waiting trials the free slots, first to the trial that the inner scheduler chooses.

        Raises:
            InfeasibleRequestError: The policy has had no plan for the nodes that are left for ``wait_for_nodes_s``.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        run_plan = self._planned
        queue = self._queue or TuneQueue(tune_controller)
        if run_plan.follow_nodes():
            self._apply_plan(queue)
        if run_plan.timeout_error is not None:
            save_experiment(tune_controller, wait=True)
            raise run_plan.timeout_error
        self._watch_run(tune_controller, queue)
        self._update(queue)
        chosen = super().choose_trial_to_run(queue.view(self._may_start()))
        self._update(queue)  # the inner scheduler may have changed what trials ask for
        started = self._assign_slots(queue, chosen)
        self._keep_idle_processes(queue)
        return chosen if chosen in started else None

    def _watch_run(self, tune_controller: Any, queue: TuneQueue) -> None:
        """Request lost placement groups again, and report who holds devices and which trials can never proceed.

        Raises:
            InfeasibleRequestError: No trial of the run can proceed.
        """
        reading = self._watch.read(queue.requested_groups(), queue.own_groups())
        if reading is None:
            return
        if reading.busy and reading.busy not in self._printed:
            self._printed.add(reading.busy)
            _logger.warning("%s", reading.busy)
        for group_id in reading.lost_groups:
            if (request := queue.request_group_again(group_id)) is not None:
                amounts = request.required_resources
                _logger.warning("placement group %s for %s was lost and is requested again", group_id, amounts)
        running = {actor_of(trial): trial for trial, each in self._assignments.items() if each.has_started}
        stuck = {running[driver_id]: error for driver_id, error in reading.stuck.items() if driver_id in running}
        for trial, error in stuck.items():
            if trial not in self._reported:
                self._reported.add(trial)
                _logger.warning("%s waits for workers that cannot start: %s", trial, error)
        if stuck and len(stuck) == len(self._assignments):
            save_experiment(tune_controller, wait=True)
            raise next(iter(stuck.values()))

    def _apply_plan(self, queue: TuneQueue) -> None:
        """Go on with new placements. Withdraw requests for those that are gone: their nodes may never come back.

        What is asked for on any node stays: its process may be starting, and would begin anew with each change.
        """
        left = {factory: place.count for place, factory in self._planned.factories.items() if place.node_id is None}
        for trial, assignment in sorted(self._assignments.items(), key=lambda each: not each[1].has_started):
            if self._is_own(trial):
                continue
            resources = trial.placement_group_factory
            if assignment.node_id is None and left.get(resources, 0) >= assignment.num_slots:
                left[resources] -= assignment.num_slots
            elif trial.status == Trial.PENDING and queue.is_requested(trial):
                queue.withdraw(trial)
        if self._slot_types is not self._planned.slot_types:
            self._slot_types = self._planned.slot_types
            self._timer.change_types(self._slot_types)
            self._assignments = {
                trial: assignment
                if self._is_own(trial)
                else assignment._replace(slot_type=self._slot_types.type_of(assignment.slot))
                for trial, assignment in self._assignments.items()
            }
        self._find_nodes(trial for trial, assignment in self._assignments.items() if assignment.has_started)

    def _find_nodes(self, trials: Iterable[Trial]) -> None:
        """Note the nodes of trials that were started on any node, where the plan now says which slots each node has."""
        anywhere = [trial for trial in trials if self._assignments[trial].node_id is None]
        if not anywhere or all(placement.node_id is None for placement in self._planned.placements):
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
                num_slots = slots_taken(trial)
                current[trial] = assignment._replace(has_started=has_started, num_slots=num_slots)
        return current

    def _is_own(self, trial: Trial) -> bool:
        """Return whether the trial's config, its bundles, or a fallback decide its slot."""
        return trial in self._bundles or trial in self._fallen_back or self._planned.plan.by_config is not None

    def _own_slot(self, trial: Trial) -> OwnSlot:
        bundles = self._bundles.get(trial)
        if bundles is not None:
            own = self._planned.slot_of_bundles(bundles)
            self._print_once(
                f"each trial keeps the {len(bundles_of(bundles))} bundles that its trainable requests, "
                f"{bundles.required_resources} together: {counted(own.slot.max_concurrent_trials, 'trial')} at once. "
                "The processes that it starts in the other bundles have no GPU memory limit"
            )
            return own
        if trial in self._fallen_back:
            return self._planned.slot_without_device()
        return self._planned.slot_by_config(trial.config)

    def _has_room(self, own: OwnSlot) -> bool:
        """Return whether one more trial may run in a slot of its own."""
        others = [assignment.slot for assignment in self._assignments.values()]
        if not self._planned.is_feasible or len(others) >= max(
            own.slot.max_concurrent_trials, self._planned.plan.max_concurrent_trials
        ):
            return False
        if self._planned.plan.by_config is not None:
            return others.count(own.slot) < own.slot.max_concurrent_trials
        if any(each.num_slots > 1 and not each.has_started for each in self._assignments.values()):
            return False  # that many must become free for it
        # Trials that reserve different bundles share the nodes in proportion.
        return self._used_fraction() + Fraction(1, own.slot.max_concurrent_trials) <= 1

    def _used_fraction(self) -> Fraction:
        """Return the fraction of the nodes that trials with slots of their own use."""
        return sum(
            (Fraction(each.num_slots, each.slot.max_concurrent_trials) for each in self._assignments.values()),
            Fraction(0),
        )

    def _free_placements(self) -> list[tuple[Placement, int]]:
        """Return the placements with free slots, the better types first, and how many each has."""
        if self._free is None:
            placements = self._planned.placements
            free = free_slots(placements, self._assignments.values())
            self._free = [(placement, count) for placement, count in zip(placements, free, strict=True) if count > 0]
        return self._free

    def _may_start(self) -> Callable[[Trial], bool]:
        """Return a function that says whether a slot is free for a waiting trial. Each step asks it of each."""
        open_types = {placement.slot_type for placement, _ in self._free_placements()}

        def may_start(trial: Trial) -> bool:
            if trial in self._assignments:
                return False
            if self._is_own(trial):
                try:
                    return self._has_room(self._own_slot(trial))
                except InfeasibleRequestError:
                    return True  # it fails as soon as it is its turn
            if not open_types:
                return False
            return trial not in self._last_slots or not open_types.isdisjoint(self._allowed(trial))

        return may_start

    def _allowed(self, trial: Trial) -> set[int]:
        """Return the types with placements in which ``trial`` may run; all of these where it may run in none."""
        there = {placement.slot_type for placement in self._planned.placements}
        last_slot = None if self._may_move else self._last_slots.get(trial)
        return there.intersection(self._slot_types.allowed_types(last_slot)) or there

    def _assign_slots(self, queue: TuneQueue, chosen: Trial | None) -> set[Trial]:
        self._left_idle = Counter()
        first = [chosen] if chosen is not None and chosen not in self._assignments else []
        started: set[Trial] = set()
        idle: set[int] = set()
        for trial in [*first, *(each for each in self._waiting if each is not chosen)]:
            if self._is_own(trial):
                is_assigned = self._assign_own_slot(queue, trial)
            elif not self._free_placements():
                break
            # A slot that is better left idle still goes to a trial that may run in no other.
            elif trial not in self._last_slots and all(each.slot_type in idle for each, _ in self._free_placements()):
                continue
            else:
                is_assigned = self._assign_slot(queue, trial, idle)
            if is_assigned:
                started.add(trial)
                self._waiting.pop(trial, None)
                self._free = None
        for placement, count in self._free_placements():
            if placement.slot_type in idle:
                self._left_idle[placement.slot_type] += count
        return started

    def _assign_own_slot(self, queue: TuneQueue, trial: Trial) -> bool:
        try:
            own = self._own_slot(trial)
        except InfeasibleRequestError as error:
            if (trial in self._bundles or trial in self._fallen_back) and self._planned.have_nodes_changed:
                self._planned.wait_for_nodes(error, f"{trial} has no room")
            else:
                queue.fail(trial, error)
            return False
        if not self._has_room(own):
            return False
        self._assign(queue, trial, own.factory, SlotAssignment(own.slot, None, None, has_started=False))
        return True

    def _assign(
        self, queue: TuneQueue, trial: Trial, factory: PlacementGroupFactory, assignment: SlotAssignment
    ) -> None:
        if trial.placement_group_factory is not factory:
            trial.update_resources(factory)
        queue.let_start(trial)
        remember_slot(trial, assignment.slot)
        self._assignments[trial] = assignment

    def _assign_slot(self, queue: TuneQueue, trial: Trial, idle: set[int]) -> bool:
        """Give ``trial`` a slot if one is free for it, and add to ``idle`` the types that are better left idle."""
        allowed = self._allowed(trial)
        is_bound = any(placement.slot_type not in allowed for placement in self._planned.placements)
        for placement, free in self._free_placements():
            if placement.slot_type not in allowed:
                continue
            if not is_bound and self._should_idle(placement.slot_type, queue, idle):
                continue
            factory = self._planned.factories[placement]
            if trial.placement_group_factory is not factory:
                trial.update_resources(factory)
            taken = slots_taken(trial)
            if free < min(taken, placement.count):
                continue
            assignment = SlotAssignment(
                self._slot_types.slots[placement.slot_type],
                placement.slot_type,
                placement.node_id,
                num_slots=taken,
                has_started=False,
                worker_nodes=placement.worker_nodes,
            )
            self._assign(queue, trial, factory, assignment)
            return True
        return False

    def _should_idle(self, slot_type: int, queue: TuneQueue, idle: set[int]) -> bool:
        if slot_type not in idle:
            num_waiting = len(self._waiting) + queue.num_paused + queue.num_to_come
            if self._timer.should_idle(
                slot_type, self._planned.placements, self._assignments, num_waiting, time.monotonic()
            ):
                idle.add(slot_type)
        return slot_type in idle

    def _keep_idle_processes(self, queue: TuneQueue) -> None:
        """Let Tune keep processes for reuse while trials wait, but none where they hold what a new one waits for."""
        wanted: Counter[PlacementGroupFactory] = Counter()
        queue.stage_paused()
        if self._waiting or queue.num_paused or queue.num_to_come:
            in_the_way = {
                assignment.place
                for trial, assignment in self._assignments.items()
                if not assignment.has_started and has_raised_resources(trial)
            }
            for placement in self._planned.placements:
                if place_of(placement) not in in_the_way:
                    wanted[self._planned.factories[placement]] += placement.count
            # A process that is kept for trials with other bundles could hold what a new one waits for.
            own = {
                trial.placement_group_factory: assignment.slot.max_concurrent_trials
                for trial, assignment in self._assignments.items()
                if self._is_own(trial) and trial not in self._fallen_back
            }
            if own:
                wanted = Counter(own if len(own) == 1 else {})
        queue.keep_processes(wanted)
