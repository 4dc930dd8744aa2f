"""``run`` and ``tuner``, which run Tune under a policy.

Both accept the options of ``PolicyScheduler`` and pass them on. Its signature is their only definition.
"""

import inspect
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ray import tune
from ray.tune.schedulers import TrialScheduler, create_scheduler

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.policies.policy_kinds import hint_to_owners
from tune_policies.ray_compat.connection import connect_if_running
from tune_policies.ray_compat.tune_interruption import InterruptionWatch, has_ended
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import check_count
from tune_policies.values.units import is_number
from tune_policies.values.wording import shorten, suggest

from ..scheduling.policy_scheduler import PolicyScheduler
from ..scheduling.wrapping_scheduler import nested_schedulers
from .continue_line import line_for_run, line_for_tuner

_Policy = ResourcePolicy | TrialPlan

_logger = logging.getLogger(__name__)

_CONTINUE: Final = "Ctrl-C ended the run, and its state is saved. To continue it, write %s"
_ENDED: Final = (
    "all trials had ended before Ctrl-C, so nothing is left to continue, although Tune printed a line to resume. The "
    "results are in %s"
)

OPTIONS: Final = frozenset(
    name
    for name, parameter in inspect.signature(PolicyScheduler).parameters.items()
    if parameter.kind is parameter.KEYWORD_ONLY
)
"""The names of the options of ``PolicyScheduler``. Tune has no arguments with these names."""


def run(
    trainable: Any, policy: _Policy | None = None, *, resources_per_trial: None = None, **kwargs: Any
) -> tune.ExperimentAnalysis:
    """Call ``tune.run`` under a policy. The policy plans on the cluster of the run, and the plan is printed.

    ``run(train_fn, AutoPolicy(), config={"lr": tune.grid_search([0.1, 0.2])})`` is the same as ``tune.run`` with
    ``scheduler=PolicyScheduler(AutoPolicy())``. With ``resume=True``, the policy replaces the policy of the earlier
    run.

    Args:
        trainable: A function of a config, a ``tune.Trainable`` class, a registered name such as ``"PPO"``, or the
            result of ``as_trainable``.
        policy: A policy or a plan. If you pass a plan instead of a policy, it is not printed. Omit this argument if
            ``scheduler`` already has a policy.
        resources_per_trial: Not allowed, because the policy sets the resources.
        **kwargs: Other arguments of ``tune.run``, and options of ``PolicyScheduler``, such as ``may_move=True``. A
            ``scheduler`` becomes the inner scheduler of the ``PolicyScheduler``. ``max_concurrent_trials`` can only
            lower the plan's limit.

    Returns:
        The result of ``tune.run``.

    Raises:
        InfeasibleRequestError: Not even one trial fits.
        InvalidResourcesError: ``trainable`` is a trainer or a ``Tuner``, no policy or more than one policy is given, an
            argument is unknown, an option is invalid or is given although ``scheduler`` already has a policy, an
            argument conflicts with the policy, or ``max_concurrent_trials`` is not a non-negative integer.
        ProbeError: Ray does not respond in time, or cannot be started.
    """
    _reject_trainer(trainable)
    _check_names(kwargs, tune.run)
    options, tune_run_kwargs = _split(kwargs)
    _check_arguments({**tune_run_kwargs, "resources_per_trial": resources_per_trial})
    scheduler = _under_policy(policy, tune_run_kwargs.get("scheduler"), options)
    connect_if_running()
    watch = InterruptionWatch()
    results = tune.run(trainable, **{**tune_run_kwargs, "scheduler": scheduler})
    if watch.was_interrupted():
        if has_ended(results):
            _logger.warning(_ENDED, results.experiment_path)
        else:
            line = line_for_run(trainable, policy, kwargs, results.experiment_path)
            _logger.warning("%s (the line of Tune above does not contain the policy)", _CONTINUE % line)
    return results


def tuner(
    trainable: Any,
    policy: _Policy | None = None,
    *,
    tune_config: tune.TuneConfig | None = None,
    **kwargs: Any,
) -> tune.Tuner:
    """Return Ray's ``Tuner`` under a policy. The policy plans when ``fit`` begins, and the plan is printed.

    Example: ``tuner(train_fn, AutoPolicy(), param_space={"lr": tune.loguniform(1e-4, 1e-1)}).fit()``. If the run is
    restored with ``Tuner.restore``, the same policy plans again, unless an ``applied`` block replaces it.

    Args:
        trainable: See ``run``.
        policy: See ``run``.
        tune_config: See ``tune.Tuner``. Its ``scheduler`` becomes the inner scheduler, and its
            ``max_concurrent_trials`` can only lower the plan's limit.
        **kwargs: Other arguments of ``tune.Tuner``, such as ``param_space`` and ``run_config``, and options of
            ``PolicyScheduler``.

    Raises:
        InvalidResourcesError: See ``run``. In ``fit``, the errors of ``run`` can be raised.
    """
    _reject_trainer(trainable)
    if tune_config is not None and not isinstance(tune_config, tune.TuneConfig):
        raise InvalidResourcesError(f"tune_config must be a tune.TuneConfig, got {shorten(tune_config)}")
    tune_config = tune_config or tune.TuneConfig()
    resources = kwargs.get("resources_per_trial")
    _check_arguments({"max_concurrent_trials": tune_config.max_concurrent_trials, "resources_per_trial": resources})
    _check_names(kwargs, tune.Tuner)
    options, tuner_kwargs = _split(kwargs)
    scheduler = _under_policy(policy, tune_config.scheduler, options)
    # A copy, because the user may pass the same config to another tuner.
    made = _Tuner(trainable, tune_config=replace(tune_config, scheduler=scheduler), **tuner_kwargs)
    made.given_trainable = trainable
    return made


