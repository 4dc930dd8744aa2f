"""Runs Ray Train in the trials of Tune. The reports of the Train workers become the results of the trial.

With Ray's ``TuneReportCallback``, the last reports may be lost or arrive after the trial's end, and a checkpoint is
only a path among the metrics. In this module, the trial's own thread reads the reports in order until the Train run
ends. If the trial ends first, the Train run is stopped.
"""

import os
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import ray
from ray import tune
from ray.exceptions import RayError
from ray.train import Checkpoint, RunConfig
from ray.tune.integration.ray_train import TuneReportCallback
from ray.util.queue import Queue

from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.ray_compat.train_run import (
    DEFAULT_STORAGE_PATH,
    REPORT_INTERVAL_VARIABLE,
    ControllerCallback,
    ReportCallback,
    TrainingFailedError,
    TrialStart,
    WorkerCallback,
    abort_run,
    begin_account,
    error_in_worker,
    is_named,
    run_id_of,
    start_from_checkpoint,
    unconsumed_reports,
    with_run_config,
)
from tune_policies.ray_compat.tune_trial import add_mixin, report_stored_checkpoint, storage_of_session
from tune_policies.values.errors import InvalidResourcesError, ResourcePolicyError

from ..process.current_process import CURRENT
from ..process.process_setup import name_of
from ..watches.deadlock_watch import with_deadlock_check
from ..watches.stuck_train_runs import remove_groups
from .build_trainer import check_train_v2, ray_trainer_class
from .scaling_config_check import check_workers


@dataclass(frozen=True)
class ControllerStarted:
    """The message that is sent when the controller of the run has started."""

    controller: Any


@dataclass(frozen=True)
class Report:
    """The message that is sent when all workers have reported. It contains rank 0's report, as in Ray's callback."""

    metrics: dict[str, Any]
    checkpoint: Checkpoint | None


@dataclass(frozen=True)
class RunEnded:
    """The last message. It contains the error of the run, or ``None``."""

    error: BaseException | None


class SendReportsToTrial(ControllerCallback, ReportCallback):  # type: ignore[misc]  # Ray's classes are untyped
    """Sends every report of the workers to the trial. This callback runs in the process of Train's controller."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def after_controller_start(self, train_run_context: Any) -> None:
        """Send the controller's handle to the trial, so that the trial can stop the controller."""
        self._send(ControllerStarted(ray.get_runtime_context().current_actor))

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        """Send a report after the trial has read the previous one, so that workers do not run far ahead of Tune."""
        self._send(Report(dict(metrics[0]), training_report.checkpoint))

    def _send(self, message: ControllerStarted | Report) -> None:
        try:
            self._queue.put(message)
        except RayError:
            return  # the trial was stopped, which also ends this process


class StartFromCheckpoint(WorkerCallback):  # type: ignore[misc]
    """Makes ``ray.train.get_checkpoint()`` return the trial's checkpoint from Tune in each worker.

    Workers that Train restarts because of the run's own ``max_failures`` already have a later checkpoint.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def after_init_train_context(self) -> None:
        """Set the checkpoint, unless the Train run already has one."""
        start_from_checkpoint(self._checkpoint)


_POLLS_PER_S: Final = 100
_ABORT_TIMEOUT_S: Final = 5.0
"""The time in seconds that Train's controller may take to stop its workers and itself before it is killed."""


