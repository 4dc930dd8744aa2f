"""A process that uses a CPU, as any other on the machine may."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tune_policies.files.child_python import child_python

ENDS_AFTER_S: Final = 600
"""When it ends by itself, if nobody ends it."""
_TIMEOUT_S: Final = 10


@contextmanager
def busy_neighbour() -> Iterator[int]:
    """Have another process use a CPU, and yield its process number. It is nobody's child, as others' processes are."""
    work = f"import time\nend = time.monotonic() + {ENDS_AFTER_S}\nwhile time.monotonic() < end: pass"
    # The shell ends at once, so that init takes the process over; as a child it would count as one of the run's own.
    start = ["sh", "-c", '"$@" >/dev/null 2>&1 & echo $!', "sh", *child_python("-I", "-S", "-c", work)]
    started = subprocess.run(start, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    pid = int(started.stdout)
    try:
        yield pid
    finally:
        subprocess.run(["kill", str(pid)], timeout=_TIMEOUT_S, check=False)
