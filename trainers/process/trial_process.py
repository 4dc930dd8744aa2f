"""Runs a trial of Tune under a policy: sets up its process, extends its results, and cleans up.

A run makes Tune start a ``TrialProcess`` instead of the user's trainable. The ``TrialProcess`` creates
the trainable and forwards Tune's calls, so the trainable keeps its own class. RLlib writes this class into its
checkpoints.
"""

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import ray
from ray import tune

from tune_policies.ray_compat.train_callbacks import set_train_callback
from tune_policies.ray_compat.tune_trial import (
    is_duplicate,
    is_function_class,
    storage_of,
    to_be_replaced,
    with_function_wrapped,
)
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.units import format_bytes

from ..gpu_memory.framework_memory import held_bytes, read_counters, release_unused
from ..gpu_memory.free_memory import exceeds_leak_limit
from .current_process import CURRENT
from .process_setup import ProcessSetup, TrialSetup, set_up_before, wrapped_in

if TYPE_CHECKING:
    # Each trial's process imports this module, but few trials need a plan.
    from tune_policies.plan.trial_plan import TrialPlan
    from tune_policies.policies.policy import ResourcePolicy

SLOT_KEY: Final = "slot"
"""The key of the slot in each result of a trial."""

SETUP_ARGUMENT: Final = "policy_setup"
"""The argument of the process's constructor and of ``reset`` with the trial's ``TrialSetup`` as JSON, or ``None``."""

_TRAINABLE: Final = "_TrialProcess__trainable"
"""The attribute of a ``TrialProcess`` with its trainable."""

_OF_PYTHON: Final = {
    *("__del__", "__delattr__", "__eq__", "__getattr__", "__getattribute__", "__getstate__", "__hash__", "__init__"),
    *("__init_subclass__", "__new__", "__reduce__", "__reduce_ex__", "__repr__", "__setattr__", "__setstate__"),
}
"""The special methods that a ``TrialProcess`` does not forward, because they concern the object itself."""

_END_TIMEOUT_S: Final = 1.0
"""The time that ``TrialProcess.stop`` waits for the thread of the trial's function, in seconds."""


