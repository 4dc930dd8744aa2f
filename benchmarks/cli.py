"""The command ``python -m benchmarks``. Results go to stdout."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from tune_policies import ResourcePolicyError

from .autoscaling import MOST_REPETITIONS, Scenario, measure_autoscaling
from .planning import measure_planning
from .ray_agreement import measure_ray_agreement
from .tune_overhead import Arm, Size, measure_tune_overhead

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
def throughput(
    *,
    workload: Annotated[list[str] | None, typer.Option(help="Name of a workload; may be repeated.")] = None,
    trials_per_gpu: Annotated[list[int] | None, typer.Option(min=2, help="Trials at once; may be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs of each arm.")] = 3,
    work: Annotated[float, typer.Option(min=0.001, help="Share of each workload's steps that a trial does.")] = 1.0,
    cpus_per_trial: Annotated[float, typer.Option(min=0, help="CPUs of a trial under the measured plan.")] = 1,
    mps: Annotated[bool, typer.Option("--mps", help="Run what shares the GPU under MPS, too.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the record to this file.", show_default=False)] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it to this file.", show_default=False)] = None,
) -> None:
    """Count trials per hour on one GPU: one at a time, several at once, and as a measured plan says."""
    from .throughput import Sweep, measure_throughput
    from .workloads import WORKLOADS

    if unknown := sorted(set(workload or ()) - WORKLOADS.keys()):
        raise typer.BadParameter(f"unknown workload {unknown[0]!r} (known: {', '.join(WORKLOADS)})")
    sweep = Sweep(workload or [*WORKLOADS], trials_per_gpu or [2, 4, 8, 16, 32], repetitions, work, cpus_per_trial, mps)
    try:
        measure_throughput(sweep, output, plot)
    except ResourcePolicyError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None


@app.command()
def makespan(
    *,
    trials: Annotated[int, typer.Option(min=1, help="Trials of each run.")] = 200,
    seconds: Annotated[float, typer.Option(min=0.01, help="How long one takes in a GPU slot, in seconds.")] = 4,
    slowdown: Annotated[float, typer.Option(min=1, help="How many times as long it takes in a CPU slot.")] = 4,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs of each arm on a real Ray.")] = 2,
    simulations: Annotated[int, typer.Option(min=1, help="Simulated runs of each arm.")] = 20,
) -> None:
    """Time runs on GPU and CPU slots together: by PolicyScheduler, mixed naively, on GPUs only, and at the least."""
    from .makespan import Sizes, measure_makespan

    measure_makespan(Sizes(trials, seconds, slowdown, repetitions, simulations))


@app.command()
def nested(
    *,
    cluster: Annotated[list[str] | None, typer.Option(help="Name of a cluster; may be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs of the best by hand, and of the plan.")] = 3,
    work_s: Annotated[float, typer.Option(min=0, help="How long a trial's worker works, in seconds.")] = 6,
    cap_s: Annotated[float, typer.Option(min=1, help="When Ray's defaults are stopped, in seconds.")] = 60,
) -> None:
    """Count trials per minute of Train runs inside Tune: Ray's defaults, the best settings by hand, and a plan."""
    from .nested import SHAPES, measure_nested

    if unknown := sorted(set(cluster or ()) - SHAPES.keys()):
        raise typer.BadParameter(f"unknown cluster {unknown[0]!r} (known: {', '.join(SHAPES)})")
    measure_nested(cluster or [*SHAPES], repetitions, work_s, cap_s)


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


@app.command()
def tune_overhead(
    *,
    trials: Annotated[int, typer.Option(min=1, help="Trials of each run.")] = 200,
    repetitions: Annotated[int, typer.Option(min=1, help="Rounds of one run of each arm, after one more.")] = 5,
    arm: Annotated[list[Arm] | None, typer.Option(help="What is compared with by-hand; may be repeated.")] = None,
    reuse_actors: Annotated[bool, typer.Option(help="Whether a trial takes over another's process.")] = True,
) -> None:
    """Time runs of trials that do nothing: under a plan, with its scheduler and its callback, and by hand."""
    measure_tune_overhead(arm or [*Arm], Size(trials, repetitions, reuse_actors))


def main() -> None:
    """Run the command."""
    app()
