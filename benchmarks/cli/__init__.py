"""The command ``python -m benchmarks``. Results go to stdout, everything else to stderr."""

import typer

from . import decision, packing, plans, prove, record, report, run, verdict

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for part in (run, record, verdict, decision, report, packing, plans, prove):
    app.add_typer(part.app)


@app.callback()
def benchmarks() -> None:
    """GPU against CPU, and what this project costs, with the machine and the versions beside every figure."""


def main() -> None:
    """Run the command."""
    app()
