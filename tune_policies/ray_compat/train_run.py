"""Uses private APIs of Ray Train v2 for callbacks, the reports of workers, the files of a run, and aborting a run.

The names are imported from the modules that define them, because ``ray.train`` exports them only if v2 is active. They
are the same in Ray 2.50 and 2.60 unless a comment states a difference.
"""

import copy
import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Callable
from itertools import count, takewhile
from typing import Any, Final, NamedTuple, Self

import ray
import ray.train
from pyarrow.fs import FileType
from ray.exceptions import RayError
from ray.train import Checkpoint

from tune_policies.files.reading import MAX_RECORD_BYTES, get_text
from tune_policies.files.writing import put_text
from tune_policies.ray_compat.version import Gone, version_error, warn_of_untried_ray

try:
    from ray.train.v2._internal.execution.callback import (
        ControllerCallback,
        ReportCallback,
        WorkerCallback,
        WorkerGroupCallback,
    )
    from ray.train.v2.api.config import RunConfig
    from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError
except ImportError as error:
    ControllerCallback = ReportCallback = WorkerCallback = WorkerGroupCallback = Gone(error, "a Train run under a plan")
    RunConfig = ControllerError = TrainingFailedError = Gone(error, "a Train run under a plan")
try:
    from ray.train.constants import DEFAULT_STORAGE_PATH
    from ray.train.v2._internal.constants import CHECKPOINT_MANAGER_SNAPSHOT_FILENAME, HEALTH_CHECK_INTERVAL_S_ENV_VAR
    from ray.train.v2._internal.execution.context import get_train_context
except ImportError as error:
    DEFAULT_STORAGE_PATH = CHECKPOINT_MANAGER_SNAPSHOT_FILENAME = Gone(error, "a Train run as a trial of Tune")
    HEALTH_CHECK_INTERVAL_S_ENV_VAR = get_train_context = Gone(error, "a Train run as a trial of Tune")

__all__ = [  # the names of Ray that other modules import from here
    "DEFAULT_STORAGE_PATH",
    "ControllerCallback",
    "ControllerError",
    "ReportCallback",
    "RunConfig",
    "TrainingFailedError",
    "WorkerCallback",
    "WorkerGroupCallback",
]
# The public UserCallback has no hooks for the start of the controller, of a worker group, or of a worker.

_logger = logging.getLogger(__name__)

CONTROLLER_CLASS: Final = "TrainController"
"""The class name of a run's controller in Ray's actor table."""

REPORT_INTERVAL_VARIABLE: Final = HEALTH_CHECK_INTERVAL_S_ENV_VAR
"""Ray's environment variable for the interval at which Train's controller polls each worker for reports."""

_START_FILE: Final = ".began.json"
"""The file in a Train run's folder with the ``TrialStart`` and the checkpoint from which the run started."""

_DEFAULT_NAME_PREFIX: Final = "ray_train_run-"


def is_version_2(trainer: Callable[..., Any]) -> bool:
    """Return whether a trainer belongs to Ray Train v2, and v2 is active.

    Ray has no public function for either check. JAX has only a v2 trainer, but its config classes depend on the active
    version.
    """
    warn_of_untried_ray()
    # ``ray.train`` exports the ``RunConfig`` of the active version.
    return trainer.__module__.startswith("ray.train.v2.") and bool(RunConfig == ray.train.RunConfig)


def with_run_config(trainer: Any, run_config: RunConfig) -> Any:
    """Return a copy of a trainer with another run config.

    Trainers store the run config in two places, and have no public way to change it. A new trainer cannot be created,
    because trainers do not store all of their arguments.
    """
    # A shallow copy, because the loop, its config and datasets must stay the same objects.
    changed = copy.copy(trainer)
    changed.run_config = run_config
    # `dataclasses.replace` would change the run's identifier, which is not an argument of the constructor.
    changed.train_run_context = copy.copy(trainer.train_run_context)
    # ``TrainRunContext`` is a frozen dataclass.
    object.__setattr__(changed.train_run_context, "run_config", run_config)
    return changed


def worker_amounts(scaling_config: Any) -> dict[str, float]:
    """Return Ray's resource request for a worker, including the default CPU or GPU and the accelerator type.

    The public field, ``resources_per_worker``, is ``None`` by default.
    """
    return {name: amount for name, amount in scaling_config._resources_per_worker_not_none.items() if amount}


