"""Counts and lists of names, for messages."""

from collections.abc import Sequence
from typing import Final

_MOST: Final = 5


def counted(count: int, noun: str) -> str:
    """Return the noun with its number: ``"1 node"``, ``"3 nodes"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shorten_names(names: Sequence[str]) -> str:
    """Return the names in one line; of many only the first five."""
    shown = ", ".join(names[:_MOST])
    return shown if len(names) <= _MOST else f"{shown} and {len(names) - _MOST} more"
