"""A finding, and how it looks on the shell: a line that editors understand, then why it matters and what to do."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

from rich.text import Text

from tune_policies.files.yaml_documents import Path
from tune_policies.values.resources import Count, PositiveCount
from tune_policies.values.sanitize import one_line
from tune_policies.values.value import Value, counted

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


_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold"}


def report(findings: Sequence[Finding], fixed: Sequence[Finding], num_files: int) -> Iterator[Text]:
    """Yield the lines: what was mended, what is left, and how much that is."""
    for finding in fixed:
        yield _headline(finding, "fixed", "bold green")
        for path, value in finding.edits:
            written = "is left out" if value is None else f"is now {json.dumps(value, ensure_ascii=False)}"
            yield Text(one_line(f"    {'.'.join(map(str, path))} {written}"))
    for finding in findings:
        yield _headline(finding, finding.severity, _STYLES[finding.severity])
        if finding.why:
            yield Text(one_line(f"    why: {finding.why}"))
        if finding.fix:
            yield Text(one_line(f"    fix: {finding.fix}"))
    counts = [
        counted(number, severity)
        for severity in get_args(Severity)
        if (number := sum(finding.severity == severity for finding in findings))
    ]
    left = ", ".join(counts) or "nothing wrong"
    mended = f"{len(fixed)} fixed; " if fixed else ""
    yield Text(f"{mended}{left} in {counted(num_files, 'file')}", style="bold")


def _headline(finding: Finding, word: str, style: str) -> Text:
    where = f"{finding.source}:{finding.line}: "
    return Text.assemble(one_line(where), (word, style), one_line(f" {finding.rule}: {finding.message}"))
