"""Decides about failed trials: why a trial failed, and whether it starts again.

``run_events`` applies and logs the decision about a failure. An ``OomRetryScheduler`` decides about out-of-memory
errors.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

from ray.tune.experiment import Trial

from tune_policies.cluster.node import NodeCapacity
from tune_policies.oom import OutOfMemory
from tune_policies.oom.classify import walk_errors
from tune_policies.ray_compat.gcs import dead_actors
from tune_policies.ray_compat.tune_trial import replacement_in
from tune_policies.values.errors import InfeasibleRequestError, UnenforcedLimitError
from tune_policies.values.units import is_number
from tune_policies.values.wording import counted

from ..retries.memory_floor import MemoryFloor
from ..retries.oom_failure import classify_failure, classify_reported
from ..watches.node_watch import lost_node
from .choose_slots import RunSlots
from .run_learning import RunLearning
from .trial_record import TrialRecord

_logger = logging.getLogger(__name__)

_MOST_UNCOUNTED_LOSSES: Final = 2
"""The number of times in a row that the loss of a trial with its node does not count as a failure without progress.

A trial may itself be the cause of the losses, for example because its node runs out of memory.
"""

_UNENFORCED: Final = f"{UnenforcedLimitError.__module__}.{UnenforcedLimitError.__qualname__}"


class FailureDecision(NamedTuple):
    """What happens with a failed trial.

    Attributes:
        action: ``"count"`` lets Tune count the failure and retry the trial up to ``max_failures`` times. ``"requeue"``
            retries the trial without counting the failure. ``"fail"`` never retries the trial.
        reason: The reason for the action.
        pause_s: The time to wait before a requeued trial starts again, in seconds.
    """

    action: Literal["count", "requeue", "fail"]
    reason: str = ""
    pause_s: float = 0.0

    def __str__(self) -> str:
        if not self.reason:
            return self.action
        return f"{self.action}, because {self.reason}"


class FailureCause(NamedTuple):
    """What was looked up about a failure.

    Attributes:
        lost_node_id: The ID of the dead node on which the trial or one of its Train workers ran, or ``None``.
        out_of_memory: The classified error, or ``None`` if it was not looked up.
    """

    lost_node_id: str | None = None
    out_of_memory: OutOfMemory | None = None


class MemoryRetries(Protocol):
    """Decides how much memory trials get after out-of-memory errors."""

    def decide(
        self, record: TrialRecord, out_of_memory: OutOfMemory, nodes: Sequence[NodeCapacity] | None
    ) -> FailureDecision:
        """Decide about a failed trial, and change its record accordingly."""

    def floor_of(self, record: TrialRecord, nodes: Sequence[NodeCapacity] | None) -> MemoryFloor:
        """Return the minimum memory that earlier errors require for a trial, whatever the nodes of its slot have."""

    def warn_if_limited(self, record: TrialRecord) -> None:
        """Log a warning if a trial starts with less memory than earlier errors require."""

    def remember(self, record: TrialRecord) -> None:
        """Apply the earlier retries of a restored trial to other trials."""

    def check_keys(self, records: Sequence[TrialRecord]) -> None:
        """Log a warning if no config of the first trials contains a key that should affect memory."""

    @property
    def num_records(self) -> int:
        """The number of retries that may apply to other trials."""


def look_up_cause(error: Exception, actor_id: str | None) -> Callable[[], FailureCause] | None:
    """Return a function that looks up why a process died, or ``None`` if ``error`` is not about a dead process.

    The lookup asks Ray, so it runs outside Tune's loop.
    """
    if next(dead_actors(error), None) is None:
        return None
    return partial(_cause_of, error, actor_id)


def _cause_of(error: Exception, actor_id: str | None) -> FailureCause:
    # The node comes first, because the count of killed processes cannot be read on a dead node.
    node_id = lost_node(error)
    if node_id is not None:
        return FailureCause(node_id)
    return FailureCause(None, classify_failure(error, actor_id))


def decide_failure(
    record: TrialRecord,
    error: Exception,
    cause: object,
    *,
    slots: RunSlots | None,
    enforcement: "Enforcement",
    retries: MemoryRetries | None,
    learning: RunLearning | None,
    nodes: Sequence[NodeCapacity] | None,
) -> FailureDecision:
    """Decide what happens with a failed trial, and change its record accordingly.

    Args:
        record: The record of the trial.
        error: The error of the trial.
        cause: The result of the function of ``look_up_cause``, or the error that it raised. ``None`` if nothing had to
            be looked up.
        slots: The slots of the run, or ``None`` in a run without a policy.
        enforcement: Whether the trials can enforce their memory limits.
        retries: The scheduler that retries trials with more memory, or ``None``.
        learning: The observations for the run's ``LearningPolicy``, or ``None``.
        nodes: The nodes of the cluster, or ``None`` if they are not known.
    """
    # A process that asks to be replaced has not failed, so this comes before everything else.
    replacement = replacement_in(error)
    if replacement is not None:
        record.failure = None
        return FailureDecision("requeue", f"is requeued, because {replacement}")
    if isinstance(cause, Exception):  # for example because Ray's GCS is restarting
        _logger.warning("could not determine why the process of %s died: %s", record.trial, cause)
    found = cause if isinstance(cause, FailureCause) else FailureCause()
    # Set for each failure, because ``PolicyCallback`` reads it. Tune's loop waits for this function, so it asks neither
    # Ray nor a node, which may be lost.
    record.failure = found.out_of_memory or classify_reported(error, record.actor_id)
    try:
        decision = None
        # The first answer counts. A lost node or an unusable device is not the fault of the trial, and a limit without
        # effect would fail every trial. Only then is more memory the remedy.
        if slots is not None:
            decision = _decide_by_slots(slots, record, error, found)
        if decision is None:
            decision = enforcement.decide(error)
        if decision is None:
            decision = _decide_by_memory(record, retries, learning, nodes)
    except InfeasibleRequestError as infeasible:
        return FailureDecision("fail", str(infeasible))
    except Exception:  # an error in the decision must not stop the other trials
        _logger.exception("the decision whether to retry %s failed, so Tune handles the failure", record.trial)
        return FailureDecision("count")
    return decision


def _decide_by_memory(
    record: TrialRecord,
    retries: MemoryRetries | None,
    learning: RunLearning | None,
    nodes: Sequence[NodeCapacity] | None,
) -> FailureDecision:
    """Retry a trial that ran out of memory with more memory. Tune handles other failures."""
    if retries is None or record.failure is None:
        return FailureDecision("count")
    num_raised = len(record.oom.records)
    decision = retries.decide(record, record.failure, nodes)
    if learning is not None and len(record.oom.records) > num_raised:
        learning.note_too_little(record)
    return decision


def _decide_by_slots(
    slots: RunSlots, record: TrialRecord, error: Exception, cause: FailureCause
) -> FailureDecision | None:
    """Requeue a trial whose node or device caused its failure, and avoid the cause. Otherwise, return ``None``.

    From its third consecutive loss on, without progress in between, a trial may itself be the cause.
    """
    if cause.lost_node_id is not None:
        # Ray marks a killed node as dead only after about 14 s, and would start the trial there again.
        slots.run_plan.avoid_node(cause.lost_node_id)
        _count_loss(record)
        node = f"node {cause.lost_node_id[:8]}"
        if record.num_losses > _MOST_UNCOUNTED_LOSSES:
            reason = (
                f"was lost with its node {record.num_losses} times in a row without progress, most recently with {node}"
            )
            _logger.warning("%s %s. This counts as a failure", record.trial, reason)
            return FailureDecision("count", f"it {reason}")
        return FailureDecision("requeue", f"was lost with {node} and is requeued")
    slot = slots.own_requests.fall_back(record, error)
    if slot is None:
        return None
    record.has_fallen_back = True
    return FailureDecision("requeue", f"cannot use its device and resumes with {slot}")


def _count_loss(record: TrialRecord) -> None:
    """Count how many times in a row a trial was lost with its node without progress in between.

    A trial makes progress if it reaches a higher training iteration than before, or saves another checkpoint. Results
    alone are no progress, because a trial without a checkpoint starts again from the beginning.
    """
    checkpoint = record.trial.checkpoint
    path = None if checkpoint is None else checkpoint.path
    # Not the property ``last_result`` of the trial, which may call the lost process.
    iteration = record.trial.run_metadata.last_result.get("training_iteration", 0)
    if not is_number(iteration):  # a trainable may report anything under this key
        iteration = 0
    if iteration > record.iteration_at_loss or path != record.checkpoint_at_loss:
        record.num_losses = 0
    record.iteration_at_loss = max(iteration, record.iteration_at_loss)
    record.checkpoint_at_loss = path
    record.num_losses += 1


class Enforcement:
    """Whether the trials of a run can enforce their memory limits.

    If the first trials cannot, because no framework sees a GPU, further trials would fail in the same way. No further
    trial starts until a trial reports a result, and the run ends if no running trial is left that might.
    """

    def __init__(self) -> None:
        self._message = ""
        self._has_worked = False

    def note_result(self, record: TrialRecord) -> None:
        """Record that a trial with a GPU fraction has reported a result."""
        if record.slot is not None and record.slot.has_gpu_fraction:
            self._has_worked = True

    def decide(self, error: Exception) -> FailureDecision | None:
        """Return the decision about the failure of a trial, or ``None`` if its limit had an effect."""
        if self._has_worked:
            return None
        message = unenforced_limit(error)
        if not message:
            return None
        self._message = self._message or message
        return FailureDecision("fail", "further trials would fail in the same way")

    @property
    def holds_trials(self) -> bool:
        """Whether no further trial may start now."""
        return bool(self._message) and not self._has_worked

    def error(self, slots: RunSlots | None) -> UnenforcedLimitError | None:
        """Return the error that ends the run, or ``None`` if a trial with a slot may still enforce its limit."""
        if slots is None or not self.holds_trials:
            return None
        if any(assignment.slot.has_gpu_fraction for assignment in slots.assignments.values()):
            return None
        message = self._message
        if slots.waiting:
            message += f". {counted(len(slots.waiting), 'waiting trial')} did not start"
        return UnenforcedLimitError(message)


def unenforced_limit(error: object) -> str:
    """Return the message of an ``UnenforcedLimitError`` inside an error, or an empty string."""
    # Only the own type: ``RayTaskError.make_dual_exception_instance`` makes a subclass, whose text is a traceback.
    return next((inner.text for inner in walk_errors(error) if _UNENFORCED in inner.types[:1]), "")


def add_to_error_file(trial: Trial, text: str) -> None:
    """Append a line to the error file that Tune has written into the folder of a failed trial."""
    if trial.error_file:
        with Path(trial.error_file).open("a") as file:
            file.write(text + "\n")


def add_note(error: object, text: str) -> None:
    """Add a note to an error, or to the error that it wraps, because Ray does not save the notes of its own errors."""
    cause = getattr(error, "cause", None)
    noted = cause if isinstance(cause, BaseException) else error
    if isinstance(noted, BaseException):
        with suppress(AttributeError):
            noted.add_note(text)
