"""Reads the config, trainable, reservation, files and errors of trials, and draws configs from a search space.

Ray documents the functions of a search space (``tune.choice``, ``tune.randint``), but neither their return values nor
how to draw configs outside of a run. The private APIs are the same in Ray 2.50 and 2.60.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, Final

from ray.exceptions import RayActorError
from ray.train import Checkpoint
from ray.tune import Trainable

from tune_policies.ray_compat.version import Gone

try:
    from ray import cloudpickle
    from ray.tune.result import RESULT_DUPLICATE
except ImportError as error:
    cloudpickle = RESULT_DUPLICATE = Gone(error, "a trial under a plan")
try:  # Tune's session, although it is in ray.train
    from ray.train._internal.session import _TrainingResult, get_session
    from ray.train.constants import CHECKPOINT_DIR_NAME
except ImportError as error:
    _TrainingResult = get_session = CHECKPOINT_DIR_NAME = Gone(error, "a Train run as a trial of Tune")
try:
    from ray.tune.search.sample import Categorical, Domain, Integer, Quantized
    from ray.tune.search.variant_generator import generate_variants
except ImportError as error:
    Categorical = Domain = Integer = Quantized = generate_variants = Gone(error, "measuring a search space")
try:
    from ray.tune.trainable import wrap_function
    from ray.tune.trainable.function_trainable import FunctionTrainable
except ImportError as error:
    wrap_function = FunctionTrainable = Gone(error, "a function as a trainable")


_REPLACED: Final = "is_process_replaced"
"""The attribute that marks the error of a process that is replaced. Ray pickles the attributes of errors, too."""


def add_mixin(function: Callable[..., Any], mixin: type) -> None:
    """Let the class that Tune creates for ``function`` inherit from ``mixin``.

    Tune notifies a class when its trial ends, but not a function. Tune reads the attribute ``__mixins__``, which
    ``tune.with_parameters`` and ``tune.with_resources`` preserve.
    """
    function.__mixins__ = (mixin,)  # type: ignore[attr-defined]


def class_of_function(function: Callable[..., Any]) -> type[Trainable]:
    """Return the class that Tune creates for a function. Tune's public functions create it only in a run.

    Raises:
        ValueError: Tune does not support the function's parameters.
    """
    return wrap_function(function)  # type: ignore[no-any-return]


def is_function_class(cls: object) -> bool:
    """Return whether ``cls`` is a trainable class that Tune created for a function."""
    return isinstance(cls, type) and issubclass(cls, FunctionTrainable)


def with_function_wrapped(
    cls: type[Trainable], wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> type[Trainable]:
    """Return a subclass of ``cls``, Tune's class for a function, that runs ``wrap(function)`` instead of the function.

    Tune stores the function only in a closure.
    """
    function = inspect.getclosurevars(cls._trainable_func).nonlocals["train_func"]
    runs = wrap_function(wrap(function))._trainable_func
    return type(cls.__name__, (cls,), {"_trainable_func": runs, "__module__": cls.__module__})


def is_duplicate(result: dict[str, Any]) -> bool:
    """Return whether a result only reports the end of the function, without new metrics."""
    return RESULT_DUPLICATE in result


def storage_of(trainable: Trainable) -> Any:
    """Return the storage of a trial's files, or ``None`` if the trial has none.

    The public ``Trainable.logdir`` is only a local folder.
    """
    return trainable._storage


def storage_of_session() -> Any:
    """Return the storage of the trial whose function runs in this process. Tune's public context omits it."""
    return get_session().storage


def report_stored_checkpoint(metrics: dict[str, Any], checkpoint: Checkpoint) -> None:
    """Report a result with a checkpoint that is already stored, and wait until Tune lets the trial continue.

    ``tune.report`` would copy the checkpoint to the trial's folder. Ray Train v1 uses the same private method.

    Raises:
        SystemExit: Tune has stopped the trial.
    """
    # Tune's session also adds the name of the checkpoint's folder to the metrics (``_TrainSession.report``).
    name = checkpoint.path.rstrip("/").rpartition("/")[2]
    get_session()._report_training_result(_TrainingResult(checkpoint, {**metrics, CHECKPOINT_DIR_NAME: name}))


def unpickled_error(pickled: bytes) -> BaseException | None:
    """Return a trial's error that Tune has pickled, or ``None`` if it cannot be read.

    The public ``Result.error`` is available only after the run has ended.
    """
    try:
        error = cloudpickle.loads(pickled)
    except Exception:  # noqa: BLE001  # the user's class may be missing, or fail when it is unpickled
        return None
    if isinstance(error, BaseException):
        return error
    return None


def to_be_replaced(reason: str) -> RayActorError:
    """Return an error that makes Tune end this process and run its trial in a new process.

    Tune starts a new process without counting a failure only if the error reports a preempted node (the
    undocumented argument ``preempted``). If ``reset`` fails or ends the process, Tune counts a failure or waits
    indefinitely, so raise the error in the first step after the reset.

    Tune would still end a run with ``fail_fast``, and its schedulers would lose the trial's state, so a run recognizes
    the error with ``replacement_in``.
    """
    error = RayActorError(None, f"process {os.getpid()} is replaced by a new process: {reason}", False, True)
    setattr(error, _REPLACED, True)
    return error


def replacement_in(error: object) -> RayActorError | None:
    """Return the error of ``to_be_replaced`` that a trial's process has reported, or ``None``."""
    reported = getattr(error, "cause", None)  # Ray wraps the errors of a process in a ``RayTaskError``
    if reported is None:
        reported = error
    if isinstance(reported, RayActorError) and hasattr(reported, _REPLACED):
        return reported
    return None


def is_domain(value: object) -> bool:
    """Return whether a config value is a domain that Tune samples. A grid is not a domain but a dict."""
    return isinstance(value, Domain)


def draw(space: Mapping[str, Any], random_state: Any) -> list[dict[str, Any]]:
    """Return the configs of one draw: one config, or one for each combination of values if the space has grids.

    The public ``BasicVariantGenerator`` draws the same configs, but only for a run and with its own seed.

    Args:
        space: The search space.
        random_state: A ``numpy.random.RandomState``, which advances with each draw.

    Raises:
        Exception: A user's function in the space, or one of Tune's domains, raises an error.
    """
    return [spec["config"] for _, spec in generate_variants({"config": space}, random_state=random_state)]


def extremes(domain: object) -> list[int]:
    """Return the minimum and maximum of an integer range, or all values of an integer choice, or else ``[]``."""
    if isinstance(domain, Categorical):
        values = list(domain.categories)
        if all(isinstance(value, Integral) and not isinstance(value, bool) for value in values):  # also of NumPy
            return [int(value) for value in values]
        return []
    if not isinstance(domain, Integer):
        return []
    sampler = domain.get_sampler()
    step = int(sampler.q) if isinstance(sampler, Quantized) else 1
    if step > 1:  # the upper bound of a quantized range is inclusive
        return [-(-domain.lower // step) * step, domain.upper // step * step]
    return [domain.lower, domain.upper - 1]
