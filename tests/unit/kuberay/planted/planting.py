"""Insert a mistake into a valid file."""

from typing import NamedTuple


class Planted(NamedTuple):
    """A file with a mistake.

    Attributes:
        claim: A description of the mistake. It is also the ID of the test.
        text: The file with the mistake.
        rule: The rule that must report the mistake.
        line: The line number of the mistake, counted from 1.
    """

    claim: str
    text: str
    rule: str
    line: int


def plant(claim: str, sound: str, old: str, new: str, rule: str, at: str, *, after: str = "") -> Planted:
    """Replace ``old`` with ``new`` in a valid text. The rule must report the line that contains ``at``.

    The search for ``old`` and ``at`` starts at the first occurrence of ``after``. If ``old`` equals ``new``, the text
    already has the mistake.
    """
    start = sound.index(after)
    where = sound.index(old, start)
    text = sound[:where] + new + sound[where + len(old) :]
    return Planted(claim, text, rule, text.count("\n", 0, text.index(at, start)) + 1)
