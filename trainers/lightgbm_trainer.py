"""Ray's ``LightGBMTrainer`` under a plan."""

from collections.abc import Callable
from typing import Any, Literal

from ray.train.lightgbm import LightGBMTrainer

from tune_policies.plan.trial_plan import TrialPlan

from .process import limit_options
from .train_loop import build_trainer


def build_lightgbm_trainer(
    train_loop: Callable[..., Any],
    *,
    plan: TrialPlan,
    train_loop_config: dict[str, Any] | None = None,
    isolation: Literal["mps"] | None = None,
    on_void_limit: Literal["raise", "warn"] = "raise",
    **trainer_kwargs: Any,
) -> LightGBMTrainer:
    """Return Ray's own ``LightGBMTrainer`` with the scaling config of ``plan``, applied in each worker.

    LightGBM takes as many threads as the plan gives CPUs, unless its parameter ``num_threads`` says otherwise. It knows
    no limit of GPU memory: where workers share a GPU, what they report names it under ``not_enforceable``.

    Args:
        train_loop: What each worker runs; takes the config, or nothing.
        plan: The plan of a policy with ``num_workers`` of 1 or more.
        train_loop_config: Passed to ``train_loop``; a plan that goes by configs goes by it.
        isolation: ``"mps"``: let NVIDIA's MPS daemon hold the workers, where one answers.
        on_void_limit: What to do about a setting that turns another framework's memory limit into none: an error, or a
            warning in what the worker reports.
        **trainer_kwargs: Anything else that ``LightGBMTrainer`` takes.

    Raises:
        InvalidResourcesError: The plan has no Train workers, ``trainer_kwargs`` name what the plan sets, or Ray Train
            is not its version 2.
        InfeasibleRequestError: The config is known to need more GPU memory than any device has.
        MemoryLimitError: In a worker: the GPU memory of another framework cannot be limited.
    """
    limits = limit_options(isolation, on_void_limit)
    return build_trainer(LightGBMTrainer, train_loop, plan, train_loop_config, limits, trainer_kwargs)
