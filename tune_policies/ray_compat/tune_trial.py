"""A trial of Tune: its config, what its trainable asks for and carries, where its files are, and how it ends.

Ray documents how a search space is written (``tune.choice``, ``tune.randint``), not what these return, nor how configs
are drawn outside of a run. All of it is the same in Ray 2.50 and 2.60.
"""

import functools
import inspect
import logging
import os
import pickle
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final, Generic, TypeVar

from ray.exceptions import RayActorError
from ray.train import Checkpoint
from ray.tune import PlacementGroupFactory, Trainable

from tune_policies.ray_compat.version import Gone, needs_of_ray, warn_of_untried_ray
from tune_policies.values.errors import InvalidResourcesError, RayVersionError
from tune_policies.values.value import counted

try:
    from ray import cloudpickle
    from ray.tune.execution.placement_groups import resource_dict_to_pg_factory
    from ray.tune.result import RESULT_DUPLICATE, TRIAL_INFO
except ImportError as error:
    cloudpickle = resource_dict_to_pg_factory = RESULT_DUPLICATE = TRIAL_INFO = Gone(error, "a trial under a plan")
try:
    from ray.tune.execution.tune_controller import TuneController
except ImportError as error:
    TuneController = Gone(error, "another plan for a resumed run")
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

_logger = logging.getLogger(__name__)

PLAN_ATTRIBUTE: Final = "plan_of_trainable"
"""Under this name the class that Tune runs has the plan of ``with_plan``, as an ``UnpickledOnce``."""
POLICY_ATTRIBUTE: Final = "policy_of_trainable"
"""Under this name it has the policy that made the plan, as an ``UnpickledOnce``; of ``None``: the plan was given."""


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


_Carried = TypeVar("_Carried")


class UnpickledOnce(Generic[_Carried]):
    """Holds a value that is never changed; all its copies in a process share one, which is unpickled at its first use.

    Tune's driver unpickles a trainable twice for each trial, and a plan takes longer than most trainables. A trial does
    not use its policy, for which it would import all policies.

    Args:
        value: The value.
        is_needed: Whether its copies must have it. If not, those of a value that cannot be pickled have ``None``: a
            policy may be anybody's code, and a run needs it only once it is resumed.
    """

    def __init__(self, value: _Carried, *, is_needed: bool = True) -> None:
        self.value = value
        self._is_needed = is_needed

    @functools.cached_property
    def value(self) -> _Carried:
        """The value."""
        value: _Carried = pickle.loads(self._pickled)  # noqa: S301  # made below, and carried by Ray as all else is
        return value

    @functools.cached_property
    def _pickled(self) -> bytes:
        try:
            pickled: bytes = cloudpickle.dumps(self.value)
        except Exception:  # each class has errors of its own
            if self._is_needed:
                raise
            pickled = cloudpickle.dumps(None)
        return pickled

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._pickled,)


@functools.lru_cache(maxsize=16)
def _unpickled(pickled: bytes) -> UnpickledOnce[Any]:
    copied: UnpickledOnce[Any] = UnpickledOnce.__new__(UnpickledOnce)
    copied._pickled = pickled
    return copied


_Request = Callable[[Mapping[str, Any]], PlacementGroupFactory]


