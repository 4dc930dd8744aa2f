"""The commands ``tune-policies kuberay …``, which design and check files of clusters."""

from typing import ClassVar

import typer

from tune_policies.cli.options import HELP, ImportedCommands


class _Commands(ImportedCommands):
    modules: ClassVar = {"design": "tune_policies.cli.design", "lint": "tune_policies.cli.lint"}


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, context_settings=HELP)


@app.callback()
def kuberay() -> None:
    """Design and check files of clusters: manifests of KubeRay, and the files of `ray up`."""
