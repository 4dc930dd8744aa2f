"""The command ``tune-policies``. Results go to stdout, everything else to stderr.

Exit status: 0 success; 1 the request is not feasible, or problems were found; 2 invalid usage, or the result cannot be
written; 3 ``doctor`` could not read any node.
"""

from importlib.metadata import version
from typing import Annotated, Any

import typer

from tune_policies.cli import cluster, doctor, execute, lint, plan
from tune_policies.cli.options import HELP, GuardedCommands


class _Commands(GuardedCommands):
    """The commands, and those of the benchmarks as ``bench``, which are imported on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), "bench"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name != "bench":
            return super().get_command(ctx, cmd_name)
        from tune_policies.benchmarks.cli import app as benchmarks

        command = typer.main.get_command(benchmarks)
        command.name = cmd_name
        return command


app = typer.Typer(cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, context_settings=HELP)

for _commands in (plan, execute, cluster, lint, doctor):
    app.add_typer(_commands.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tune-policies {version('tune-policies')}")
        raise typer.Exit


@app.callback()
def tune_policies(
    *,
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """What each Ray trial gets, how many run at once, and why."""


def main() -> None:
    """Run the command."""
    app()
