"""Runs a module of this folder in a process of its own, with its own Ray."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

ROOT: Final = Path(__file__).parents[2]
LOG: Final = "log"
"""The file with the output of the process, in its folder."""


@contextmanager
def short_folder() -> Iterator[Path]:
    """Yield a temporary folder with a short path, because Ray creates sockets in it."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)


def environment_of_child(**variables: str) -> dict[str, str]:
    """Return the environment of a process that can import this folder, with further variables."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **variables}


def run_module(module: str, folder: Path, *, deadline_s: float, **variables: str) -> None:
    """Run ``python -m module folder``, and kill everything that it leaves behind.

    A process that takes longer than ``deadline_s`` seconds is killed, too. The output is in the file ``LOG``.
    """
    environment = environment_of_child(
        TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1",  # they only cost time
        RAY_TMPDIR=str(folder),
        **variables,
    )
    command = [sys.executable, "-m", module, str(folder)]
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=ROOT)
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(deadline_s)
        finally:
            process.kill()
            process.wait()
            _kill_processes_of(folder)


def _kill_processes_of(folder: Path) -> None:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get("RAY_TMPDIR") == str(folder):
                process.kill()
