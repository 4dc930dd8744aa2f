"""Starts programs without the modules and programs of the working directory.

``python -c`` and ``python -m`` search it first, and a script searches its own folder. In a folder with a ``random.py``,
they would run that file instead of Python's. ``PATH`` may contain the working directory, too, as an empty or relative
entry.
"""

import os
import shutil
import sys
from pathlib import Path


def child_python(*arguments: str) -> list[str]:
    """Return the command that runs this Python with ``arguments``."""
    return [sys.executable, "-P", *arguments]


def program_path(name: str) -> str | None:
    """Return the path of a program in the absolute folders of ``PATH``, or ``None``."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which(name, path=os.pathsep.join(folder for folder in folders if Path(folder).is_absolute()))
