"""How this project starts a Python of its own: never with the modules of the working folder.

``python -c`` and ``python -m`` look there first, and a script looks beside itself: whoever probes from a folder that he
was sent, or that holds a ``random.py`` of his own, would run that file in the place of Python's.
"""

import sys


def child_python(*arguments: str) -> list[str]:
    """Return the command of this same Python with ``arguments``."""
    return [sys.executable, "-P", *arguments]
