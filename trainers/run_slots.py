"""Decides which trials of a run wait, which trials get which slots, and which slots remain idle.

``free_slots`` finds the free slots for a trial, and decides whether a free slot should remain idle. ``own_slots``
provides the slots of trials with several bundles. ``run_plan`` replans when nodes change. ``TuneQueue`` delays the
trials that have no slot.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import NamedTuple

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial

from tune_policies.oom.unusable_device import is_unusable_device
from tune_policies.placement.layout import Placement
from tune_policies.placement.trial_slot import SLOT_ATTRIBUTE, TrialSlot
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.ray_compat.tune_queue import TuneQueue
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
from tune_policies.tune.free_slots import SlotAssignment, TrialTimer, free_slots, place_of
from tune_policies.tune.own_slots import OwnSlot
from tune_policies.tune.run_plan import RunPlan, nodes_of
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.value import counted

from .gpu_memory.fraction_limits import LimitOptions

_logger = logging.getLogger(__name__)


class RunOptions(NamedTuple):
    """The arguments of a ``PolicyScheduler``, except the inner scheduler."""

    policy: ResourcePolicy | TrialPlan
    limits: LimitOptions
    may_move: bool
    falls_back: bool
    replan_interval_s: float
    wait_for_nodes_s: float


class RunSlots:
    """The slots of a run and their trials. The constructor plans on the cluster of the run, and prints the plan.

    Attributes:
        run_plan: The plan of the run. A policy plans again when nodes change.
        assignments: The trials that have a slot.
        last_slots: The last slot of each trial that has run.
        waiting: The trials that wait for a slot, in the order in which they began to wait.
        fallen_back: The trials that could not use their device and fell back.
        left_idle: The number of free slots that the last decision left idle, by slot type.

    Raises:
        InfeasibleRequestError: Not even one trial fits.
        InvalidResourcesError: A decision was measured with package versions that are not installed.
        ProbeError: The cluster cannot be read.
    """

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self.run_plan = RunPlan(
            options.policy, interval_s=options.replan_interval_s, wait_for_nodes_s=options.wait_for_nodes_s
        )
        self.assignments: dict[Trial, SlotAssignment] = {}
        self.last_slots: dict[Trial, TrialSlot] = {}
        self.waiting: dict[Trial, None] = {}
        self.fallen_back: set[Trial] = set()
        self.left_idle: Counter[int] = Counter()
        self._slot_types = self.run_plan.slot_types
        self._timer = TrialTimer(self._slot_types)
        self._bundles: dict[Trial, PlacementGroupFactory] = {}
        self._given: dict[Trial, PlacementGroupFactory] = {}
        self._changed: dict[Trial, list[Mapping[str, float]]] = {}
        self._free: list[tuple[Placement, int]] | None = None
        self._printed: set[str] = set()

    def add(self, trial: Trial) -> None:
        """Add a waiting trial. If it requests one bundle, replace its request with the policy's request."""
        asked = own_request(trial)
        if trial.is_finished():
            return
        if self._options.falls_back and has_fallen_back(trial):
            self.fallen_back.add(trial)
        if trial not in self.last_slots and trial.latest_checkpoint_result is not None:  # the trial was restored
            slot = slot_before(trial)
            if slot is not None:
                self.last_slots[trial] = slot
        if asked is not None and len(bundles_of(asked)) > 1:
            self._bundles[trial] = asked
        elif asked is not None:
            planned = self.run_plan.plan.common_slot.placement_group_factory()
            if asked.bundles not in (planned.bundles, [{"CPU": 1.0}]):  # one CPU is Tune's default
                self._print_once(
                    f"the trainable requests {asked.required_resources}, but the policy replaces this request with "
                    f"{planned.required_resources}"
                )
            # Ray's ResourceChangingScheduler reads the request from the trial.
            self._given[trial] = trial.placement_group_factory = planned

    def _print_once(self, text: str) -> None:
        if text not in self._printed:
            self._printed.add(text)
            print(text)

    def finish(self, trial: Trial) -> None:
        """Record the duration of a completed trial."""
        assignment = self.assignments.get(trial)
        if assignment is not None:
            self.last_slots[trial] = assignment.slot
            self._timer.finish(trial, assignment.slot, time.monotonic())

    def slot_of(self, trial: Trial) -> TrialSlot | None:
        """Return the current or last slot of ``trial``, or ``None`` if it never had a slot."""
        assignment = self.assignments.get(trial)
        return self.last_slots.get(trial) if assignment is None else assignment.slot

    def fall_back(self, trial: Trial, error: object) -> bool:
        """Let a failed trial resume without a device if it cannot use its device. Return whether it resumes.

        Raises:
            InfeasibleRequestError: No other choice of the policy fits.
        """
        slot = self.slot_of(trial)
        if not self._options.falls_back or slot is None or not slot.has_device or trial in self._bundles:
            return False
        if not is_unusable_device(error):
            return False
        own = self.run_plan.slot_without_device()
        remember_fallback(trial)
        self.fallen_back.add(trial)
        _logger.warning(
            "%s cannot use its device and resumes with %s. This does not count as a failure", trial, own.slot
        )
        return True

    def adjust_resources(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        """Return the request of the trial's slot, with the resources that another scheduler requested, if any."""
        if SLOT_ATTRIBUTE not in vars(planned):
            if trial.status == Trial.PAUSED:  # otherwise, Tune passes the request of a resumed run
                self._changed[trial] = bundles_of(planned)
            planned = self._given.get(trial, planned)
        self._given[trial] = planned = planned_of(planned)
        changed = self._changed.get(trial)
        return planned if changed is None else with_bundles(planned, changed)

    def follow_nodes(self, queue: TuneQueue) -> None:
        """Use the placements of the current nodes, and cancel requests for removed placements.

        A request without an assigned node is kept if the plan still contains it, because its process may be starting.
        """
        if not self.run_plan.follow_nodes():
            return
        left = {factory: place.count for place, factory in self.run_plan.factories.items() if place.node_id is None}
        for trial, assignment in sorted(self.assignments.items(), key=lambda each: not each[1].has_started):
            if self._is_own(trial):
                continue
            resources = trial.placement_group_factory
            if assignment.node_id is None and left.get(resources, 0) >= assignment.num_slots:
                left[resources] -= assignment.num_slots
            elif trial.status == Trial.PENDING and queue.is_requested(trial):
                queue.withdraw(trial)
        if self._slot_types is not self.run_plan.slot_types:
            self._slot_types = self.run_plan.slot_types
            self._timer.change_types(self._slot_types)
            self.assignments = {
                trial: assignment
                if self._is_own(trial)
                else assignment._replace(slot_type=self._slot_types.type_of(assignment.slot))
                for trial, assignment in self.assignments.items()
            }
        self._find_nodes(trial for trial, assignment in self.assignments.items() if assignment.has_started)

    def _find_nodes(self, trials: Iterable[Trial]) -> None:
        """If slots are now assigned to nodes, record the nodes of trials that were started without an assigned node."""
        anywhere = [trial for trial in trials if self.assignments[trial].node_id is None]
        if not anywhere or all(placement.node_id is None for placement in self.run_plan.placements):
            return
        for trial, node_id in nodes_of(anywhere).items():
            self.assignments[trial] = self.assignments[trial]._replace(node_id=node_id)

    def update(self, queue: TuneQueue) -> None:
        """Update which trials have a slot, and defer pending trials without a slot."""
        before, self.assignments = self.assignments, self._current_assignments(queue)
        self._find_nodes(
            trial
            for trial, assignment in self.assignments.items()
            if assignment.has_started and not before[trial].has_started
        )
        self._free = None
        for trial in self.waiting.keys() - queue.pending:
            del self.waiting[trial]
            queue.forget(trial)
        trials_to_defer = queue.trials_to_defer(self.waiting.keys(), self.assignments.keys())
        self.waiting.update(dict.fromkeys(trials_to_defer))
        queue.defer(trials_to_defer)

    def _current_assignments(self, queue: TuneQueue) -> dict[Trial, SlotAssignment]:
        now_s = time.monotonic()
        current = {}
        for trial, assignment in self.assignments.items():
            has_started = trial.status == Trial.RUNNING
            if has_started:
                self.last_slots[trial] = assignment.slot
                self._timer.start(trial, now_s)
            else:
                self._timer.stop(trial, now_s)
            if has_started or (trial.status == Trial.PENDING and queue.is_requested(trial)):
                current[trial] = assignment._replace(has_started=has_started, num_slots=slots_taken(trial))
        return current

    def num_startable(self, queue: TuneQueue) -> int:
        """Return the number of further trials that could start.

        The searcher suggests at most this number of configs, because later configs can use the results of more trials.
        """
        self.update(queue)
        if self.run_plan.plan.by_config is not None:
            free = self.run_plan.plan.max_concurrent_trials - len(self.assignments)
        elif self._bundles:
            most = max((each.slot.max_concurrent_trials for each in self.assignments.values()), default=1)
            free = int((1 - self._used_fraction()) * most)
        else:
            free = sum(count for _, count in self._free_placements())
        return free - len(self.waiting)

    def _is_own(self, trial: Trial) -> bool:
        """Return whether the trial's slot depends on its config, its bundles, or a fallback."""
        return trial in self._bundles or trial in self.fallen_back or self.run_plan.plan.by_config is not None

    def _own_slot(self, trial: Trial) -> OwnSlot:
        bundles = self._bundles.get(trial)
        if bundles is not None:
            own = self.run_plan.slot_of_bundles(bundles)
            self._print_once(
                f"each trial keeps the {len(bundles_of(bundles))} bundles that its trainable requests "
                f"({bundles.required_resources} in total), so at most "
                f"{counted(own.slot.max_concurrent_trials, 'trial')} can run concurrently. Processes in all bundles "
                "except the first have no GPU memory limit"
            )
            return own
        if trial in self.fallen_back:
            return self.run_plan.slot_without_device()
        return self.run_plan.slot_by_config(trial.config)

    def _has_room(self, own: OwnSlot) -> bool:
        """Return whether another trial may start in the slot ``own``."""
        others = [assignment.slot for assignment in self.assignments.values()]
        if not self.run_plan.is_feasible or len(others) >= max(
            own.slot.max_concurrent_trials, self.run_plan.plan.max_concurrent_trials
        ):
            return False
        if self.run_plan.plan.by_config is not None:
            return self.run_plan.plan.by_config.has_room(own.slot, others)
        if any(each.num_slots > 1 and not each.has_started for each in self.assignments.values()):
            return False  # a trial waits for several free slots
        # Trials with different slots may start as long as their fractions of the nodes add up to at most 1.
        return self._used_fraction() + Fraction(1, own.slot.max_concurrent_trials) <= 1

    def _used_fraction(self) -> Fraction:
        """Return the used fraction of the nodes. A slot uses 1/n of the nodes if n trials in such slots fit."""
        used = (Fraction(each.num_slots, each.slot.max_concurrent_trials) for each in self.assignments.values())
        return sum(used, Fraction(0))

    def _free_placements(self) -> list[tuple[Placement, int]]:
        """Return the placements with free slots, the best slot type first, each with its number of free slots."""
        if self._free is None:
            placements = self.run_plan.placements
            free = free_slots(placements, self.assignments.values())
            self._free = [(placement, count) for placement, count in zip(placements, free, strict=True) if count > 0]
        return self._free

    def may_start(self) -> Callable[[Trial], bool]:
        """Return a fast function that checks whether a slot is free for a waiting trial."""
        open_types = {placement.slot_type for placement, _ in self._free_placements()}

        def may_start(trial: Trial) -> bool:
            if trial in self.assignments:
                return False
            if self._is_own(trial):
                try:
                    return self._has_room(self._own_slot(trial))
                except InfeasibleRequestError:
                    return True  # ``assign`` will report the trial as failed
            if not open_types:
                return False
            return trial not in self.last_slots or not open_types.isdisjoint(self._allowed(trial))

        return may_start

    def _allowed(self, trial: Trial) -> set[int]:
        """Return the slot types in which ``trial`` may run, or all types if it may run in none of them."""
        there = {placement.slot_type for placement in self.run_plan.placements}
        last_slot = None if self._options.may_move else self.last_slots.get(trial)
        return there.intersection(self._slot_types.allowed_types(last_slot)) or there

    def assign(self, queue: TuneQueue, chosen: Trial | None) -> bool:
        """Assign the free slots to waiting trials, first to ``chosen``. Return whether ``chosen`` got a slot."""
        self.left_idle = Counter()
        first = [chosen] if chosen is not None and chosen not in self.assignments else []
        started: set[Trial] = set()
        idle: set[int] = set()
        for trial in [*first, *(each for each in self.waiting if each is not chosen)]:
            if self._is_own(trial):
                is_assigned = self._assign_own_slot(queue, trial)
            elif not self._free_placements():
                break
            # A slot that should remain idle is still assigned to a trial that may not run in any other slot.
            elif trial not in self.last_slots and all(each.slot_type in idle for each, _ in self._free_placements()):
                continue
            else:
                is_assigned = self._assign_slot(queue, trial, idle)
            if is_assigned:
                started.add(trial)
                self.waiting.pop(trial, None)
                self._free = None
        for placement, count in self._free_placements():
            if placement.slot_type in idle:
                self.left_idle[placement.slot_type] += count
        return chosen in started

    def _assign_own_slot(self, queue: TuneQueue, trial: Trial) -> bool:
        try:
            own = self._own_slot(trial)
        except InfeasibleRequestError as error:
            if (trial in self._bundles or trial in self.fallen_back) and self.run_plan.have_nodes_changed:
                self.run_plan.wait_for_nodes(error, f"no node has room for {trial}")
            else:
                queue.fail(trial, error)
            return False
        if not self._has_room(own):
            return False
        if trial.placement_group_factory is not own.factory:
            trial.update_resources(own.factory)
        self._start(queue, trial, SlotAssignment(own.slot, None, None, has_started=False))
        return True

    def _start(self, queue: TuneQueue, trial: Trial, assignment: SlotAssignment) -> None:
        queue.start_deferred(trial)
        remember_slot(trial, assignment.slot)
        self.assignments[trial] = assignment

    def _assign_slot(self, queue: TuneQueue, trial: Trial, idle: set[int]) -> bool:
        """Assign a free slot to ``trial``, and add the slot types that should remain idle to ``idle``."""
        allowed = self._allowed(trial)
        is_bound = any(placement.slot_type not in allowed for placement in self.run_plan.placements)
        for placement, free in self._free_placements():
            if placement.slot_type not in allowed:
                continue
            if not is_bound and self._should_idle(placement.slot_type, queue, idle):
                continue
            factory = self.run_plan.factories[placement]
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
            self._start(queue, trial, assignment)
            return True
        return False

    def _should_idle(self, slot_type: int, queue: TuneQueue, idle: set[int]) -> bool:
        if slot_type not in idle:
            num_waiting = len(self.waiting) + queue.num_paused + queue.num_future_trials
            if self._timer.should_idle(
                slot_type, self.run_plan.placements, self.assignments, num_waiting, time.monotonic()
            ):
                idle.add(slot_type)
        return slot_type in idle

    def keep_idle_processes(self, queue: TuneQueue) -> None:
        """While trials wait, let Tune keep processes for reuse, unless a kept process would block a new process."""
        wanted: Counter[PlacementGroupFactory] = Counter()
        queue.stage_paused()
        if self.waiting or queue.num_paused or queue.num_future_trials:
            in_the_way = {
                assignment.place
                for trial, assignment in self.assignments.items()
                if not assignment.has_started and has_raised_resources(trial)
            }
            for placement in self.run_plan.placements:
                if place_of(placement) not in in_the_way:
                    wanted[self.run_plan.factories[placement]] += placement.count
            # A process that is kept for trials with other bundles could block a new process.
            own = {
                trial.placement_group_factory: assignment.slot.max_concurrent_trials
                for trial, assignment in self.assignments.items()
                if self._is_own(trial) and trial not in self.fallen_back
            }
            if own:
                wanted = Counter(own if len(own) == 1 else {})
        queue.keep_processes(wanted)
