"""What was found in a file: where, what, why it matters, and what to do."""

from typing import Any, Literal, NamedTuple

from tune_policies.manifests.documents import Path
from tune_policies.resources import Count, PositiveCount
from tune_policies.values import Value

Severity = Literal["error", "warning", "note"]
"""An error keeps the cluster from working as it is written; a warning may; a note is worth knowing."""


class Edit(NamedTuple):
    """A change that mends something.

    Attributes:
        path: What is changed.
        value: To what; ``None``: it is removed.
    """

    path: Path
    value: Any


class Finding(Value):
    """One thing that is wrong.

    Attributes:
        rule: Its name, such as ``"min-above-max"``.
        severity: How bad it is.
        source: The file.
        document: Which of the file's documents, from 0; those that are empty do not count.
        line: The line, from 1.
        path: Where in the document.
        message: What is wrong, with the value.
        why: Why it matters.
        fix: What to write instead.
        edits: The changes that mend it; empty: a person must decide.
        is_safe: What runs stays as it is, so that ``--fix`` makes the changes; others it makes with
            ``--unsafe-fixes`` alone.
    """

    rule: str
    severity: Severity
    source: str
    document: Count = 0
    line: PositiveCount
    path: Path = ()
    message: str
    why: str = ""
    fix: str = ""
    edits: tuple[Edit, ...] = ()
    is_safe: bool = False
