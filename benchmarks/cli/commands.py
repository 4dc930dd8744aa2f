"""How all commands here end: what is wrong becomes a message on stderr and an exit status, never a traceback."""

import os
import sys
from typing import Any, Final

import typer
from typer.core import TyperGroup

from tune_policies.errors import InvalidResourcesError, ResourcePolicyError

_EXTRAS: Final = {
    **dict.fromkeys(("jinja2", "jsonschema", "matplotlib", "psutil", "pyperf"), "bench"),
    "torch": "torch",
}
"""By package the extra of this project that installs it."""

_INTERRUPTED: Final = 130
"""As a shell counts what Ctrl-C has ended."""


class Commands(TyperGroup):
    """Commands that end with 1 where what is asked cannot be met, 2 where it makes no sense, and 130 by Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is named."""
        try:
            return super().invoke(ctx)
        except ResourcePolicyError as error:
            raise _failed(error, 2 if isinstance(error, InvalidResourcesError) else 1) from None
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in _EXTRAS:
                raise
            needs = f"{ctx.invoked_subcommand} needs {package}"
            raise _failed(f"{needs}: pip install 'tune-policies[{_EXTRAS[package]}]'", 2) from None
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None


def run_commands(app: typer.Typer) -> None:
    """Run the command of this program. A reader who has enough, as ``head`` has, is no error worth a traceback."""
    try:
        try:
            app()
        finally:
            print(end="", flush=True)  # what is left to write fails here, not when Python ends
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _failed(error: object, status: int) -> typer.Exit:
    print(f"error: {error}", file=sys.stderr)
    return typer.Exit(status)
