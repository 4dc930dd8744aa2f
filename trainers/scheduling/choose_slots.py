"""Decides which waiting trial of a run starts next, in which slot, and which requests are withdrawn.

``run_plan`` plans, ``slot_board`` finds free slots, ``idle_slots`` decides whether a slow slot stays idle, and
``own_slots`` provides the slots of trials that keep their own request. ``run_events`` applies the decisions.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.cluster.node import NodeCapacity
from tune_policies.oom.unusable_device import is_unusable_device
from tune_policies.placement.fill_nodes import Placement
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.slots_by_config import share_unequally
from tune_policies.policies.policy_of_requests import TrialRequest, policy_line, requests_differ
from tune_policies.ray_compat.tune_request import bundles_of, with_bundles, with_own
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError, ResourcePolicyError
from tune_policies.values.wording import counted

from .idle_slots import TrialTimer
from .own_slots import OwnSlot
from .run_plan import RunPlan
from .slot_board import SlotAssignment, SlotBoard, assignment_to, place_of
from .trial_record import TrialRecord, is_raised, request_of, slots_taken

_logger = logging.getLogger(__name__)

_MAX_KNOWN_REQUESTS: Final = 200
"""The number of trials whose requests are kept to compare them with later ones. Tune creates this many at once."""

_PLANNED_RESOURCES: Final = DEVICE_RESOURCES | {"CPU", "memory"}
"""The resources that a policy plans. A request for others, such as a license, is the trainable's own."""


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
        board: The placements, and the trials that have a slot.
        waiting: The trials that wait for a slot, in the order in which they began to wait.
        left_idle: The number of free slots that the last decision left idle, by slot type.
    """

    def __init__(self, run_plan: RunPlan, *, may_move: bool, falls_back: bool) -> None:
        self._may_move = may_move
        self._falls_back = falls_back
        self.run_plan = run_plan
        self.board = SlotBoard()
        self.waiting: dict[Trial, None] = {}
        self.left_idle: Counter[int] = Counter()
        self._slot_types = run_plan.slot_types
        self._timer = TrialTimer(self._slot_types)
        self._printed: set[str] = set()
        self._has_own_slots = False
        self._have_trials_run = False
        self._unfit: dict[Trial, InfeasibleRequestError] = {}
        self._own_requests: list[TrialRequest] = []
        self._with_custom_amounts: dict[Any, PlacementGroupFactory] = {}

    @property
    def assignments(self) -> Mapping[Trial, SlotAssignment]:
        """The trials that have a slot."""
        return self.board.assignments

    # The trials of the run.

    def add(self, record: TrialRecord, *, may_refuse: bool) -> None:
        """Plan the request of a new trial. If the trainable requests one bundle, the policy replaces this request.

        If a trial requests other resources than earlier trials of the run, the run must not begin. After it has begun,
        such a trial keeps its own request.

        Args:
            record: The record of the trial.
            may_refuse: Whether no trial of the run has run yet.

        Raises:
            InvalidResourcesError: The trial requests other resources, and ``may_refuse`` is set.
        """
        if not self._falls_back:
            record.has_fallen_back = False  # a restored trial may have fallen back under the earlier scheduler
        differs = not record.keeps_own_bundles and self._differs(record)
        if differs and may_refuse:
            raise InvalidResourcesError(self._why_refused(record))
        if differs:
            record.keeps_own_bundles = True
            self._print_once(f"{self._why_refused(record)}. Trials have run, so trials with other requests keep them")
        self._has_own_slots |= self._is_own(record)
        if record.keeps_own_bundles:
            return
        planned = self._with_custom(self.run_plan.common_factory, record)
        if record.own.bundles not in (planned.bundles, [{"CPU": 1.0}]):  # one CPU is Tune's default
            self._print_once(
                f"the trainable requests {record.own.required_resources}, but the policy replaces this request with "
                f"{planned.required_resources}"
            )
        # Ray's ResourceChangingScheduler compares the requests of all trials.
        record.planned = with_own(planned, record.own)
        record.trial.placement_group_factory = record.planned

    def _differs(self, record: TrialRecord) -> bool:
        """Return whether the policy would replace the trial's request by that of trials with other requests."""
        if self.run_plan.plan.by_config is not None:
            return False
        request = _trial_request_of(record)
        # All earlier requests were equal, so a comparison with the first one is enough.
        if self._own_requests and requests_differ([self._own_requests[0], request]):
            return True
        # The later requests are kept for ``policy_line``, which finds out how requests depend on configs.
        if len(self._own_requests) < _MAX_KNOWN_REQUESTS:
            self._own_requests.append(request)
        return False

    def _why_refused(self, record: TrialRecord) -> str:
        requests = [*self._own_requests, _trial_request_of(record)]
        line = policy_line(requests)
        instead = "Request the same resources for all trials"
        if line:
            instead = f"Use a policy by config, such as {line}"
        return (
            f"the trials of this run request different resources, such as {requests[-2].bundles[0]} and "
            f"{requests[-1].bundles[0]}, but the policy would give all of them {self.run_plan.plan.common_slot}. "
            f"{instead}"
        )

    def _with_custom(self, factory: PlacementGroupFactory, record: TrialRecord) -> PlacementGroupFactory:
        """Return a slot's request with the custom resources of the trainable's request, which limit something else."""
        custom = custom_amounts(record.own)
        if not custom:
            return factory
        key = factory, tuple(sorted(custom.items()))
        # One object per request, because requests are compared by identity, and trials with equal requests share
        # processes.
        if key not in self._with_custom_amounts:
            head, *others = bundles_of(factory)
            # The slot's own amounts take precedence over custom amounts with the same name.
            self._with_custom_amounts[key] = with_bundles(factory, [{**custom, **head}, *others])
        return self._with_custom_amounts[key]

    def _print_once(self, text: str) -> None:
        if text not in self._printed:
            self._printed.add(text)
            print(text)

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
        self._unfit.pop(trial, None)
        if self.board.release(trial) is not None:
            self._timer.stop(trial, now_s)

    def fall_back(self, record: TrialRecord, error: object) -> TrialSlot | None:
        """Return the slot in which a trial resumes that cannot use its device, or ``None`` if it does not fall back.

        Raises:
            InfeasibleRequestError: No other choice of the policy fits.
        """
        slot = record.slot
        # Bundles of the trainable are never changed, so such a trial cannot do without its devices.
        if not self._falls_back or slot is None or not slot.has_device or record.keeps_own_bundles:
            return None
        if not is_unusable_device(error):
            return None
        self._has_own_slots = True
        return self.run_plan.slot_without_device().slot

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
            if self._is_own(records[trial]):
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

    # Slots of single trials.

    def _is_own(self, record: TrialRecord) -> bool:
        """Return whether the trial's slot depends on its config, its bundles, or a fallback."""
        return record.keeps_own_bundles or record.has_fallen_back or self.run_plan.plan.by_config is not None

    def _own_slot(self, record: TrialRecord) -> OwnSlot:
        if record.keeps_own_bundles:
            own = self.run_plan.slot_of_bundles(record.own)
            num_bundles = len(bundles_of(record.own))
            if num_bundles > 1:
                self._print_once(
                    f"each trial keeps the {num_bundles} bundles that its trainable requests "
                    f"({record.own.required_resources} in total), so at most "
                    f"{counted(own.slot.max_concurrent_trials, 'trial')} can run concurrently. Processes in all "
                    "bundles except the first have no GPU memory limit"
                )
            return own
        # A fallback takes precedence over the config, because the slot of the config has the device that failed.
        if record.has_fallen_back:
            return self.run_plan.slot_without_device()
        return self.run_plan.slot_by_config(record.trial.config)

    def _has_room(self, own: OwnSlot, now_s: float) -> bool:
        """Return whether another trial may start in the slot ``own``.

        A request that waits too long uses nothing: another program holds what it needs, and other trials must not wait
        for it. An equal request would wait as well.
        """
        plan = self.run_plan.plan
        if not self.run_plan.starts_trials:
            return False
        assignments = []
        for assignment in self.assignments.values():
            if not self.board.waits_too_long(assignment, now_s):
                assignments.append(assignment)
            elif assignment.slot == own.slot or share_unequally(own.slot, assignment.slot):
                return False
        # The larger number, because trials with own slots and trials with planned slots may run together. Their
        # fractions of the nodes are added up below.
        if len(assignments) >= max(own.slot.max_concurrent_trials, plan.max_concurrent_trials):
            return False
        if plan.by_config is not None:
            return plan.by_config.has_room(own.slot, [assignment.slot for assignment in assignments])
        if any(assignment.num_slots > 1 and not assignment.is_granted for assignment in assignments):
            return False  # a trial waits for several free slots
        # Trials with different slots may start as long as their fractions of the nodes add up to at most 1.
        return _used_fraction(assignments) + Fraction(1, own.slot.max_concurrent_trials) <= 1

    def _allowed(self, record: TrialRecord) -> set[int]:
        """Return the slot types in which a trial may run, or all types if it may run in none of them."""
        planned = {placement.slot_type for placement in self.board.placements}
        if self._may_move or not record.has_run:
            return planned
        # A trial that has run stays on its kind of device, unless the plan no longer has such a device.
        return planned.intersection(self._slot_types.allowed_types(record.slot)) or planned

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
            # How many such trials fit is known only from the trials that have a slot. Until then, one trial may start.
            slots = [assignment.slot for assignment in self.assignments.values()]
            most = max((slot.max_concurrent_trials for slot in slots), default=1)
            free = int((1 - _used_fraction(self.assignments.values())) * most)
        else:
            free = sum(count for _, count in self.board.free())
        # Trials that fit on no node do not use the free slots, so they must not keep the searcher from suggesting
        # others.
        return free - (len(self.waiting) - len(self._unfit))

    def startable(self, records: Mapping[Trial, TrialRecord], trials: Iterable[Trial], now_s: float) -> Iterator[Trial]:
        """Yield the trials for which a slot is free, in the given order."""
        open_types = {placement.slot_type for placement, _ in self.board.free()}
        # Most steps end here, because all slots are in use. The board does not contain the slots of single trials.
        if not open_types and not self._has_own_slots:
            return
        for trial in trials:
            record = records[trial]
            if trial in self.assignments or record.not_before_s > now_s:
                continue
            if self._is_own(record):
                is_startable = self._may_start_own(record, now_s)
            else:
                is_startable = not open_types.isdisjoint(self._allowed(record))
            if is_startable:
                yield trial

    def _may_start_own(self, record: TrialRecord, now_s: float) -> bool:
        try:
            return self._has_room(self._own_slot(record), now_s)
        except (InfeasibleRequestError, InvalidResourcesError):
            return True  # ``choose`` reports the error

    def withdrawal(self, records: Mapping[Trial, TrialRecord], now_s: float) -> Withdraw | None:
        """Return a request to withdraw because another slot is free for its trial, or ``None``."""
        move = self.board.trial_to_move(now_s, lambda trial: self._allowed(records[trial]))
        if move is None:
            return None
        ready = [trial for trial in self.waiting if records[trial].not_before_s <= now_s]
        if any(self._could_use(records[trial], move[1], now_s) for trial in ready):
            return None  # waiting trials get the free slots
        trial, placement = move
        return Withdraw(trial, f"other programs use the resources of its slot, and {self._name_of(placement)} is free")

    def _could_use(self, record: TrialRecord, placement: Placement, now_s: float) -> bool:
        """Return whether a waiting trial could start in a free placement."""
        if record.trial in self._unfit:
            return False
        if self._is_own(record):
            return self._may_start_own(record, now_s)
        if placement.slot_type not in self._allowed(record):
            return False
        num_free = dict(self.board.free()).get(placement, 0)
        num_slots = slots_taken(record, self._planned_in(placement, record))
        return min(num_slots, placement.count) <= num_free

    def _planned_in(self, placement: Placement, record: TrialRecord) -> PlacementGroupFactory:
        """Return the request of a trial in a placement, which may be bound to a node or have other amounts."""
        return self._with_custom(self.run_plan.factories[placement], record)

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
            if self._is_own(record):
                chosen = self._choose_own(record, now_s)
            else:
                chosen = self._choose_slot(record, idle, num_waiting, now_s)
            if chosen is not None:
                break
        for placement, count in self.board.free():
            if placement.slot_type in idle:
                self.left_idle[placement.slot_type] += count
        self._wait_if_none_fits(chosen)
        return chosen

    def _wait_if_none_fits(self, chosen: object) -> None:
        """Let the run wait for nodes if no trial runs or starts, because the waiting trials no longer fit."""
        # A running trial may end and release its resources, so the run waits for nodes only if nothing runs.
        if chosen is not None or self.assignments or not self._unfit:
            self.run_plan.stop_waiting_for_trial()
        elif self.run_plan.is_feasible:
            trial, error = next(iter(self._unfit.items()))
            self.run_plan.wait_for_nodes(error, f"no node has room for {trial}", for_trial=True)

    def _choose_own(self, record: TrialRecord, now_s: float) -> Start | tuple[Trial, ResourcePolicyError] | None:
        trial = record.trial
        # The trial is tried again in each step, because nodes may have been added. The warning is logged only once.
        was_unfit = self._unfit.pop(trial, None) is not None
        try:
            own = self._own_slot(record)
        except InfeasibleRequestError as error:
            # The trial may have fitted the nodes before they changed, so it waits for new nodes instead of failing.
            if self.run_plan.have_nodes_changed and self.run_plan.plan.by_config is None:
                if not was_unfit:
                    _logger.warning("%s waits until nodes are added, and other trials continue: %s", trial, error)
                self._unfit[trial] = error
                return None
            return trial, error
        except InvalidResourcesError as error:
            # The first trials end the run, because further trials would fail in the same way.
            if not self._have_trials_run:
                raise
            return trial, error
        if not self._has_room(own, now_s):
            return None
        record.planned = own.factory
        # Without a slot type and a node, the assignment occupies no placement. ``_has_room`` limits such trials.
        assignment = SlotAssignment(own.slot, None, None, is_granted=False, requested_s=now_s)
        return self._start(record, assignment)

    def _choose_slot(self, record: TrialRecord, idle: set[int], num_waiting: int, now_s: float) -> Start | None:
        """Assign a free slot to a trial, and add the slot types that should remain idle to ``idle``."""
        allowed = self._allowed(record)
        # A slot that should remain idle is still assigned to a trial that may not run in any other slot.
        is_bound = any(placement.slot_type not in allowed for placement in self.board.placements)
        for placement, count in self.board.free():
            if placement.slot_type not in allowed:
                continue
            if not is_bound and self._should_idle(placement.slot_type, idle, num_waiting, now_s):
                continue
            # Also if the trial does not fit: ``TrialRequests.update`` limits the memory of a waiting trial to what fits
            # on the nodes of its planned request.
            record.planned = self._planned_in(placement, record)
            num_slots = slots_taken(record, record.planned)
            if count >= min(num_slots, placement.count):
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
        requested = sum(not assignment.is_granted for assignment in self.assignments.values())
        if requested:
            in_use += f", and {counted(requested, 'trial')} in them must wait until Ray grants the resources"
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
            if self._is_own(record) and not record.has_fallen_back:
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
                wanted[self._with_custom(self.run_plan.factories[placement], sample)] += placement.count
        return wanted


def custom_amounts(request: PlacementGroupFactory) -> dict[str, float]:
    """Return the custom resources that a trainable requests for its own process."""
    head = bundles_of(request)[0]
    return {
        name: amount
        for name, amount in head.items()
        if name not in _PLANNED_RESOURCES and not name.startswith(ACCELERATOR_TYPE_PREFIX)
    }


def _used_fraction(assignments: Iterable[SlotAssignment]) -> Fraction:
    """Return the used fraction of the nodes. A slot uses 1/n of the nodes if n trials in such slots fit."""
    # With floats, nine times 1/9 exceeds 1, and the ninth trial would not start.
    fractions = (Fraction(assignment.num_slots, assignment.slot.max_concurrent_trials) for assignment in assignments)
    return sum(fractions, Fraction(0))


def _trial_request_of(record: TrialRecord) -> TrialRequest:
    return TrialRequest(bundles_of(record.own), record.trial.config)
