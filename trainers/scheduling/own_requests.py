"""Decides which trials get what they request themselves instead of a slot of the plan, and when they may start.

A policy replaces the request of a trainable by that of a slot. A trial gets its own request if its trainable reserves
several bundles, if it requests other resources than earlier trials after the run has begun, if the policy plans by
config, or if the trial cannot use its device. Such a trial uses a fraction of all nodes instead of a placement.
``own_slots`` computes what it reserves, and ``choose_slots`` starts it.
"""

import logging
from collections.abc import Iterable
from fractions import Fraction
from typing import Any, Final

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.oom.unusable_device import is_unusable_device
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.slots_by_config import share_unequally
from tune_policies.policies.policy_of_requests import TrialRequest, policy_line, requests_differ
from tune_policies.ray_compat.tune_request import bundles_of, with_bundles, with_own
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError, ResourcePolicyError
from tune_policies.values.wording import counted

from .own_slots import OwnSlot
from .run_plan import RunPlan
from .slot_board import SlotAssignment, SlotBoard
from .trial_record import TrialRecord

_logger = logging.getLogger(__name__)

_MAX_KNOWN_REQUESTS: Final = 200
"""The number of trials whose requests are kept to compare them with later ones. Tune creates this many at once."""

_PLANNED_RESOURCES: Final = DEVICE_RESOURCES | {"CPU", "memory"}
"""The resources that a policy plans. A request for others, such as a license, is the trainable's own."""


