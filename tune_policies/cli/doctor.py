"""The commands ``doctor``, which checks nodes, and ``cpu-labels``, which prints node labels for CPU features."""

import json as json_text
import warnings
from collections import Counter
from typing import Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tune_policies.cli.guarded_commands import fail
from tune_policies.cli.options import Address, Json, Redact, TimeoutS, ray_output_on_stderr
from tune_policies.files.terminal import TextConsole, TextTable, line
from tune_policies.probe.doctor.node_checks import Diagnosis, Finding, Severity
from tune_policies.values.errors import ProbeError
from tune_policies.values.wording import counted, shorten_names

app = typer.Typer(add_completion=False)

_UNREADABLE_STATUS: Final = 3


@app.command()
def doctor(*, json: Json = False, redact: Redact = False, address: Address = None, timeout_s: TimeoutS = 30.0) -> None:
    """Check a Ray cluster, or this machine if Ray is not running, for problems that prevent the use of GPUs.

    The exit status is 0 if no problems were found, 1 if problems were found, 2 if the usage is invalid, and 3 if Ray
    cannot be reached or no node could be read. Notes do not change the exit status.
    """
    from tune_policies.probe.doctor.cluster_reader import examine

    with ray_output_on_stderr(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray 2.50 leaves files open, and Python warns about them
        try:
            diagnosis = examine(address, timeout_s=timeout_s)
        except ProbeError as error:
            fail(error, _UNREADABLE_STATUS)
    if redact:
        diagnosis = diagnosis.redacted()
    if json:
        print(diagnosis.to_json())
    else:
        TextConsole().print(diagnosis_view(diagnosis))
    if all(node.failure is not None for node in diagnosis.nodes):
        raise typer.Exit(_UNREADABLE_STATUS)
    if not diagnosis.is_healthy:
        raise typer.Exit(1)


@app.command()
def cpu_labels(*, json: Json = False) -> None:
    """Print the vector and matrix features of this machine's CPU as labels for `ray start --labels`.

    The labels contain the feature names of Linux, such as cpu-avx512f=true or cpu-amx_tile=true. The line is empty if
    the CPU has none of these features.
    """
    from tune_policies.probe.node_facts import read_cpu_labels

    labels = read_cpu_labels()
    if json:
        print(json_text.dumps(labels, indent=2))
    else:
        print(",".join(f"{key}={value}" for key, value in labels.items()))


def diagnosis_view(diagnosis: Diagnosis) -> RenderableType:
    """Return the report of a diagnosis: the number of nodes, the findings with hints, and the number of findings."""
    if diagnosis.address is None:
        where = "Ray is not running on this machine, so only the machine itself was checked."
    else:
        where = f"Checked {counted(len(diagnosis.nodes), 'node')} of the Ray cluster at {diagnosis.address}."
    rows = TextTable.grid(padding=(0, 2))
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    for finding in diagnosis.findings:
        style = "bold red" if finding.severity is Severity.PROBLEM else "bold"
        severity = Text(finding.severity, style=style)
        rows.add_row(severity, _where(finding, diagnosis) + finding.what)
        rows.add_row("", f"-> {finding.hint}")
    if not diagnosis.findings:
        return Group(line(where), Text("no problems found", style="bold"))
    numbers = Counter(finding.severity for finding in diagnosis.findings)
    summary = ", ".join(counted(numbers[severity], severity) for severity in Severity if severity in numbers)
    return Group(line(where), rows, Text(summary, style="bold"))


def _where(finding: Finding, diagnosis: Diagnosis) -> str:
    if diagnosis.address is None or not finding.nodes:
        return ""
    if len(finding.nodes) == len(diagnosis.nodes) > 1:
        return f"all {len(diagnosis.nodes)} nodes: "
    names = shorten_names(finding.nodes)
    if len(finding.nodes) == 1:
        return f"{names}: "
    return f"{len(finding.nodes)} nodes ({names}): "
