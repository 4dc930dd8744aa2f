"""Runs Tune under a policy: one run, or all runs in a ``with`` block, such as the runs of a library."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from ray import tune
from ray.tune.schedulers import TrialScheduler, create_scheduler

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.ray_compat.connection import connect_if_running, is_through_client
from tune_policies.ray_compat.tune_entry import changed_tune_run
from tune_policies.tune.wrapping_scheduler import nested_schedulers
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import check_count
from tune_policies.values.value import shorten

from .policy_scheduler import PolicyScheduler

_Policy = ResourcePolicy | TrialPlan

_logger = logging.getLogger(__name__)

_THROUGH_CLIENT: Final = (
    "applied does not affect runs through a Ray Client, because these runs start on the cluster. Pass "
    "scheduler=PolicyScheduler(policy) to the run, or submit the program as a Ray job"
)


def run(trainable: Any, policy: _Policy | None = None, **tune_run_kwargs: Any) -> tune.ExperimentAnalysis:
    """Call ``tune.run`` under a policy. The policy plans on the cluster of the run, and the plan is printed.

    ``run(train_fn, AutoPolicy(), config={"lr": tune.grid_search([0.1, 0.2])})`` is the same as ``tune.run`` with
    ``scheduler=PolicyScheduler(AutoPolicy())``. With ``resume=True``, the policy replaces the policy of the earlier
    run.

    Args:
        trainable: A function of a config, a ``tune.Trainable`` class, a registered name such as ``"PPO"``, or the
            result of ``as_trainable``.
        policy: A policy or a plan. If you pass a plan instead of a policy, it is not printed. Omit this argument if
            ``scheduler`` already has a policy.
        **tune_run_kwargs: Other arguments of ``tune.run``. A ``scheduler`` becomes the inner scheduler of the
            ``PolicyScheduler``. ``max_concurrent_trials`` can only lower the plan's limit.

    Returns:
        The result of ``tune.run``.

    Raises:
        InfeasibleRequestError: Not even one trial fits.
        InvalidResourcesError: ``trainable`` is a trainer, no policy or more than one policy is given, an argument
            conflicts with the policy, or ``max_concurrent_trials`` is not a non-negative integer.
        ProbeError: Ray does not respond in time, or cannot be started.
    """
    _check_trainable(trainable)
    _check_arguments(tune_run_kwargs)
    scheduler = _under_policy(policy, tune_run_kwargs.get("scheduler"))
    connect_if_running()
    return tune.run(trainable, **{**tune_run_kwargs, "scheduler": scheduler})


def tuner(
    trainable: Any,
    policy: _Policy | None = None,
    *,
    tune_config: tune.TuneConfig | None = None,
    **tuner_kwargs: Any,
) -> tune.Tuner:
    """Return Ray's ``Tuner`` under a policy. The policy plans when ``fit`` begins, and the plan is printed.

    Example: ``tuner(train_fn, AutoPolicy(), param_space={"lr": tune.loguniform(1e-4, 1e-1)}).fit()``. If the run is
    restored with ``Tuner.restore``, the same policy plans again, unless an ``applied`` block replaces it.

    Args:
        trainable: See ``run``.
        policy: See ``run``.
        tune_config: See ``tune.Tuner``. Its ``scheduler`` becomes the inner scheduler, and its
            ``max_concurrent_trials`` can only lower the plan's limit.
        **tuner_kwargs: Other arguments of ``tune.Tuner``, such as ``param_space`` and ``run_config``.

    Raises:
        InvalidResourcesError: See ``run``. In ``fit``, the errors of ``run`` can be raised.
    """
    _check_trainable(trainable)
    if tune_config is not None and not isinstance(tune_config, tune.TuneConfig):
        raise InvalidResourcesError(f"tune_config must be a tune.TuneConfig, got {shorten(tune_config)}")
    tune_config = tune_config or tune.TuneConfig()
    _check_arguments({"max_concurrent_trials": tune_config.max_concurrent_trials})
    scheduler = _under_policy(policy, tune_config.scheduler)
    return _Tuner(trainable, tune_config=replace(tune_config, scheduler=scheduler), **tuner_kwargs)


class _Tuner(tune.Tuner):  # type: ignore[misc]  # Ray has no types
    def fit(self) -> tune.ResultGrid:
        connect_if_running()
        return super().fit()


@contextmanager
def applied(policy: _Policy | PolicyScheduler) -> Iterator[None]:
    """Apply a policy to every ``tune.run`` and ``Tuner.fit`` in a block, including restored runs and runs of a library.

    Example: ``with applied(GpuMemoryPolicy(gpu_memory="4GiB")): model.tune(use_ray=True)``. The scheduler of each run
    becomes the inner scheduler of a ``PolicyScheduler``. A run that has a ``PolicyScheduler`` keeps it, but the policy
    of a restored run is replaced. In nested blocks, the innermost policy applies. Other threads, and code that runs in
    trials, are not affected.

    Args:
        policy: A policy, a plan, or a ``PolicyScheduler`` whose options apply to each run.

    Raises:
        InvalidResourcesError: ``policy`` is invalid, or the program is connected through a Ray Client and would
            start its runs on the cluster.
    """
    template = policy if isinstance(policy, PolicyScheduler) else PolicyScheduler(policy)
    _refuse_client()

    def change(arguments: Mapping[str, Any]) -> dict[str, Any]:
        connect_if_running()
        inner = _to_scheduler(arguments.get("scheduler"))
        own = next((each for each in nested_schedulers(inner) if isinstance(each, PolicyScheduler)), None)
        if own is None:
            return {"scheduler": template.around(inner)}
        if arguments.get("resume") or arguments.get("resume_config"):
            own.use_options_of(template)
        return {}

    with changed_tune_run(change):
        try:
            yield
        except BaseException:
            if is_through_client():
                _logger.warning("%s", _THROUGH_CLIENT)
            raise
    _refuse_client()  # the program may have connected through a Ray Client in the block


def _refuse_client() -> None:
    if is_through_client():
        raise InvalidResourcesError(_THROUGH_CLIENT)


def _check_trainable(trainable: Any) -> None:
    """Raise an ``InvalidResourcesError`` if ``trainable`` is a trainer of Ray Train."""
    if not isinstance(trainable, type | str) and callable(getattr(trainable, "fit", None)):
        raise InvalidResourcesError(
            f"{type(trainable).__name__} is a trainer, but Tune runs functions of a config. Write a function that "
            "builds the trainer, pass as_trainable(function), and set num_workers in the policy"
        )


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    if arguments.get("resources_per_trial") is not None:
        raise InvalidResourcesError(
            "resources_per_trial cannot be passed, because the policy sets it. Change the policy instead"
        )
    most = arguments.get("max_concurrent_trials")  # 0 and None mean no limit in Tune
    if most is not None:
        check_count(most, least=0, name="max_concurrent_trials")


def _to_scheduler(scheduler: TrialScheduler | str | None) -> TrialScheduler | None:
    return create_scheduler(scheduler) if isinstance(scheduler, str) else scheduler


def _under_policy(policy: _Policy | None, scheduler: TrialScheduler | str | None) -> TrialScheduler:
    inner = _to_scheduler(scheduler)
    has_policy = any(isinstance(each, PolicyScheduler) for each in nested_schedulers(inner))
    if policy is None and inner is not None and has_policy:
        return inner
    if policy is None:
        raise InvalidResourcesError("no policy was given. Pass a policy as the second argument, such as AutoPolicy()")
    if has_policy:
        raise InvalidResourcesError("the scheduler already has a policy. Omit the second argument")
    return PolicyScheduler(policy, inner)
