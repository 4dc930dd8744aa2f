"""Ray's ``TensorflowTrainer`` under a plan."""

from collections.abc import Callable
from typing import Any, Literal

from ray.train.tensorflow import TensorflowTrainer

from tune_policies.plan import TrialPlan

from .process import limit_options
from .train_loop import build_trainer


def build_tensorflow_trainer(
    train_loop: Callable[..., Any],
    *,
    plan: TrialPlan,
    train_loop_config: dict[str, Any] | None = None,
    isolation: Literal["mps"] | None = None,
    on_void_limit: Literal["raise", "warn"] = "raise",
    **trainer_kwargs: Any,
) -> TensorflowTrainer:
    """Return Ray's own ``TensorflowTrainer`` with the scaling config of ``plan``, its limits applied in each worker.

    TensorFlow's collectives use NCCL only where the strategy in ``train_loop`` asks for it by name
    (``CommunicationImplementation.NCCL``); workers that share a GPU must not.

    Args:
        train_loop: What each worker runs; takes the config, or nothing.
        plan: The plan of a policy with ``num_workers`` of 1 or more.
        train_loop_config: Passed to ``train_loop``; a plan that goes by configs goes by it.
        isolation: ``"mps"``: let NVIDIA's MPS daemon hold the workers too, where one answers.
        on_void_limit: What to do about a setting that turns the memory limit into none: an error, or a warning in what
            the worker reports.
        **trainer_kwargs: Anything else that ``TensorflowTrainer`` takes.

    Raises:
        InvalidResourcesError: The plan has no Train workers, ``trainer_kwargs`` name what the plan sets, or Ray Train
            is not its version 2.
        InfeasibleRequestError: The config is known to need more GPU memory than any device has.
        MemoryLimitError: In a worker: its GPU memory cannot be limited.
    """
    limits = limit_options(isolation, on_void_limit)
    return build_trainer(TensorflowTrainer, train_loop, plan, train_loop_config, limits, trainer_kwargs)
