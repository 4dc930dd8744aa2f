"""Carries a plan into Ray Tune: a trainable that asks for its resources, keeps to them, and says what it used."""

import functools
import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import ray
from ray import tune
from ray.tune import PlacementGroupFactory

from tune_policies.cluster.capacity import to_resources
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.ray_compat.tune_trial import (
    PLAN_ATTRIBUTE,
    POLICY_ATTRIBUTE,
    ResumeSafeResources,
    UnpickledOnce,
    add_mixin,
    is_duplicate,
    reserved_by_config,
    storage_of,
    to_be_replaced,
)
from tune_policies.tune.task_watch import watch_tasks
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import ray_ticks
from tune_policies.values.units import format_bytes

from .gpu_memory.counters import release_unused
from .gpu_memory.enforcement import current_limit_report
from .gpu_memory.free_memory import end_gpu_processes, is_too_much_to_keep
from .gpu_memory.trial_usage import (
    RunFolder,
    add_warnings,
    has_warnings,
    held_bytes,
    noted_on_oom,
    rebase_stats,
    with_usage,
)
from .process_setup import LimitOptions, ProcessSetup, limit_options, set_up_before

if TYPE_CHECKING:
    # Each trial's process imports this module, and none of them plans.
    from tune_policies.policies.policy import ResourcePolicy

SLOT_KEY: Final = "slot"
"""The key under which each result of a trial says in which slot it ran."""


def slot_of_trial(plan: TrialPlan, config: Mapping[str, Any], reserved: Any) -> TrialSlot:
    """Return the slot in which the trial of this process runs, of ``plan`` or of one that took its place.

    Args:
        plan: The plan with which the run began.
        config: The trial's config, without what Tune adds to it.
        reserved: What Tune reserved for the trial; ``None``: this is no trial of Tune's.

    Raises:
        InfeasibleRequestError: The plan goes by configs, and this one is known to need more than any device has.
    """
    given = slot_of_reservation(reserved)
    if plan.by_config is not None:
        wanted = plan.slot_for(config)
        # A scheduler may have changed the config since; what Ray holds for the trial has not changed with it.
        return given if given is not None and given in plan.by_config.slots else wanted
    if given is None and len(plan.slots) == 1:
        return plan.slots[0]
    if given is not None:
        return given
    bundles = None if reserved is None else reserved.bundles
    known = (slot for slot in plan.slots if slot.placement_group_factory().bundles == bundles)
    return next(known, plan.common_slot)


PlanT = TypeVar("PlanT", bound="TrialPlan | ResourcePolicy")


class RetryPlan(TrialPlan):
    """The plan with which a Train run is tried again: workers get what it says, also in a trial whose slot has less."""


def plan_of_trial(plan: PlanT) -> PlanT | TrialPlan:
    """Return the plan of the slot in which the trial of this process runs; outside of Tune, ``plan`` itself."""
    return plan_in_slot(plan, slot_of_reservation(reserved_for_trial()))


def plan_in_slot(plan: PlanT, given: TrialSlot | None) -> PlanT | TrialPlan:
    """Return the plan of the slot that a trial was given; ``plan`` itself if it has none, or is tried again."""
    if given is None or isinstance(plan, RetryPlan):
        return plan
    if not isinstance(plan, TrialPlan):
        return TrialPlan(slots=(given,), limited_by="the trial's slot")
    return plan if plan.by_config is not None else plan.model_copy(update={"slots": (given,)})


def slot_of_reservation(reserved: Any) -> TrialSlot | None:
    """Return the slot for which ``reserved`` was made; ``None``: it was made by hand."""
    slot = getattr(reserved, "slot", None)
    return slot if isinstance(slot, TrialSlot) else None


def reserved_for_trial() -> Any:
    """Return what Tune reserved for the trial whose function this process runs; ``None``: it runs none."""
    if not ray.is_initialized():  # to ask would not start one, but warn
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Tune warns where there is no trial, which is what is asked here
        return tune.get_context().get_trial_resources()


