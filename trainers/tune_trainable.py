"""Carries a plan into Ray Tune: a trainable that asks for the plan's resources and keeps to them."""

import inspect
from collections.abc import Callable
from typing import Any

from ray import tune

from tune_policies.errors import InvalidResourcesError
from tune_policies.plan import TrialPlan

from .process import ProcessSetup


def with_plan(trainable: Callable[..., Any] | type[tune.Trainable], plan: TrialPlan) -> Any:
    """Return a new trainable for ``tune.run`` and ``tune.Tuner`` that runs under ``plan``.

    Each trial reserves the plan's resources. Before the user's code runs in it, a trial without GPUs has all GPUs
    hidden, its thread count set to its CPUs, and a trial on a share of a GPU is held to its share of GPU memory.
    Also pass ``max_concurrent_trials=plan.max_concurrent_trials`` (or ``plan.tune_config()``) where the plan is
    capped, leaves room for others, or starts Train workers in its trials: resources alone do not hold those back.

    Args:
        trainable: A function of a config, or a ``tune.Trainable`` class. It is left untouched.
        plan: The plan of a policy.

    Raises:
        InvalidResourcesError: ``trainable`` is neither.
        MemoryLimitError: In the trial: its GPU memory cannot be limited.
    """
    setup = ProcessSetup(
        resources=plan.trial, gpu_memory_bytes=plan.gpu_memory_bytes if plan.num_workers == 0 else None
    )
    if inspect.isclass(trainable) and issubclass(trainable, tune.Trainable):
        return tune.with_resources(_set_up_class(trainable, setup), plan.resources_per_trial)
    if inspect.isclass(trainable) or not callable(trainable):
        raise InvalidResourcesError(
            f"a trainable is a function of a config or a subclass of ray.tune.Trainable, got {trainable!r}"
        )
    return tune.with_resources(setup.before(trainable), plan.resources_per_trial)


def _set_up_class(trainable: type[tune.Trainable], setup: ProcessSetup) -> type[tune.Trainable]:
    def set_up_first(self: tune.Trainable, *args: Any, **kwargs: Any) -> None:
        setup.apply()
        trainable.__init__(self, *args, **kwargs)

    # Tune names the trial after the class.
    return type(trainable.__name__, (trainable,), {"__init__": set_up_first, "__doc__": trainable.__doc__})
