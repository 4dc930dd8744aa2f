"""A Train run as a trainable for Tune: each trial builds a trainer, and its reports are the trial's results."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from ray import tune
from ray.exceptions import RayError
from ray.train import RunConfig
from ray.tune.integration.ray_train import TuneReportCallback
from ray.util.queue import Queue

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.ray_compat.train_run import (
    DEFAULT_STORAGE_PATH,
    TrainingFailedError,
    error_in_worker,
    forget_earlier_run,
    is_named,
    with_run_config,
)
from tune_policies.ray_compat.tune_trial import add_mixin, storage_of_session
from tune_policies.values.errors import InvalidResourcesError, ResourcePolicyError

from ..deadlock_watch.watch import with_deadlock_check
from ..process import name_of
from ..train.train_loop import check_train_v2
from ..tune_trainable import with_plan
from .trial_run import EndsItsRun, ReportsToTrial, StartFromCheckpoint, begin_run


def in_trial_folder(run_config: RunConfig, storage: Any) -> RunConfig:
    """Return the run config with a folder that no other trial has.

    Without name and storage path it is the trial's own folder, so that the checkpoints lie where Tune's would. A name
    is kept as a folder in there; at a storage path of the user's there is a folder for each trial.

    Args:
        run_config: The user's; it is left untouched.
        storage: Tune's storage of the trial.

    Raises:
        InvalidResourcesError: Train is to delete checkpoints, of which Tune keeps the account.
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


def as_trainable(build_trainer: Callable[[dict[str, Any]], _Trainer], plan: TrialPlan) -> Any:
    """Return a trainable for ``tune.run`` and ``tune.Tuner`` whose trials are Train runs.

    A trial holds the plan's share for a driver, builds its trainer and waits for it. Every report of the worker of
    rank 0 is a result of the trial, with or without a checkpoint. Checkpoints are Tune's: its ``CheckpointConfig`` says
    which are kept, and a trial that is retried or restored, or that exploits another, finds the one to go on from by
    ``ray.train.get_checkpoint()`` in the training loop. A trial that Tune stops ends its workers.
    Also pass ``max_concurrent_trials=plan.max_concurrent_trials`` (or ``plan.tune_config()``): the drivers' own share
    holds back no trial. A trial whose workers can never start beside the other drivers fails within seconds.

    Args:
        build_trainer: Returns the trainer for a config: one of this package's, or any of Ray Train's version 2. Its
            ``RunConfig`` should leave name and storage path out: the run's files are then in the trial's folder.
        plan: The plan of a policy with ``num_workers`` of 1 or more.

    Raises:
        InvalidResourcesError: The plan has no Train workers. In the trial: ``build_trainer`` returned no trainer of Ray
            Train's version 2, or one that deletes checkpoints itself.
        InfeasibleRequestError: In the trial: there is no room for its workers beside what the drivers hold.
        Exception: In the trial: what the training loop raised.
    """
    if plan.num_workers == 0:
        raise InvalidResourcesError("the plan has num_workers=0: give the policy num_workers=1 or more")
    if not callable(build_trainer):
        raise InvalidResourcesError(
            f"build_trainer is a function of a config that returns a trainer, got {build_trainer!r}"
        )

    def trial(config: dict[str, Any]) -> None:
        _run_as_trial(build_trainer(config))

    trial.__name__ = name_of(build_trainer)  # Tune names trials after it
    add_mixin(trial, EndsItsRun)
    return with_plan(trial, plan)


def _run_as_trial(trainer: _Trainer) -> None:
    check_train_v2(_rays_own_class(trainer))
    run = begin_run()
    error = run.fit(with_deadlock_check(_in_trial(trainer, run.queue)))
    if error is not None:
        raise _users_error(error)


def _rays_own_class(trainer: object) -> type:
    for cls in type(trainer).__mro__:
        if cls.__module__.startswith("ray.train."):
            return cls
    raise InvalidResourcesError(f"build_trainer must return a trainer of Ray Train, got {trainer!r}")


def _in_trial(trainer: _Trainer, queue: Queue) -> Any:
    """Return the trainer with a folder of the trial's own, and what carries reports and checkpoints to and fro."""
    # Ray's callback would report everything a second time.
    of_user = [each for each in trainer.run_config.callbacks if not isinstance(each, TuneReportCallback)]
    callbacks = [*of_user, ReportsToTrial(queue)]
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        callbacks.append(StartFromCheckpoint(checkpoint))
    run_config = in_trial_folder(trainer.run_config, storage_of_session())
    run_config = replace(run_config, callbacks=callbacks)
    forget_earlier_run(run_config)
    return with_run_config(trainer, run_config)


def _users_error(error: BaseException) -> BaseException:
    """Return what the user's code raised, instead of what Ray Train wraps it in."""
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
