"""Writes files atomically, so that no process reads an incomplete file.

New content is written to a temporary file in the same folder, synced to the disk and then renamed. A replaced file
keeps its mode, owner and, if possible, extended attributes. If its mode or owner cannot be kept, or if the file is
read-only, it is not replaced. ``--force`` only replaces files with the same kind of content, and never an input.

Libraries such as ``filelock`` and ``atomicwrites`` cannot replace this module, because they do not check links, keep
the owner and attributes, or compare the old content. Without the owner and the access control lists (an extended
attribute), a page that root or a colleague writes again would no longer be accessible to the people who read it.
Keeping them takes 2 µs of a write, which takes about 1 ms.
"""

import os
import re
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tune_policies.files.plain_data import parse_json
from tune_policies.files.reading import MAX_RECORD_BYTES, UnreadableFileError, read_bytes
from tune_policies.values.errors import InvalidResourcesError

_OPEN_FILES: Final = "/proc/self/fd"

_POLL_S: Final = 0.05
"""The time between attempts to lock a file, in seconds."""

_MAX_LOCK_NAME_BYTES: Final = 200
"""The part of a file's name that is in the name of its lock file, in bytes."""


def write_new(path: Path, content: str | bytes, *, force: bool = False) -> None:
    """Write the output file of a command. With ``force``, replace an existing file of the same kind, and keep its mode.

    Raises:
        InvalidResourcesError: The file exists and may not be replaced, or it cannot be written.
    """
    if force:
        check_new(path, force=True, example=content)
        replace_file(path, content)
        return
    check_new(path)
    with _written_beside(path, path, content) as half:
        try:
            path.hardlink_to(half)  # fails if another process has created the file
        except FileExistsError:
            raise _file_exists_error(path) from None
        except OSError:  # the file system does not support links
            if os.path.lexists(path):
                raise _file_exists_error(path) from None
            half.replace(path)


def check_new(
    path: Path, *, force: bool = False, inputs: Iterable[Path | None] = (), example: str | bytes | None = None
) -> None:
    """Check that :func:`write_new` can write ``path``, before a command starts its work.

    If ``example`` is given, an existing file must have the same kind of content as this example. The ``inputs`` of the
    command are never replaced.

    Raises:
        InvalidResourcesError: ``path`` is an input, has no existing folder, or exists and may not be replaced.
    """
    if any(source is not None and _is_same_file(path, source) for source in inputs):
        raise InvalidResourcesError(f"{path} is an input of this command. Choose another output file")
    try:
        is_folder, is_in_folder = path.is_dir(), path.parent.is_dir()
    except OSError as error:  # the name may be too long
        raise _unwritable(path, error) from error
    if is_folder:
        raise _unwritable(path, "it is a folder")
    if not force and os.path.lexists(path):
        raise _file_exists_error(path)
    if not is_in_folder:
        raise _unwritable(path, "its folder does not exist")
    if force and example is not None:
        if isinstance(example, str):
            example = example.encode()
        _check_kind(path, example)


