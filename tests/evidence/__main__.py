"""``python -m tests.evidence COMMAND``: the commands behind this project's own figures.

Each prints its table, the machine and its command line, and exits with 1 if what it looks for is not as it should be.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from tune_policies.benchmarks.cli import Commands

app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

_RAY_OF_ITS_OWN: Final = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Processes to which no work comes would keep the machine busy.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    # Otherwise Ray's processes wait for other work on a busy machine.
    "RAY_worker_niceness": "0",
}

Seed = Annotated[int, typer.Option(min=0, help="Seed of all that is random; of several clusters, of the first.")]
Clusters = Annotated[int, typer.Option(min=1, help="Number of random clusters.")]


@app.callback()
def evidence() -> None:
    """What plans cost and how good they are, what faults do to runs, and what the unit tests detect."""


@contextmanager
def _own_ray_folder() -> Iterator[str]:
    """Keep the Rays of a command away from any other on the machine; nothing has imported Ray yet."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the clusters too
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets a background job ignore Ctrl-C
    # Short, as Ray puts sockets there.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ.update(_RAY_OF_ITS_OWN, RAY_TMPDIR=folder)
        # Ray refuses more logical GPUs than this names.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        yield folder


def _end(*, is_sound: bool) -> None:
    if not is_sound:
        raise typer.Exit(1)


@app.command()
def planning(
    *,
    nodes: Annotated[list[int] | None, typer.Option(min=1, help="Number of nodes; may be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(min=3, help="Timed runs of each configuration.")] = 11,
) -> None:
    """Time every policy's plan by number of nodes, against the rule of thumb, and measure its memory."""
    from .plans.planning import measure_planning

    measure_planning(nodes or [10, 100, 1_000], repetitions)


@app.command()
def optimum(
    *,
    clusters: Clusters = 1_000,
    seed: Seed = 0,
    policies: Annotated[int, typer.Option(min=1, help="Policies compared on each.")] = 4,
) -> None:
    """Compare plans for random clusters with the exact optimum, and with the rule of thumb (needs OR-tools)."""
    from .plans.optimum_comparison import measure_optimum

    _end(is_sound=measure_optimum(range(seed, seed + clusters), num_policies=policies))


@app.command()
def makespan(
    *,
    trials: Annotated[int, typer.Option(min=100, help="Trials of each run; with fewer, slots stay idle.")] = 200,
    seconds: Annotated[float, typer.Option(min=0.01, help="How long one takes in a GPU slot, in seconds.")] = 4,
    slowdown: Annotated[float, typer.Option(min=1, help="How many times as long it takes in a CPU slot.")] = 4,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs of each configuration on a real Ray.")] = 2,
    simulations: Annotated[int, typer.Option(min=1, help="Simulated runs of each configuration.")] = 20,
) -> None:
    """Time runs on GPU and CPU slots together: by PolicyScheduler, mixed naively, and on GPUs only."""
    from .plans.makespan import Sizes, measure_makespan

    measure_makespan(Sizes(trials, seconds, slowdown, repetitions, simulations))


@app.command()
def run_times(
    *,
    trials: Annotated[list[int] | None, typer.Option(min=1, help="Number of trials; can be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Rounds, each with every program once.")] = 5,
) -> None:
    """Time programs with empty trials from start to end: by hand, with a limited queue, and under a policy."""
    with _own_ray_folder():
        from .plans.run_times import measure_run_times

        measure_run_times(trials or [2, 1_000], repetitions)


@app.command()
def ray_agreement(
    *,
    clusters: Clusters = 300,
    seed: Seed = 0,
    policies: Annotated[int, typer.Option(min=1, help="Policies tried on each.")] = 6,
    jobs: Annotated[int, typer.Option(min=1, help="Clusters at a time.")] = 1,
    mixed: Annotated[bool, typer.Option("--mixed", help="Several slot types, other devices, nodes to add.")] = False,
) -> None:
    """Try plans for random clusters on a real Ray: as many trials as planned run at once, and not one more."""
    with _own_ray_folder():
        from .plans.ray_agreement import measure_ray_agreement

        seeds = range(seed, seed + clusters)
        _end(is_sound=measure_ray_agreement(seeds, num_policies=policies, jobs=jobs, mixed=mixed))


@app.command()
def faults(
    *,
    fault: Annotated[list[str] | None, typer.Option(help="Name of a kind of fault; may be repeated.")] = None,
    way: Annotated[list[str] | None, typer.Option(help="Name of a way to run trials; may be repeated.")] = None,
    number: Annotated[
        int | None, typer.Option(min=1, help="Faults in each run; else as many as suit each kind.", show_default=False)
    ] = None,
    seed: Seed = 0,
) -> None:
    """Let faults strike real runs: is a trial lost, a neighbor disturbed, anything left behind?"""
    with _own_ray_folder() as folder:
        from .faults.matrix import FAULTS, measure_faults
        from .faults.program import WAYS

        for given, known in ((fault, FAULTS), (way, WAYS)):
            if unknown := sorted(set(given or ()) - known.keys()):
                raise typer.BadParameter(f"unknown name {unknown[0]!r} (known: {', '.join(known)})")
        _end(is_sound=measure_faults(fault or [*FAULTS], way or [*WAYS], number, seed, folder))


@app.command()
def churn(
    *,
    faults: Annotated[int, typer.Option(min=1, help="Faults, at the least.")] = 10_000,
    hours: Annotated[float, typer.Option(min=0.1, help="Simulated hours in which they happen.")] = 24,
    seed: Seed = 0,
) -> None:
    """Let nodes come and go and trials fail for a simulated day: does each trial end, and wait only for a reason?"""
    from .faults.churn import measure_churn

    _end(is_sound=measure_churn(faults, hours, seed))


@app.command()
def mutants(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Modules whose code is changed; left out: placement and policies.", show_default=False),
    ] = None,
    *,
    number: Annotated[int, typer.Option(min=1, help="How many mutants, drawn at random.")] = 400,
    seed: Seed = 0,
    processes: Annotated[int, typer.Option(min=1, help="How many are tried at a time.")] = 2,
) -> None:
    """Put one small mistake after the other into the code: which ones do the unit tests not detect?"""
    from .mutants.killing import ROOT, measure_mutants

    folders = (ROOT / "tune_policies" / name for name in ("placement", "policies"))
    paths = [file.resolve() for file in files or ()] or [path for folder in folders for path in folder.glob("*.py")]
    measure_mutants(sorted(path for path in paths if path.name != "__init__.py"), number, seed, processes)


if __name__ == "__main__":
    app()
