"""How a mistake is planted in a sound file."""

from typing import NamedTuple


class Planted(NamedTuple):
    """A mistake.

    Attributes:
        claim: The mistake, which is also the name of the test.
        text: The file with the mistake.
        rule: The rule that finds it.
        line: The line, from 1.
    """

    claim: str
    text: str
    rule: str
    line: int


def plant(claim: str, sound: str, old: str, new: str, rule: str, at: str, *, after: str = "") -> Planted:
    """Change ``old`` to ``new`` in a valid text; the finding must be on the line with ``at``.

    Both are searched after ``after``. If ``old`` equals ``new``, the text already has the mistake.
    """
    start = sound.index(after)
    where = sound.index(old, start)
    text = sound[:where] + new + sound[where + len(old) :]
    return Planted(claim, text, rule, text.count("\n", 0, text.index(at, start)) + 1)
