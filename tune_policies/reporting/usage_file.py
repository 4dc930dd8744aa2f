"""Keeps the record of a run in the folder of its experiment, wherever that is."""

from collections.abc import Callable
from typing import Any

from .record import USAGE_FILE


def writer(storage: Any, text: str) -> Callable[[], None]:
    """Return what writes ``text`` into an experiment's folder, of which Ray's ``storage`` of any of its trials tells.

    A reader finds the old file or the new one, never a part: on a disk it is put in place by its name; an object store
    shows no object before it is complete.
    """
    filesystem, folder = storage.storage_filesystem, storage.experiment_fs_path
    path = f"{folder}/{USAGE_FILE}"
    is_local = filesystem.type_name == "local"

    def write() -> None:
        if is_local:
            filesystem.create_dir(folder, recursive=True)
        written = f"{path}.part" if is_local else path
        with filesystem.open_output_stream(written) as stream:
            stream.write(text.encode())
        if is_local:
            filesystem.move(written, path)

    return write
