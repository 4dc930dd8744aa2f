"""The command ``lint``, which finds and fixes mistakes in files of clusters."""

import json as json_text
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.text import Text

from tune_policies.cli.options import Json, argument, option
from tune_policies.files.terminal import TextConsole, tell
from tune_policies.values.sanitize import one_line
from tune_policies.values.value import counted

if TYPE_CHECKING:
    from tune_policies.kuberay.lint.rule import Finding

app = typer.Typer()


@app.command()
def lint(
    files: Annotated[
        list[Path],
        argument(
            "RayCluster, RayJob, RayService, values of the chart ray-cluster, or a cluster YAML; - is stdin.",
            metavar="FILE",
        ),
    ],
    *,
    crd: Annotated[
        Path | None,
        option("Also check against KubeRay's definitions in this file or folder (kubectl get crd -o yaml)."),
    ] = None,
    name: Annotated[str | None, option("Check only the cluster, job or service of this name.")] = None,
    fix: Annotated[bool, option("Apply the safe fixes to the files.", "--fix")] = False,
    unsafe_fixes: Annotated[
        bool, option("With --fix: also apply fixes that may change what runs.", "--unsafe-fixes")
    ] = False,
    diff: Annotated[bool, option("With --fix: show what would change, and write nothing.", "--diff")] = False,
    json: Json = False,
) -> None:
    """Check the files of clusters: each finding with its line, why it matters, and what to do.

    Exit status: 0 nothing, or only notes; 1 there are errors or warnings; 2 wrong usage.
    """
    # jsonschema takes time to import, and other commands do not need it.
    from tune_policies.kuberay.lint.crd import load_crds
    from tune_policies.kuberay.lint.fixes import fixed_file
    from tune_policies.kuberay.lint.linting import lint_file

    for flag, given in (("--unsafe-fixes", unsafe_fixes), ("--diff", diff)):
        if given and not fix:
            raise typer.BadParameter(f"{flag} needs --fix")
    crds = None if crd is None else load_crds(crd)
    changed = [fixed_file(file, crds, name, unsafe=unsafe_fixes) for file in files] if fix else []
    differences = [text for each in changed for text in each.diff()]
    if not diff:
        for each in changed:
            each.write()
    fixed = [finding for each in changed for finding in each.changes]
    findings = [finding for file in files for finding in lint_file(file, crds, name)]
    if json:
        said = {"findings": findings, "fixed": fixed}
        plain = {name: [each.model_dump(mode="json") for each in found] for name, found in said.items()}
        shown = {**plain, "diff": differences} if diff else plain
        print(json_text.dumps(shown, indent=2, ensure_ascii=False))
    elif diff:
        for text in differences:
            print(text)  # a patch, which must stay complete
        num_files = sum(bool(each.changes) for each in changed)
        tell(f"{counted(len(fixed), 'change')} in {counted(num_files, 'file')}, and nothing is written")
    else:
        console = TextConsole(soft_wrap=True)
        for line in _report(findings, fixed, len(files)):
            console.print(line)
        if fix and (more := sum(bool(each.edits) and not each.is_safe for each in findings)):
            console.print(f"not applied, as what runs may change: {counted(more, 'change')} (--fix --unsafe-fixes)")
    if any(finding.severity != "note" for finding in findings):
        raise typer.Exit(1)


_STYLES: Final = {"error": "bold red", "warning": "bold yellow", "note": "bold"}


def _report(findings: Sequence["Finding"], fixed: Sequence["Finding"], num_files: int) -> Iterator[Text]:
    """Yield the lines with fixed and remaining findings, and their numbers."""
    for finding in fixed:
        yield _headline(finding, "fixed", "bold green")
        for path, value in finding.edits:
            written = "is left out" if value is None else f"is now {json_text.dumps(value, ensure_ascii=False)}"
            yield Text(one_line(f"    {'.'.join(map(str, path))} {written}"))
    for finding in findings:
        yield _headline(finding, finding.severity, _STYLES[finding.severity])
        if finding.why:
            yield Text(one_line(f"    why: {finding.why}"))
        if finding.fix:
            yield Text(one_line(f"    fix: {finding.fix}"))
    counts = [
        counted(number, severity)
        for severity in _STYLES
        if (number := sum(finding.severity == severity for finding in findings))
    ]
    left = ", ".join(counts) or "nothing wrong"
    done = f"{len(fixed)} fixed; " if fixed else ""
    yield Text(f"{done}{left} in {counted(num_files, 'file')}", style="bold")


def _headline(finding: "Finding", word: str, style: str) -> Text:
    where = f"{finding.source}:{finding.line}: "
    return Text.assemble(one_line(where), (word, style), one_line(f" {finding.rule}: {finding.message}"))
