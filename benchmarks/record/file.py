"""The file of a run."""

from pathlib import Path

from tune_policies.errors import InvalidResourcesError

from .run_set import RunSet


def read_run_set(path: Path) -> RunSet:
    """Read what was written.

    Raises:
        InvalidResourcesError: There is no such file, or it is none of these.
    """
    try:
        return RunSet.from_json(path.read_text())
    except OSError as error:
        raise InvalidResourcesError(f"{path} cannot be read: {error}") from error


def write_run_set(run_set: RunSet, path: Path) -> None:
    """Write a run to a file."""
    path.write_text(run_set.to_json())
