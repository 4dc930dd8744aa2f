"""Ray's ``XGBoostTrainer`` under a plan."""

from collections.abc import Callable
from typing import Any, Literal

from ray.train.xgboost import XGBoostTrainer

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy

from .process_setup import limit_options
from .train_loop import build_trainer


def build_xgboost_trainer(
    train_loop: Callable[..., Any],
    *,
    plan: TrialPlan | ResourcePolicy,
    train_loop_config: dict[str, Any] | None = None,
    isolation: Literal["mps"] | None = None,
    on_void_limit: Literal["raise", "warn"] = "raise",
    **trainer_kwargs: Any,
) -> XGBoostTrainer:
    """Return Ray's own ``XGBoostTrainer`` with the scaling config of ``plan``, applied in each worker.

    XGBoost takes as many threads as the plan gives CPUs, unless its parameter ``nthread`` says otherwise. It knows no
    limit of GPU memory: where workers share a GPU, what they report names it under ``not_enforceable``.

    Arguments and errors are as for ``build_torch_trainer``; the limits are those of other frameworks in the worker.
    ``**trainer_kwargs``: Anything else that ``XGBoostTrainer`` takes.
    """
    limits = limit_options(isolation, on_void_limit)
    return build_trainer(XGBoostTrainer, train_loop, plan, train_loop_config, limits, trainer_kwargs)
