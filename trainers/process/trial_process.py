"""Runs a trial of Tune under a policy: sets up its process, extends its results, and cleans up.

``PolicyScheduler`` makes Tune start a ``TrialProcess`` instead of the user's trainable. The ``TrialProcess`` creates
the trainable and forwards Tune's calls, so the trainable keeps its own class. RLlib writes this class into its
checkpoints.
"""

import functools
import threading
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import ray
from ray import tune

from tune_policies.placement.trial_slot import SLOT_ATTRIBUTE, TrialSlot
from tune_policies.ray_compat.tune_trial import (
    is_duplicate,
    is_function_class,
    reserved_by_config,
    storage_of,
    to_be_replaced,
    with_function_wrapped,
)
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import ray_ticks
from tune_policies.values.units import format_bytes

from ..gpu_memory.counters import held_bytes, read_counters, release_unused
from ..gpu_memory.fraction_limits import LimitOptions
from ..gpu_memory.free_memory import exceeds_leak_limit
from .current_process import CURRENT
from .process_setup import ProcessSetup, set_up_before

if TYPE_CHECKING:
    # Each trial's process imports this module, but few trials need a plan.
    from tune_policies.plan.trial_plan import TrialPlan
    from tune_policies.policies.policy import ResourcePolicy

SLOT_KEY: Final = "slot"
"""The key of the slot in each result of a trial."""

_END_TIMEOUT_S: Final = 1.0
"""The time that ``TrialProcess.stop`` waits for the thread of the trial's function, in seconds."""


