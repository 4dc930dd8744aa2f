"""The command ``python -m benchmarks``. Results go to stdout."""

from pathlib import Path
from typing import Annotated

import typer

from .autoscaling import MOST_REPETITIONS, Scenario, measure_autoscaling
from .planning import measure_planning
from .ray_agreement import measure_ray_agreement

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def benchmarks() -> None:
    """Measure what this project costs, with the machine and the versions beside every figure."""


@app.command()
def planning(
    *,
    nodes: Annotated[list[int] | None, typer.Option(min=1, help="Number of nodes; may be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(min=3, help="Timed runs of each arm.")] = 11,
    plot: Annotated[Path | None, typer.Option(help="Draw the times to this file.", show_default=False)] = None,
) -> None:
    """Time every policy's plan by number of nodes, against the rule of thumb, and take its memory."""
    measure_planning(nodes or [10, 100, 1_000], repetitions, plot)


@app.command()
def autoscaling(
    *,
    scenario: Annotated[list[Scenario] | None, typer.Option(help="What the cluster answers; may be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, max=MOST_REPETITIONS, help="Runs in each cluster.")] = 3,
    guide_timeout_s: Annotated[float, typer.Option(min=1, help="How long the guide's way waits, in seconds.")] = 240,
) -> None:
    """Time how soon it is known whether there will be a GPU, against waiting for a GPU task as Ray's guide does."""
    measure_autoscaling(scenario or [*Scenario], repetitions, guide_timeout_s)


@app.command()
def optimum(
    *,
    clusters: Annotated[int, typer.Option(min=1, help="Number of random clusters.")] = 1_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first; the others follow.")] = 0,
    policies: Annotated[int, typer.Option(min=1, help="Policies compared on each.")] = 4,
) -> None:
    """Compare plans for random clusters with the exact optimum, and with the rule of thumb (needs OR-tools)."""
    from .optimum_comparison import measure_optimum

    if not measure_optimum(range(seed, seed + clusters), num_policies=policies):
        raise typer.Exit(1)


@app.command()
def ray_agreement(
    *,
    clusters: Annotated[int, typer.Option(min=1, help="Number of random clusters.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first; the others follow.")] = 0,
    policies: Annotated[int, typer.Option(min=1, help="Policies tried on each.")] = 6,
    jobs: Annotated[int, typer.Option(min=1, help="Clusters at a time.")] = 1,
) -> None:
    """Try plans for random clusters on a real Ray: as many trials as planned run at once, and not one more."""
    if not measure_ray_agreement(range(seed, seed + clusters), num_policies=policies, jobs=jobs):
        raise typer.Exit(1)


def main() -> None:
    """Run the command."""
    app()