class TrainerThread:
    """Runs a trainer in another thread, so that the trial's thread can report to Tune."""

    def __init__(self) -> None:
        # Tune starts a trial's actors in the trial's placement group (``placement_group_capture_child_tasks``), which
        # may have no CPU. By default, Ray needs one to place an actor.
        self.queue = Queue(maxsize=1, actor_options={"num_cpus": 0})
        self._controller: Any = None
        self._is_over = False
        self._lock = threading.Lock()

    def fit(self, trainer: Any) -> BaseException | None:
        """Run the trainer, pass its reports to Tune as results of the trial, and return its error or ``None``.

        Raises:
            SystemExit: Tune has stopped the trial.
        """
        # Ray's default interval of 2 s is meant for hundreds of workers, and would delay frequent reports.
        num_workers = trainer.scaling_config.num_workers
        most = num_workers[1] if isinstance(num_workers, tuple) else num_workers
        os.environ.setdefault(REPORT_INTERVAL_VARIABLE, f"{min(2.0, max(0.1, most / _POLLS_PER_S)):g}")
        # A daemon thread, so that a run that hangs does not keep the trial's process alive.
        threading.Thread(target=self._fit, args=(trainer,), daemon=True).start()
        try:
            message = self.queue.get()
            while not isinstance(message, RunEnded):
                # Reporting blocks until Tune continues the trial, or stops it with a SystemExit. The checkpoint is
                # already stored, so it is not copied.
                if isinstance(message, ControllerStarted):
                    self._controller = message.controller
                elif message.checkpoint is None:
                    tune.report(message.metrics)
                else:
                    report_stored_checkpoint(message.metrics, message.checkpoint)
                message = self.queue.get()
        except RayError:
            if self._is_over:  # another thread has stopped the run
                # Tune's ``RunnerThread`` treats SystemExit with code 0 as a regular end of the function.
                sys.exit(0)
            self.end()
            raise
        if message.error is not None:  # the controller may have died without releasing its resources
            self.end()
        ray.kill(self.queue.actor)
        self._is_over = True
        return message.error

    def _fit(self, trainer: Any) -> None:
        """Run the trainer, and then send ``RunEnded``.

        ``RunEnded`` is the last message, because every report is in the queue before ``fit`` returns.
        """
        error: BaseException | None = None
        try:
            trainer.fit()
        except BaseException as raised:  # noqa: BLE001  # the trial's thread raises it
            error = raised
        try:
            self.queue.put(RunEnded(error))
        except RayError:
            return  # the trial was stopped

    def end(self) -> None:
        """Stop the run and its workers, and release their resources. Several threads may call this method."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        ray.kill(self.queue.actor)  # the trial's thread and Train's controller may be waiting for the queue
        if self._controller is None:
            return
        controller_id = run_id_of(self._controller)
        with suppress(RayError):  # the controller may have died already
            remove_groups(controller_id, only_pending=True)  # a waiting controller handles no calls
            abort_run(self._controller, _ABORT_TIMEOUT_S)
        # The controller may not have answered in time.
        ray.kill(self._controller)
        remove_groups(controller_id)


class EndRunWithTrial(tune.Trainable):  # type: ignore[misc]  # Ray's classes are untyped
    """A mixin for the trainable that Tune creates from a function. It stops the Train run at the end of the trial.

    Tune calls these methods while the function waits in ``tune.report``, or after the function has ended. Soon
    afterwards, Tune kills the process, so the function's own thread would have no time to stop the run.
    """

    def cleanup(self) -> None:
        """Stop the run before the trial's process ends."""
        _end_run()
        super().cleanup()

    def reset_config(self, new_config: Any) -> bool:
        """Stop the run before another trial uses this process."""
        _end_run()
        return bool(super().reset_config(new_config))


def _end_run() -> None:
    if CURRENT.trial.end_train_run is not None:
        CURRENT.trial.end_train_run()


def run_config_in_trial_folder(run_config: RunConfig, storage: Any) -> RunConfig:
    """Return the user's run config with a separate folder for the trial.

    By default, this is the trial's folder in Tune's storage. If the run config has a name, a subfolder with that name
    is used. If the run config has a storage path, each trial gets a folder in that path.

    Raises:
        InvalidResourcesError: ``num_to_keep`` is set, but Tune decides which checkpoints are kept.
    """
    num_to_keep = run_config.checkpoint_config.num_to_keep
    if num_to_keep is not None:
        raise InvalidResourcesError(
            f"the trainer has CheckpointConfig(num_to_keep={num_to_keep}), but Tune manages a trial's checkpoints. "
            f"Remove num_to_keep from the trainer, and pass tune.CheckpointConfig(num_to_keep={num_to_keep}) to Tune"
        )
    if run_config.storage_filesystem is None and run_config.storage_path in (
        DEFAULT_STORAGE_PATH,
        storage.storage_fs_path,
    ):
        # Train joins the storage path and the name, so that both together are the trial's folder.
        path, name = storage.experiment_fs_path, storage.trial_dir_name
        if is_named(run_config):
            path, name = storage.trial_fs_path, run_config.name
        return replace(run_config, storage_path=path, storage_filesystem=storage.storage_filesystem, name=name)
    first = run_config.name if is_named(run_config) else storage.experiment_dir_name
    return replace(run_config, name=f"{first}/{storage.trial_dir_name}")


class _Trainer(Protocol):
    run_config: Any
    scaling_config: Any

    def fit(self) -> Any:
        """Train, and return the result."""


