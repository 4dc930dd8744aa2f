"""Keeps the record of a run in the folder of its experiment, wherever that is."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tune_policies.files.storage import put_text

from .record import USAGE_FILE


def writer(storage: Any, text: str) -> Callable[[], None]:
    """Return what writes ``text`` into an experiment's folder, of which Ray's ``storage`` of any of its trials tells.

    A reader finds the old file or the new one, never a part.
    """
    return partial(put_text, storage.storage_filesystem, f"{storage.experiment_fs_path}/{USAGE_FILE}", text)