class ResumeSafeResources:
    """Resources as a function of a trial's config, which hold for a resumed experiment's trials too.

    Tune saves ``resources_per_trial`` with each trial and for those to come. A trainable with resources of its own does
    not go with them: Tune says so in its log only, and then begins the experiment anew, or waits for ever. Tune still
    refuses ``resources_per_trial`` that the current run is given.

    Args:
        resources: What each trial reserves.
        max_concurrent_trials: How many trials may run at once, where resources alone do not hold further ones back;
            ``None``: they do.
    """

    def __init__(
        self,
        resources: dict[str, float] | PlacementGroupFactory | _Request,
        *,
        max_concurrent_trials: int | None = None,
    ) -> None:
        warn_of_untried_ray()
        self._at_once = max_concurrent_trials
        self._resources = UnpickledOnce(
            resource_dict_to_pg_factory(resources) if isinstance(resources, dict) else resources
        )

    def __call__(self, config: Mapping[str, Any]) -> PlacementGroupFactory:
        """Return what Tune reserves for a trial with this config. Tune asks in the program, as it adds the trial.

        Raises:
            InvalidResourcesError: The run needs ``max_concurrent_trials``, and has none.
        """
        adding = _adding_frame()
        if adding is not None:
            _drop_saved_resources(adding)
            if self._at_once is not None:
                _check_cap(adding.f_locals["self"], self._at_once)
        resources = self._resources.value
        return resources if isinstance(resources, PlacementGroupFactory) else resources(config)


def has_other_resources(trainable: Any) -> bool:
    """Return whether ``tune.with_resources`` replaced the plan's resources of what ``with_plan`` returned.

    Ray keeps those of a function as an attribute, and puts a class around a class. It has no public way to ask.
    """
    if not inspect.isclass(trainable):
        return not isinstance(getattr(trainable, "_resources", None), ResumeSafeResources)
    asked = next(each for each in trainable.__mro__ if "default_resource_request" in vars(each))
    return PLAN_ATTRIBUTE not in vars(asked.__bases__[0])


def _adding_frame() -> FrameType | None:
    """Return the call in which Tune adds the trial; ``None``: it adds none.

    Tune asks the trainable (``default_resource_request``, which is public) with the trial's config alone, before any
    scheduler or callback hears of the trial. So the trial and its run are looked for where Tune adds it: on the
    interpreter's stack. Nothing is written there, but to the trial, and to a run that is refused. The same in Ray 2.50
    and 2.60.
    """
    try:
        with needs_of_ray("another plan for a resumed run"):
            adds = TuneController.add_trial.__code__
    except RayVersionError as error:
        _warn_once(f"a resumed run keeps the resources of its earlier plan: {error}")
        return None
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not adds:
        frame = frame.f_back
    return frame


@functools.cache
def _warn_once(message: str) -> None:
    _logger.warning("%s", message)


def _check_cap(controller: TuneController, at_once: int) -> None:
    """Raise ``InvalidResourcesError`` unless the run is held to so many trials at once.

    A searcher of the user's own class may hold back trials in its own way, so only those that say how are judged.
    """
    if getattr(controller._scheduler_alg, "caps_trials", False):
        return
    search = controller.search_alg
    searcher = getattr(search, "searcher", search)
    cap = getattr(search, "max_concurrent", None) or getattr(searcher, "max_concurrent", None) or 0
    total = getattr(search, "total_samples", None) or 0
    if 0 < cap <= at_once or 0 < total <= at_once:
        return
    given = f"max_concurrent_trials={cap}" if cap else "no max_concurrent_trials"
    controller._fail_fast = True  # else Tune only logs the errors of a run that it resumes, and begins it anew
    raise InvalidResourcesError(
        f"the plan lets {counted(at_once, 'trial')} run at once, which resources alone do not ensure, and the run has "
        f"{given}: use tune_policies.run(trainable, policy, …) or tune_policies.tuner(…) instead of Tune's own, or "
        f"pass max_concurrent_trials={at_once}"
    )


def _drop_saved_resources(frame: FrameType) -> None:
    """Drop the saved resources of the trial that Tune is about to add, if its run is resumed.

    Tune refuses at once what the trial has saved. To answer nothing would leave the trial just that.
    """
    requeues = getattr(TuneController, "_requeue_restored_trials", None)
    is_requeued = frame.f_back is not None and frame.f_back.f_code is getattr(requeues, "__code__", None)
    if is_requeued or frame.f_locals["self"].resumed:
        frame.f_locals["trial"]._default_placement_group_factory = None


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
