"""The command ``lint``: what is wrong with the files of clusters, and what of it can be mended."""

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from tune_policies.cli.options import Json
from tune_policies.files.terminal import TextConsole
from tune_policies.values.value import counted

app = typer.Typer()


@app.command()
def lint(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="RayCluster, RayJob, RayService, values of the chart ray-cluster, or a cluster YAML; - is stdin.",
            metavar="FILE",
            show_default=False,
        ),
    ],
    *,
    crd: Annotated[
        Path | None,
        typer.Option(
            help="Also check against KubeRay's definitions in this file or folder (kubectl get crd -o yaml).",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Check the cluster, job or service of this name alone.", show_default=False),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Write what is safe into the files.")] = False,
    unsafe_fixes: Annotated[
        bool, typer.Option("--unsafe-fixes", help="With --fix: also write what may change what runs.")
    ] = False,
    json: Json = False,
) -> None:
    """Check the files of clusters: each finding with its line, why it matters, and what to do.

    Exit status: 0 nothing, or only notes; 1 there are errors or warnings; 2 wrong usage.
    """
    # jsonschema and ruamel.yaml take time to import, and other commands need neither.
    from tune_policies.kuberay.lint.crd import load_crds
    from tune_policies.kuberay.lint.finding import report
    from tune_policies.kuberay.lint.fixes import check_fixable, fix_file
    from tune_policies.kuberay.lint.linting import lint_file

    if unsafe_fixes and not fix:
        raise typer.BadParameter("--unsafe-fixes goes with --fix")
    crds = None if crd is None else load_crds(crd)
    if fix:
        for file in files:
            check_fixable(file)
    fixed = [finding for file in files for finding in fix_file(file, crds, name, unsafe=unsafe_fixes)] if fix else []
    findings = [finding for file in files for finding in lint_file(file, crds, name)]
    if json:
        said = {"findings": findings, "fixed": fixed}
        plain = {name: [each.model_dump(mode="json") for each in found] for name, found in said.items()}
        print(json_text.dumps(plain, indent=2, ensure_ascii=False))
    else:
        console = TextConsole(soft_wrap=True)
        for line in report(findings, fixed, len(files)):
            console.print(line)
        if fix and (more := sum(bool(each.edits) and not each.is_safe for each in findings)):
            console.print(f"left out, as what runs may change: {counted(more, 'change')} (--fix --unsafe-fixes)")
    if any(finding.severity != "note" for finding in findings):
        raise typer.Exit(1)