class TrialProcess:
    """Runs a user's trainable in the process of a trial. Tune creates this object and calls its methods.

    Subclasses from :func:`process_class` set the class attribute. Private names are mangled, because a trainable may
    have members with any name.

    Attributes:
        trainable_class: The user's trainable class, or the class that Tune created from a function.
    """

    trainable_class: ClassVar[type[tune.Trainable]]

    def __init__(self, config: dict[str, Any] | None = None, *, policy_setup: str | None = None, **kwargs: Any) -> None:
        self.__setup = _parsed(policy_setup)
        self.__late_error: BaseException | None = None
        self.__function_thread: threading.Thread | None = None
        self.__is_function = is_function_class(self.trainable_class)
        cls = self.trainable_class
        if self.__is_function:
            # The number of OpenMP threads is set per thread, so set up the process in the function's thread.
            cls = with_function_wrapped(cls, lambda function: set_up_before(function, self.__set_up_thread))
        else:
            self.__set_up()
        with CURRENT.trial.noted_on_oom():
            self.__trainable = cls(config, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return a member of the trainable, for functions that are called with the actor (``__ray_call__``)."""
        if name == _TRAINABLE:  # the trainable does not exist yet
            raise AttributeError(name)
        return getattr(self.__trainable, name)

    def __set_up(self) -> None:
        if self.__setup is not None:
            ProcessSetup.for_trial(self.__setup.slot, self.__setup.limits).apply()

    def __set_up_thread(self, _: object) -> None:
        self.__function_thread = threading.current_thread()
        self.__set_up()

    def __raise_late_error(self) -> None:
        """Raise the error of the last reset.

        If ``reset`` itself fails or ends the process, Tune ends the trial or waits indefinitely.
        """
        if self.__late_error is not None:
            error, self.__late_error = self.__late_error, None
            raise error

    def train(self) -> dict[str, Any]:
        """Train one step, and add the trial's slot to the result. Every two seconds, also add the resource usage."""
        self.__raise_late_error()
        # For a function, notes are added to errors in the function's thread.
        notes = nullcontext() if self.__is_function else CURRENT.trial.noted_on_oom()
        with notes:
            result: dict[str, Any] = self.__trainable.train()
        if self.__setup is None or not isinstance(result, dict):
            return result  # Ray rejects an invalid result itself
        if is_duplicate(result):
            # Tune uses the previous result instead of this one, so new peaks go to the trial's folder.
            CURRENT.trial.keep_news(storage_of(self.__trainable))
            return result
        # ``with_usage`` also requires the limit.
        if result.get("done") or CURRENT.trial.is_usage_due():
            result = CURRENT.trial.with_usage(result)
        else:
            CURRENT.trial.require_limit()
        # A user's own metric with this key takes precedence.
        return {SLOT_KEY: self.__setup.label, **result}

    def train_buffered(self, *args: Any, **kwargs: Any) -> Any:
        """Train several steps."""
        # Ray's loop with this object, so that it calls the ``train`` above for each step.
        return tune.Trainable.train_buffered(self, *args, **kwargs)

    def save(self, *args: Any, **kwargs: Any) -> Any:
        """Save a checkpoint."""
        self.__raise_late_error()
        with CURRENT.trial.noted_on_oom():
            return self.__trainable.save(*args, **kwargs)

    def restore(self, *args: Any, **kwargs: Any) -> Any:
        """Restore a checkpoint."""
        self.__raise_late_error()
        with CURRENT.trial.noted_on_oom():
            return self.__trainable.restore(*args, **kwargs)

    def reset(self, new_config: dict[str, Any], *, policy_setup: str | None = None, **kwargs: Any) -> bool:
        """Prepare this process for the trial with ``new_config``. Return whether the trainable supports this.

        If the trainable is a class, the new limit is set before the trainable's own ``reset`` allocates memory, and
        memory that the trainable keeps does not count as a leak. An error is raised by the next call.
        """
        self.__setup = _parsed(policy_setup)
        try:
            if self.__is_function:
                return self.__reset_function(new_config, **kwargs)
            return self.__reset_class(new_config, **kwargs)
        except Exception as error:  # noqa: BLE001  # see ``_raise_late_error``
            self.__late_error = error
            return True

    def __reset_function(self, new_config: dict[str, Any], **kwargs: Any) -> bool:
        # ``Trainable.reset`` replaces the storage, but the warnings belong to the earlier trial.
        storage = storage_of(self.__trainable)
        limits = CURRENT.trial.limits
        # Read before the reset, in which the next trial replaces the limits.
        share_bytes = None if limits is None else limits.share_bytes
        try:
            is_reset = bool(self.__trainable.reset(new_config, **kwargs))
        finally:  # the stopped function has ended, and the next function starts in its own thread
            CURRENT.trial.keep_warnings(storage)
        # If the earlier function has left GPU memory in use, the next trial needs a new process.
        unfit = _why_unfit(share_bytes)
        if unfit is not None:
            self.__late_error = to_be_replaced(unfit)
        return is_reset

    def __reset_class(self, new_config: dict[str, Any], **kwargs: Any) -> bool:
        CURRENT.trial.end_gpu_processes()
        CURRENT.trial.keep_warnings(storage_of(self.__trainable))  # before the next trial adds its own warnings
        self.__set_up()
        CURRENT.trial.rebase()
        with CURRENT.trial.noted_on_oom():
            is_reset = bool(self.__trainable.reset(new_config, **kwargs))
        CURRENT.trial.rebase()
        return is_reset

    def stop(self) -> None:
        """Stop the trial, and terminate its GPU processes."""
        try:
            self.__trainable.stop()
        finally:
            if self.__function_thread is not None:  # Ray signals the function to stop, but does not wait for its end
                self.__function_thread.join(_END_TIMEOUT_S)
            CURRENT.trial.end_gpu_processes()
            CURRENT.trial.keep_warnings(storage_of(self.__trainable))

    def export_model(self, *args: Any, **kwargs: Any) -> Any:
        """Export the model."""
        return self.__trainable.export_model(*args, **kwargs)

    def get_auto_filled_metrics(self, *args: Any, **kwargs: Any) -> Any:
        """Return the metrics that Tune fills in."""
        return self.__trainable.get_auto_filled_metrics(*args, **kwargs)

    def get_current_ip_pid(self) -> Any:
        """Return the IP address of the node and the process ID."""
        return self.__trainable.get_current_ip_pid()


_SLOT_CHECK: Final = "tune_policies.trainers.train.scaling_config_check.SlotCheck"


def _parsed(policy_setup: str | None) -> TrialSetup | None:
    setup, slot = None, None
    if policy_setup is not None:
        setup = TrialSetup.from_text(policy_setup)
        slot = setup.slot
    CURRENT.trial.slot = slot
    set_train_callback(_SLOT_CHECK, is_active=slot is not None and slot.num_workers > 0)
    return setup


def process_class(trainable_class: type[tune.Trainable]) -> type[TrialProcess]:
    """Return the class that Tune starts for the trials of a trainable class.

    Call this function once per run and trainable class, because Tune only reuses processes of the same class. The class
    also has the trainable's own methods, which callbacks and other actors may call.
    """
    changes: dict[str, Any] = {}
    for name, member in inspect.getmembers_static(trainable_class):
        if name in _OF_PYTHON or hasattr(TrialProcess, name):
            continue
        if isinstance(member, FunctionType):
            changes[name] = _on_trainable(member)
        elif isinstance(member, classmethod | staticmethod):
            # Already bound to the trainable class, so it must not be bound again.
            changes[name] = staticmethod(getattr(trainable_class, name))
    changes |= {
        "trainable_class": trainable_class,
        "__doc__": trainable_class.__doc__,
        "__module__": trainable_class.__module__,
    }
    if any("__repr__" in vars(cls) for cls in trainable_class.__mro__[:-1]):  # Ray uses ``__repr__`` in logs
        changes["__repr__"] = _on_trainable(trainable_class.__repr__)
    # Ray shows the name of the class, so it is that of the trainable.
    return type(trainable_class.__name__, (TrialProcess,), changes)


def _on_trainable(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a ``TrialProcess`` that calls the same method of its trainable."""
    return wrapped_in(method, _no_context, lambda args: (getattr(args[0], _TRAINABLE), *args[1:]))


@contextmanager
def _no_context(*_: Any) -> Iterator[None]:
    yield


_OF_SLOT: Final = "the trial's slot"

PlanT = TypeVar("PlanT", bound="TrialPlan | ResourcePolicy")


def plan_of_trial(plan: PlanT) -> "PlanT | TrialPlan":
    """Return the plan of this trial's slot, or ``plan`` outside of a trial under a policy.

    A plan with one slot type is returned unchanged, because a retry after an OOM error may need more than the trial's
    slot.
    """
    from tune_policies.plan.trial_plan import TrialPlan

    is_decided = isinstance(plan, TrialPlan) and plan.by_config is None and len(plan.slots) == 1
    slot = CURRENT.trial.slot
    if slot is None or is_decided:
        return plan
    return TrialPlan(slots=(slot,), limited_by=_OF_SLOT)


def trial_plan() -> "TrialPlan":
    """Return the plan of the calling trial. The plan has one slot.

    Example: ``train_on_gpu(config) if trial_plan().use_gpu else train_on_cpu(config)``.

    Raises:
        InvalidResourcesError: The caller is not a trial under a policy.
    """
    from tune_policies.plan.trial_plan import TrialPlan

    slot = CURRENT.trial.slot
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
        CURRENT.trial.end_gpu_processes()
        release_unused()
        left_over_bytes = held_bytes(read_counters())
    except Exception as error:  # noqa: BLE001  # after some errors, all calls to a device raise
        return f"its GPU does not respond: {error}"
    if not exceeds_leak_limit(left_over_bytes, share_bytes):
        return None
    return f"it still uses {format_bytes(left_over_bytes)} of GPU memory from an earlier trial"
