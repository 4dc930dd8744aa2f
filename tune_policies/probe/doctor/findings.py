"""What the doctor says."""

from collections.abc import Iterable
from enum import StrEnum

from rich.console import Group, RenderableType
from rich.text import Text

from tune_policies.files.terminal import TextTable, line
from tune_policies.probe.doctor.facts import NodeFacts
from tune_policies.values.value import Value, counted, shorten_names


class Severity(StrEnum):
    """Whether work goes wrong, or it is only worth knowing."""

    PROBLEM = "problem"
    NOTE = "note"


class Finding(Value):
    """One thing that was found.

    Attributes:
        severity: How bad it is.
        what: What was found.
        hint: What to do about it.
        nodes: Where, by the names of the nodes.
    """

    severity: Severity
    what: str
    hint: str
    nodes: tuple[str, ...] = ()


class Diagnosis(Value):
    """What the doctor looked at, and what it found.

    Attributes:
        address: The Ray that was looked at; ``None``: this machine alone, as no Ray runs.
        nodes: The facts of each node.
        findings: What follows from them, the problems first.
    """

    address: str | None
    nodes: tuple[NodeFacts, ...]
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong; notes are not."""
        return not any(finding.severity is Severity.PROBLEM for finding in self.findings)


def merge(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return equal findings of many nodes as one, the problems first."""
    nodes: dict[tuple[Severity, str, str], list[str]] = {}
    for found in findings:
        nodes.setdefault((found.severity, found.what, found.hint), []).extend(found.nodes)
    merged = [
        Finding(severity=severity, what=what, hint=hint, nodes=tuple(sorted(set(names))))
        for (severity, what, hint), names in nodes.items()
    ]
    return tuple(sorted(merged, key=lambda found: found.severity is Severity.NOTE))


def diagnosis_view(diagnosis: Diagnosis) -> RenderableType:
    """Return what was looked at, each finding with its way out, and how many there are."""
    if diagnosis.address is None:
        where = "No Ray runs here, so this machine alone was looked at."
    else:
        where = f"Looked at {counted(len(diagnosis.nodes), 'node')} of the Ray at {diagnosis.address}."
    rows = TextTable.grid(padding=(0, 2))
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    for finding in diagnosis.findings:
        severity = Text(finding.severity, style="bold red" if finding.severity is Severity.PROBLEM else "bold")
        rows.add_row(severity, _where(finding, diagnosis) + finding.what)
        rows.add_row("", f"-> {finding.hint}")
    counts = [
        counted(number, severity)
        for severity in Severity
        if (number := sum(finding.severity is severity for finding in diagnosis.findings))
    ]
    summary = ", ".join(counts) or "nothing wrong"
    return Group(line(where), *([rows] if diagnosis.findings else []), Text(summary, style="bold"))


def _where(finding: Finding, diagnosis: Diagnosis) -> str:
    if diagnosis.address is None or not finding.nodes:
        return ""
    if len(finding.nodes) == len(diagnosis.nodes) > 1:
        return f"all {len(diagnosis.nodes)} nodes: "
    names = shorten_names(finding.nodes)
    return f"{names}: " if len(finding.nodes) == 1 else f"{len(finding.nodes)} nodes ({names}): "
