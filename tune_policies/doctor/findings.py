"""What the doctor says."""

from collections.abc import Iterable
from enum import StrEnum

from tune_policies.doctor.facts import NodeFacts
from tune_policies.values import Value


class Severity(StrEnum):
    """Whether work goes wrong, or it is only worth knowing."""

    PROBLEM = "problem"
    NOTE = "note"


class Finding(Value):
    """One thing that was found.

    Attributes:
        severity: How bad it is.
        what: What was found.
        way_out: What to do about it.
        nodes: Where, by the names of the nodes.
    """

    severity: Severity
    what: str
    way_out: str
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
        nodes.setdefault((found.severity, found.what, found.way_out), []).extend(found.nodes)
    merged = [
        Finding(severity=severity, what=what, way_out=way_out, nodes=tuple(sorted(set(names))))
        for (severity, what, way_out), names in nodes.items()
    ]
    return tuple(sorted(merged, key=lambda found: found.severity is Severity.NOTE))