def check_versions(measured_with: Mapping[str, str]) -> None:
    """Raise unless every package that is installed here has the version with which was measured.

    What is not installed where the program runs, such as on a laptop, is not compared.

    Args:
        measured_with: Versions by package.

    Raises:
        InvalidResourcesError: Some have another version.
    """
    others = [
        f"{name} {measured} ({found} is installed)"
        for name, measured in sorted(measured_with.items())
        if (found := _installed(name)) not in (None, measured)
    ]
    if others:
        raise InvalidResourcesError(
            f"the plan goes by a decision that was measured with {', '.join(others)}: measure again with what is "
            "installed, or give BenchmarkedPolicy accept_other_versions=True"
        )


def _installed(name: str) -> str | None:
    for build in (name, f"{name}-cpu"):  # as TensorFlow and XGBoost call theirs without CUDA
        with suppress(PackageNotFoundError):
            return version(build)
    return None


logger = logging.getLogger(__name__)

_END_TIMEOUT_S: Final = 1.0
"""How long the end of a trial waits for a stopped function's thread, in which what it has left is ended and said."""

_function_thread: threading.Thread | None = None
"""The thread that runs the user's function in this process, or ran it last."""


TrainableT = TypeVar("TrainableT", bound=Callable[..., Any] | type[tune.Trainable])


def with_plan(
    trainable: TrainableT,
    plan: "TrialPlan | ResourcePolicy",
    *,
    isolation: Literal["mps"] | None = None,
    on_void_limit: Literal["raise", "warn"] = "raise",
) -> TrainableT:
    """Return a new trainable for ``tune.run`` and ``tune.Tuner`` that runs under ``plan``.

    Each trial reserves the plan's resources. If the plan goes by configs, it reserves those for its config. Before your
    code runs, the thread count of a trial is set to its CPUs, a trial without GPUs has all GPUs hidden, and a trial on
    a share of a GPU is limited to its share of GPU memory.

    Each result has the trial's slot under ``"slot"``: the one from ``PolicyScheduler``, else the plan's first, or what
    ``tune.with_resources`` gave the trial instead. After a retry with more memory it is the larger one. With GPUs, a
    result also has what the trial used of their memory, under ``"gpu_memory"``.

    ``tune_policies.run`` and ``tune_policies.tuner`` do this and all else that a plan needs. ``tune.run`` and ``Tuner``
    need ``max_concurrent_trials=plan.max_concurrent_trials`` (or ``plan.tune_config()``) if the plan is capped, leaves
    room for others, or starts Train workers in its trials, as resources alone do not hold trials back there. Without it
    such a run is refused, unless it has a ``PolicyScheduler``, which counts slots.

    The last resource setting wins: the plan replaces what ``tune.with_resources`` gave the trainable, and
    ``tune.with_resources`` around the result replaces the plan's resources.

    Args:
        trainable: A function of a config, or a ``tune.Trainable`` class. It is left untouched.
        plan: The plan of a policy; or a policy, which then plans on the program's cluster, as ``plan_on_cluster`` does.
        isolation: ``"mps"``: let NVIDIA's MPS daemon hold the trial too, where one answers.
        on_void_limit: What to do where the memory limit cannot hold, by a setting or as the framework sees no GPU: an
            error, or a warning in the result. To rehearse on GPUs that only Ray counts, pass ``"warn"``.

    Raises:
        InvalidResourcesError: ``trainable`` is neither, or the plan goes by a decision that was measured with other
            versions than are installed here. As the run begins: it has no ``max_concurrent_trials``, and needs one.
        InfeasibleRequestError: In the trial: its config is known to need more than any GPU has.
        MemoryLimitError: In the trial: its GPU memory cannot be limited, or others hold the memory of its share.
    """
    policy = UnpickledOnce(None if isinstance(plan, TrialPlan) else plan, is_needed=False)
    if not isinstance(plan, TrialPlan):
        from tune_policies.probe.probe_cluster import plan_on_cluster

        plan = plan_on_cluster(plan)
    if plan.by_config is not None:
        check_versions(plan.by_config.holds_for)
    resources = _WatchedResources(
        plan.resources_per_trial if plan.by_config is None else functools.partial(resources_for, plan),
        max_concurrent_trials=plan.max_concurrent_trials if plan.needs_cap else None,
    )
    under_plan = _TrialSetup(UnpickledOnce(plan), UnpickledOnce(limit_options(isolation, on_void_limit)))

    if inspect.isclass(trainable) and issubclass(trainable, tune.Trainable):
        # Tune names the trial after the class.
        changes = {
            "_under_plan": under_plan,
            PLAN_ATTRIBUTE: under_plan.plan,
            POLICY_ATTRIBUTE: policy,
            "__doc__": trainable.__doc__,
        }
        with_usage_added = type(trainable.__name__, (_ClassUnderPlan, trainable), changes)
        class_under_plan: TrainableT = tune.with_resources(with_usage_added, resources)
        return class_under_plan
    if inspect.isclass(trainable) or not callable(trainable):
        raise InvalidResourcesError(
            f"a trainable must be a function of a config or a subclass of ray.tune.Trainable, got {trainable!r}"
        )

    function = set_up_before(trainable, under_plan.set_up_thread)
    changes = {"_under_plan": under_plan, PLAN_ATTRIBUTE: under_plan.plan, POLICY_ATTRIBUTE: policy}
    mixin = type("_FunctionUnderThisPlan", (_FunctionUnderPlan,), changes)
    add_mixin(function, mixin, before=trainable)
    function_under_plan: TrainableT = tune.with_resources(function, resources)
    return function_under_plan


