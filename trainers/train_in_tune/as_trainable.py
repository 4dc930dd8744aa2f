"""Makes a trainable for Tune of Train runs: each trial builds a trainer, whose reports are the trial's results."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from ray import tune
from ray.exceptions import RayError
from ray.train import RunConfig
from ray.tune.integration.ray_train import TuneReportCallback
from ray.util.queue import Queue

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.ray_compat.train_run import (
    DEFAULT_STORAGE_PATH,
    TrainingFailedError,
    delete_earlier_snapshot,
    error_in_worker,
    is_named,
    with_run_config,
)
from tune_policies.ray_compat.tune_trial import add_mixin, storage_of_session
from tune_policies.values.errors import InvalidResourcesError, ResourcePolicyError

from ..deadlock_watch.watch import with_deadlock_check
from ..process import name_of
from ..train.train_loop import check_train_v2
from ..tune_trainable import plan_of, with_plan
from .trial_run import EndRunWithTrial, SendReportsToTrial, StartFromCheckpoint, begin_run


def run_config_in_trial_folder(run_config: RunConfig, storage: Any) -> RunConfig:
    """Return the run config with a folder that no other trial has.

    Without name and storage path, that is the trial's own folder, so that the checkpoints are where Tune's would be. A
    name becomes a folder in the trial's. A storage path of the user's gets a folder for each trial.

    Args:
        run_config: The user's run config, which is not changed.
        storage: Tune's storage of the trial.

    Raises:
        InvalidResourcesError: Train is to delete checkpoints, but Tune decides which are kept.
    """
    num_to_keep = run_config.checkpoint_config.num_to_keep
    if num_to_keep is not None:
        raise InvalidResourcesError(
            f"the trainer has CheckpointConfig(num_to_keep={num_to_keep}), but in a trial its checkpoints are Tune's: "
            f"leave it out there, and give Tune tune.CheckpointConfig(num_to_keep={num_to_keep})"
        )
    if run_config.storage_filesystem is None and run_config.storage_path in (
        DEFAULT_STORAGE_PATH,
        storage.storage_fs_path,
    ):
        path, name = (
            (storage.trial_fs_path, run_config.name)
            if is_named(run_config)
            else (storage.experiment_fs_path, storage.trial_dir_name)
        )
        return replace(run_config, storage_path=path, storage_filesystem=storage.storage_filesystem, name=name)
    first = run_config.name if is_named(run_config) else storage.experiment_dir_name
    return replace(run_config, name=f"{first}/{storage.trial_dir_name}")


class _Trainer(Protocol):
    run_config: Any

    def fit(self) -> Any:
        """Train, and return the result."""


def as_trainable(build_trainer: Callable[[dict[str, Any]], _Trainer], plan: TrialPlan | ResourcePolicy) -> Any:
    """Return a trainable for ``tune.run`` and ``tune.Tuner`` whose trials are Train runs.

    A trial reserves the plan's share for a driver, builds its trainer and waits for it. Every report of the worker of
    rank 0 is a result of the trial, with or without a checkpoint. Tune's ``CheckpointConfig`` says which checkpoints
    are kept. A trial that is retried or restored, or that exploits another, gets the checkpoint to resume from by
    ``ray.train.get_checkpoint()`` in the training loop. A trial that Tune stops ends its workers.

    Run it by ``tune_policies.run`` or ``tune_policies.tuner``. With Tune's own, also pass
    ``max_concurrent_trials=plan.max_concurrent_trials`` (or ``plan.tune_config()``): a driver's share is too small to
    hold back other trials. A trial whose workers can never start beside other drivers fails within seconds.

    Args:
        build_trainer: Returns the trainer for a config: one of this package's, or any of Ray Train's version 2. Its
            Leave name and storage path out of its ``RunConfig``: the run's files are then in the trial's folder.
        plan: The plan of a policy with ``num_workers`` of 1 or more; or that policy, which then plans on the program's
            cluster. Where ``build_trainer`` is given the policy too, it gets the plan of the trial's slot.

    Raises:
        InvalidResourcesError: The plan has no Train workers. In the trial: ``build_trainer`` returned no trainer of Ray
            Train's version 2, or one that deletes checkpoints itself.
        InfeasibleRequestError: In the trial: its workers do not fit beside what the drivers hold.
        Exception: In the trial: what the training loop raised.
    """
    if not callable(build_trainer):
        raise InvalidResourcesError(
            f"build_trainer is a function of a config that returns a trainer, got {build_trainer!r}"
        )

    def trial(config: dict[str, Any]) -> None:
        _run_as_trial(build_trainer(config))

    trial.__name__ = name_of(build_trainer)  # Tune names trials after it
    add_mixin(trial, EndRunWithTrial)
    trainable = with_plan(trial, plan)
    made = plan_of(trainable)
    if made is not None and made.num_workers == 0:
        raise InvalidResourcesError("the plan has num_workers=0: give the policy num_workers=1 or more")
    return trainable


def _run_as_trial(trainer: _Trainer) -> None:
    check_train_v2(_ray_trainer_class(trainer))
    run = begin_run()
    error = run.fit(with_deadlock_check(_in_trial(trainer, run.queue)))
    if error is not None:
        raise _unwrap_user_error(error)


def _ray_trainer_class(trainer: object) -> type:
    for cls in type(trainer).__mro__:
        if cls.__module__.startswith("ray.train."):
            return cls
    raise InvalidResourcesError(f"build_trainer must return a trainer of Ray Train, got {trainer!r}")


def _in_trial(trainer: _Trainer, queue: Queue) -> Any:
    """Return the trainer with a folder of the trial's own, and callbacks that pass reports and checkpoints."""
    # Ray's TuneReportCallback would report everything a second time.
    of_user = [each for each in trainer.run_config.callbacks if not isinstance(each, TuneReportCallback)]
    callbacks = [*of_user, SendReportsToTrial(queue)]
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        callbacks.append(StartFromCheckpoint(checkpoint))
    run_config = run_config_in_trial_folder(trainer.run_config, storage_of_session())
    run_config = replace(run_config, callbacks=callbacks)
    delete_earlier_snapshot(run_config)
    return with_run_config(trainer, run_config)


def _unwrap_user_error(error: BaseException) -> BaseException:
    """Return what the user's code raised, without Ray Train's errors around it."""
    wrapped = getattr(error, "controller_failure", None)
    if isinstance(wrapped, ResourcePolicyError):
        return wrapped
    failures = getattr(error, "worker_failures", None) or {}
    for rank in sorted(failures):
        own = error_in_worker(failures[rank])
        if isinstance(own, Exception) and not isinstance(own, RayError | TrainingFailedError):
            # As a note: Tune raises the cause of an error in its place.
            own.add_note(str(error))
            return own
    return error
