"""What plans cost and how good they are: the commands for this project's own figures."""

from pathlib import Path
from typing import Annotated

import typer

from .plans.choices import MOST_REPETITIONS, Arm, PoolArm, Scenario

app = typer.Typer()


@app.command()
def planning(
    *,
    nodes: Annotated[list[int] | None, typer.Option(min=1, help="Number of nodes; may be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(min=3, help="Timed runs of each arm.")] = 11,
    plot: Annotated[Path | None, typer.Option(help="Draw the times to this file.", show_default=False)] = None,
) -> None:
    """Time every policy's plan by number of nodes, against the rule of thumb, and take its memory."""
    from .plans.planning import measure_planning

    if plot is not None:
        from tune_policies.benchmarks.report.page import check_ending

        check_ending(plot)  # before minutes of runs
    measure_planning(nodes or [10, 100, 1_000], repetitions, plot)


@app.command()
def autoscaling(
    *,
    scenario: Annotated[list[Scenario] | None, typer.Option(help="What the cluster answers; may be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, max=MOST_REPETITIONS, help="Runs in each cluster.")] = 3,
    guide_timeout_s: Annotated[float, typer.Option(min=1, help="How long the guide's way waits, in seconds.")] = 240,
) -> None:
    """Time how soon it is known whether there will be a GPU, against waiting for a GPU task as Ray's guide does."""
    from .plans.autoscaling import measure_autoscaling

    measure_autoscaling(scenario or [*Scenario], repetitions, guide_timeout_s)


@app.command()
def optimum(
    *,
    clusters: Annotated[int, typer.Option(min=1, help="Number of random clusters.")] = 1_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first; the others follow.")] = 0,
    policies: Annotated[int, typer.Option(min=1, help="Policies compared on each.")] = 4,
) -> None:
    """Compare plans for random clusters with the exact optimum, and with the rule of thumb (needs OR-tools)."""
    from .plans.optimum_comparison import measure_optimum

    if not measure_optimum(range(seed, seed + clusters), num_policies=policies):
        raise typer.Exit(1)


@app.command()
def plan_quality(
    *,
    clusters: Annotated[int, typer.Option(min=1, help="Number of random clusters.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first; the others follow.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw the result to this file.", show_default=False)] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as a page has it.")] = False,
) -> None:
    """Compare plans for mixed clusters of real node shapes with the most possible, and with rules of other tools."""
    from .plans.plan_quality import measure_plan_quality

    if plot is not None:
        from tune_policies.benchmarks.report.page import check_ending

        check_ending(plot)
    if not measure_plan_quality(range(seed, seed + clusters), plot, markdown=markdown):
        raise typer.Exit(1)


@app.command()
def makespan(
    *,
    trials: Annotated[int, typer.Option(min=1, help="Trials of each run.")] = 200,
    seconds: Annotated[float, typer.Option(min=0.01, help="How long one takes in a GPU slot, in seconds.")] = 4,
    slowdown: Annotated[float, typer.Option(min=1, help="How many times as long it takes in a CPU slot.")] = 4,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs of each arm on a real Ray.")] = 2,
    simulations: Annotated[int, typer.Option(min=1, help="Simulated runs of each arm.")] = 20,
    arm: Annotated[list[PoolArm] | None, typer.Option(help="What a real Ray runs; may be repeated.")] = None,
    pools: Annotated[int, typer.Option(min=1, help="Simulated pools of any slots and speeds.")] = 1_000,
    cold: Annotated[bool, typer.Option("--cold", help="Time the starts of the processes too.")] = False,
) -> None:
    """Time runs on GPU and CPU slots together: by PolicyScheduler, mixed naively, on GPUs only, and at the least."""
    from .plans.makespan import Sizes, measure_makespan

    measure_makespan(arm or [*PoolArm], Sizes(trials, seconds, slowdown, repetitions, simulations, pools, cold))


@app.command()
def nested(
    *,
    cluster: Annotated[list[str] | None, typer.Option(help="Name of a cluster; may be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs of the best by hand, and of the plan.")] = 3,
    work_s: Annotated[float, typer.Option(min=0, help="How long a trial's worker works, in seconds.")] = 6,
    cap_s: Annotated[float, typer.Option(min=1, help="When Ray's defaults are stopped, in seconds.")] = 60,
) -> None:
    """Count trials per minute of Train runs inside Tune: Ray's defaults, the best settings by hand, and a plan."""
    from .plans.nested import SHAPES, measure_nested

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
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Several types of slots, other devices, nodes to add.")
    ] = False,
) -> None:
    """Try plans for random clusters on a real Ray: as many trials as planned run at once, and not one more."""
    from .plans.ray_agreement import measure_ray_agreement

    if not measure_ray_agreement(range(seed, seed + clusters), num_policies=policies, jobs=jobs, mixed=mixed):
        raise typer.Exit(1)


@app.command()
def overhead(
    *,
    trials: Annotated[int, typer.Option(min=1, help="Trials of each run.")] = 200,
    repetitions: Annotated[int, typer.Option(min=1, help="Rounds of one run of each arm, after one more.")] = 5,
    arm: Annotated[list[Arm] | None, typer.Option(help="What is compared with by-hand; may be repeated.")] = None,
    reuse_actors: Annotated[bool, typer.Option(help="Whether a trial takes over another's process.")] = True,
) -> None:
    """Time runs of trials that do nothing: under a plan, with its scheduler and its callback, and by hand."""
    from .plans.overhead import Size, measure_overhead

    measure_overhead(arm or [*Arm], Size(trials, repetitions, reuse_actors))


@app.command()
def cold_start(
    *,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of one run of each program, after one more.")] = 10,
    trials: Annotated[list[int] | None, typer.Option(min=1, help="Only programs of so many trials.")] = None,
) -> None:
    """Time programs from start to end, cold: under a policy, and by hand."""
    from .plans.cold_start import CASES, measure_cold_start

    measure_cold_start([case for case in CASES if not trials or case.num_trials in trials], rounds)


@app.command()
def probe(
    *,
    nodes: Annotated[
        list[int] | None, typer.Option(min=1, help="Nodes of a cluster, each a raylet here; may be repeated.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Probes of each cluster, after one more.")] = 10,
) -> None:
    """Time probes of running clusters."""
    from .plans.cold_start import measure_probes

    measure_probes(nodes or [1, 5, 10, 20], rounds)


@app.command()
def task_processes(
    *,
    runs: Annotated[int, typer.Option(min=1, help="Runs, each on a Ray of its own.")] = 7,
    calls: Annotated[int, typer.Option(min=1, help="Calls of each kind in a run, after one more.")] = 10,
) -> None:
    """Time calls of a Ray task in a fresh process and in a kept one."""
    from .plans.task_processes import measure_task_processes

    measure_task_processes(runs, calls)


@app.command()
def prices(
    *,
    catalogs: Annotated[int, typer.Option(min=1, help="Number of random catalogues.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first; the others follow.")] = 0,
) -> None:
    """Compare the nodes designed for random catalogues with the cheapest that hold the trials."""
    from .plans.prices import measure_prices

    if not measure_prices(range(seed, seed + catalogs)):
        raise typer.Exit(1)
