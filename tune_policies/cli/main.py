"""The command ``tune-policies``. It prints results to stdout, and all other messages to stderr.

The exit status is 0 for success, and 1 if the request is infeasible or problems were found. It is 2 if the usage is
invalid or the result cannot be written, and 3 if ``doctor`` cannot reach Ray or cannot read any node.
"""

import sys
from typing import Annotated, ClassVar

import typer

from tune_policies.cli.guarded_commands import HELP, ImportedCommands
from tune_policies.cli.run_program import AfterCommand


class _Commands(ImportedCommands):
    modules: ClassVar = {
        "probe": "tune_policies.cli.probe",
        **dict.fromkeys(("plan", "schema"), "tune_policies.cli.plan"),
        "exec": "tune_policies.cli.execute",
        **dict.fromkeys(("doctor", "cpu-labels"), "tune_policies.cli.doctor"),
        **dict.fromkeys(("usage", "dashboard"), "tune_policies.cli.usage"),
        "kuberay": "tune_policies.cli.kuberay",
        "bench": "tune_policies.benchmarks.cli",
    }


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, context_settings=HELP)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"tune-policies {version('tune-policies')}")
        raise typer.Exit


@app.callback()
def tune_policies(
    *,
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Plan the resources of Ray trials, show the number of concurrent trials with the reasons, and check clusters."""


def main() -> None:
    """Run the command ``tune-policies``."""
    excepthook = sys.excepthook
    try:
        app()
    except AfterCommand as ended:
        after = ended.function
    sys.excepthook = excepthook  # Typer has replaced it
    after()
