"""A Tune scheduler that gives each trial a slot of a plan as one becomes free, and plans anew as nodes come and go.

Which slots are free for whom is decided in ``seating``, and whether one is better left idle in ``pace``; ``tune_queue``
holds back the trials that have none, and ``nodes`` watches the cluster.
"""

import logging
import time
from collections import Counter
from typing import Any

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tune_policies.capacity import ClusterCapacity
from tune_policies.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.layout import Place, lay_out
from tune_policies.plan import TrialPlan
from tune_policies.policy import ResourcePolicy
from tune_policies.ray_adapter import to_placement_group_factory
from tune_policies.slot import TrialSlot
from tune_policies.units import is_number
from tune_policies.values import Value

from .around import SchedulerAround
from .nodes import NodeWatch, lost_node
from .run_pace import RunPace
from .seating import Kinds, Seat, free_slots, num_slots
from .tune_queue import TuneQueue
from .tune_trials import adopt, bundles_of, planned_of, save_experiment

_logger = logging.getLogger(__name__)


class PlanChange(Value):
    """A plan that took the place of another while trials ran.

    Attributes:
        at_s: When, in seconds since 1970.
        plan: What holds from then on; where no plan is possible, the last one that was.
        why: What changed, in a sentence.
    """

    at_s: float
    plan: TrialPlan
    why: str


