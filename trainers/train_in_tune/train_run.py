"""Where a Train run inside a Tune trial keeps its files."""

from dataclasses import replace
from typing import Any, Final

from ray.train import RunConfig
from ray.train.constants import DEFAULT_STORAGE_PATH

from tune_policies.errors import InvalidResourcesError

_NAME_OF_NONE_GIVEN: Final = "ray_train_run-"
"""How Ray's names begin that a ``RunConfig`` gets without one."""

_SNAPSHOT: Final = "checkpoint_manager_snapshot.json"


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
    is_named = not run_config.name.startswith(_NAME_OF_NONE_GIVEN)
    if run_config.storage_filesystem is None and run_config.storage_path in (
        DEFAULT_STORAGE_PATH,
        storage.storage_fs_path,
    ):
        path, name = (
            (storage.trial_fs_path, run_config.name)
            if is_named
            else (storage.experiment_fs_path, storage.trial_dir_name)
        )
        return replace(run_config, storage_path=path, storage_filesystem=storage.storage_filesystem, name=name)
    first = run_config.name if is_named else storage.experiment_dir_name
    return replace(run_config, name=f"{first}/{storage.trial_dir_name}")


def forget_earlier_run(run_config: RunConfig) -> None:
    """Remove Train's account of an earlier run in the same folder.

    Tune says from which checkpoint a trial goes on, which may be another trial's, and has deleted some of those in the
    account, without which Train would not start.
    """
    storage = run_config.storage_context
    filesystem, path = storage.storage_filesystem, f"{storage.experiment_fs_path}/{_SNAPSHOT}"
    if filesystem.get_file_info(path).is_file:
        filesystem.delete_file(path)
