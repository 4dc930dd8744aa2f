"""Reads untrusted files: only regular files of limited size, without blocking.

All external files are read with this module. A device, a pipe without a writer, or a file of several gigabytes raises
an error instead of blocking the program or filling the memory.
"""

import os
import stat
from pathlib import Path
from typing import Any, Final, TypeVar

from tune_policies.files.plain_data import MAX_PARTS, MAX_RECORD_PARTS, format_of, parse_data
from tune_policies.files.yaml_documents import MAX_CHARACTERS, DocumentError
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.units import MIB
from tune_policies.values.value import Value

MAX_BYTES: Final = MAX_CHARACTERS
"""The maximum size of a handwritten file, in bytes. In UTF-8, it has at most ``MAX_CHARACTERS`` characters."""

MAX_RECORD_BYTES: Final = 64 * MIB
"""The maximum size of a generated file, in bytes."""

ValueT = TypeVar("ValueT", bound=Value)


class UnreadableFileError(InvalidResourcesError):
    """A file is missing, not readable, not a regular file, or too large.

    Attributes:
        what: The expected content of the file.
        reason: The reason why the file cannot be read, usually with a fix.
        is_missing: Whether the file does not exist.
    """

    def __init__(self, path: str, what: str, reason: str, is_missing: bool = False) -> None:
        super().__init__(path, what, reason, is_missing)
        self.path = path
        self.what = what
        self.reason = reason
        self.is_missing = is_missing

    def _message(self) -> str:
        return f"cannot read the {self.what} {self.path}: {self.reason}"


def read_bytes(
    path: str | Path, *, what: str = "file", max_bytes: int = MAX_BYTES, by_others: bool = True, is_cut: bool = False
) -> bytes:
    """Return the content of a regular file. Symbolic links are followed.

    Args:
        path: The file.
        what: A description of the expected content, for error messages.
        max_bytes: The maximum size in bytes. A larger file raises an error, or is truncated if ``is_cut`` is true.
        by_others: Whether to accept a file that another user could have written.
        is_cut: Whether to return only the beginning of a larger file.

    Raises:
        UnreadableFileError: The file cannot be read.
    """
    try:
        _check_regular(Path(path).stat().st_mode)  # opening a device can have side effects
        # Do not block, because a pipe may have replaced the file.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(path, flags), "rb", buffering=0) as file:
            found = os.fstat(file.fileno())
            _check_regular(found.st_mode)
            is_shared = bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
            if not by_others and hasattr(os, "geteuid") and (is_shared or found.st_uid not in (0, os.geteuid())):
                raise PermissionError("another user could have written it. Delete the file, or run `chmod go-w` on it")
            too_large = OSError(f"it has more than {max_bytes:,} bytes. Remove unneeded parts")
            if found.st_size > max_bytes and not is_cut:
                raise too_large
            # A file can grow faster than it is read, so read only what it contained when it was opened. Files in /proc
            # have size 0, so read one byte more than allowed to detect that they are larger.
            left = min(found.st_size or max_bytes + 1, max_bytes + 1)
            chunks: list[bytes] = []
            while left > 0:
                chunk = file.read(min(left, MIB))
                if not chunk:
                    break
                chunks.append(chunk)
                left -= len(chunk)
            data = b"".join(chunks)
            if len(data) > max_bytes and not is_cut:
                raise too_large
            return data[:max_bytes]
    except (OSError, ValueError) as error:  # ValueError: not a valid file name
        reason = str(error)
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        is_missing = isinstance(error, FileNotFoundError)
        raise UnreadableFileError(str(path), what, reason, is_missing) from error


def _check_regular(mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError("it is a folder. Choose a file in it")
    if not stat.S_ISREG(mode):
        raise OSError("it is not a regular file. Save its content in a regular file")


def read_text(path: str | Path, *, what: str = "file", max_bytes: int = MAX_BYTES, errors: str = "strict") -> str:
    """Return the text of a regular file, or raise an error of :func:`read_bytes` or :func:`decode`."""
    return decode(read_bytes(path, what=what, max_bytes=max_bytes), str(path), errors)


def decode(data: bytes, source: str, errors: str = "strict") -> str:
    """Return UTF-8 bytes as text without a byte order mark, or raise a ``DocumentError`` with the line number.

    ``errors`` has the same meaning as for ``bytes.decode``.
    """
    try:
        return data.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DocumentError(source, line, f"the byte 0x{data[error.start]:02x} is not valid in UTF-8 text") from error


def get_text(filesystem: Any, path: str, *, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a file that ``put_text`` wrote on a pyarrow filesystem.

    Raises:
        Exception: The file cannot be read. Each filesystem raises its own errors.
    """
    if filesystem.type_name == "local":
        return read_text(path, max_bytes=max_bytes)
    with filesystem.open_input_stream(path) as stream:
        data = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise UnreadableFileError(path, "file", f"it has more than {max_bytes:,} bytes")
    return decode(data, path)


def read_data(path: str | Path, *, what: str = "file", max_bytes: int = MAX_BYTES, by_others: bool = True) -> Any:
    """Return the plain data of a file in JSON or YAML. For the arguments, see :func:`read_bytes`.

    Raises:
        UnreadableFileError: The file cannot be read.
        DocumentError: The file is not JSON or YAML, or exceeds the limits of :mod:`tune_policies.files.plain_data`.
    """
    data = read_bytes(path, what=what, max_bytes=max_bytes, by_others=by_others)
    max_parts = MAX_PARTS if max_bytes <= MAX_BYTES else MAX_RECORD_PARTS
    return parse_data(decode(data, str(path)), str(path), max_parts=max_parts)


def read_value(
    path: str | Path,
    cls: type[ValueT],
    what: str,
    *,
    hint: str = "",
    max_bytes: int = MAX_BYTES,
    by_others: bool = True,
) -> ValueT:
    """Read a JSON or YAML file, and return its content as an instance of ``cls``.

    ``what`` describes the expected content in error messages, and ``hint`` is appended to them. For the other
    arguments, see :func:`read_bytes`.

    Raises:
        UnreadableFileError: The file cannot be read.
        InvalidResourcesError: The content is not valid for ``cls``.
    """
    ending = f"; {hint}" if hint else ""
    try:
        parsed = read_data(path, what=f"{what} file", max_bytes=max_bytes, by_others=by_others)
        return cls.from_dict(parsed)
    except UnreadableFileError as error:
        raise UnreadableFileError(error.path, error.what, f"{error.reason}{ending}", error.is_missing) from error
    except DocumentError as error:
        raise DocumentError(error.source, error.line, f"{error.reason}{ending}") from error
    except InvalidResourcesError as error:
        raise wrong_file(path, what, parsed, error, ending) from error


def wrong_file(path: str | Path, what: str, data: object, error: object, ending: str = "") -> InvalidResourcesError:
    """Return the error for a file whose ``data`` does not have the expected format ``what``, as ``error`` describes.

    If the data has another known format, the message lists the options that accept that format.
    """
    found = format_of(data)
    if found is None:
        return InvalidResourcesError(f"{path} is not a {what}: {error}{ending}")
    if found.name == what:
        return InvalidResourcesError(f"{path} is not a valid {what}: {error}{ending}")
    return InvalidResourcesError(f"{path} is a {found.name}, not a {what}. Pass it as {found.given_as}{ending}")
