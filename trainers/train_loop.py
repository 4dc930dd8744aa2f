"""What all of Ray's trainers are given from a plan."""

from collections.abc import Callable
from typing import Any

import ray.train

from tune_policies.errors import InvalidResourcesError
from tune_policies.plan import TrialPlan

from .gpu_memory.use.run_folder import RunFolder
from .gpu_memory.use.usage import with_usage
from .process import LimitOptions, ProcessSetup, set_up_before
from .trial_slot import plan_of_trial


def planned_arguments(
    train_loop: Callable[..., Any], plan: TrialPlan, limits: LimitOptions, trainer_kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a trainer whose workers are set up by ``plan`` before ``train_loop`` runs.

    Raises:
        InvalidResourcesError: The plan has no Train workers, or ``trainer_kwargs`` name what the plan sets.
    """
    if "scaling_config" in trainer_kwargs:
        raise InvalidResourcesError("scaling_config comes from the plan: change the policy instead")
    scaling_config = plan.scaling_config()
    setup = ProcessSetup.for_worker(plan.slots[0], limits)

    def set_up(_: Any) -> None:
        setup.apply()
        add_usage_to_reports()

    def at_end() -> None:
        folder = run_folder()
        if folder is not None:
            folder.keep()

    return {
        **trainer_kwargs,
        "train_loop_per_worker": set_up_before(train_loop, set_up, at_end),
        "scaling_config": scaling_config,
    }


def plan_of_run(plan: TrialPlan, train_loop_config: dict[str, Any] | None) -> TrialPlan:
    """Return the plan for a Train run with this config, in the slot of the trial that starts it.

    Without a config it is what is enough for every config that was measured.

    Raises:
        InfeasibleRequestError: The config is known to need more GPU memory than any device has.
    """
    plan = plan_of_trial(plan)
    return plan if train_loop_config is None else plan.for_config(train_loop_config)


def add_usage_to_reports() -> None:
    """Let what this worker used go with each ``ray.train.report``; where Ray has no place for it, reports stay plain.

    Ray Train has no public hook between a worker's report and the trainer. The object behind ``ray.train.report`` is
    meant to be put in place by ``set_train_fn_utils`` before the user's function runs, as Ray itself does.
    """
    try:
        from ray.train.v2._internal.execution.train_fn_utils import get_train_fn_utils

        utils = get_train_fn_utils()
        report = utils.report
    except (ImportError, AttributeError, RuntimeError):  # another Ray, or no worker
        return

    folder = run_folder()

    def report_with_usage(metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if folder is not None:
            folder.keep()
        return report(with_usage(metrics), *args, **kwargs)

    utils.report = report_with_usage


def run_folder() -> RunFolder | None:
    """Return where this worker's record is kept; ``None``: Ray does not tell, as in its local mode."""
    try:
        context = ray.train.get_context()
        storage = context.get_storage()
        return RunFolder(storage.storage_filesystem, storage.experiment_fs_path, context.get_world_rank())
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def check_train_v2(trainer: type) -> None:
    """Raise ``InvalidResourcesError`` unless ``trainer`` is of Ray Train's version 2.

    Version 1 is itself a Tune run, and cannot be one trial of another.
    """
    if not trainer.__module__.startswith("ray.train.v2."):
        raise InvalidResourcesError(
            "Ray Train version 1 is active: set RAY_TRAIN_V2_ENABLED=1 in the environment before Ray is imported"
        )
