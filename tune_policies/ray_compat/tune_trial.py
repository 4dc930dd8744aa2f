"""A trial of Tune, from inside its process: what Tune makes of a function, where its files are, and how it ends.

All of it is the same in Ray 2.50 and 2.60.
"""

import os
from collections.abc import Callable
from typing import Any

from ray import cloudpickle
from ray.exceptions import RayActorError
from ray.train import Checkpoint
from ray.train._internal.session import _TrainingResult, get_session  # Tune's session, in spite of its place
from ray.train.constants import CHECKPOINT_DIR_NAME
from ray.tune import Trainable
from ray.tune.result import RESULT_DUPLICATE, TRIAL_INFO
from ray.tune.trainable import wrap_function
from ray.tune.trainable.function_trainable import FunctionTrainable

__all__ = [
    "add_mixin",
    "class_of_function",
    "is_duplicate",
    "is_function_class",
    "report_stored_checkpoint",
    "reserved_by_config",
    "storage_of",
    "storage_of_session",
    "to_be_replaced",
    "unpickled_error",
]


def add_mixin(function: Callable[..., Any], mixin: type, *, before: Any = None) -> None:
    """Let the class that Tune makes of ``function`` inherit from ``mixin`` first, then from those of ``before``.

    Tune has no public place between what a function reports and its result. It reads ``__mixins__``, and
    ``tune.with_parameters`` and ``tune.with_resources`` keep it.
    """
    function.__mixins__ = (mixin, *getattr(before, "__mixins__", ()))  # type: ignore[attr-defined]


def class_of_function(function: Callable[..., Any]) -> type[Trainable]:
    """Return the class that Tune makes of a function. Its public ways make it only in a run.

    Raises:
        ValueError: Tune takes no function of these parameters.
    """
    return wrap_function(function)  # type: ignore[no-any-return]


def is_function_class(cls: object) -> bool:
    """Return whether Tune has made a trainable class of a function. Only its base tells."""
    return isinstance(cls, type) and issubclass(cls, FunctionTrainable)


def is_duplicate(result: dict[str, Any]) -> bool:
    """Return whether a result only says that the function has ended: Tune takes no metrics from it."""
    return RESULT_DUPLICATE in result


def reserved_by_config(config: dict[str, Any] | None) -> Any:
    """Return what Tune reserved for the trial, by the config that its class is made with; ``None``: Tune gave none.

    ``Trainable.trial_resources`` says the same only once the class's own constructor is through.
    """
    trial = (config or {}).get(TRIAL_INFO)
    return None if trial is None else trial.trial_resources


def storage_of(trainable: Trainable) -> Any:
    """Return where a trial's files are kept; ``None``: nowhere. ``Trainable.logdir`` is on this machine alone."""
    return trainable._storage


def storage_of_session() -> Any:
    """Return where the files of the trial are kept whose function runs here; Tune's context has names alone."""
    return get_session().storage


def report_stored_checkpoint(metrics: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Make a result of the trial, with a checkpoint that stays where it is; wait until Tune lets the trial go on.

    ``tune.report`` would copy it into the trial's folder. This is how Ray Train itself, in its version 1, handed over a
    checkpoint that is stored already.

    Raises:
        SystemExit: Tune has stopped the trial.
    """
    name = checkpoint.path.rstrip("/").rpartition("/")[2]
    get_session()._report_training_result(_TrainingResult(checkpoint, {**metrics, CHECKPOINT_DIR_NAME: name}))


def unpickled_error(pickled: bytes) -> BaseException | None:
    """Return the error of a trial that Tune has saved, by Ray's own copy of cloudpickle; ``None``: it cannot be read.

    A public way, ``Result.error``, is there only when the run has ended.
    """
    try:
        error = cloudpickle.loads(pickled)
    except Exception:  # noqa: BLE001  # a class of the user's may not be there, or not be made for this
        return None
    return error if isinstance(error, BaseException) else None


def to_be_replaced(reason: str) -> RayActorError:
    """Return the error upon which Tune ends this process and runs its trial in a new one.

    Tune knows one reason to take another process for a trial without counting a failure: its node was taken away
    (``preempted``, an argument that is not documented). Where ``reset`` fails instead, or the process ends in it, Tune
    counts a failure, or waits for ever for the trial to be reset; so the error comes with the first step after it.
    """
    return RayActorError(None, f"process {os.getpid()} is replaced by a new one: {reason}", False, True)
