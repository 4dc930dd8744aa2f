"""Runs a Train run in a Tune trial: its reports become the trial's results, and it ends when the trial ends.

Ray has ``TuneReportCallback`` for reports. With it Tune reads them while the trial's function runs, so the last ones
may be lost or come after the trial's end, and a checkpoint is only a path among the metrics. Here the trial's own
thread takes the reports in order until the run has ended.
"""

import os
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray import tune
from ray.exceptions import RayError
from ray.train import Checkpoint
from ray.util.queue import Queue

from tune_policies.ray_compat.train_run import (
    REPORT_INTERVAL_VARIABLE,
    ControllerCallback,
    ReportCallback,
    WorkerCallback,
    abort_run,
    run_id_of,
    start_from_checkpoint,
)
from tune_policies.ray_compat.tune_trial import report_stored_checkpoint

from ..deadlock_watch.occupancy import remove_groups


@dataclass(frozen=True)
class ControllerStarted:
    """The run's controller has started; its workers end when it is ended."""

    controller: Any


@dataclass(frozen=True)
class Report:
    """The report of the worker of rank 0, once all workers have reported. Ray's own callback takes that one too."""

    metrics: dict[str, Any]
    checkpoint: Checkpoint | None


@dataclass(frozen=True)
class RunEnded:
    """The last message: the run is over, with this error or without one."""

    error: BaseException | None


class SendReportsToTrial(ControllerCallback, ReportCallback):  # type: ignore[misc]  # Ray is not followed
    """Sends every report of the workers to the trial. Runs in the process of Train's controller."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def after_controller_start(self, train_run_context: Any) -> None:
        """Send the controller to the trial, which may have to end it."""
        self._send(ControllerStarted(ray.get_runtime_context().current_actor))

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        """Send one report, and wait until the trial takes it: workers must not run far ahead of Tune."""
        self._send(Report(dict(metrics[0]), training_report.checkpoint))

    def _send(self, message: ControllerStarted | Report) -> None:
        try:
            self._queue.put(message)
        except RayError:
            return  # the trial was stopped, which ends this process, too


class StartFromCheckpoint(WorkerCallback):  # type: ignore[misc]
    """Lets ``ray.train.get_checkpoint()`` return the checkpoint from which Tune starts the trial.

    Runs in each worker. Workers that Train restarts, by the run's own ``max_failures``, have a later
    checkpoint already.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def after_init_train_context(self) -> None:
        """Set it where the run has none of its own."""
        start_from_checkpoint(self._checkpoint)


def report_to_tune(report: Report) -> None:
    """Make the report a result of the trial; wait until Tune lets the trial go on.

    A checkpoint stays where Train has put it.

    Raises:
        SystemExit: Tune has stopped the trial.
    """
    if report.checkpoint is None:
        tune.report(report.metrics)
    else:
        report_stored_checkpoint(report.metrics, report.checkpoint)


_POLLS_PER_S: Final = 100
_ABORT_TIMEOUT_S: Final = 5.0
"""How long Train's controller may take to end its workers and itself, before it is killed."""


class TrialRun:
    """Runs one trainer in a thread of its own, so that the trial's thread can report to Tune."""

    def __init__(self) -> None:
        # ControllerStarted now, so that it is there when Train's controller is.
        self.queue = Queue(maxsize=1, actor_options={"num_cpus": 0})
        self._controller: Any = None
        self._is_over = False
        self._lock = threading.Lock()

    def fit(self, trainer: Any) -> BaseException | None:
        """Run the trainer, make its reports results of the trial, and return its error.

        Raises:
            SystemExit: Tune has stopped the trial.
        """
        os.environ.setdefault(REPORT_INTERVAL_VARIABLE, f"{report_interval_s(trainer.scaling_config.num_workers):g}")
        threading.Thread(target=self._fit, args=(trainer,), daemon=True).start()
        try:
            while not isinstance(message := self.queue.get(), RunEnded):
                if isinstance(message, ControllerStarted):
                    self._controller = message.controller
                else:
                    report_to_tune(message)
        except RayError:
            if self._is_over:  # it was ended from outside
                sys.exit(0)
            self.end()
            raise
        if message.error is not None:  # its controller may have died, and left what it held
            self.end()
        ray.kill(self.queue.actor)
        self._is_over = True
        return message.error

    def _fit(self, trainer: Any) -> None:
        """Run the trainer, and send how it ended. That is the last message, as every report waits until it is taken."""
        error: BaseException | None = None
        try:
            trainer.fit()
        except BaseException as raised:  # noqa: BLE001  # it is raised in the trial's thread
            error = raised
        try:
            self.queue.put(RunEnded(error))
        except RayError:
            return  # the trial was stopped, and nobody listens any more

    def end(self) -> None:
        """End the run and its workers, and free what they hold. Any thread may call it, also twice."""
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
        ray.kill(self.queue.actor)
        if self._controller is None:
            return
        controller_id = run_id_of(self._controller)
        with suppress(RayError):
            remove_groups(controller_id, only_pending=True)  # while it waits for them, it handles no call
            abort_run(self._controller, _ABORT_TIMEOUT_S)
        ray.kill(self._controller)
        remove_groups(controller_id)


def report_interval_s(num_workers: int | tuple[int, int]) -> float:
    """Return the seconds between two reports that Train takes: 0.1 for a few workers, Ray's default of 2 for hundreds.

    With Ray's default, a loop that reports more often waits, which a trial of Tune without Train does not.
    """
    most = num_workers[1] if isinstance(num_workers, tuple) else num_workers
    return min(2.0, max(0.1, most / _POLLS_PER_S))


_current: TrialRun | None = None
"""The Train run of the trial that this process runs, or ran last."""


def begin_run() -> TrialRun:
    """Return a new run, which ends with the trial that runs in this process."""
    global _current
    _current = TrialRun()
    return _current


class EndRunWithTrial(tune.Trainable):  # type: ignore[misc]  # Ray is not followed
    """A mixin for the trainable that Tune makes of a function: it ends the Train run when Tune is done with the trial.

    Tune calls it while the function waits at a report, or once the function has ended. Soon after, Tune kills the
    process: too soon for the function's own thread to end what it has started.
    """

    def cleanup(self) -> None:
        """End the run before the trial's process ends."""
        _end_current()
        super().cleanup()

    def reset_config(self, new_config: Any) -> bool:
        """End the run before another trial uses this process."""
        _end_current()
        return bool(super().reset_config(new_config))


def _end_current() -> None:
    if _current is not None:
        _current.end()