def _is_same_file(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except (OSError, ValueError, RuntimeError):  # one of the files does not exist
        return False


def _check_kind(path: Path, content: bytes) -> None:
    try:
        before = read_bytes(path, max_bytes=MAX_RECORD_BYTES, is_cut=True)
    except UnreadableFileError as error:
        if error.is_missing:
            return
        raise _unwritable(path, error.reason) from error
    if before and _kind(before) != _kind(content):
        raise InvalidResourcesError(
            f"{path} is another kind of file, but --force only replaces a file of the same kind. Choose another file, "
            f"or delete {path}"
        )


_KINDS: Final = (
    re.compile(rb'<!DOCTYPE html>.{0,200}<meta name="generator" content="tune-policies">', re.DOTALL),
    re.compile(rb"# Written by tune-policies: "),
    re.compile(rb"(<\?xml[^>]{0,200}>\s{0,9}(<!DOCTYPE svg[^>]{0,200}>\s{0,9})?)?<svg\b"),
    *map(re.compile, (rb"\x89PNG\r\n", rb"%PDF-", rb"%!PS", rb"\xff\xd8\xff", rb"RIFF....WEBP", rb"II\*\0|MM\0\*")),
)
"""Patterns for the beginning of each kind of file that commands write: pages, cluster files and pictures."""


def _kind(content: bytes) -> object:
    """Return a value that is equal for files of the same kind, such as the fields of a record or a CSV header."""
    for pattern in _KINDS:
        if pattern.match(content):
            return pattern
    if content.startswith(b"{"):
        with suppress(ValueError, RecursionError):
            return frozenset(parse_json(content))
    return content.partition(b"\n")[0]


def replace_file(path: Path, content: str | bytes, *, expected: bytes | None = None, is_private: bool = False) -> None:
    """Write or replace a file. If ``path`` is a link, its target is replaced.

    Args:
        path: A file in an existing folder.
        content: The content. A string is written in UTF-8.
        expected: The content that the file must have right before it is replaced, or ``None`` for any content.
        is_private: Whether only this user may access the file. Use it for files that a later process trusts.

    Raises:
        InvalidResourcesError: The file cannot be written, is read-only, or does not have the expected content. In
            each case, the file is unchanged.
    """
    try:
        # Another user's link could redirect the output to any file.
        is_foreign = hasattr(os, "geteuid") and path.is_symlink() and path.lstat().st_uid not in (0, os.geteuid())
        target = path.resolve()
        before = target.stat() if target.exists() else None
    except (OSError, ValueError, RuntimeError) as error:
        raise _unwritable(path, error) from error
    if is_foreign:
        raise _unwritable(path, "it is a link that belongs to another user")
    if before is not None and not stat.S_ISREG(before.st_mode):  # the new file would replace a device
        raise _unwritable(path, "it is not a regular file")
    if before is not None and (not before.st_mode & 0o222 or not os.access(target, os.W_OK)):
        raise _unwritable(path, "it is read-only")
    with _written_beside(path, target, content, before, is_private=is_private) as half:
        if expected is not None and read_bytes(target, max_bytes=MAX_RECORD_BYTES) != expected:
            raise _unwritable(path, "another process changed it in the meantime, and the change is kept")
        half.replace(target)


@contextmanager
def _written_beside(
    path: Path, target: Path, content: str | bytes, before: os.stat_result | None = None, *, is_private: bool = False
) -> Iterator[Path]:
    """Write a temporary file next to ``target``, and yield its path. Delete it unless the caller renames it."""
    # A name can have at most 255 bytes on most file systems, so only the beginning of a long name is used.
    half = target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}")
    try:
        # Private content must not be readable while it is being written.
        mode = 0o666 if before is None and not is_private else 0o600
        descriptor, is_nameless = _open_half(half, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if isinstance(content, str):
                    content = content.encode()
                file.write(content)
                file.flush()
                if before is not None and not is_private:
                    _keep_owner_and_mode(path, target, before, descriptor)
                os.fsync(descriptor)
                if is_nameless:
                    # Python follows the link to the open file only with `src_dir_fd`.
                    os.link(f"{_OPEN_FILES}/{descriptor}", half, src_dir_fd=descriptor)
            yield half
        finally:
            half.unlink(missing_ok=True)
        _sync_folder(target.parent)
    except InvalidResourcesError:
        raise
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from error


def _open_half(half: Path, mode: int) -> tuple[int, bool]:
    """Open a new file, and return its descriptor and whether the file has no name.

    If the process is killed, the system deletes a file without a name. Processes of trials write records of their use,
    and the kernel kills them if memory runs out. Of 200 processes that were killed while they wrote a file of 20 kB
    again and again, 2 to 4 left a temporary file behind, and 80 to 91 with files that have a name (Linux, ext4).
    """
    if hasattr(os, "O_TMPFILE") and Path(_OPEN_FILES).is_dir():
        with suppress(OSError):  # not all file systems support O_TMPFILE
            return os.open(half.parent, os.O_WRONLY | os.O_TMPFILE, mode), True
    return os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode), False


