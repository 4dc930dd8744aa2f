"""Lets one process at a time change a file that is read, added to and replaced."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tune_policies.values.errors import InvalidResourcesError

_POLL_S: Final = 0.05


class BusyFileError(InvalidResourcesError):
    """Another process is changing the file."""


@contextmanager
def locked(path: Path, *, timeout_s: float = 0.0) -> Iterator[None]:
    """Keep a file to this process; where the system or the file system has no locks, go on without.

    The lock is on a file of its own beside it, as the file itself is replaced. The system takes it back from a process
    that ends, however it ends.

    Args:
        path: The file, which need not be there.
        timeout_s: How long to wait for another process.

    Raises:
        BusyFileError: Another process has it all that time.
        InvalidResourcesError: There is no such folder, or nothing may be written there.
    """
    try:
        import fcntl
    except ImportError:  # on Windows
        yield
        return
    lock = path.with_name(f".{path.name[:200]}.lock")
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            # Whatever is there is neither followed nor emptied.
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidResourcesError(f"{path} cannot be locked by {lock}: {reason}") from error
        try:
            if not _is_locked(descriptor, fcntl.flock, fcntl.LOCK_EX | fcntl.LOCK_NB):
                if time.monotonic() >= deadline:
                    raise BusyFileError(
                        f"another process is writing {path}: wait until it has ended, or name another file"
                    )
                time.sleep(_POLL_S)
            elif _is_still_there(lock, descriptor):  # else who had it before has deleted it
                try:
                    yield
                finally:
                    with suppress(OSError):
                        lock.unlink()
                    with suppress(OSError):
                        fcntl.flock(descriptor, fcntl.LOCK_UN)  # for processes that have inherited it, too
                return
        finally:
            os.close(descriptor)


def _is_locked(descriptor: int, flock: Callable[[int, int], None], operation: int) -> bool:
    """Lock a file; return whether nobody else has it. Where the file system has no locks, nobody can."""
    try:
        flock(descriptor, operation)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_still_there(lock: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(lock.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