class TrialProcess:
    """Runs a user's trainable in the process of a trial. Tune creates this object and calls its methods.

    Subclasses from :func:`process_class` set the class attributes.

    Attributes:
        trainable_class: The user's trainable class, or the class that Tune created from a function.
        limits: The options of the GPU memory limit.
    """

    trainable_class: ClassVar[type[tune.Trainable]]
    limits: ClassVar[LimitOptions]
    _described: tuple[Any, str] = (None, "None")

    def __init__(self, config: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self._reserved = reserved_by_config(config)
        self._unfit: str | None = None
        self._function_thread: threading.Thread | None = None
        self._is_function = is_function_class(self.trainable_class)
        cls = self.trainable_class
        if self._is_function:
            # The number of OpenMP threads is set per thread, so set up the process in the function's thread.
            cls = with_function_wrapped(cls, lambda function: set_up_before(function, self._set_up_thread))
        else:
            self._set_up()
        with CURRENT.noted_on_oom():
            self._trainable = cls(config, **kwargs)

    def _set_up(self) -> None:
        slot = slot_of_reservation(self._reserved)
        assert slot is not None  # noqa: S101  # PolicyScheduler starts no trial without a slot
        ProcessSetup.for_trial(slot, self.limits).apply()

    def _set_up_thread(self, _: object) -> None:
        self._function_thread = threading.current_thread()
        self._set_up()

    def train(self) -> dict[str, Any]:
        """Train one step, and add the trial's slot to the result. Every two seconds, also add the resource usage."""
        if self._unfit is not None:
            raise to_be_replaced(self._unfit)
        # For a function, notes are added to errors in the function's thread.
        with nullcontext() if self._is_function else CURRENT.noted_on_oom():
            result: dict[str, Any] = self._trainable.train()
        if not isinstance(result, dict):  # Ray rejects an invalid result itself
            return result
        if is_duplicate(result):
            CURRENT.keep_news(storage_of(self._trainable))
            return result
        if result.get("done") or CURRENT.is_usage_due():
            result = CURRENT.with_usage(result)
        else:
            CURRENT.require_limit()
        if self._described[0] is not self._reserved:
            self._described = self._reserved, described_slot(self._reserved)
        return {SLOT_KEY: self._described[1], **result}

    def train_buffered(self, *args: Any, **kwargs: Any) -> Any:
        """Train several steps."""
        return tune.Trainable.train_buffered(self, *args, **kwargs)

    def save(self, *args: Any, **kwargs: Any) -> Any:
        """Save a checkpoint."""
        with CURRENT.noted_on_oom():
            return self._trainable.save(*args, **kwargs)

    def restore(self, *args: Any, **kwargs: Any) -> Any:
        """Restore a checkpoint."""
        with CURRENT.noted_on_oom():
            return self._trainable.restore(*args, **kwargs)

    def reset(self, new_config: dict[str, Any], **kwargs: Any) -> bool:
        """Prepare this process for the trial with ``new_config``. Return whether the trainable supports this.

        If the trainable is a class, the new limit is set before the trainable's own ``reset`` allocates memory, and
        memory that the trainable keeps does not count as a leak.
        """
        self._reserved = reserved_by_config(new_config)
        storage = storage_of(self._trainable)
        if self._is_function:
            share_bytes = CURRENT.limits.share_bytes if CURRENT.limits else None
            try:
                is_reset = bool(self._trainable.reset(new_config, **kwargs))
            finally:  # the stopped function has ended, and the next function starts in its own thread
                CURRENT.keep_warnings(storage)
            self._unfit = _why_unfit(share_bytes)
            return is_reset
        CURRENT.end_gpu_processes()
        CURRENT.keep_warnings(storage)  # write them before the next trial adds its own warnings
        self._set_up()
        CURRENT.rebase_usage()
        with CURRENT.noted_on_oom():
            is_reset = bool(self._trainable.reset(new_config, **kwargs))
        CURRENT.rebase_usage()
        return is_reset

    def stop(self) -> None:
        """Stop the trial, and terminate its GPU processes."""
        try:
            self._trainable.stop()
        finally:
            if self._function_thread is not None:  # Ray signals the function to stop, but does not wait for its end
                self._function_thread.join(_END_TIMEOUT_S)
            CURRENT.end_gpu_processes()
            CURRENT.keep_warnings(storage_of(self._trainable))

    def export_model(self, *args: Any, **kwargs: Any) -> Any:
        """Export the model."""
        return self._trainable.export_model(*args, **kwargs)

    def get_auto_filled_metrics(self, *args: Any, **kwargs: Any) -> Any:
        """Return the metrics that Tune fills in."""
        return self._trainable.get_auto_filled_metrics(*args, **kwargs)

    def get_current_ip_pid(self) -> Any:
        """Return the IP address of the node and the process ID."""
        return self._trainable.get_current_ip_pid()


def process_class(trainable_class: type[tune.Trainable], limits: LimitOptions) -> type[TrialProcess]:
    """Return the class that Tune starts for the trials of a trainable class.

    Call this function once per run and trainable class, because Tune only reuses processes of the same class.
    """
    changes: dict[str, Any] = {
        "trainable_class": trainable_class,
        "limits": limits,
        "__doc__": trainable_class.__doc__,
        "__module__": trainable_class.__module__,
    }
    if any("__repr__" in vars(cls) for cls in trainable_class.__mro__[:-1]):  # Ray uses ``__repr__`` in logs

        def __repr__(self: TrialProcess) -> str:  # noqa: N807
            return repr(self._trainable)

        changes["__repr__"] = __repr__
    return type(trainable_class.__name__, (TrialProcess,), changes)


def slot_of_reservation(reserved: Any) -> TrialSlot | None:
    """Return the slot in a trial's placement group factory, or ``None`` if the trial has no policy."""
    return _parsed_slot(getattr(reserved, SLOT_ATTRIBUTE, None))


@functools.lru_cache(maxsize=64)
def _parsed_slot(text: str | None) -> TrialSlot | None:
    return None if text is None else TrialSlot.from_json(text)


def described_slot(reserved: Any) -> str:
    """Return the slot of a trial as text, or the reserved resources if they differ from the slot."""
    slot = slot_of_reservation(reserved)
    if slot is None or slot.num_workers:
        return str(slot)
    has = reserved.required_resources
    amounts = ray_ticks(has)
    # With several bundles, the slot describes only the trial's own process. Another scheduler may reserve less.
    if len(reserved.bundles) > 1 or any(amounts.get(name, 0) < ticks for name, ticks in slot.trial.ticks.items()):
        from tune_policies.cluster.capacity import to_resources

        return str(to_resources(has))
    return str(slot.with_more(has))


_OF_SLOT: Final = "the trial's slot"

PlanT = TypeVar("PlanT", bound="TrialPlan | ResourcePolicy")


def plan_of_trial(plan: PlanT) -> "PlanT | TrialPlan":
    """Return the plan of this trial's slot, or ``plan`` outside of a trial under a policy.

    A plan with one slot type is returned unchanged, because a retry after an OOM error may need more than the trial's
    slot.
    """
    from tune_policies.plan.trial_plan import TrialPlan

    is_decided = isinstance(plan, TrialPlan) and plan.by_config is None and len(plan.slots) == 1
    slot = None if is_decided else slot_of_reservation(reserved_for_trial())
    return plan if slot is None else TrialPlan(slots=(slot,), limited_by=_OF_SLOT)


def trial_plan() -> "TrialPlan":
    """Return the plan of the calling trial. The plan has one slot.

    Example: ``train_on_gpu(config) if trial_plan().use_gpu else train_on_cpu(config)``.

    Raises:
        InvalidResourcesError: The caller is not a trial under a policy.
    """
    from tune_policies.plan.trial_plan import TrialPlan

    slot = slot_of_reservation(reserved_for_trial())
    if slot is None:
        raise InvalidResourcesError(
            "trial_plan() was called outside of a trial under a policy. Call it in the function that run or tuner runs"
        )
    return TrialPlan(slots=(slot,), limited_by=_OF_SLOT)


def reserved_for_trial() -> Any:
    """Return the placement group factory of the trial in this process, or ``None`` outside of a trial."""
    if not ray.is_initialized():  # the call below would warn
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Tune warns if there is no trial
        return tune.get_context().get_trial_resources()


def _why_unfit(share_bytes: int | None) -> str | None:
    """Return the reason why this process cannot run another trial, or ``None``. This function raises no error."""
    try:
        CURRENT.end_gpu_processes()
        release_unused()
        left_over_bytes = held_bytes(read_counters())
    except Exception as error:  # noqa: BLE001  # after some errors, all calls to a device raise
        return f"its GPU does not respond: {error}"
    if not exceeds_leak_limit(left_over_bytes, share_bytes):
        return None
    return f"it still uses {format_bytes(left_over_bytes)} of GPU memory from an earlier trial"
