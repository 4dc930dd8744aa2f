"""The command ``kuberay lint``, which finds mistakes in cluster files."""

import json as json_text
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tune_policies.cli.options import Json, argument, option

if TYPE_CHECKING:
    from rich.text import Text

    from tune_policies.kuberay.lint.rule import Finding

app = typer.Typer(add_completion=False)


@app.command()
def lint(
    files: Annotated[
        list[Path],
        argument(
            "A RayCluster, RayJob, RayCronJob or RayService manifest, a cluster YAML, or - for stdin.", metavar="FILE"
        ),
    ],
    *,
    name: Annotated[str | None, option("Check only the cluster, job or service with this name.")] = None,
    json: Json = False,
) -> None:
    """Check cluster files, and print each finding with its line, its reason and a fix.

    The exit status is 1 if there are errors or warnings, 2 if the usage is invalid, and otherwise 0.
    """
    from tune_policies.files.terminal import TextConsole
    from tune_policies.kuberay.lint.linting import lint_file

    findings = [finding for file in files for finding in lint_file(file, name)]
    if json:
        plain = [finding.model_dump(mode="json") for finding in findings]
        print(json_text.dumps({"findings": plain}, indent=2, ensure_ascii=False))
    else:
        console = TextConsole(soft_wrap=True)
        for line in _report(findings, len(files)):
            console.print(line)
    if any(finding.severity != "note" for finding in findings):
        raise typer.Exit(1)


_STYLES: Final = {"error": "bold red", "warning": "bold yellow", "note": "bold"}


def _report(findings: Sequence["Finding"], num_files: int) -> "Iterator[Text]":
    """Yield the lines of the report: the findings, and the number of findings of each severity."""
    from rich.text import Text

    from tune_policies.values.sanitize import one_line
    from tune_policies.values.wording import counted

    for finding in findings:
        where, what = f"{finding.source}:{finding.line}: ", f" {finding.rule}: {finding.message}"
        yield Text.assemble(one_line(where), (finding.severity, _STYLES[finding.severity]), one_line(what))
        if finding.why:
            yield Text(one_line(f"    why: {finding.why}"))
        if finding.fix:
            yield Text(one_line(f"    fix: {finding.fix}"))
    numbers = Counter[str](finding.severity for finding in findings)
    counts = [counted(numbers[severity], severity) for severity in _STYLES if severity in numbers]
    yield Text(f"{', '.join(counts) or 'no findings'} in {counted(num_files, 'file')}", style="bold")
    unchecked = {
        (finding.source, finding.line): _as_text(finding.unchecked)
        for finding in findings
        if finding.unchecked is not None
    }
    for (source, line), name in unchecked.items():
        yield Text(one_line(f"not checked further because of its mistake: {name} ({source}:{line})"))


def _as_text(path: "Sequence[str | int]") -> str:
    """Return a path in a document, such as ``spec.workerGroupSpecs[0].template``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".") or "the document"
