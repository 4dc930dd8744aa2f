"""The headroom: how much more memory plans reserve and advice names than was measured."""

import math
from typing import Annotated, Final

from pydantic import Field

from tune_policies.values.units import GIB, MIB

Headroom = Annotated[float, Field(ge=0, le=10)]
"""The additional memory of a trial, as a fraction of the measured memory: 0.1 adds a tenth."""

HEADROOM: Final = 0.1
"""The fraction by which planned and advised amounts exceed the measured amounts."""


def with_headroom(needed_bytes: int, headroom: float) -> int:
    """Return ``needed_bytes`` plus the headroom, rounded up."""
    return math.ceil(needed_bytes * (1 + headroom))


def memory_to_write(needed_bytes: int) -> str:
    """Return the amount for the field of a policy, with the usual headroom of 10 %, such as ``"1.1GiB"``."""
    wanted = needed_bytes * (1 + HEADROOM)
    if wanted < GIB:
        return f"{math.ceil(round(wanted / MIB, 6))}MiB"
    return f"{math.ceil(round(10 * wanted / GIB, 6)) / 10:g}GiB"
