"""Finds and starts programs without using modules or programs from the working directory.

Python searches the working directory or the script's folder first, so a file ``random.py`` in either would replace
Python's module. ``PATH`` can also contain the working directory, as an empty or relative entry.
"""

import os
import shutil
import sys
from pathlib import Path


def child_python(*arguments: str) -> list[str]:
    """Return the command that runs this Python interpreter with ``arguments``."""
    return [sys.executable, "-P", *arguments]


def program_path(name: str) -> str | None:
    """Return the path of a program in the absolute folders of ``PATH``, or ``None`` if it is not found."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which(name, path=os.pathsep.join(folder for folder in folders if Path(folder).is_absolute()))
