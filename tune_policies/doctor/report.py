"""How a diagnosis looks on the shell."""

from rich.console import Group, RenderableType
from rich.text import Text

from tune_policies.doctor.findings import Diagnosis, Finding, Severity
from tune_policies.names import counted, shorten_names
from tune_policies.terminal import TextTable, line


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
        rows.add_row("", f"-> {finding.way_out}")
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
