"""Builds each of Ray's trainers from a plan: scaling config, worker setup, usage in reports, deadlock watch."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import ray.train

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.probe.probe_cluster import plan_on_cluster
from tune_policies.ray_compat.train_run import RunConfig, add_to_reports, is_version_2
from tune_policies.tune.task_watch import watch_tasks
from tune_policies.values.errors import InvalidResourcesError

from ..deadlock_watch.watch import with_deadlock_watch
from ..gpu_memory.usage.trial_usage import RunFolder, with_usage
from ..process import LimitOptions, ProcessSetup, set_up_before
from ..tune_trainable import plan_of_trial, reserved_for_trial

TrainerT = TypeVar("TrainerT")


def build_trainer(
    trainer: Callable[..., TrainerT],
    train_loop: Callable[..., Any],
    plan: TrialPlan | ResourcePolicy,
    train_loop_config: dict[str, Any] | None,
    limits: LimitOptions,
    trainer_kwargs: dict[str, Any],
) -> TrainerT:
    """Return one of Ray's trainers, whose workers are set up by ``plan`` before ``train_loop`` runs.

    Raises:
        InvalidResourcesError: The plan has no Train workers, ``trainer_kwargs`` name what the plan sets, or Ray Train
            is not its version 2.
        InfeasibleRequestError: The config is known to need more GPU memory than any device has.
    """
    check_train_v2(trainer)
    plan = plan_for_run(plan, train_loop_config)
    return trainer(**trainer_arguments(train_loop, plan, limits, trainer_kwargs), train_loop_config=train_loop_config)


def trainer_arguments(
    train_loop: Callable[..., Any], plan: TrialPlan, limits: LimitOptions, trainer_kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a trainer whose workers are set up by ``plan`` before ``train_loop`` runs.

    Raises:
        InvalidResourcesError: The plan has no Train workers, or ``trainer_kwargs`` name what the plan sets.
    """
    if "scaling_config" in trainer_kwargs:
        raise InvalidResourcesError("scaling_config comes from the plan: change the policy instead")
    scaling_config = plan.scaling_config()
    if reserved_for_trial() is None:  # inside a trial, the program that runs Tune watches
        watch_tasks()
    setup = ProcessSetup.for_worker(plan.slots[0], limits)

    def set_up(_: Any) -> None:
        setup.apply()
        add_usage_to_reports()

    def keep_usage() -> None:
        folder = run_folder()
        if folder is not None:
            folder.keep()

    return {
        **trainer_kwargs,
        "train_loop_per_worker": set_up_before(train_loop, set_up, keep_usage),
        "scaling_config": scaling_config,
        "run_config": with_deadlock_watch(trainer_kwargs.get("run_config")),
    }


def with_worker_env_vars(trainer_kwargs: dict[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Return a trainer's arguments with environment variables for each worker; the user's own variables win.

    Workers need them from their start: before the user's loop runs, Ray has already imported the framework.
    """
    run_config = trainer_kwargs.get("run_config") or ray.train.RunConfig()
    if not isinstance(run_config, RunConfig):  # the trainer itself will say what is wrong with it
        return trainer_kwargs
    runtime_env = dict(run_config.worker_runtime_env or {})
    runtime_env["env_vars"] = {**variables, **runtime_env.get("env_vars", {})}
    return {**trainer_kwargs, "run_config": replace(run_config, worker_runtime_env=runtime_env)}


def plan_for_run(plan: TrialPlan | ResourcePolicy, train_loop_config: dict[str, Any] | None) -> TrialPlan:
    """Return the plan for a Train run with this config; in a trial of Tune, that of the trial's slot.

    A policy plans on the program's cluster, unless the trial has a slot already.
    Without a config, it is enough for every config that was measured.

    Raises:
        InfeasibleRequestError: The config is known to need more GPU memory than any device has.
    """
    plan = plan_of_trial(plan)
    if isinstance(plan, ResourcePolicy):
        plan = plan_on_cluster(plan)
    return plan if train_loop_config is None else plan.for_config(train_loop_config)


def add_usage_to_reports() -> None:
    """Let what this worker used go with each ``ray.train.report``, or reports stay plain."""
    folder = run_folder()

    def metrics_with_usage(metrics: dict[str, Any]) -> dict[str, Any]:
        if folder is not None:
            folder.keep()
        return with_usage(metrics)

    add_to_reports(metrics_with_usage)


def run_folder() -> RunFolder | None:
    """Return the folder for this worker's usage record; ``None``: Ray names none, as in its local mode."""
    try:
        context = ray.train.get_context()
        storage = context.get_storage()
        return RunFolder(storage.storage_filesystem, storage.experiment_fs_path, context.get_world_rank())
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def check_train_v2(trainer: Callable[..., Any]) -> None:
    """Raise ``InvalidResourcesError`` unless ``trainer`` is of Ray Train's version 2.

    Version 1 is itself a Tune run, and cannot be one trial of another.
    """
    if not is_version_2(trainer):
        raise InvalidResourcesError(
            "Ray Train version 1 is active: set RAY_TRAIN_V2_ENABLED=1 in the environment before Ray is imported"
        )
