"""Ends the processes that a command has started, however the command ends: by SIGKILL, or an abort in Ray's core.

Ray ends most of its processes with the program that started them. The nodes that an autoscaler has launched, the
processes of a pool and a busy neighbour would go on. A variable in the environment, which all of them inherit, marks
them. The guard runs this file alone, so it imports nothing but the standard library.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Final

_MARK: Final = "TUNE_POLICIES_EVIDENCE"
"""The environment variable whose value is different for each command."""

_END_S: Final = 20.0


def end_with_this_process() -> None:
    """Have all processes killed that this one starts from now on, as soon as this one has ended.

    Processes that are forked without ``exec`` have this process's own environment, so they must end by themselves.
    Only Linux has what this needs; elsewhere it does nothing.
    """
    if sys.platform != "linux":
        return
    mark = uuid.uuid4().hex
    this = os.pidfd_open(os.getpid())
    command = [sys.executable, "-I", "-S", __file__, str(this), mark]
    # In a session of its own, Ctrl-C does not end it.
    subprocess.Popen(command, pass_fds=[this], start_new_session=True, stdin=subprocess.DEVNULL)
    os.close(this)
    os.environ[_MARK] = mark


def processes_with(variable: str, value: str) -> list[int]:
    """Return the processes that were started with this value of an environment variable."""
    mark = f"{variable}={value}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        # A process that has ended, or belongs to another user, cannot be read. A zombie has no environment left.
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def end_processes(variable: str, value: str) -> None:
    """Kill the processes that were started with this value of an environment variable, until there is none.

    Raises:
        RuntimeError: Some do not end.
    """
    deadline = time.monotonic() + _END_S
    while processes := processes_with(variable, value):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {processes} with {variable}={value} do not end")
        time.sleep(0.05)


if __name__ == "__main__":
    select.select([int(sys.argv[1])], [], [])  # readable when the process has ended
    end_processes(_MARK, sys.argv[2])