def is_named(run_config: RunConfig) -> bool:
    """Return whether the run's name comes from the user instead of Ray."""
    return not run_config.name.startswith(_DEFAULT_NAME_PREFIX)


class TrialStart(NamedTuple):
    """Identifies a start of a trial, to decide whether a later start may reuse the earlier Train run's reports.

    The config cannot identify a restored trial, because Tune draws ``tune.sample_from`` again and returns tuples as
    lists, and the ``repr`` of a function or an object may contain its address.

    Attributes:
        trial_id: Tune's identifier of the trial, which stays the same when Tune restores the trial.
        program: An identifier of the program that runs the trial.
        config: A digest of the trial's config without memory addresses. It is comparable only within a program.
    """

    trial_id: str
    program: str
    config: str

    @classmethod
    def of(cls, trial_id: str, program: str, config: dict[str, Any]) -> Self:
        """Return the start of a trial with ``config``."""
        try:
            text = re.sub(r"\bat 0x[0-9A-Fa-f]+", "", repr(config))
        except Exception:  # noqa: BLE001  # the objects in a config may be of any class
            text = ""
        return cls(trial_id, program, hashlib.sha256(text.encode(errors="replace")).hexdigest())

    def continues(self, earlier: Self) -> bool:
        """Return whether this start continues ``earlier``.

        Within a program, a scheduler may start the trial with another config, as PBT does. That start must not reuse
        the reports of the previous config.
        """
        return self.trial_id == earlier.trial_id and (self.program != earlier.program or self.config == earlier.config)


def unconsumed_reports(
    run_config: RunConfig, checkpoint: Checkpoint | None, start: TrialStart
) -> list[tuple[dict[str, Any], Checkpoint]]:
    """Return the reports that the earlier run in the same folder made after ``checkpoint``, each with its checkpoint.

    Train saves a snapshot at each report, but Tune saves the state of trials at most every ten seconds. Therefore, if
    the program is killed, a trial may be restored from an older checkpoint than its last checkpoint.

    The list ends before a report without a checkpoint, because Tune would number the later reports incorrectly. The
    list is empty if ``checkpoint`` is not from the earlier run, for instance because the trial now exploits another
    trial, or if ``start`` does not continue the earlier run. Before Ray 2.54, the list is always empty, because Train's
    snapshot does not number reports. If a snapshot has an unknown form, a warning is logged.
    """
    try:
        began, account = (_read_json(run_config, name) for name in (_START_FILE, CHECKPOINT_MANAGER_SNAPSHOT_FILENAME))
        is_continued, initial = start.continues(TrialStart(**began["start"])), began["checkpoint"]
    except Exception:  # noqa: BLE001  # filesystems raise errors of their own, and the trial can run without the reports
        return []
    if not is_continued or _has_no_numbers(account):
        return []
    try:
        results = {
            index: (result["metrics"], _path_in(run_config, result["checkpoint_dir_name"]))
            for index, result in zip(account["checkpoint_report_indices"], account["checkpoint_results"], strict=True)
        }
    except (KeyError, TypeError, ValueError) as error:
        _logger.warning(
            "the reports of the trial's earlier Train run in %s cannot be read, so the trial resumes from the latest "
            "checkpoint that Tune saved: %s %s in %s",
            run_config.storage_context.experiment_fs_path,
            type(error).__name__,
            error,
            CHECKPOINT_MANAGER_SNAPSHOT_FILENAME,
        )
        return []
    path = None if checkpoint is None else checkpoint.path.rstrip("/")
    # The reports are counted from the checkpoint from which the trial resumes. The checkpoint from which the earlier
    # run started comes before its first report.
    numbers = {at: index for index, (_, at) in results.items()} | {initial: -1}
    if path not in numbers:
        return []
    following = takewhile(lambda index: index in results, count(numbers[path] + 1))
    filesystem = run_config.storage_context.storage_filesystem
    try:
        # Tune may have deleted checkpoints, and a result without its checkpoint cannot be reported.
        there = list(takewhile(lambda index: _is_folder(filesystem, results[index][1]), following))
    except Exception:  # noqa: BLE001  # see above
        return []
    return [(results[index][0], Checkpoint(results[index][1], filesystem)) for index in there]


def _is_folder(filesystem: Any, path: str) -> bool:
    return bool(filesystem.get_file_info(path).type == FileType.Directory)


