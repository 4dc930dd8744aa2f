"""The commands ``tune-policies kuberay …`` that design clusters and check cluster files."""

from typing import ClassVar

import typer

from tune_policies.cli.guarded_commands import HELP, ImportedCommands


class _Commands(ImportedCommands):
    modules: ClassVar = {"design": "tune_policies.cli.design", "lint": "tune_policies.cli.lint"}


app = typer.Typer(
    cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, context_settings=HELP
)


@app.callback()
def kuberay() -> None:
    """Design clusters and check cluster files: KubeRay manifests, and cluster YAML for `ray up`."""
