"""The commands ``tune-policies bench``, which are ``python -m tune_policies.benchmarks`` too.

Results go to stdout, everything else to stderr.
Exit status: 0 done; 1 it cannot be met, or the answer is no, as of ``check`` on a busy machine; 2 wrong usage; 130
Ctrl-C.
"""

from typing import Any, Final

import typer

from tune_policies.cli.options import HELP, GuardedCommands
from tune_policies.values.errors import InvalidResourcesError

from . import decide, record, run

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


app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, context_settings=HELP
)
for part in (run, record, decide):
    app.add_typer(part.app)


@app.callback()
def benchmarks() -> None:
    """Measure GPU against CPU, with the machine and the versions beside every figure."""
