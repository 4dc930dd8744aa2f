"""How the commands here end, beside what all commands of this project share."""

from typing import Any, Final

import typer

from tune_policies.cli.options import GuardedCommands
from tune_policies.values.errors import InvalidResourcesError

_EXTRAS: Final = {
    **dict.fromkeys(("jinja2", "jsonschema", "matplotlib", "psutil", "pyperf"), "bench"),
    "torch": "torch",
}
"""By package the extra of this project that installs it."""

_INTERRUPTED: Final = 130
"""As a shell counts what Ctrl-C has ended."""


class Commands(GuardedCommands):
    """Commands that end with 1 where what is asked cannot be met, 2 where it makes no sense, and 130 by Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is named."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in _EXTRAS:
                raise
            needs = f"{ctx.invoked_subcommand} needs {package}"
            raise InvalidResourcesError(f"{needs}: pip install 'tune-policies[{_EXTRAS[package]}]'") from None
        except KeyboardInterrupt:
            raise typer.Exit(_INTERRUPTED) from None


def run_commands(app: typer.Typer) -> None:
    """Run the command of this program."""
    app()
