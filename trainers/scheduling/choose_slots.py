"""Decides which waiting trial of a run starts next, in which slot, and which requests are withdrawn.

``run_plan`` plans, ``slot_board`` finds free slots, ``idle_slots`` decides whether a slow slot stays idle, and
``own_requests`` decides about the trials that have a slot of their own. ``run_events`` applies the decisions.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial

from tune_policies.cluster.node import NodeCapacity
from tune_policies.placement.fill_nodes import Placement
from tune_policies.ray_compat.tune_request import bundles_of
from tune_policies.values.errors import ResourcePolicyError
from tune_policies.values.wording import counted

from ..retries.memory_floor import MemoryFloor, floor_of
from .idle_slots import TrialTimer
from .own_requests import OwnRequests, num_free_own_slots
from .run_plan import RunPlan
from .slot_board import SlotAssignment, SlotBoard, assignment_to, place_of
from .trial_record import TrialRecord, is_raised, request_of, slots_taken


class Start(NamedTuple):
    """The decision to request a slot for a trial."""

    trial: Trial
    request: PlacementGroupFactory


class Withdraw(NamedTuple):
    """The decision to withdraw a trial's request that Ray has not granted."""

    trial: Trial
    reason: str


class RunSlots:
    """The slots of a run and the trials that wait for them.

    Args:
        run_plan: The plan of the run.
        may_move: Whether a trial that has run may resume on another type of device.
        falls_back: Whether a trial that cannot use its device resumes in a slot without a device.

    Attributes:
        run_plan: The plan of the run. A policy plans again when nodes change.
        own_requests: The requests of the trainables, and the trials that have a slot of their own.
        board: The placements, and the trials that have a slot.
        waiting: The trials that wait for a slot, in the order in which they began to wait.
        left_idle: The number of free slots that the last decision left idle, by slot type.
    """

    def __init__(self, run_plan: RunPlan, *, may_move: bool, falls_back: bool) -> None:
        self._may_move = may_move
        self.run_plan = run_plan
        self.own_requests = OwnRequests(run_plan, falls_back=falls_back)
        self.board = SlotBoard()
        self.waiting: dict[Trial, None] = {}
        self.left_idle: Counter[int] = Counter()
        self._slot_types = run_plan.slot_types
        self._timer = TrialTimer(self._slot_types)
        self._have_trials_run = False

    @property
    def assignments(self) -> Mapping[Trial, SlotAssignment]:
        """The trials that have a slot."""
        return self.board.assignments

    @property
    def num_requested(self) -> int:
        """The number of trials in slots whose request Ray has not granted."""
        return sum(not assignment.is_granted for assignment in self.assignments.values())

    # Events of trials.

    def wait(self, trial: Trial) -> None:
        """Let a trial wait for a slot."""
        self.waiting[trial] = None

    def grant(self, trial: Trial) -> None:
        """Record that Ray has granted the request of a trial."""
        self.board.update(trial, is_granted=True)

    def start(self, record: TrialRecord, now_s: float) -> None:
        """Record that a trial has started to run in its slot."""
        assignment = self.assignments[record.trial]
        if not assignment.is_granted:
            self.board.update(record.trial, is_granted=True)
        # The slot is recorded when the trial runs, and not when it requests the slot: a request may be withdrawn, and a
        # paused trial must resume on the devices of the slot in which it has run.
        record.slot = assignment.slot
        record.has_run = True
        self._have_trials_run = True
        self._timer.start(record.trial, now_s)

    def finish(self, trial: Trial, now_s: float) -> None:
        """Record the duration of a completed trial."""
        assignment = self.assignments.get(trial)
        if assignment is not None:
            self._timer.finish(trial, assignment.slot, now_s)

    def release(self, trial: Trial, now_s: float) -> None:
        """Free the slot of a trial that ended or paused, or that waits again."""
        # Tune also reports trials that never got a slot, for example if they are stopped while they wait.
        self.waiting.pop(trial, None)
        self.own_requests.unfit.pop(trial, None)
        if self.board.release(trial) is not None:
            self._timer.stop(trial, now_s)

    # Changes of the plan.

    def follow_nodes(
        self, records: Mapping[Trial, TrialRecord], nodes: Sequence[NodeCapacity] | None
    ) -> list[Withdraw]:
        """Use the placements of the current nodes, and return the requests for removed placements.

        A request is kept if the plan still contains its placement, because its process may be starting.

        Args:
            records: The records of all trials.
            nodes: The latest nodes in Ray's GCS, or ``None`` if they are not known.
        """
        if not self.run_plan.follow_nodes(nodes):
            return []
        left = Counter({place_of(placement): placement.count for placement in self.run_plan.placements})
        withdrawn = []
        # If a placement has fewer slots than before, the trials that got their slots first keep them.
        for trial, assignment in self.assignments.items():
            if self.own_requests.has_own_slot(records[trial]):
                continue
            # The index of a slot type may differ in the new plan, and a placement is found by this index.
            slot_type = self.run_plan.slot_types.same_type(assignment.slot)
            place = assignment._replace(slot_type=slot_type).place
            if slot_type is not None and left[place] >= assignment.num_slots:
                left[place] -= assignment.num_slots
            elif not assignment.is_granted:
                withdrawn.append(Withdraw(trial, "the plan has changed"))
        # The same nodes may only have been placed again. Then the durations per type stay valid.
        if self._slot_types is not self.run_plan.slot_types:
            self._slot_types = self.run_plan.slot_types
            self._timer.change_types(self._slot_types)
        self.board.replace_placements(self.run_plan.placements, self._slot_types.type_of)
        return withdrawn

    def find_nodes(self, nodes: Mapping[Trial, str]) -> None:
        """If slots are now assigned to nodes, record the nodes of trials that were started without an assigned node."""
        # If no placement has a node, Ray chose the nodes, and the nodes do not matter for the plan.
        if all(placement.node_id is None for placement in self.board.placements):
            return
        for trial, node_id in nodes.items():
            assignment = self.assignments.get(trial)
            if assignment is not None and assignment.node_id is None and assignment.slot_type is not None:
                self.board.update(trial, node_id=node_id)

    # Decisions.

    def num_startable(self, *, may_keep_bundles: bool) -> int:
        """Return the number of further trials that could start, beyond the waiting trials.

        Args:
            may_keep_bundles: Whether the trials of the run keep their own bundles.
        """
        plan = self.run_plan.plan
        if plan.by_config is not None:
            free = plan.max_concurrent_trials - len(self.assignments)
        elif may_keep_bundles:
            free = num_free_own_slots(self.assignments.values())
        else:
            free = sum(count for _, count in self.board.free())
        # Trials that fit on no node do not use the free slots, so they must not keep the searcher from suggesting
        # others.
        return free - (len(self.waiting) - len(self.own_requests.unfit))

    def startable(self, records: Mapping[Trial, TrialRecord], trials: Iterable[Trial], now_s: float) -> Iterator[Trial]:
        """Yield the trials for which a slot is free, in the given order."""
        open_types = {placement.slot_type for placement, _ in self.board.free()}
        # Most steps end here, because all slots are in use. The board does not contain the slots of single trials.
        if not open_types and not self.own_requests.has_own_slots:
            return
        for trial in trials:
            record = records[trial]
            if trial in self.assignments or record.not_before_s > now_s:
                continue
            if self.own_requests.has_own_slot(record):
                is_startable = self.own_requests.is_startable(record, self.board, now_s)
            else:
                is_startable = not open_types.isdisjoint(self._allowed(record))
            if is_startable:
                yield trial

    def _allowed(self, record: TrialRecord) -> set[int]:
        """Return the slot types in which a trial may run, or all types if it may run in none of them."""
        planned = {placement.slot_type for placement in self.board.placements}
        if self._may_move or not record.has_run:
            return planned
        # A trial that has run stays on its kind of device, unless the plan no longer has such a device.
        return planned.intersection(self._slot_types.allowed_types(record.slot)) or planned

    def usable(self, record: TrialRecord) -> list[Placement]:
        """Return the placements in which a trial may run, free or not.

        After an out-of-memory error, these are the placements with enough memory for the trial. If no placement has
        enough, they are those with the most, and the trial fails if that is too little.
        """
        allowed = self._allowed(record)
        placements = [placement for placement in self.board.placements if placement.slot_type in allowed]
        if record.needed == MemoryFloor():
            return placements
        ranks = [self._rank_by_memory(placement, record) for placement in placements]
        best = max(ranks, default=None)
        return [placement for placement, rank in zip(placements, ranks, strict=True) if rank == best]

    def _rank_by_memory(self, placement: Placement, record: TrialRecord) -> tuple[bool, int, int]:
        """Return whether a placement has the memory that a trial needs, and otherwise how much of it."""
        needed, floor = record.needed, self._floor_in(placement, record)
        if floor == needed:
            return True, 0, 0
        got = floor_of(floor.apply_to(bundles_of(self._planned_in(placement, record))))
        # What the slots have beyond the need does not count, such as the GPUs if host memory is needed.
        return False, min(got.gpu_ticks, needed.gpu_ticks), min(got.memory_bytes, needed.memory_bytes)

    def _floor_in(self, placement: Placement, record: TrialRecord) -> MemoryFloor:
        """Return the minimum memory of a trial in a placement, which is at most what its nodes have."""
        return self.run_plan.fitting_memory(record.needed, self._planned_in(placement, record), placement.node_id)

    def free_for(self, record: TrialRecord) -> list[tuple[Placement, int]]:
        """Return those of the free placements in which a trial may run, and their numbers of free slots."""
        usable = self.usable(record)
        if len(usable) == len(self.board.placements):
            return self.board.free()
        places = set(usable)
        return [(placement, count) for placement, count in self.board.free() if placement in places]

    def withdrawal(self, records: Mapping[Trial, TrialRecord], now_s: float) -> Withdraw | None:
        """Return a request to withdraw because another slot is free for its trial, or ``None``."""
        move = self.board.trial_to_move(now_s, lambda trial: self.free_for(records[trial]))
        if move is None:
            return None
        trial, placement = move
        ready = [records[waiting] for waiting in self.waiting if records[waiting].not_before_s <= now_s]
        if any(self._could_use(record, placement, now_s) for record in ready):
            return None  # waiting trials get the free slots
        return Withdraw(trial, f"other programs use the resources of its slot, and {self._name_of(placement)} is free")

    def _could_use(self, record: TrialRecord, placement: Placement, now_s: float) -> bool:
        """Return whether a waiting trial could start in a free placement."""
        if record.trial in self.own_requests.unfit:
            return False
        if self.own_requests.has_own_slot(record):
            return self.own_requests.is_startable(record, self.board, now_s)
        num_free = dict(self.free_for(record)).get(placement, 0)
        num_slots = slots_taken(record, self._planned_in(placement, record), self._floor_in(placement, record))
        return min(num_slots, placement.count) <= num_free

    def _planned_in(self, placement: Placement, record: TrialRecord) -> PlacementGroupFactory:
        """Return the request of a trial in a placement, which may be bound to a node or have other amounts."""
        return self.own_requests.with_custom(self.run_plan.factories[placement], record)

    def _name_of(self, placement: Placement) -> str:
        where = "" if placement.node_id is None else f" on node {placement.node_id[:8]}"
        return f"a slot of {self._slot_types.slots[placement.slot_type]}{where}"

    def choose(
        self,
        records: Mapping[Trial, TrialRecord],
        candidates: Iterable[Trial],
        *,
        num_paused: int,
        num_future: int,
        now_s: float,
    ) -> Start | tuple[Trial, ResourcePolicyError] | None:
        """Return the first candidate that gets a slot, or a candidate that can never run with the reason, or ``None``.

        A trial with its own request that no longer fits on the nodes waits, and other trials start. If no trial can
        run, the run waits for nodes.

        Args:
            records: The records of all trials.
            candidates: The trials in the order of preference.
            num_paused: The number of trials that the inner scheduler has paused.
            num_future: The number of trials that the searcher has yet to suggest.
            now_s: The current time, in seconds.

        Raises:
            InvalidResourcesError: The policy contradicts the request of a trial, and no trial has started in this run.
        """
        self.left_idle = Counter()
        idle: set[int] = set()
        # Paused and future trials need a slot later, so they count when a slow slot is compared with faster ones.
        num_waiting = len(self.waiting) + num_paused + num_future
        chosen = None
        for trial in candidates:
            record = records[trial]
            if self.own_requests.has_own_slot(record):
                chosen = self._choose_own(record, now_s)
            else:
                chosen = self._choose_slot(record, idle, num_waiting, now_s)
            if chosen is not None:
                break
        for placement, count in self.board.free():
            if placement.slot_type in idle:
                self.left_idle[placement.slot_type] += count
        self.own_requests.wait_if_none_fits(is_active=chosen is not None or bool(self.assignments))
        return chosen

    def _choose_own(self, record: TrialRecord, now_s: float) -> Start | tuple[Trial, ResourcePolicyError] | None:
        own = self.own_requests.choose(record, self.board, now_s, may_raise=not self._have_trials_run)
        if own is None:
            return None
        if isinstance(own, ResourcePolicyError):
            return record.trial, own
        record.planned = own.factory
        record.floor = self.run_plan.fitting_memory(record.needed, own.factory)
        # Without a slot type and a node, the assignment occupies no placement. ``OwnRequests`` limits such trials.
        assignment = SlotAssignment(own.slot, None, None, is_granted=False, requested_s=now_s)
        return self._start(record, assignment)

    def _choose_slot(self, record: TrialRecord, idle: set[int], num_waiting: int, now_s: float) -> Start | None:
        """Assign a free slot to a trial, and add the slot types that should remain idle to ``idle``."""
        # A slot that should remain idle is still assigned to a trial that may not run in any other slot.
        is_bound = len(self.usable(record)) < len(self.board.placements)
        for placement, count in self.free_for(record):
            if not is_bound and self._should_idle(placement.slot_type, idle, num_waiting, now_s):
                continue
            planned, floor = self._planned_in(placement, record), self._floor_in(placement, record)
            num_slots = slots_taken(record, planned, floor)
            if count >= min(num_slots, placement.count):
                record.planned, record.floor = planned, floor
                slots = self._slot_types.slots
                return self._start(record, assignment_to(placement, slots, num_slots=num_slots, requested_s=now_s))
        return None

    def _start(self, record: TrialRecord, assignment: SlotAssignment) -> Start:
        self.waiting.pop(record.trial, None)
        self.board.assign(record.trial, assignment)
        return Start(record.trial, request_of(record))

    def _should_idle(self, slot_type: int, idle: set[int], num_waiting: int, now_s: float) -> bool:
        if slot_type in idle:
            return True
        slots = self.board.usable_slots(len(self._slot_types.slots))
        is_idle = self._timer.should_idle(slot_type, slots, self.assignments, num_waiting, now_s)
        if is_idle:
            idle.add(slot_type)
        return is_idle

    def why_waiting(self) -> str:
        """Return the reason why no waiting trial starts."""
        if not self.run_plan.is_feasible:
            return "no plan is feasible on the current nodes"
        num_slots = sum(placement.count for placement in self.board.placements)
        in_use = f"{len(self.assignments)} of {num_slots} slots are in use"
        if self.num_requested:
            in_use += f", and {counted(self.num_requested, 'trial')} in them must wait until Ray grants the resources"
        if self.left_idle:
            in_use += f", and {self.left_idle.total()} slow slots stay idle because faster slots finish sooner"
        return in_use

    def kept_processes(self, records: Mapping[Trial, TrialRecord]) -> Counter[PlacementGroupFactory]:
        """Return how many idle processes may be kept for reuse while trials wait, by resource request.

        A kept process occupies the resources of its slot, so no process is kept where another process must start.
        """
        wanted: Counter[PlacementGroupFactory] = Counter()
        own: Counter[PlacementGroupFactory] = Counter()
        in_the_way: set[Any] = set()
        for trial, assignment in self.assignments.items():
            record = records[trial]
            # The process of a trial that has fallen back cannot run the other trials, which need a device.
            if self.own_requests.has_own_slot(record) and not record.has_fallen_back:
                own[record.planned] = assignment.slot.max_concurrent_trials
            # A raised request waits for more than a slot, which a kept process in the same placement would occupy.
            if not assignment.is_granted and is_raised(record):
                in_the_way.add(assignment.place)
        if own:
            # A process with other bundles could block a new process.
            if len(own) == 1:
                return own
            return wanted
        # Trials of a run normally request the same custom resources.
        sample = records[next(iter(records))]
        for placement in self.board.placements:
            if place_of(placement) not in in_the_way:
                wanted[self.own_requests.with_custom(self.run_plan.factories[placement], sample)] += placement.count
        return wanted
