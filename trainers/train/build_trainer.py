"""Builds Ray's trainers from a plan, and retries a run with more memory after an out-of-memory error."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import ray.train
from ray.train import Result

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.probe.probe_cluster import plan_on_cluster
from tune_policies.ray_compat.gcs import READ_TIMEOUT_S, read_cluster_state
from tune_policies.ray_compat.train_run import RunConfig, add_to_reports, is_version_2, use_cpu_without_gpu
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError

from ..gpu_memory.fraction_limits import LimitOptions
from ..gpu_memory.measure_trial_memory import RunFolder
from ..process.current_process import CURRENT
from ..process.process_setup import ProcessSetup, set_up_before
from ..process.trial_process import plan_of_trial, reserved_for_trial
from ..retries.oom_failure import classify_failure
from ..retries.oom_history import TrialOomHistory
from ..retries.oom_retry import GROWTH, decide_worker_retry, history_after, larger_plan
from ..retries.oom_retry_scheduler import check_growth, check_max_gpus
from ..watches.deadlock_watch import with_deadlock_watch
from ..watches.task_watch import watch_tasks

TrainerT = TypeVar("TrainerT")

_logger = logging.getLogger(__name__)


def build_trainer(
    trainer: Callable[..., TrainerT],
    train_loop: Callable[..., Any],
    plan: TrialPlan,
    train_loop_config: dict[str, Any] | None,
    limits: LimitOptions,
    trainer_kwargs: dict[str, Any],
) -> TrainerT:
    """Return one of Ray's trainers with workers that are set up according to ``plan`` before ``train_loop`` runs.

    Raises:
        InvalidResourcesError: The plan has no Train workers, ``trainer_kwargs`` conflict with the plan, or Ray Train is
            not version 2.
    """
    check_train_v2(trainer)
    if "scaling_config" in trainer_kwargs:
        raise InvalidResourcesError(
            "scaling_config cannot be passed, because the plan sets it. Change the policy instead"
        )
    scaling_config = plan.scaling_config()
    if reserved_for_trial() is None:  # inside a trial, the program that runs Tune watches the tasks
        watch_tasks()
    return trainer(
        **{
            # The plan's arguments come last, so that they replace arguments with the same names.
            **trainer_kwargs,
            "train_loop_per_worker": in_worker(train_loop, ProcessSetup.for_worker(plan.common_slot, limits)),
            "scaling_config": scaling_config,
            "run_config": with_deadlock_watch(trainer_kwargs.get("run_config")),
        },
        train_loop_config=train_loop_config,
    )


def in_worker(train_loop: Callable[..., Any], setup: ProcessSetup) -> Callable[..., Any]:
    """Return a training loop that sets up its worker, and adds the resource usage to its reports."""

    def set_up(_: Any) -> None:
        setup.apply()
        # Without a real GPU, the worker may train on the CPU only if the user accepts that limits are not enforced.
        may_use_cpu = setup.slot.has_simulated_gpus or setup.limits.on_unenforced_limit == "warn"
        if may_use_cpu and use_cpu_without_gpu():
            _logger.warning(
                "PyTorch detects none of the GPUs that Ray assigned to this worker, so the worker trains on the CPU."
            )
        folder = run_folder()

        def metrics_with_usage(metrics: dict[str, Any]) -> dict[str, Any]:
            if folder is not None:
                CURRENT.trial.keep_usage(folder)
            return CURRENT.trial.with_usage(metrics)

        add_to_reports(metrics_with_usage)

    def keep_usage() -> None:  # writes the usage since the last report
        folder = run_folder()
        if folder is not None:
            CURRENT.trial.keep_usage(folder)

    return set_up_before(train_loop, set_up, keep_usage)


def with_worker_env_vars(trainer_kwargs: dict[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """Return a trainer's arguments with environment variables for each worker. The user's variables take precedence.

    The variables must be set when a worker starts, because Ray imports the framework before the user's loop runs.
    """
    run_config = trainer_kwargs.get("run_config") or ray.train.RunConfig()
    if not isinstance(run_config, RunConfig):  # the trainer itself reports the error
        return trainer_kwargs
    runtime_env = dict(run_config.worker_runtime_env or {})
    runtime_env["env_vars"] = {**variables, **runtime_env.get("env_vars", {})}
    return {**trainer_kwargs, "run_config": replace(run_config, worker_runtime_env=runtime_env)}


def plan_for_run(plan: TrialPlan | ResourcePolicy, train_loop_config: dict[str, Any] | None) -> TrialPlan:
    """Return the plan for a Train run with this config.

    In a trial with a slot, the plan of the slot is used instead of a policy or a plan with several slot types.
    Elsewhere, a policy creates a plan for the program's cluster. Without a config, the plan has enough GPU memory for
    every measured config.

    Raises:
        InfeasibleRequestError: The config needs more GPU memory than any device has.
    """
    plan = plan_of_trial(plan)
    if isinstance(plan, ResourcePolicy):
        plan = plan_on_cluster(plan)
    if train_loop_config is None:
        return plan
    return plan.for_config(train_loop_config)


def run_folder() -> RunFolder | None:
    """Return the folder for this worker's usage file, or ``None`` if it has no folder, as in Ray's local mode."""
    try:
        context = ray.train.get_context()
        storage = context.get_storage()
        return RunFolder(storage.storage_filesystem, storage.experiment_fs_path, context.get_world_rank())
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def ray_trainer_class(trainer: object) -> type | None:
    """Return the Ray Train class of ``trainer``, or ``None`` if it has no such class."""
    return next((cls for cls in type(trainer).__mro__ if cls.__module__.startswith("ray.train.")), None)


def check_train_v2(trainer: Callable[..., Any]) -> None:
    """Raise an ``InvalidResourcesError`` unless ``trainer`` belongs to Ray Train version 2.

    Version 1 starts its own Tune run, so it cannot run in a trial.
    """
    if not is_version_2(trainer):
        raise InvalidResourcesError(
            "Ray Train version 1 is active. Set RAY_TRAIN_V2_ENABLED=1 in the environment before Ray is imported"
        )


class _Trainer(Protocol):
    def fit(self) -> Any:
        """Train, and return the result."""


def fit_with_oom_retry(
    build_trainer: Callable[[TrialPlan], _Trainer],
    plan: TrialPlan | ResourcePolicy,
    *,
    growth: float = GROWTH,
    max_gpus: float = 1.0,
) -> Result:
    """Run a trainer, and retry it with more memory for each worker when its workers run out of memory.

    Ray Train resumes from the latest checkpoint of a run with the same name and storage, so pass both:
    ``RunConfig(name=…, storage_path=…)``. Without a name, each retry starts from the beginning.

    Leave the run's ``max_failures`` at 0, because Ray Train would retry the workers with the same memory. To retry
    other failures, call this function again with the same name and storage.

    Args:
        build_trainer: Returns the trainer for a plan, such as ``lambda plan: build_torch_trainer(loop, plan=plan)``.
        plan: The first plan, which must have Train workers, or a policy that plans on the program's cluster. In a trial
            of Tune with a slot, the run starts with that slot.
        growth: The factor by which a worker's memory grows in each retry. A GPU fraction is rounded up to 1/n of a GPU.
        max_gpus: The maximum number of GPUs of a worker.

    Returns:
        The result of the last ``fit()``.

    Raises:
        InfeasibleRequestError: The workers ran out of memory, and cannot get more memory. The error's cause is the
            error of the run.
        InvalidResourcesError: The plan has no Train workers or depends on configs, ``growth`` is not above 1,
            ``max_gpus`` is not above 0, or the trainer sets ``max_failures`` or belongs to Ray Train version 1.
        ProbeError: The workers ran out of memory, and the nodes cannot be read.
        Exception: Any other error of the run.
    """
    plan = plan_for_run(plan, None)
    if plan.num_workers == 0:
        raise InvalidResourcesError("the plan has num_workers=0. Set num_workers=1 or more in the policy")
    if plan.by_config is not None:
        raise InvalidResourcesError(
            "the plan depends on the config of each run. Pass plan.for_config(config), with the config of the training "
            "loop"
        )
    growth, max_gpus = check_growth(growth), check_max_gpus(max_gpus)
    history = TrialOomHistory()
    while True:
        # Each attempt builds a new trainer, because its workers may need more than in the plan before.
        trainer = build_trainer(plan)
        _check_retries(trainer)
        try:
            return _fit_beyond_slot(trainer)
        except Exception as error:
            found = classify_failure(error)
            if found.kind == "none":
                raise
            # Read again after each failure, because nodes may have been added or lost in the meantime.
            nodes = read_cluster_state(READ_TIMEOUT_S).nodes
            try:
                decision = decide_worker_retry(plan, found, history, growth=growth, max_gpus=max_gpus, nodes=nodes)
                # Without a floor, the run is retried with the same memory.
                larger = plan
                if decision.floor is not None:
                    larger = larger_plan(plan, decision.floor, nodes)
            except InfeasibleRequestError as infeasible:
                raise infeasible from error
            if decision.kind == "leave_to_tune":
                _logger.warning("the workers are not retried: each worker %s", decision.reason)
                raise
            _logger.warning("the workers are retried: each worker %s", decision.reason)
            history = history_after(history, decision, found, settings={})
            pause_s = decision.pause_s
        time.sleep(pause_s)  # outside of the handler, because the traceback of the error keeps memory in use
        plan = larger


def _fit_beyond_slot(trainer: _Trainer) -> Any:
    """Run a trainer whose workers may need more than the slot of the trial, because memory ran out before."""
    before, CURRENT.trial.checks_workers = CURRENT.trial.checks_workers, False
    try:
        return trainer.fit()
    finally:
        CURRENT.trial.checks_workers = before


def _check_retries(trainer: _Trainer) -> None:
    of_ray = ray_trainer_class(trainer)
    if of_ray is not None:
        check_train_v2(of_ray)
    failure_config = getattr(getattr(trainer, "run_config", None), "failure_config", None)
    max_failures = getattr(failure_config, "max_failures", 0)
    if max_failures:
        raise InvalidResourcesError(
            f"the trainer has FailureConfig(max_failures={max_failures}), so Ray Train would retry workers that ran "
            "out of memory with too little memory. Set max_failures=0. To retry other failures, call "
            "fit_with_oom_retry again with the same name and storage"
        )
