"""Where results are printed."""

import os
from typing import Final

from rich.console import Console

_COLUMNS: Final = 120


def result_console() -> Console:
    """Return stdout: as wide as the terminal, or as COLUMNS says. In a file, Rich would break tables at 80 columns."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=_COLUMNS)
