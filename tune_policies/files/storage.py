"""Writes into the storage of a run: a folder of this machine, or what pyarrow reaches elsewhere."""

from pathlib import Path
from typing import Any

from tune_policies.files.writing import replace_file


def put_text(filesystem: Any, path: str, text: str) -> None:
    """Write a small file as a whole, in the place of the one that may be there; its folder is made if it is missing.

    Args:
        filesystem: Of pyarrow, as Ray writes the run's results.
        path: The file there.
        text: What it is to hold.

    Raises:
        Exception: It cannot be written; each filesystem has errors of its own.
    """
    if filesystem.type_name == "local":
        folder = Path(path).parent
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(Path(path), text)
        return
    try:
        _put(filesystem, path, text)
    except FileNotFoundError:
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        _put(filesystem, path, text)


def _put(filesystem: Any, path: str, text: str) -> None:
    with filesystem.open_output_stream(path) as stream:  # an object store shows no object before it is complete
        stream.write(text.encode())
