"""Finds and starts programs without using modules or programs from the working directory, and says why they failed.

Python searches the working directory or the script's folder first, so a file ``random.py`` in either would replace
Python's module. ``PATH`` can also contain the working directory, as an empty or relative entry.
"""

import os
import shutil
import signal
import sys
from pathlib import Path


def child_python(*arguments: str) -> list[str]:
    """Return the command that runs this Python interpreter with ``arguments``."""
    # With -P (Python 3.11), neither the working directory nor the script's folder is added to ``sys.path``.
    return [sys.executable, "-P", *arguments]


def reason_of_exit(exit_code: int, stderr: str) -> str:
    """Return the reason why a child process failed: the signal that ended it, or the last line that it printed.

    Args:
        exit_code: The exit code as in ``subprocess``, which is negative after a signal.
        stderr: The errors that the process printed.
    """
    if exit_code < 0:
        return f"the child process crashed with signal {-exit_code} ({signal.strsignal(-exit_code)})"
    lines = stderr.strip().splitlines()
    if lines:
        return lines[-1].strip()
    return f"the child process ended with exit code {exit_code} and printed nothing"


def program_path(name: str) -> str | None:
    """Return the path of a program in the absolute folders of ``PATH``, or ``None`` if it is not found."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which(name, path=os.pathsep.join(folder for folder in folders if Path(folder).is_absolute()))