class PolicyScheduler(SchedulerAround):
    """A Tune scheduler around another: each trial gets a slot of the plan as one becomes free, the better kind first.

    Use it with ``with_plan(trainable, plan)``, and without ``max_concurrent_trials``: the plan says how many trials run
    at once. The scheduler inside decides everything else, as without this one.

    A slot is left idle on purpose only near the end, where the faster slots finish all that waits before one more trial
    would in the slow slot. How fast slots are it knows from the plan, or from the trials that have ended.

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
        InvalidResourcesError: The plan goes by configs, or a number of seconds is not above 0.
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
        self._plan = _check_plan(plan)
        self._policy = policy
        self._may_move = may_move
        self._wait_for_nodes_s = _check_seconds(wait_for_nodes_s, "wait_for_nodes_s")
        interval_s = _check_seconds(replan_interval_s, "replan_interval_s")
        self._watch = NodeWatch(interval_s, probes=policy is not None)
        self._changes: list[PlanChange] = []
        self._impossible: InfeasibleRequestError | None = None
        self._impossible_since_s = 0.0
        self._capacity: ClusterCapacity | None = None
        self._places: tuple[Place, ...] | None = None
        self._factories: dict[tuple[int, str | None], PlacementGroupFactory] = {}
        self._lost_nodes: set[str] = set()
        self._seats: dict[Trial, Seat] = {}
        self._ran_in: dict[Trial, TrialSlot] = {}
        self._waiting: dict[Trial, None] = {}
        self._kept_processes: Counter[PlacementGroupFactory] = Counter()
        self._held_back: dict[int, int] = {}
        self._kinds = Kinds(plan.slots)
        self._pace = RunPace(self._kinds)
        self._open: list[tuple[Place, int]] | None = None

    @property
    def plan(self) -> TrialPlan:
        """The plan that holds now."""
        return self._plan

    @property
    def changes(self) -> tuple[PlanChange, ...]:
        """The plans that took the place of the first, in turn."""
        return tuple(self._changes)

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
        plan = _check_plan(plan)
        self._impossible = None
        if plan != self._plan:
            self._change(plan, why)
        self._places = None

    def _change(self, plan: TrialPlan, why: str) -> None:
        _logger.info("%s: %s", why, plan.explain())
        self._plan = plan
        self._kinds = Kinds(plan.slots)
        self._pace.change_kinds(self._kinds)
        self._seats = {trial: seat._replace(kind=self._kinds.of(seat.slot)) for trial, seat in self._seats.items()}
        self._changes.append(PlanChange(at_s=time.time(), plan=plan, why=why))

    # What Tune asks.

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Take note of a trial; it waits until it has a slot."""
        adopt(trial, self, tune_controller)
        if trial not in self._ran_in and trial.latest_checkpoint_result is not None:  # it is restored
            slot = getattr(planned_of(trial.placement_group_factory), "slot", None)
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

    def goes_back(self, trial: Trial, error: object) -> bool:
        """Return whether a trial that failed was lost with its node."""
        node_id = lost_node(error)
        if node_id is None:
            return False
        _logger.warning("%s was lost with node %s and goes back: that is no failure", trial, node_id[:8])
        self._lost_nodes.add(node_id)
        return True

    def plan_resources(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        """Leave what a trial gets as it is."""
        return planned

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Give waiting trials the slots that are free, first to the one that the scheduler inside chooses.

        Raises:
            InfeasibleRequestError: For too long the policy has had no plan for the nodes that are left.
        """
        queue = TuneQueue(tune_controller)
        self._follow_nodes(tune_controller)
        if self._places is None:
            self._withdraw_unstarted(queue)
            self._lay_out()
        self._update(queue)
        chosen = super().choose_trial_to_run(queue.view(self._can_start))
        self._update(queue)  # the scheduler inside may have changed what trials ask for
        started = self._seat_trials(queue, chosen)
        self._keep_processes(queue)
        return chosen if chosen in started else None

    # The nodes.

    def _follow_nodes(self, tune_controller: Any) -> None:
        if self._policy is not None or len(self._plan.slots) > 1:
            capacity = self._watch.changed() if self._capacity is not None else None
            if capacity is not None:
                self._plan_anew(capacity)
        if self._impossible is None:
            return
        if time.monotonic() - self._impossible_since_s > self._wait_for_nodes_s:
            save_experiment(tune_controller)
            raise self._impossible

    def _plan_anew(self, capacity: ClusterCapacity) -> None:
        before, self._capacity = self._capacity, capacity
        self._places = None
        self._lost_nodes.clear()
        why = _what_changed(before, capacity)
        if self._policy is None:
            self._impossible = None
            return
        try:
            plan = self._policy.plan(capacity)
        except InfeasibleRequestError as error:
            self._wait_for_nodes(error, why)
        else:
            self.replan(plan, why)

    def _wait_for_nodes(self, error: InfeasibleRequestError, why: str) -> None:
        if self._impossible is None:
            self._impossible_since_s = time.monotonic()
            text = f"{why}: no plan is possible, and nothing starts until nodes come: {error}"
            _logger.warning("%s", text)
            self._changes.append(PlanChange(at_s=time.time(), plan=self._plan, why=text))
        self._impossible = error

    def _lay_out(self) -> None:
        slots = self._plan.slots
        if self._capacity is None:
            self._capacity = self._watch.read_now() or ClusterCapacity()
        if self._impossible is not None:
            self._places = ()
        elif len(slots) > 1 and len(self._capacity.nodes) > 1:
            layout = lay_out(slots, self._capacity)
            to_come = [slot.max_concurrent_trials - layout.count(kind) for kind, slot in enumerate(slots)]
            # The autoscaler adds nodes for what is requested.
            anywhere = [
                _anywhere(kind, count) for kind, count in enumerate(to_come) if count and self._plan.nodes_to_add
            ]
            self._places = tuple(sorted((*layout.places, *anywhere), key=lambda place: place.kind))
            if not self._places:
                self._wait_for_nodes(_none_fits(self._plan), "nodes went")
        else:
            self._places = tuple(_anywhere(kind, slot.max_concurrent_trials) for kind, slot in enumerate(slots))
        self._factories = {
            (place.kind, place.node_id): to_placement_group_factory(slots[place.kind], node_id=place.node_id)
            for place in self._places
        }

    def _withdraw_unstarted(self, queue: TuneQueue) -> None:
        """Take back what was requested under the plan before: it may never be there any more."""
        for trial in self._seats:
            if trial.status == Trial.PENDING and queue.is_requested(trial):
                queue.withdraw(trial)

    # The slots.

    def _update(self, queue: TuneQueue) -> None:
        """Bring up to date which trials have a slot, and hold back those that wait for one."""
        now_s = time.monotonic()
        queue.forget_ended()
        seats = {}
        for trial, seat in self._seats.items():
            has_started = trial.status == Trial.RUNNING
            if has_started:
                self._ran_in[trial] = seat.slot
                self._pace.runs(trial, now_s)
            else:
                self._pace.rests(trial, now_s)
            if has_started or (trial.status == Trial.PENDING and queue.is_requested(trial)):
                seats[trial] = seat._replace(has_started=has_started, num_slots=self._num_slots(trial, seat))
        self._seats = seats
        self._open = None
        pending = queue.pending
        waiting = {trial for trial in pending if trial not in seats}
        self._waiting = {trial: None for trial in (*self._waiting, *pending) if trial in waiting}
        queue.hold_back(waiting)

    def _num_slots(self, trial: Trial, seat: Seat) -> int:
        return _slots_taken(trial, to_placement_group_factory(seat.slot)) if _is_changed(trial) else 1

    def _open_places(self) -> list[tuple[Place, int]]:
        """Return the places with a free slot, the better kinds first, and how many each has."""
        if self._open is None:
            places = [place for place in self._places or () if place.node_id not in self._lost_nodes]
            free = free_slots(places, self._seats.values())
            self._open = [(place, count) for place, count in zip(places, free, strict=True) if count > 0]
        return self._open

    def _can_start(self, trial: Trial) -> bool:
        allowed = self._allowed(trial)
        return trial not in self._seats and any(place.kind in allowed for place, _ in self._open_places())

    def _allowed(self, trial: Trial) -> set[int]:
        """Return the kinds in which ``trial`` may run, of those that have a place; at least one, if any has."""
        there = {place.kind for place in self._places or ()}
        return there.intersection(self._kinds.allowed(None if self._may_move else self._ran_in.get(trial))) or there

    def _seat_trials(self, queue: TuneQueue, chosen: Trial | None) -> set[Trial]:
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
        self._held_back = Counter()
        for place, count in self._open_places():
            if place.kind in idle:
                self._held_back[place.kind] += count
        return started

    def _seat(self, queue: TuneQueue, trial: Trial, idle: set[int]) -> bool:
        """Give ``trial`` a slot, if one is free for it; ``idle`` collects kinds that are better left idle."""
        allowed = self._allowed(trial)
        is_bound = any(place.kind not in allowed for place in self._places or ())
        for place, free in self._open_places():
            if place.kind not in allowed:
                continue
            if not is_bound and self._is_better_idle(place.kind, queue, idle):
                continue
            factory = self._factories[place.kind, place.node_id]
            if trial.placement_group_factory is not factory:
                queue.change_resources(trial, factory)
            taken = _slots_taken(trial, factory)
            if free < min(taken, place.count):
                continue
            queue.let_start(trial)
            slot = self._kinds.slots[place.kind]
            self._seats[trial] = Seat(slot, place.kind, place.node_id, num_slots=taken, has_started=False)
            return True
        return False

    def _is_better_idle(self, kind: int, queue: TuneQueue, idle: set[int]) -> bool:
        if kind not in idle:
            num_waiting = len(self._waiting) + queue.num_paused + queue.num_to_come
            if self._pace.is_better_idle(kind, self._places or (), self._seats, num_waiting, time.monotonic()):
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
            for place in self._places or ():
                if (place.kind, place.node_id) not in gathering:
                    wanted[self._factories[place.kind, place.node_id]] += place.count
        queue.keep_processes(wanted, self._kept_processes)
        self._kept_processes = wanted


def _none_fits(plan: TrialPlan) -> InfeasibleRequestError:
    return InfeasibleRequestError(
        asked=" or ".join(map(str, plan.slots)),
        offered="no node that is left has room for it",
        short_of=plan.limited_by,
        suggestion="Add nodes, or give PolicyScheduler a policy= that has a plan for what is left, and resume the run.",
    )


def _anywhere(kind: int, count: int) -> Place:
    return Place(kind=kind, node_id=None, count=count)


def _is_changed(trial: Trial) -> bool:
    """Return whether a scheduler gave ``trial`` more than its slot has."""
    return planned_of(trial.placement_group_factory) is not trial.placement_group_factory


def _slots_taken(trial: Trial, factory: PlacementGroupFactory) -> int:
    if not _is_changed(trial):
        return 1
    return num_slots(bundles_of(trial.placement_group_factory)[0], bundles_of(factory)[0])


def _what_changed(before: ClusterCapacity | None, after: ClusterCapacity) -> str:
    known = {node.node_id for node in before.nodes} if before else set()
    now = {node.node_id for node in after.nodes}
    parts = [
        f"{len(ids)} {'node' if len(ids) == 1 else 'nodes'} {verb}"
        for ids, verb in ((now - known, "came"), (known - now, "went"))
        if ids
    ]
    return " and ".join(parts) or "what a node has changed"


def _check_plan(plan: TrialPlan) -> TrialPlan:
    if plan.by_config is not None:
        raise InvalidResourcesError(
            "PolicyScheduler gives trials the slots of a plan, but this plan gives each trial what its config needs: "
            "pass with_plan(trainable, plan) to Tune without PolicyScheduler, or plan without a profile"
        )
    return plan


def _check_seconds(seconds: float, name: str) -> float:
    if not is_number(seconds) or not seconds > 0:
        raise InvalidResourcesError(f"{name} must be above 0 seconds, got {seconds!r}")
    return float(seconds)
