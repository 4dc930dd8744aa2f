"""Carries what a Train run's workers report to the Tune trial that started the run.

Ray has a callback for this (``ray.tune.integration.ray_train.TuneReportCallback``). With it Tune reads reports while
the trial's function runs, so the last ones may be lost or come after the trial's end, and a checkpoint is only a path
among the metrics. Here the trial's own thread takes the reports, in their order, until the run has said that it is
over.
"""

from dataclasses import dataclass
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayError
from ray.train import Checkpoint
from ray.train._internal.session import _TrainingResult, get_session  # Tune's session, in spite of its place
from ray.train.constants import CHECKPOINT_DIR_NAME
from ray.train.v2._internal.execution.callback import ControllerCallback, ReportCallback, WorkerCallback
from ray.train.v2._internal.execution.context import get_train_context
from ray.util.queue import Queue


@dataclass(frozen=True)
class Started:
    """The run's controller, with which its workers end."""

    controller: Any


@dataclass(frozen=True)
class Report:
    """What the worker of rank 0 reported once all had: Ray's own choice, too."""

    metrics: dict[str, Any]
    checkpoint: Checkpoint | None


@dataclass(frozen=True)
class Ended:
    """The last message: the run is over, with this error or with none."""

    error: BaseException | None


class ReportsToTrial(ControllerCallback, ReportCallback):  # type: ignore[misc]  # Ray is not followed
    """Sends every report of the workers to the trial. Runs in the process of Train's controller."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def after_controller_start(self, train_run_context: Any) -> None:
        """Tell the trial whom to end."""
        self._send(Started(ray.get_runtime_context().current_actor))

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        """Send one report, and wait while the trial is not ready for it: workers must not run far ahead of Tune."""
        self._send(Report(dict(metrics[0]), training_report.checkpoint))

    def _send(self, message: Started | Report) -> None:
        try:
            self._queue.put(message)
        except RayError:
            return  # the trial was stopped, which ends this process, too


class StartFromCheckpoint(WorkerCallback):  # type: ignore[misc]
    """Lets ``ray.train.get_checkpoint()`` return the checkpoint from which Tune starts the trial.

    Ray Train knows no public way to begin a run from another's checkpoint. Runs in each worker. Workers that Train
    starts again, by the run's own ``max_failures``, have a later one already.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def after_init_train_context(self) -> None:
        """Set it where the run has none of its own."""
        context = get_train_context()
        if context.checkpoint is None:
            context.checkpoint = self._checkpoint


def report_to_tune(report: Report) -> None:
    """Make the report a result of the trial; wait until Tune lets the trial go on.

    The checkpoint stays where Train has put it. ``tune.report`` would copy it into the trial's folder; the method below
    is how Ray Train itself, in its version 1, handed over a checkpoint that is stored already.

    Raises:
        SystemExit: Tune has stopped the trial.
    """
    if report.checkpoint is None:
        tune.report(report.metrics)
        return
    name = report.checkpoint.path.rstrip("/").rpartition("/")[2]
    metrics = {**report.metrics, CHECKPOINT_DIR_NAME: name}
    get_session()._report_training_result(_TrainingResult(report.checkpoint, metrics))