class _WatchedResources(ResumeSafeResources):
    """Watches for tasks that the run's groups keep waiting, from its first trial on."""

    def __call__(self, config: Mapping[str, Any]) -> PlacementGroupFactory:
        watch_tasks()
        return super().__call__(config)


def plan_of(trainable: Any) -> TrialPlan | None:
    """Return the plan with which ``with_plan`` made a trainable; ``None``: it did not."""
    return _carried(trainable, PLAN_ATTRIBUTE)  # type: ignore[no-any-return]


def policy_of(trainable: Any) -> "ResourcePolicy | None":
    """Return the policy that ``with_plan`` was given for a trainable; ``None``: it was given a plan, or none."""
    return _carried(trainable, POLICY_ATTRIBUTE)  # type: ignore[no-any-return]


def _carried(trainable: Any, name: str) -> Any:
    for holder in (trainable, *getattr(trainable, "__mixins__", ())):
        if isinstance(carried := getattr(holder, name, None), UnpickledOnce):
            return carried.value
    return None


def resources_for(plan: TrialPlan, config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
    """Return what Tune reserves for a trial with this config.

    One that no GPU holds gets the largest, and fails there by itself: an error here would end the whole experiment.
    """
    try:
        slot = plan.slot_for(config)
        if plan.by_config is not None and (why := plan.by_config.why_unknown(config)) is not None:
            logger.warning("%s: the trial gets %s", why, slot)
    except InfeasibleRequestError:
        slot = plan.common_slot if plan.by_config is None else plan.by_config.slots[-1]
    return slot.placement_group_factory()


def _users_own(config: Any) -> dict[str, Any]:
    """Return the config without what Tune adds to it for the trial's process."""
    return {name: value for name, value in (config or {}).items() if not str(name).startswith("__")}


class _TrialSetup(NamedTuple):
    """What is done in a trial's process for its plan. A function in a function would be pickled by value."""

    plan: UnpickledOnce[TrialPlan]
    limits: UnpickledOnce[LimitOptions]

    def slot_of(self, config: Any, reserved: Any) -> TrialSlot:
        return slot_of_trial(self.plan.value, _users_own(config), reserved)

    def described(self, config: Any, reserved: Any) -> str:
        """Return what a trial has, for its results."""
        slot = self.slot_of(config, reserved)
        if slot.num_workers or reserved is None:
            return str(slot)
        has = reserved.required_resources
        amounts = ray_ticks(has)
        if any(amounts.get(name, 0) < ticks for name, ticks in slot.trial.ticks.items()):  # it was set by hand
            return str(to_resources(has))
        return str(slot.with_more(has))

    def set_up(self, config: Any, reserved: Any) -> None:
        ProcessSetup.for_trial(self.slot_of(config, reserved), self.limits.value).apply()

    def set_up_thread(self, config: Any) -> None:
        _know_thread()
        self.set_up(config, reserved_for_trial())


class _UnderPlan(tune.Trainable):  # type: ignore[misc]  # Ray is not followed
    """Stands in front of the user's trainable: adds to its results, and cleans up after it."""

    _under_plan: _TrialSetup

    def step(self) -> dict[str, Any]:
        result: dict[str, Any] = super().step()
        # A wrong one is Ray's to refuse.
        if not isinstance(result, dict) or is_duplicate(result):
            return result
        return {SLOT_KEY: self._under_plan.described(self.config, self.trial_resources), **with_usage(result)}

    def cleanup(self) -> None:
        try:
            super().cleanup()
        finally:
            _join_function()
            add_warnings(end_gpu_processes())
            _keep_warnings(storage_of(self))


class _ClassUnderPlan(_UnderPlan):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        config = args[0] if args else kwargs.get("config")
        self._under_plan.set_up(config, reserved_by_config(config))
        with noted_on_oom():
            super().__init__(*args, **kwargs)

    def step(self) -> dict[str, Any]:
        with noted_on_oom():
            return super().step()

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        with noted_on_oom():
            return super().save_checkpoint(*args, **kwargs)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        with noted_on_oom():
            return super().load_checkpoint(*args, **kwargs)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        add_warnings(end_gpu_processes())
        _keep_warnings(storage_of(self))  # before the next trial begins its own
        return super().reset(*args, **kwargs)

    def reset_config(self, new_config: Any) -> bool:
        """Begin anew for the next trial: limits before the user's own reset takes memory, peaks after it.

        What the object itself keeps on the device is its own affair, and no leak.
        """
        self._under_plan.set_up(new_config, self.trial_resources)
        rebase_stats()
        with noted_on_oom():
            is_reset = bool(super().reset_config(new_config))
        rebase_stats()
        return is_reset


class _FunctionUnderPlan(_UnderPlan):
    _unfit: str | None = None

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        storage = storage_of(self)
        try:
            return super().reset(*args, **kwargs)
        finally:  # a function that was stopped ends in there; the next one begins in its own thread
            _keep_warnings(storage)

    def reset_config(self, new_config: Any) -> bool:
        share_bytes = getattr(current_limit_report(), "share_bytes", None)
        is_reset = bool(super().reset_config(new_config))
        self._unfit = _why_unfit(share_bytes)
        return is_reset

    def step(self) -> dict[str, Any]:
        if self._unfit is not None:
            raise to_be_replaced(self._unfit)
        return super().step()


def _know_thread() -> None:
    global _function_thread
    _function_thread = threading.current_thread()


def _join_function() -> None:
    """Wait for the function's thread to end: Ray tells it to, and does not wait."""
    if _function_thread is not None:
        _function_thread.join(_END_TIMEOUT_S)


def _keep_warnings(storage: Any) -> None:
    """Put what came up after the last result into the trial's folder, of which Tune tells a trainable nothing."""
    if has_warnings() and storage:
        RunFolder(storage.storage_filesystem, storage.trial_fs_path, rank=0).keep()


def _why_unfit(share_bytes: int | None) -> str | None:
    """Return why this process cannot serve another trial, ``None`` if it can. Never raises, as ``reset`` must not."""
    try:
        add_warnings(end_gpu_processes())
        release_unused()
        left_over_bytes = held_bytes()
    except Exception as error:  # noqa: BLE001  # after some errors a device answers nothing but errors
        return f"its GPU does not answer any more: {error}"
    if not is_too_much_to_keep(left_over_bytes, share_bytes):
        return None
    return f"it still holds {format_bytes(left_over_bytes)} of GPU memory of an earlier trial"
