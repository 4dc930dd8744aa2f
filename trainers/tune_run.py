"""Runs Tune under a policy in one call: plan, limits, scheduler, and how many trials run at once.

By hand these are four steps, and a run that leaves one of them out starts more trials than there is room for.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ray import tune
from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler, create_scheduler

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.ray_compat.tune_trial import has_other_resources
from tune_policies.tune.policy_scheduler import PolicyScheduler
from tune_policies.tune.usage.policy_callback import PolicyCallback
from tune_policies.tune.wrapping_scheduler import nested_schedulers
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import check_count

from .tune_trainable import plan_of, policy_of, with_plan

_Trainable = Callable[..., Any] | type[tune.Trainable]


def run(
    trainable: _Trainable, policy: ResourcePolicy | TrialPlan | None = None, **tune_run_kwargs: Any
) -> tune.ExperimentAnalysis:
    """Run ``tune.run`` under a policy, which plans on the cluster that the run uses; the plan is printed.

    ``run(train_fn, AutoPolicy(), config={"lr": tune.grid_search([0.1, 0.2])})``. Each trial gets what the plan says,
    and is limited to it. No more trials run at once than fit. The policy plans anew as nodes come and go.

    Args:
        trainable: A function of a config, a ``tune.Trainable`` class, or what ``as_trainable`` or ``with_plan`` made.
        policy: The policy; or a plan, which is not printed again; ``None``: ``trainable`` has a plan already.
        **tune_run_kwargs: Anything else that ``tune.run`` takes; ``max_concurrent_trials`` may lower the plan's.

    Returns:
        What ``tune.run`` returns.

    Raises:
        InfeasibleRequestError: Not even one trial fits.
        InvalidResourcesError: ``trainable`` is no trainable; it and ``policy`` both bring a plan, or neither does; an
            argument sets what the plan sets; or ``max_concurrent_trials`` is not a whole number, 0 or above.
        ProbeError: No Ray answers in time, or none can be started.
    """
    if "resources_per_trial" in tune_run_kwargs:
        raise InvalidResourcesError("resources_per_trial comes from the policy: change the policy instead")
    _check_max_concurrent_trials(tune_run_kwargs.get("max_concurrent_trials"))
    ready = _under_plan(trainable, policy)
    kwargs = tune_run_kwargs | _scheduling(
        ready, tune_run_kwargs.get("scheduler"), tune_run_kwargs.get("max_concurrent_trials")
    )
    _hand_over_plan(ready, tune_run_kwargs.get("callbacks"), kwargs.get("scheduler"))
    return tune.run(ready, **kwargs)


def tuner(
    trainable: _Trainable,
    policy: ResourcePolicy | TrialPlan | None = None,
    *,
    tune_config: tune.TuneConfig | None = None,
    **tuner_kwargs: Any,
) -> tune.Tuner:
    """Return Ray's ``Tuner`` under a policy, which plans on the cluster that the run uses; the plan is printed.

    ``tuner(train_fn, AutoPolicy(), param_space={"lr": tune.loguniform(1e-4, 1e-1)}).fit()``.

    Args:
        trainable: As for ``run``.
        policy: As for ``run``.
        tune_config: As for ``tune.Tuner``; its ``max_concurrent_trials`` may lower the plan's.
        **tuner_kwargs: Anything else that ``tune.Tuner`` takes: ``param_space``, ``run_config``.

    Raises:
        InfeasibleRequestError: Not even one trial fits.
        InvalidResourcesError: As for ``run``.
        ProbeError: No Ray answers in time, or none can be started.
    """
    tune_config = tune_config or tune.TuneConfig()
    _check_max_concurrent_trials(tune_config.max_concurrent_trials)
    ready = _under_plan(trainable, policy)
    changes = _scheduling(ready, tune_config.scheduler, tune_config.max_concurrent_trials)
    callbacks = getattr(tuner_kwargs.get("run_config"), "callbacks", None)
    _hand_over_plan(ready, callbacks, changes.get("scheduler", tune_config.scheduler))
    return tune.Tuner(ready, tune_config=replace(tune_config, **changes), **tuner_kwargs)


def _check_max_concurrent_trials(value: object) -> None:
    """Raise ``InvalidResourcesError`` unless Tune takes ``value``, in which 0 and ``None`` mean no limit."""
    if value is not None:
        check_count(value, least=0, name="max_concurrent_trials")


def _under_plan(trainable: _Trainable, policy: ResourcePolicy | TrialPlan | None) -> _Trainable:
    is_under_plan = plan_of(trainable) is not None
    if policy is None and not is_under_plan:
        raise InvalidResourcesError("the trainable has no plan yet: give a policy too, such as AutoPolicy()")
    if policy is not None and is_under_plan:
        raise InvalidResourcesError("the trainable has a plan already: leave the policy out")
    return trainable if policy is None else with_plan(trainable, policy)


def _hand_over_plan(trainable: _Trainable, callbacks: Iterable[Any] | None, scheduler: Any) -> None:
    plan = plan_of(trainable)
    for each in callbacks or ():
        if isinstance(each, PolicyCallback) and plan is not None:
            each.follow(plan, scheduler)


def _scheduling(
    trainable: _Trainable, scheduler: TrialScheduler | str | None, max_concurrent_trials: int | None
) -> dict[str, Any]:
    """Return the scheduler and the ``max_concurrent_trials`` with which no more trials run than the plan says.

    A ``PolicyScheduler`` counts slots, so that trials which are paused hold none. It cannot be where each trial gets
    what its config needs, by the plan or by ``tune.with_resources`` around it, nor beside Ray's
    ``ResourceChangingScheduler``; there, Tune's own limit counts.
    """
    plan = plan_of(trainable)
    assert plan is not None  # noqa: S101  # `_under_plan` has seen to it
    scheduler = create_scheduler(scheduler) if isinstance(scheduler, str) else scheduler
    inside = list(nested_schedulers(scheduler))
    if any(isinstance(each, PolicyScheduler) for each in inside):
        return {}
    is_by_trial = plan.by_config is not None or has_other_resources(trainable)
    if is_by_trial or any(isinstance(each, ResourceChangingScheduler) for each in inside):
        at_once = plan.max_concurrent_trials
        return {"max_concurrent_trials": min(max_concurrent_trials or at_once, at_once)}
    return {"scheduler": PolicyScheduler(scheduler, plan, policy=policy_of(trainable))}
