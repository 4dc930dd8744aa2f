"""The command ``python -m benchmarks``. Results go to stdout."""

from typing import Annotated

import typer

from .planning import measure_planning

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def benchmarks() -> None:
    """Measure what this project costs, with the machine and the versions beside every figure."""


@app.command()
def planning(
    *,
    nodes: Annotated[list[int] | None, typer.Option(min=1, help="Number of nodes; may be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(min=3, help="Timed runs of each arm.")] = 11,
) -> None:
    """Time a plan against the rule of thumb (cluster sums divided by the request), by number of nodes."""
    measure_planning(nodes or [10, 100, 1_000], repetitions)


def main() -> None:
    """Run the command."""
    app()
