"""Starts a process that keeps a CPU busy, as a load for tests."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tune_policies.files.child_python import child_python

ENDS_AFTER_S: Final = 600
"""The time after which the process ends by itself, in seconds."""
_TIMEOUT_S: Final = 10


@contextmanager
def busy_neighbour() -> Iterator[int]:
    """Start a process that keeps a CPU busy and is not a child of this process, and yield its process ID."""
    work = f"import time\nend = time.monotonic() + {ENDS_AFTER_S}\nwhile time.monotonic() < end: pass"
    # The shell exits immediately, so the process becomes a child of init.
    start = ["sh", "-c", '"$@" >/dev/null 2>&1 & echo $!', "sh", *child_python("-I", "-S", "-c", work)]
    started = subprocess.run(start, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    pid = int(started.stdout)
    try:
        yield pid
    finally:
        subprocess.run(["kill", str(pid)], timeout=_TIMEOUT_S, check=False)
