"""How findings look on the shell: a line that editors understand, then why it matters and what to do."""

import json
from collections.abc import Iterator, Sequence
from typing import get_args

from rich.text import Text

from tune_policies.lint.finding import Finding, Severity
from tune_policies.names import counted
from tune_policies.text_out import one_line

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
