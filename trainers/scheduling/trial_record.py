"""What a run knows about each trial, and the request for Ray that follows from it.

A run has one record per trial. The parts that a restored run needs are saved as JSON in one attribute of the trial,
because Tune saves all attributes of a trial with the experiment. The attribute is a string, so the experiment can be
loaded without this package.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial

from tune_policies.oom import OutOfMemory
from tune_policies.placement.count_trials import num_slots_for
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.ray_compat.tune_request import bundles_of, own_of, with_bundles
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import TICKS, from_ticks, to_ticks

from ..retries.memory_floor import SHARED_DEVICES, MemoryFloor
from ..retries.oom_history import TrialOomHistory

_logger = logging.getLogger(__name__)

_ATTRIBUTE: Final = "policy_record"
"""The attribute of a trial with the saved part of its record."""


@dataclass
class TrialRecord:
    """What a run knows about a trial.

    Attributes:
        trial: The trial.
        own: The request of the trial's trainable.
        planned: The request of the trial's slot, or the trainable's own request in a run without a policy.
        slot: The trial's current or last slot, or ``None`` if it never had a slot.
        has_run: Whether the trial has run in ``slot``.
        changed: The request that another scheduler, such as Ray's ``ResourceChangingScheduler``, set instead of
            ``planned``, or ``None``.
        needed: The minimum memory that out-of-memory errors of this trial and of similar trials require.
        floor: The part of ``needed`` that fits on the nodes of the trial's latest request.
        oom: The out-of-memory retries of this trial.
        has_fallen_back: Whether the trial could not use its device, so that it resumes without a device.
        failure: The latest failure of the trial, as classified when it failed, or ``None``.
        actor_id: The ID of the actor that ran the trial when its process died, or ``None``.
        usage: The latest slot and records of resource usage in the results of the trial, by their keys in a result.
        requested: The latest request that this run gave to Tune, or ``None``.
        slot_to_start: The slot in which the trial starts, or ``None``.
        num_losses: The number of consecutive times that the trial was lost with its node, without progress in between.
        iteration_at_loss: The highest training iteration that the trial had reached when it was lost with its node.
        checkpoint_at_loss: The path of its latest checkpoint when it was lost the last time, or ``None``.
        not_before_s: The time before which a retried trial must not start, in seconds on the monotonic clock.
        is_hidden: Whether the inner scheduler does not know that the trial failed and was requeued.
        keeps_own_bundles: Whether the trial keeps its own request: a policy never replaces several bundles, or a
            request that differs from that of earlier trials.
    """

    trial: Trial
    own: PlacementGroupFactory
    planned: PlacementGroupFactory
    slot: TrialSlot | None = None
    has_run: bool = False
    changed: PlacementGroupFactory | None = None
    needed: MemoryFloor = field(default_factory=MemoryFloor)
    floor: MemoryFloor = field(default_factory=MemoryFloor)
    oom: TrialOomHistory = field(default_factory=TrialOomHistory)
    has_fallen_back: bool = False
    failure: OutOfMemory | None = None
    actor_id: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    requested: PlacementGroupFactory | None = None
    slot_to_start: TrialSlot | None = None
    num_losses: int = 0
    iteration_at_loss: float = 0
    checkpoint_at_loss: str | None = None
    not_before_s: float = 0.0
    is_hidden: bool = False
    keeps_own_bundles: bool = field(init=False)

    def __post_init__(self) -> None:
        """Compute ``keeps_own_bundles`` once, because each step of a run reads it for many trials."""
        self.keeps_own_bundles = len(bundles_of(self.own)) > 1

    def save(self) -> None:
        """Save the record with the trial, so that a restored run knows it."""
        data: dict[str, Any] = {}
        # A slot in which the trial has not run does not bind the trial to a kind of device.
        if self.slot is not None and self.has_run:
            data["slot"] = self.slot.model_dump(mode="json", exclude_defaults=True)
        if self.has_fallen_back:
            data["has_fallen_back"] = True
        if self.oom != TrialOomHistory():
            data["oom"] = self.oom.model_dump(mode="json", exclude_defaults=True)
        text = json.dumps(data, separators=(",", ":"))
        if getattr(self.trial, _ATTRIBUTE, None) != text:  # Tune saves only trials whose state is invalid
            setattr(self.trial, _ATTRIBUTE, text)
            self.trial.invalidate_json_state()


def record_of(trial: Trial) -> TrialRecord:
    """Return the record of a new or restored trial.

    Before Tune adds a restored trial, it asks the trainable for the trial's request again
    (``Trial.create_placement_group_factory``), so the request may differ from that of the earlier run. A trial that is
    restarted (``restart_errored``) has the request of the earlier run's policy, which contains the trainable's own.
    """
    own = own_of(trial.placement_group_factory)
    text = getattr(trial, _ATTRIBUTE, None)
    if text is None:
        return TrialRecord(trial, own=own, planned=own)
    try:
        data = json.loads(text)
        record = TrialRecord(trial, own=own, planned=own)
        record.oom = TrialOomHistory.from_dict(data.get("oom", {}))
        record.has_fallen_back = bool(data.get("has_fallen_back"))
        if "slot" in data:
            record.slot = TrialSlot.from_dict(data["slot"])
            record.has_run = True
    except (AttributeError, InvalidResourcesError, TypeError, ValueError) as error:  # saved by another version
        _logger.warning("the saved resources of %s cannot be read and are ignored: %s", trial, error)
        return TrialRecord(trial, own=own, planned=own)
    return record


def request_of(record: TrialRecord) -> PlacementGroupFactory:
    """Return the request for Ray that follows from a record."""
    return _request_in(record, record.planned, record.floor)


def _request_in(record: TrialRecord, planned: PlacementGroupFactory, floor: MemoryFloor) -> PlacementGroupFactory:
    """Return the request for Ray of a trial with at least ``floor`` in a slot with the request ``planned``.

    The request is ``planned`` itself unless another scheduler or an out-of-memory error changed it, so that trials with
    equal requests can reuse each other's processes.
    """
    has_floor = floor.gpu_ticks or floor.memory_bytes
    if record.changed is None and not has_floor:
        return planned
    bundles = bundles_of(planned)
    wanted: Sequence[Mapping[str, float]] = bundles
    if record.changed is not None:
        wanted = [with_legal_amounts(bundle) for bundle in bundles_of(record.changed)]
    raised = floor.apply_to(wanted)
    if raised == [dict(bundle) for bundle in bundles]:
        return planned
    return with_bundles(planned, raised)


def with_legal_amounts(bundle: Mapping[str, float]) -> dict[str, float]:
    """Return a bundle with amounts of GPUs that Ray can place: equal parts of a device, or whole devices.

    Another scheduler may divide the GPUs of a node by the number of trials. Ray refuses 1.5 GPUs for a process, and
    0.75 GPU would leave a quarter of each device unused. Such amounts are rounded down.
    """
    rounded = dict(bundle)
    for device in SHARED_DEVICES & bundle.keys():
        ticks = to_ticks(bundle[device])
        if ticks > TICKS:
            # Above one device, only whole devices are legal.
            ticks -= ticks % TICKS
        elif ticks:
            # The largest 1/k of a device that is not above the request: ``-(-a // b)`` divides and rounds up.
            ticks = TICKS // -(-TICKS // ticks)
        rounded[device] = from_ticks(ticks)
    return rounded


def slots_taken(record: TrialRecord, planned: PlacementGroupFactory, floor: MemoryFloor) -> int:
    """Return the number of slots with the request ``planned`` that a trial needs: 1 unless it requests more.

    Args:
        record: The record of the trial.
        planned: The request of one slot.
        floor: The minimum memory of the trial in such slots.
    """
    request = _request_in(record, planned, floor)
    if request is planned:
        return 1
    # The bundle that needs most slots decides, because a slot contains all bundles of a trial.
    return max(map(num_slots_for, bundles_of(request), bundles_of(planned)))


def is_raised(record: TrialRecord) -> bool:
    """Return whether a trial requests other resources than planned, so that it cannot reuse a process."""
    return request_of(record) is not record.planned
