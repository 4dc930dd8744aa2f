"""``python -m tests.evidence COMMAND``. It ends as the commands of the benchmarks do."""

import typer

from tune_policies.benchmarks.cli import Commands

from . import fault_commands, mutant_commands, plan_commands, prove_commands
from .guard import end_with_this_process

app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for part in (plan_commands, prove_commands, fault_commands, mutant_commands):
    app.add_typer(part.app)


@app.callback()
def evidence() -> None:
    """What plans cost and how good they are, how often verdicts are right, what files take, what tests see."""
    end_with_this_process()


if __name__ == "__main__":
    app()
