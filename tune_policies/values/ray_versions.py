"""The range of tested Ray versions, without patch versions. ``pyproject.toml`` allows newer versions, too."""

import re
from typing import Final

OLDEST_TRIED: Final = (2, 50)
NEWEST_TRIED: Final = (2, 60)
TRIED: Final = f"{OLDEST_TRIED[0]}.{OLDEST_TRIED[1]} to {NEWEST_TRIED[0]}.{NEWEST_TRIED[1]}"


def is_tried(version: str) -> bool:
    """Return whether a version of Ray is within the tested range."""
    numbers = re.match(r"(\d{1,9})\.(\d{1,9})", version)
    return numbers is not None and OLDEST_TRIED <= (int(numbers[1]), int(numbers[2])) <= NEWEST_TRIED
