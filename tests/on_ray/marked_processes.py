"""Functions that find and kill processes by an inherited environment variable, and wait until processes end."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def processes_with(variable, value):
    """Return the IDs of the processes that were started with this value of an environment variable."""
    mark = f"{variable}={value}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        # The environment of ended processes and of other users' processes cannot be read. A zombie has no environment.
        with suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def ends(pid, within_s=20):
    """Return whether the process ends within ``within_s`` seconds. A zombie counts as ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if "zombie" in Path(f"/proc/{pid}/status").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def end_processes(variable, value, timeout_s=20):
    """Kill the processes that were started with this value of an environment variable until none remains."""
    deadline = time.monotonic() + timeout_s
    while processes := processes_with(variable, value):
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        assert time.monotonic() < deadline, f"processes {processes} with {variable}={value} do not end"
        time.sleep(0.05)