def _keep_owner_and_mode(path: Path, target: Path, before: os.stat_result, half: int) -> None:
    if hasattr(os, "fchown"):
        mine = os.fstat(half)
        if (mine.st_uid, mine.st_gid) != (before.st_uid, before.st_gid):
            try:
                os.fchown(half, before.st_uid, before.st_gid)
            except PermissionError as error:
                raise _unwritable(path, "its owner or group would change") from error
        os.fchmod(half, stat.S_IMODE(before.st_mode))
    if hasattr(os, "listxattr"):  # copy extended attributes, such as access control lists
        with suppress(OSError):
            for name in os.listxattr(target):
                os.setxattr(half, name, os.getxattr(target, name))


def _sync_folder(folder: Path) -> None:
    """Sync the folder with the new file name to the disk, if the system supports it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _file_exists_error(path: Path) -> InvalidResourcesError:
    return InvalidResourcesError(f"{path} already exists. Choose another file, or pass --force to replace it")


def _unwritable(path: Path, reason: object) -> InvalidResourcesError:
    if isinstance(reason, OSError) and reason.strerror:
        reason = reason.strerror
    return InvalidResourcesError(
        f"{path} cannot be written: {reason}. Choose a file in an existing folder that is writable and has free space"
    )


class BusyFileError(InvalidResourcesError):
    """Another process is changing the file."""


@contextmanager
def locked(path: Path, *, timeout_s: float = 0.0) -> Iterator[None]:
    """Lock a file for this process, or continue without a lock if the system does not support locks.

    The locked file is a separate file in the same folder, because ``path`` itself can be replaced. The system releases
    the lock when the process ends. The package ``filelock`` would not delete the lock file and would raise other
    errors.

    Raises:
        BusyFileError: Another process still has the lock after ``timeout_s`` seconds.
        InvalidResourcesError: The lock file cannot be opened, for example because the folder is not writable.
    """
    try:
        import fcntl
    except ImportError:  # on Windows
        yield
        return
    # A name can have at most 255 bytes on most file systems, and a character up to 4 bytes.
    beginning = path.name[:_MAX_LOCK_NAME_BYTES]
    while len(beginning.encode(errors="replace")) > _MAX_LOCK_NAME_BYTES:
        beginning = beginning[:-1]
    lock = path.with_name(f".{beginning}.lock")
    deadline = time.monotonic() + timeout_s
    descriptor = _lock(path, lock)
    while descriptor is None:
        if time.monotonic() >= deadline:
            raise BusyFileError(f"another process is writing {path}. Wait until it ends, or choose another file")
        time.sleep(_POLL_S)
        descriptor = _lock(path, lock)
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink()
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # other processes may have inherited the descriptor
        os.close(descriptor)


def _lock(path: Path, lock: Path) -> int | None:
    """Return the descriptor of the locked file, or ``None`` if another process has the lock."""
    import fcntl

    try:
        # If the file exists, do not follow it as a link and do not truncate it.
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidResourcesError(f"{path} cannot be locked with the lock file {lock}: {reason}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The previous owner of the lock may have deleted the file.
        is_ours = os.path.samestat(lock.lstat(), os.fstat(descriptor))
    except (BlockingIOError, FileNotFoundError):
        is_ours = False
    except OSError:  # the file system does not support locks
        is_ours = True
    if is_ours:
        return descriptor
    os.close(descriptor)
    return None


def put_text(filesystem: Any, path: str, text: str) -> None:
    """Write or replace a small file as a whole on a pyarrow filesystem, and create its folder if necessary.

    Raises:
        Exception: The file cannot be written. Each filesystem raises its own errors.
    """
    if filesystem.type_name == "local":
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        replace_file(Path(path), text)
        return
    try:
        _put(filesystem, path, text)
    except FileNotFoundError:
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        _put(filesystem, path, text)


def _put(filesystem: Any, path: str, text: str) -> None:
    with filesystem.open_output_stream(path) as stream:  # object stores show only complete objects
        stream.write(text.encode())