def as_trainable(build_trainer: Callable[[dict[str, Any]], _Trainer]) -> Callable[[dict[str, Any]], None]:
    """Return a trainable for ``run`` and ``tuner`` whose trials are Train runs.

    Example: ``run(as_trainable(build_trainer), CpuPolicy(cpus=2, num_workers=2))``. A trial reserves the resources for
    its driver, builds its trainer, and waits until training ends. Every report of the worker with rank 0 is a result of
    the trial, with or without a checkpoint. Tune's ``CheckpointConfig`` defines which checkpoints are kept. In a trial
    that is retried or restored, or that exploits another trial, ``ray.train.get_checkpoint()`` returns the checkpoint
    to resume from. If the program was killed, reports that Tune has not received become results before training
    resumes. When Tune stops a trial, its workers are stopped too. If the workers of a trial can never start because of
    other drivers, the trial fails within seconds.

    Args:
        build_trainer: A function that returns the trainer for a config: a trainer of this package, or any trainer of
            Ray Train version 2. If it passes the policy of the run to a trainer of this package, the workers get the
            resources of the trial's slot. Leave ``name`` and ``storage_path`` out of the ``RunConfig``, so that the
            files are stored in the trial's folder.

    Raises:
        InvalidResourcesError: ``build_trainer`` is not a function. In the trial, the policy has no Train workers,
            ``build_trainer`` did not return a trainer of Ray Train version 2, the trainer requests more workers or more
            resources for each worker than the policy plans, or the trainer sets ``num_to_keep``.
        InfeasibleRequestError: In the trial, other drivers leave too few resources for the workers.
        Exception: In the trial, the training loop raised this error.
    """
    if not callable(build_trainer):
        raise InvalidResourcesError(
            f"build_trainer must be a function of a config that returns a trainer, got {build_trainer!r}"
        )

    program = uuid.uuid4().hex

    def trial(config: dict[str, Any]) -> None:
        slot = CURRENT.trial.slot
        if slot is not None and slot.num_workers == 0:
            raise InvalidResourcesError("the policy has num_workers=0. Set num_workers=1 or more")
        start = TrialStart.of(tune.get_context().get_trial_id(), program, config)
        _run_as_trial(build_trainer(config), slot, start)

    trial.__name__ = name_of(build_trainer)  # Tune uses this name in the names of trials
    add_mixin(trial, EndRunWithTrial)
    return trial


def _run_as_trial(trainer: _Trainer, slot: TrialSlot | None, start: TrialStart) -> None:
    of_ray = ray_trainer_class(trainer)
    if of_ray is None:
        raise InvalidResourcesError(f"build_trainer must return a trainer of Ray Train, got {trainer!r}")
    check_train_v2(of_ray)
    if slot is not None:
        check_workers(trainer.scaling_config, slot)
    run = TrainerThread()
    # Set before the run starts, because Tune may stop the trial at any time.
    CURRENT.trial.end_train_run = run.end
    error = run.fit(with_deadlock_check(_in_trial(trainer, run.queue, start)))
    if error is not None:
        raise _unwrap_user_error(error)


def _in_trial(trainer: _Trainer, queue: Queue, start: TrialStart) -> Any:
    """Return the trainer with the trial's folder, and with callbacks that forward reports and checkpoints.

    First, report the results that an earlier run stored in that folder and that Tune has not received.
    """
    # Ray's TuneReportCallback would report everything a second time.
    of_user = trainer.run_config.callbacks
    callbacks = [callback for callback in of_user if not isinstance(callback, TuneReportCallback)]
    callbacks.append(SendReportsToTrial(queue))
    run_config = run_config_in_trial_folder(trainer.run_config, storage_of_session())
    checkpoint = tune.get_checkpoint()
    for metrics, later in unconsumed_reports(run_config, checkpoint, start):
        report_stored_checkpoint(metrics, later)
        checkpoint = later
    if checkpoint is not None:
        callbacks.append(StartFromCheckpoint(checkpoint))
    # After the reports of the earlier run were read, because this call deletes Train's snapshot of that run.
    begin_account(run_config, checkpoint, start)
    run_config = replace(run_config, callbacks=callbacks)
    return with_run_config(trainer, run_config)


def _unwrap_user_error(error: BaseException) -> BaseException:
    """Return the error of the user's code, without the wrapping errors of Ray Train."""
    wrapped = getattr(error, "controller_failure", None)
    # An error of this package, such as a deadlock of workers, is clear by itself.
    if isinstance(wrapped, ResourcePolicyError):
        return wrapped
    failures = getattr(error, "worker_failures", None) or {}
    # The first worker that failed with an error of its own. The errors of the others often only follow from it, for
    # example if a collective operation loses a worker.
    for rank in sorted(failures):
        own = error_in_worker(failures[rank])
        if isinstance(own, Exception) and not isinstance(own, RayError | TrainingFailedError):
            # Do not chain the errors, because Tune would raise the cause instead of this error.
            own.add_note(str(error))
            return own
    return error
