"""A trial of Tune: its config, its trainable, what Tune reserves for it, where its files are, and how it ends.

Ray documents how a search space is written (``tune.choice``, ``tune.randint``), not what these return, nor how configs
are drawn outside of a run. All of it is the same in Ray 2.50 and 2.60.
"""

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from ray.exceptions import RayActorError
from ray.train import Checkpoint
from ray.tune import Trainable

from tune_policies.ray_compat.version import Gone

try:
    from ray import cloudpickle
    from ray.tune.result import RESULT_DUPLICATE, TRIAL_INFO
except ImportError as error:
    cloudpickle = RESULT_DUPLICATE = TRIAL_INFO = Gone(error, "a trial under a plan")
try:  # Tune's session, in spite of its place
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
    wrap_function = FunctionTrainable = Gone(error, "what Tune makes of a function")


def add_mixin(function: Callable[..., Any], mixin: type) -> None:
    """Let the class that Tune makes of ``function`` inherit from ``mixin``.

    Tune does not tell a function when its trial ends. It reads ``__mixins__``, and ``tune.with_parameters`` and
    ``tune.with_resources`` keep it.
    """
    function.__mixins__ = (mixin,)  # type: ignore[attr-defined]


def class_of_function(function: Callable[..., Any]) -> type[Trainable]:
    """Return the class that Tune makes of a function. Its public ways make it only in a run.

    Raises:
        ValueError: Tune takes no function of these parameters.
    """
    return wrap_function(function)  # type: ignore[no-any-return]


def is_function_class(cls: object) -> bool:
    """Return whether Tune has made a trainable class of a function. Only its base tells."""
    return isinstance(cls, type) and issubclass(cls, FunctionTrainable)


def with_function_wrapped(
    cls: type[Trainable], wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> type[Trainable]:
    """Return a subclass of ``cls``, which Tune has made of a function, that runs what ``wrap`` returns for it.

    Tune keeps the function in a closure alone.
    """
    function = inspect.getclosurevars(cls._trainable_func).nonlocals["train_func"]
    runs = wrap_function(wrap(function))._trainable_func
    return type(cls.__name__, (cls,), {"_trainable_func": runs, "__module__": cls.__module__})


def is_duplicate(result: dict[str, Any]) -> bool:
    """Return whether a result only says that the function has ended: Tune takes no metrics from it."""
    return RESULT_DUPLICATE in result


def reserved_by_config(config: Mapping[str, Any] | None) -> Any:
    """Return what Tune reserved for the trial whose class is created or reset with ``config``, or ``None``.

    ``Trainable.trial_resources`` returns the same only after the class's own constructor or reset.
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
    counts a failure, or waits indefinitely for the trial to be reset; so the error comes with the first step after it.
    """
    return RayActorError(None, f"process {os.getpid()} is replaced by a new one: {reason}", False, True)


def is_domain(value: object) -> bool:
    """Return whether a value of a config is one that Tune draws from. A grid is none, but a dict."""
    return isinstance(value, Domain)


def draw(space: Mapping[str, Any], random_state: Any) -> list[dict[str, Any]]:
    """Return the configs of one draw: one, or where the space has grids one for each combination of their values.

    The public ``BasicVariantGenerator`` draws the same, but only for a run, from a seed that it keeps to itself.

    Args:
        space: The space.
        random_state: A ``numpy.random.RandomState``, which goes on with each draw.

    Raises:
        Exception: Whatever the user's own functions in the space raise, or Tune of its domains.
    """
    return [spec["config"] for _, spec in generate_variants({"config": space}, random_state=random_state)]


def extremes(domain: object) -> list[int]:
    """Return the smallest and the largest value of a choice of whole numbers, or all of its values; else nothing."""
    if isinstance(domain, Categorical):
        values = list(domain.categories)
        return values if all(isinstance(each, int) and not isinstance(each, bool) for each in values) else []
    if not isinstance(domain, Integer):
        return []
    sampler = domain.get_sampler()
    step = int(sampler.q) if isinstance(sampler, Quantized) else 1
    if step > 1:  # of which the upper bound is one itself
        return [-(-domain.lower // step) * step, domain.upper // step * step]
    return [domain.lower, domain.upper - 1]
