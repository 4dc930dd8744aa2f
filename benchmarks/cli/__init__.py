"""The commands ``tune-policies bench`` and ``python -m tune_policies.benchmarks``.

They print results to stdout, and all other messages to stderr. The exit status is 0 on success, 1 if the request is
infeasible or nothing can be measured, compared or decided, 2 for invalid usage, and 130 after Ctrl-C. A run without
times of some configurations succeeds, and its last lines name them.
"""

from typing import Any, Final

import typer

from tune_policies.cli.guarded_commands import HELP, GuardedCommands
from tune_policies.values.errors import InvalidResourcesError

from . import decide, record, run
from .interruption import repeating_ignored_interrupts

_EXTRAS: Final = {**dict.fromkeys(("jinja2", "matplotlib", "psutil", "scipy"), "bench"), "torch": "torch"}
"""The optional dependency group (extra) that installs each package, by package name."""


class Commands(GuardedCommands):
    """Reports a missing package with the extra that installs it, and exits with status 130 after Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command and return its result."""
        try:
            with repeating_ignored_interrupts():
                return super().invoke(ctx)
        except ModuleNotFoundError as error:
            # The missing module may be a submodule, such as ``scipy.stats``.
            package = (error.name or "").partition(".")[0]
            if package not in _EXTRAS:
                raise
            needs = f"{ctx.invoked_subcommand} requires {package}"
            raise InvalidResourcesError(f"{needs}. Run pip install 'tune-policies[{_EXTRAS[package]}]'") from None
        except KeyboardInterrupt:
            # Shells report 128 plus the number of the signal, and SIGINT is signal 2.
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, context_settings=HELP
)
for part in (run, record, decide):
    app.add_typer(part.app)


@app.callback()
def benchmarks() -> None:
    """Compare GPUs with CPUs, and record the machine and the package versions with every result."""
