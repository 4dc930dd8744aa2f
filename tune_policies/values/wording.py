"""The wording of messages: counts with nouns, shortened values and lists, and suggestions for misspelled names."""

from collections.abc import Iterable, Sequence
from typing import Final

_MOST_NAMES: Final = 5

_SPOKEN_WITH_VOWEL: Final = "AEFHILMNORSX"
"""The letters whose names begin with a vowel, for abbreviations such as HPU."""


def counted(count: int, noun: str) -> str:
    """Return the count with its noun, such as ``"1 node"`` or ``"3 nodes"``."""
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun}s"


def with_article(noun: str) -> str:
    """Return the noun with its indefinite article, such as ``"a GPU"``, ``"an HPU"`` or ``"an AutoPolicy"``."""
    vowels = "AEIOaeio"
    if noun[:2].isupper():
        vowels = _SPOKEN_WITH_VOWEL
    if noun[:1] in vowels:
        return f"an {noun}"
    return f"a {noun}"


def shorten_names(names: Sequence[str]) -> str:
    """Return the names as one line. If there are more than five, return five and the number of further names."""
    shown = ", ".join(names[:_MOST_NAMES])
    if len(names) <= _MOST_NAMES:
        return shown
    return f"{shown} and {len(names) - _MOST_NAMES} more"


def shorten(data: object) -> str:
    """Return the ``repr`` of ``data``, shortened to at most 80 characters."""
    try:
        text = repr(data)
    except ValueError:  # Python does not convert integers with thousands of digits to strings
        return f"a value of type {type(data).__name__} that is too long to show"
    if len(text) <= 80:
        return text
    return f"{text[:77]}..."


def kind_of(data: object) -> str:
    """Return a description of the type of ``data``, without its content."""
    match data:
        case None:
            return "nothing"
        case str():
            return "a string"
        case dict():
            if all(isinstance(key, str) for key in data):
                return "a mapping"
            return "a mapping whose keys are not names"
        case list() | tuple():
            return "a list"
        case _:
            return f"a value of type {type(data).__name__}"


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'A100'?"`` for the known name that is most similar to ``name``, or ``""``."""
    near = most_similar(name, known)
    if near is None:
        return ""
    return f"; did you mean {near!r}?"


def most_similar(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to ``name``, or ``None`` if no name is similar."""
    import difflib  # imported here, because only errors need it

    by_lower = {candidate.lower(): candidate for candidate in sorted(known)}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    # "price" stands for "price_per_hour", if no other known name begins with it.
    longer = [candidate for candidate in by_lower if candidate.startswith(f"{name.lower()}_")]
    if not near and len(longer) == 1:
        near = longer
    if near:
        return by_lower[near[0]]
    return None