class OwnRequests:
    """The requests of the trainables of a run, and the trials that keep theirs or have a slot of their own.

    Args:
        run_plan: The plan of the run.
        falls_back: Whether a trial that cannot use its device resumes in a slot without a device.

    Attributes:
        has_own_slots: Whether any trial may have a slot of its own.
        unfit: The waiting trials that fit on no node of the changed cluster, and why.
    """

    def __init__(self, run_plan: RunPlan, *, falls_back: bool) -> None:
        self._run_plan = run_plan
        self._falls_back = falls_back
        self.has_own_slots = False
        self.unfit: dict[Trial, InfeasibleRequestError] = {}
        self._requests: list[TrialRequest] = []
        self._with_custom_amounts: dict[Any, PlacementGroupFactory] = {}
        self._printed: set[str] = set()

    # The request of a new trial.

    def replace_or_keep(self, record: TrialRecord, *, may_refuse: bool) -> None:
        """Replace the request of a new trial by that of a slot if the trainable requests one bundle, or keep it.

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
        self.has_own_slots |= self.has_own_slot(record)
        if record.keeps_own_bundles:
            return
        planned = self.with_custom(self._run_plan.common_factory, record)
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
        if self._run_plan.plan.by_config is not None:
            return False
        request = _trial_request_of(record)
        # All earlier requests were equal, so a comparison with the first one is enough.
        if self._requests and requests_differ([self._requests[0], request]):
            return True
        # The later requests are kept for ``policy_line``, which finds out how requests depend on configs.
        if len(self._requests) < _MAX_KNOWN_REQUESTS:
            self._requests.append(request)
        return False

    def _why_refused(self, record: TrialRecord) -> str:
        requests = [*self._requests, _trial_request_of(record)]
        line = policy_line(requests)
        instead = "Request the same resources for all trials"
        if line:
            instead = f"Use a policy by config, such as {line}"
        return (
            f"the trials of this run request different resources, such as {requests[-2].bundles[0]} and "
            f"{requests[-1].bundles[0]}, but the policy would give all of them {self._run_plan.plan.common_slot}. "
            f"{instead}"
        )

    def with_custom(self, factory: PlacementGroupFactory, record: TrialRecord) -> PlacementGroupFactory:
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

    # The slot of a single trial.

    def has_own_slot(self, record: TrialRecord) -> bool:
        """Return whether the trial's slot depends on its config, its bundles, or a fallback."""
        return record.keeps_own_bundles or record.has_fallen_back or self._run_plan.plan.by_config is not None

    def _slot_of(self, record: TrialRecord) -> OwnSlot:
        if record.keeps_own_bundles:
            return self._run_plan.slot_of_bundles(record.own)
        # A fallback takes precedence over the config, because the slot of the config has the device that failed.
        if record.has_fallen_back:
            return self._run_plan.slot_without_device()
        return self._run_plan.slot_by_config(record.trial.config)

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
        self.has_own_slots = True
        return self._run_plan.slot_without_device().slot

    # The start of a single trial.

    def is_startable(self, record: TrialRecord, board: SlotBoard, now_s: float) -> bool:
        """Return whether a trial may start in its own slot, or can never run."""
        try:
            return self._has_room(self._slot_of(record), board, now_s)
        except (InfeasibleRequestError, InvalidResourcesError):
            return True  # ``choose`` returns the error

    def choose(
        self, record: TrialRecord, board: SlotBoard, now_s: float, *, may_raise: bool
    ) -> OwnSlot | ResourcePolicyError | None:
        """Return the slot in which a trial starts, the reason why it can never run, or ``None`` if it waits.

        A trial that no longer fits on the nodes waits for new nodes.

        Args:
            record: The record of the trial.
            board: The trials that have a slot.
            now_s: The current time, in seconds.
            may_raise: Whether no trial has started in this run.

        Raises:
            InvalidResourcesError: The policy contradicts the request of the trial, and ``may_raise`` is set.
        """
        trial = record.trial
        # The trial is tried again in each step, because nodes may have been added. The warning is logged only once.
        was_unfit = self.unfit.pop(trial, None) is not None
        try:
            own = self._slot_of(record)
        except InfeasibleRequestError as error:
            # The trial may have fitted the nodes before they changed, so it waits for new nodes instead of failing.
            if self._run_plan.have_nodes_changed and self._run_plan.plan.by_config is None:
                if not was_unfit:
                    _logger.warning("%s waits until nodes are added, and other trials continue: %s", trial, error)
                self.unfit[trial] = error
                return None
            return error
        except InvalidResourcesError as error:
            # The first trials end the run, because further trials would fail in the same way.
            if may_raise:
                raise
            return error
        if record.keeps_own_bundles:
            self._print_bundles(record, own)
        if self._has_room(own, board, now_s):
            return own
        return None

    def _print_bundles(self, record: TrialRecord, own: OwnSlot) -> None:
        num_bundles = len(bundles_of(record.own))
        if num_bundles > 1:
            self._print_once(
                f"each trial keeps the {num_bundles} bundles that its trainable requests "
                f"({record.own.required_resources} in total), so at most "
                f"{counted(own.slot.max_concurrent_trials, 'trial')} can run concurrently. Processes in all bundles "
                "except the first have no GPU memory limit"
            )

    def _has_room(self, own: OwnSlot, board: SlotBoard, now_s: float) -> bool:
        """Return whether another trial may start in the slot ``own``.

        A request that waits too long uses nothing: another program holds what it needs, and other trials must not wait
        for it. An equal request would wait as well.
        """
        plan = self._run_plan.plan
        if not self._run_plan.starts_trials:
            return False
        assignments = []
        for assignment in board.assignments.values():
            if not board.waits_too_long(assignment, now_s):
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

    def wait_if_none_fits(self, *, is_active: bool) -> None:
        """Let the run wait for nodes if no trial runs or starts, because the waiting trials no longer fit.

        Args:
            is_active: Whether a trial has a slot or starts. It may end and release its resources.
        """
        if is_active or not self.unfit:
            self._run_plan.stop_waiting_for_trial()
        elif self._run_plan.is_feasible:
            trial, error = next(iter(self.unfit.items()))
            self._run_plan.wait_for_nodes(error, f"no node has room for {trial}", for_trial=True)


def num_free_own_slots(assignments: Iterable[SlotAssignment]) -> int:
    """Return how many further trials with their own slots fit next to the trials that have a slot.

    How many such trials fit is known only from the trials that have a slot. Until then, one trial may start.
    """
    assignments = list(assignments)
    most = max((assignment.slot.max_concurrent_trials for assignment in assignments), default=1)
    return int((1 - _used_fraction(assignments)) * most)


def _used_fraction(assignments: Iterable[SlotAssignment]) -> Fraction:
    """Return the used fraction of the nodes. A slot uses 1/n of the nodes if n trials in such slots fit."""
    # With floats, nine times 1/9 exceeds 1, and the ninth trial would not start.
    fractions = (Fraction(assignment.num_slots, assignment.slot.max_concurrent_trials) for assignment in assignments)
    return sum(fractions, Fraction(0))


def custom_amounts(request: PlacementGroupFactory) -> dict[str, float]:
    """Return the custom resources that a trainable requests for its own process."""
    head = bundles_of(request)[0]
    return {
        name: amount
        for name, amount in head.items()
        if name not in _PLANNED_RESOURCES and not name.startswith(ACCELERATOR_TYPE_PREFIX)
    }


def _trial_request_of(record: TrialRecord) -> TrialRequest:
    return TrialRequest(bundles_of(record.own), record.trial.config)
