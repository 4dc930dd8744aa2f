"""How this project starts programs: never with the modules, nor with the programs, of the working folder.

``python -c`` and ``python -m`` look there first, and a script looks beside itself: whoever probes from a folder that he
was sent, or that holds a ``random.py`` of his own, would run that file in the place of Python's. A shell's ``PATH`` may
name the working folder too, by an entry that is empty or relative.
"""

import os
import shutil
import sys
from pathlib import Path


def child_python(*arguments: str) -> list[str]:
    """Return the command of this same Python with ``arguments``."""
    return [sys.executable, "-P", *arguments]


def program_path(name: str) -> str | None:
    """Return where a program is in the folders that ``PATH`` names as a whole; ``None``: in none of them."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return shutil.which(name, path=os.pathsep.join(folder for folder in folders if Path(folder).is_absolute()))
