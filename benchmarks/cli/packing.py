"""How many trials a GPU holds, and where more stop paying: the command ``packing``."""

from pathlib import Path
from typing import Annotated

import typer

from .options import Force

app = typer.Typer()


@app.command()
def packing(
    *,
    workload: Annotated[
        list[str] | None, typer.Option(help="Name of a workload, or module:function; may be repeated.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Size of the workloads, if they are those of `run`.", show_default=False)
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of a trial.", show_default=False)] = None,
    trials_per_gpu: Annotated[list[int] | None, typer.Option(min=2, help="Trials at once; may be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs of each arm.")] = 3,
    work: Annotated[float, typer.Option(min=0.001, help="Share of each workload's steps that a trial does.")] = 1.0,
    cpus_per_trial: Annotated[float, typer.Option(min=0, help="CPUs of a trial under the measured plan.")] = 1,
    mps: Annotated[bool, typer.Option("--mps", help="Run what shares the GPU under MPS, too.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the record to this file.", show_default=False)] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it to this file.", show_default=False)] = None,
    force: Force = False,
) -> None:
    """Count trials per hour on one GPU: one at a time, several at once, and as a measured plan says."""
    from ..packing.runs import Sweep, default_trainings, find_training, measure_throughput

    trainings = [find_training(name, size, steps) for name in workload or ()] or default_trainings()
    sweep = Sweep(trainings, trials_per_gpu or [2, 4, 8, 16, 32], repetitions, work, cpus_per_trial, mps)
    if plot is not None:
        from ..report.images import check_ending

        check_ending(plot)  # before hours of runs
    measure_throughput(sweep, output, plot, force=force)