def _has_no_numbers(account: Any) -> bool:
    """Return whether a snapshot is from a version of Ray before 2.54, which has the field ``version`` instead."""
    return isinstance(account, dict) and "version" in account and "checkpoint_report_indices" not in account


def begin_account(run_config: RunConfig, checkpoint: Checkpoint | None, start: TrialStart) -> None:
    """Remove Train's snapshot of an earlier run in the same folder, and save the next run's start.

    Otherwise, Train would restore the snapshot. However, Tune decides from which checkpoint a trial resumes, and may
    choose another trial's checkpoint. Tune may also have deleted checkpoints that the snapshot lists, and Train would
    not start without them.
    """
    filesystem = run_config.storage_context.storage_filesystem
    for name in (_START_FILE, CHECKPOINT_MANAGER_SNAPSHOT_FILENAME):
        file = _path_in(run_config, name)
        # ``delete_file`` raises an error if there is no such file.
        if filesystem.get_file_info(file).is_file:
            filesystem.delete_file(file)
    path = None if checkpoint is None else checkpoint.path.rstrip("/")
    began = {"checkpoint": path, "start": start._asdict()}
    put_text(filesystem, _path_in(run_config, _START_FILE), json.dumps(began))


def _path_in(run_config: RunConfig, name: str) -> str:
    return f"{run_config.storage_context.experiment_fs_path}/{name}"


def _read_json(run_config: RunConfig, name: str) -> Any:
    filesystem = run_config.storage_context.storage_filesystem
    return json.loads(get_text(filesystem, _path_in(run_config, name), max_bytes=MAX_RECORD_BYTES))


def start_from_checkpoint(checkpoint: Checkpoint) -> None:
    """Make ``ray.train.get_checkpoint()`` return ``checkpoint`` in this worker, unless the run has its own checkpoint.

    Ray Train has no public way to start a run from another run's checkpoint.
    """
    context = get_train_context()
    if context.checkpoint is None:
        context.checkpoint = checkpoint


def add_to_reports(change: Callable[[dict[str, Any]], dict[str, Any]]) -> bool:
    """Replace the metrics of each ``ray.train.report`` in this worker with the result of ``change``.

    Ray Train has no public hook for this. The function returns ``False`` outside of a worker. If Ray lacks the private
    API, it also logs a warning.
    """
    try:
        from ray.train.v2._internal.execution.train_fn_utils import get_train_fn_utils

        utils = get_train_fn_utils()
        report = utils.report
    except RuntimeError:  # this process is not a worker of Train
        return False
    except (ImportError, AttributeError) as error:
        _logger.warning("%s", version_error(error, "resource usage in the results of a Train run"))
        return False

    def report_changed(metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        return report(change(metrics), *args, **kwargs)

    utils.report = report_changed
    return True


def use_cpu_without_gpu() -> bool:
    """Make ``ray.train.torch`` prepare models and batches for the CPU if PyTorch sees none of Ray's GPUs.

    ``ray.train.torch`` relies on Ray's GPUs, which may be simulated, and has no setting for this. The function
    returns ``False`` if PyTorch sees a GPU or is not imported, or if Ray assigned no GPU.
    """
    torch = sys.modules.get("torch")
    if torch is None or torch.cuda.is_available() or not ray.get_gpu_ids():
        return False
    from ray.air._internal import device_manager  # imports PyTorch

    device_manager._torch_device_manager = device_manager.CPUTorchDeviceManager()
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"  # Ray sets this variable for Hugging Face before the loop starts
    return True


def error_in_worker(failure: Any) -> Any:
    """Return the error that a worker's loop raised. Before Ray 2.55, Ray wraps it in another error."""
    return getattr(failure, "_base_exc", failure)


def run_id_of(controller: Any) -> str:
    """Return the actor ID of a run's controller. Ray has no public function for this ID."""
    return str(controller._actor_id.hex())


def abort_run(controller: Any, timeout_s: float) -> None:
    """Make a run's controller terminate its workers, its helper actors and itself within ``timeout_s`` seconds.

    Ray calls the same method if ``fit`` is interrupted. Killing the controller would leave its helpers running.
    """
    try:
        ray.get(controller.abort.remote(), timeout=timeout_s)
    except RayError:
        return  # the controller has ended, or did not answer in time
