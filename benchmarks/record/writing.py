"""Writes a file as a whole or not at all, where the user said."""

import secrets
import shutil
from pathlib import Path

from tune_policies.errors import InvalidResourcesError
from tune_policies.values import shorten


def replace_file(path: Path, content: str | bytes) -> None:
    """Write ``path`` so that nobody ever reads half of it, and an old one is there until the new one is.

    Raises:
        InvalidResourcesError: It cannot be written; what was there is still there.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        target = path.resolve()  # a link stays one
        if target.exists() and not target.is_file():  # a device would be replaced by a file
            raise InvalidResourcesError(f"{path} cannot be written: it is no ordinary file. Name another")
        half = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with half.open("xb") as file:
                file.write(data)
            if target.exists():
                shutil.copymode(target, half)
            half.replace(target)
        finally:
            half.unlink(missing_ok=True)
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidResourcesError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InvalidResourcesError(
            f"{path} cannot be written: {reason}. Name a file in a folder that is there, with room for it"
        ) from error


def path_within(folder: Path, name: str) -> Path:
    """Return the path of the file ``name`` in ``folder``, for a name that comes from data and not from the user.

    Raises:
        InvalidResourcesError: It would lie elsewhere.
    """
    path = folder / name
    is_plain = name not in ("", ".", "..") and not set(name) & set("/\\\0")
    if not is_plain or not path.resolve().is_relative_to(folder.resolve()):
        raise InvalidResourcesError(
            f"{shorten(name)} names no file in {folder}, and nothing is written outside of it: "
            "rename what the name comes from"
        )
    return path
