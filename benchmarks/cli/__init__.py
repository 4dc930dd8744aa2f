"""The commands ``tune-policies bench``, which are ``python -m tune_policies.benchmarks`` too.

Results go to stdout, everything else to stderr.
Exit status: 0 done; 1 it cannot be met, or the answer is no, as of ``check`` on a busy machine; 2 wrong usage; 130
Ctrl-C.
"""

import typer

from . import compare as verdict
from . import decide as decision
from . import packing, record, report, run
from .commands import Commands, run_commands

app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for part in (run, record, verdict, decision, report, packing):
    app.add_typer(part.app)


@app.callback()
def benchmarks() -> None:
    """GPU against CPU, with the machine and the versions beside every figure."""


def main() -> None:
    """Run the command."""
    run_commands(app)
