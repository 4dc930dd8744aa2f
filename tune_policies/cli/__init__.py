"""The command ``tune-policies``. Results go to stdout, everything else to stderr.

Exit status: 0 done, 1 the request cannot be met or problems were found, 2 wrong usage.
"""

import os
import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tune_policies.cli import cluster, doctor, lint, plan
from tune_policies.errors import InvalidResourcesError, ResourcePolicyError


class _Commands(TyperGroup):
    """The commands, with those of the benchmarks as ``bench``, which are imported when somebody asks for them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), "bench"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name != "bench":
            return super().get_command(ctx, cmd_name)
        from tune_policies.benchmarks.cli import app as benchmarks

        command = typer.main.get_command(benchmarks)
        command.name = cmd_name
        return command


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

for _commands in (plan, cluster, lint, doctor):
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
    """Run the command; errors end as a message, not as a traceback."""
    try:
        try:
            app()
        finally:
            print(end="", flush=True)  # what is left to write fails here, not when Python ends
    except InvalidResourcesError as error:
        _fail(error, 2)
    except ResourcePolicyError as error:
        _fail(error, 1)
    except BrokenPipeError:  # the reader has enough, as `head` has
        _drop_stdout()
        sys.exit(1)
    except OSError as error:
        _drop_stdout()
        _fail(f"cannot write the result: {error}", 1)


def _fail(error: object, status: int) -> None:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(status)


def _drop_stdout() -> None:
    """Let what could not be written go: Python would try again as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
