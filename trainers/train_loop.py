"""What all of Ray's trainers are given from a plan."""

from collections.abc import Callable
from typing import Any

from tune_policies.errors import InvalidResourcesError
from tune_policies.plan import TrialPlan

from .process import ProcessSetup


def planned_arguments(
    train_loop: Callable[..., Any], plan: TrialPlan, trainer_kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a trainer whose workers are set up by ``plan`` before ``train_loop`` runs.

    Raises:
        InvalidResourcesError: The plan has no Train workers, or ``trainer_kwargs`` name what the plan sets.
    """
    if "scaling_config" in trainer_kwargs:
        raise InvalidResourcesError("scaling_config comes from the plan: change the policy instead")
    scaling_config = plan.scaling_config()
    setup = ProcessSetup(resources=plan.per_worker, gpu_memory_bytes=plan.gpu_memory_bytes)
    return {
        **trainer_kwargs,
        "train_loop_per_worker": setup.before(train_loop),
        "scaling_config": scaling_config,
    }


def check_train_v2(trainer: type) -> None:
    """Raise ``InvalidResourcesError`` unless ``trainer`` is of Ray Train's version 2.

    Version 1 is itself a Tune run, and cannot be one trial of another.
    """
    if not trainer.__module__.startswith("ray.train.v2."):
        raise InvalidResourcesError(
            "Ray Train version 1 is active: set RAY_TRAIN_V2_ENABLED=1 in the environment before Ray is imported"
        )