class _Tuner(tune.Tuner):  # type: ignore[misc]  # Ray has no types
    given_trainable: Any = None

    def fit(self) -> tune.ResultGrid:
        connect_if_running()
        watch = InterruptionWatch()
        results = super().fit()
        if watch.was_interrupted():
            if has_ended(results):
                _logger.warning(_ENDED, results.experiment_path)
            else:
                _logger.warning(_CONTINUE, line_for_tuner(self.given_trainable, results.experiment_path))
        return results


def _split(kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of ``PolicyScheduler`` and the arguments of Tune."""
    options = {name: value for name, value in kwargs.items() if name in OPTIONS}
    return options, {name: value for name, value in kwargs.items() if name not in OPTIONS}


_INSTEAD: Final = {
    "param_space": "Write config=… in run",
    "config": "Write param_space=… in tuner",
    "tune_config": "Pass its fields to run, such as num_samples=…",
    "run_config": "Pass its fields to run, such as name=…",
}
"""What to write instead of an argument that only ``tune.run`` or only ``tune.Tuner`` has."""


def _check_names(arguments: Collection[str], function: Callable[..., Any]) -> None:
    """Raise ``InvalidResourcesError`` for an argument that neither Tune nor ``PolicyScheduler`` has.

    Tune would raise a ``TypeError``, but only after Ray has started.
    """
    parameters = inspect.signature(function).parameters
    known = [*parameters, *OPTIONS]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    for name in arguments:
        if name not in known:
            raise InvalidResourcesError(f"unknown argument {name!r}{_hint(name, known, function)}")


def _hint(name: str, known: Sequence[str], function: Callable[..., Any]) -> str:
    if function is tune.Tuner:
        for part, cls in (("tune_config", tune.TuneConfig), ("run_config", tune.RunConfig)):
            if name in inspect.signature(cls).parameters:
                return f". Write {part}=tune.{cls.__name__}({name}=…)"
    if name in _INSTEAD:
        return f". {_INSTEAD[name]}"
    return suggest(name, known) or hint_to_owners(name)


def _reject_trainer(trainable: Any) -> None:
    """Raise an ``InvalidResourcesError`` if ``trainable`` is a trainer of Ray Train or a ``Tuner``."""
    if isinstance(trainable, tune.Tuner):
        raise InvalidResourcesError(
            "a Tuner is not a trainable. Pass its trainable and its arguments: tuner(train_fn, policy, "
            "param_space=…, tune_config=…).fit()"
        )
    # Tune itself would only report: Improper 'run' - not string nor trainable.
    if not isinstance(trainable, type | str) and callable(getattr(trainable, "fit", None)):
        raise InvalidResourcesError(
            f"{type(trainable).__name__} is a trainer, but Tune runs functions of a config. Write a function that "
            "builds the trainer, pass as_trainable(function), and set num_workers in the policy"
        )


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    resources = arguments.get("resources_per_trial")
    if resources is not None:
        raise InvalidResourcesError(
            f"resources_per_trial cannot be passed, because the policy sets it. {_instead_of(resources)}"
        )
    most = arguments.get("max_concurrent_trials")  # 0 and None mean no limit in Tune
    if most is not None:
        check_count(most, least=0, name="max_concurrent_trials")


def _instead_of(resources: Any) -> str:
    """Return the policy to write instead of ``resources_per_trial`` as a sentence."""
    amounts = {}
    if isinstance(resources, Mapping):
        amounts = {name: amount for name, amount in resources.items() if amount != 0}
    known = {name.lower(): amount for name, amount in amounts.items() if is_number(amount) and amount > 0}
    if not known or len(known) < len(amounts) or not known.keys() <= {"cpu", "gpu"}:
        return "Write the amounts in the policy, such as GpuPolicy(gpus=0.5, cpus=2)"
    fields = [f"{name}s={known[name]:g}" for name in ("gpu", "cpu") if name in known]
    kind = "GpuPolicy" if "gpu" in known else "CpuPolicy"
    return f"Write the amounts in the policy: {kind}({', '.join(fields)})"


def to_scheduler(scheduler: TrialScheduler | str | None) -> TrialScheduler | None:
    """Return the scheduler that the argument ``scheduler`` of ``tune.run`` means, which may be a name."""
    if isinstance(scheduler, str):
        return create_scheduler(scheduler)
    return scheduler


def _under_policy(
    policy: _Policy | None, scheduler: TrialScheduler | str | None, options: Mapping[str, Any]
) -> TrialScheduler:
    inner = to_scheduler(scheduler)
    has_policy = policy_scheduler_in(inner) is not None
    if policy is None and not has_policy:
        raise InvalidResourcesError("no policy was given. Pass a policy as the second argument, such as AutoPolicy()")
    if policy is None and options:
        raise options_given_twice(options)
    if policy is None:
        return inner
    if has_policy:
        raise InvalidResourcesError("the scheduler already has a policy. Omit the second argument")
    return PolicyScheduler(policy, inner, **options)


def options_given_twice(options: Mapping[str, Any]) -> InvalidResourcesError:
    """Return the error for options of ``PolicyScheduler`` that are passed next to one."""
    names = ", ".join(sorted(options))
    return InvalidResourcesError(
        f"{names} cannot be passed next to a PolicyScheduler, because it has its own options. Pass {names} to the "
        "PolicyScheduler"
    )


def policy_scheduler_in(scheduler: TrialScheduler | None) -> PolicyScheduler | None:
    """Return the ``PolicyScheduler`` among a scheduler and its inner schedulers, or ``None``."""
    return next((nested for nested in nested_schedulers(scheduler) if isinstance(nested, PolicyScheduler)), None)
