"""Runs the measurements behind the documentation's numbers: ``python -m tests.evidence COMMAND``.

Each command prints a table, a description of the machine, and the command line. A command exits with status 1 if it
finds an error.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from tune_policies.benchmarks.cli import Commands

app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

_RAY_VARIABLES: Final = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Do not prestart workers, because starting them uses CPU time.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    # Do not lower the priority of workers, because other processes would delay them on a busy machine.
    "RAY_worker_niceness": "0",
}

Seed = Annotated[int, typer.Option(min=0, help="Random seed, or the seed of the first of several clusters.")]
Clusters = Annotated[int, typer.Option(min=1, help="Number of random clusters.")]


@app.callback()
def evidence() -> None:
    """Measure this project: plans against optima, sizing rules in simulated sweeps, runs with injected faults, and
    unit tests against mutants."""


@contextmanager
def _own_ray_folder() -> Iterator[str]:
    """Use a temporary folder for Ray, to separate the command's Ray clusters from other Ray clusters on the machine.

    Enter this context before Ray is imported.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit normally, so that the clusters are shut down
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell makes background jobs ignore Ctrl-C
    # The path must be short, because Ray creates sockets in this folder.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ.update(_RAY_VARIABLES, RAY_TMPDIR=folder)
        # Ray does not allow more simulated GPUs than this variable lists.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        yield folder


def _check_names(given: Collection[str] | None, known: Collection[str]) -> None:
    for name in given or ():
        if name not in known:
            raise typer.BadParameter(f"unknown name {name!r}. The known names are: {'; '.join(known)}.")


def _exit(*, is_sound: bool) -> None:
    raise typer.Exit(not is_sound)


def _range_of(seeds: str) -> range:
    first, separator, end = seeds.partition(":")
    if not (first.isdecimal() and separator and end.isdecimal()):
        raise typer.BadParameter(f"{seeds!r} is not a range of seeds. Use FIRST:END, such as 0:40.")
    return range(int(first), int(end))


@app.command()
def planning(
    *,
    nodes: Annotated[list[int] | None, typer.Option(min=1, help="Number of nodes. Can be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(min=3, help="Number of timed runs of each configuration.")] = 11,
) -> None:
    """Measure how long plans, their pictures and their texts take, for several numbers of nodes."""
    from .plans.planning import measure_planning

    measure_planning(nodes or [10, 100, 1_000], repetitions)


@app.command()
def optimum(
    *,
    clusters: Clusters = 1_000,
    seed: Seed = 0,
    policies: Annotated[int, typer.Option(min=1, help="Number of policies for each cluster.")] = 4,
) -> None:
    """Compare plans for random clusters with the exact optimum and with the rule of thumb. Requires OR-Tools."""
    from .plans.optimum_comparison import measure_optimum

    _exit(is_sound=measure_optimum(range(seed, seed + clusters), num_policies=policies))


@app.command()
def makespan(
    *,
    trials: Annotated[int, typer.Option(min=1, help="Number of trials in each run.")] = 200,
    slowdown: Annotated[float, typer.Option(min=1, help="Duration of a trial on CPUs ÷ duration on a GPU.")] = 4,
    runs: Annotated[int, typer.Option(min=1, help="Number of simulated runs of each configuration.")] = 20,
) -> None:
    """Simulate runs on GPU and CPU slots, and compare their durations with the shortest possible duration."""
    from .plans.pool_simulation import measure_makespan

    measure_makespan(trials, slowdown, runs)


@app.command()
def regret(
    run: Annotated[Path, typer.Argument(help="The run that decides.", metavar="RUN.json")],
    judge: Annotated[
        Path | None,
        typer.Argument(
            help="The run that judges. Without it, each round of the first run is judged, and the others decide.",
            metavar="RUN.json",
        ),
    ] = None,
    *,
    steps_per_trial: Annotated[int, typer.Option(min=1, help="Number of steps per trial.")] = 1_000,
) -> None:
    """Compare BenchmarkedPolicy with the faster device for each trial, based on runs of `tune-policies bench run`."""
    from .regret import measure_regret

    _exit(is_sound=measure_regret(run, judge, steps_per_trial))


@app.command()
def run_times(
    *,
    trials: Annotated[list[int] | None, typer.Option(min=1, help="Number of trials. Can be repeated.")] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Number of rounds. Each round runs each program once.")] = 5,
) -> None:
    """Measure the duration of programs with empty trials in plain Tune, with a limited queue, and under a policy."""
    with _own_ray_folder():
        from .plans.run_times import measure_run_times

        measure_run_times(trials or [2, 1_000], repetitions)


@app.command()
def run_costs(
    *,
    results: Annotated[int, typer.Option(min=100, help="Number of results of one trial.")] = 2_000,
    trials: Annotated[int, typer.Option(min=50, help="Number of trials with one result.")] = 200,
    slots: Annotated[int, typer.Option(min=1, help="Number of CPUs of Ray, and of trials at once.")] = 4,
    repetitions: Annotated[int, typer.Option(min=1, help="Number of rounds. Each round runs each program once.")] = 5,
) -> None:
    """Measure the CPU time and file sizes of results and trials in plain Tune and under a policy."""
    with _own_ray_folder():
        from .plans.run_costs import measure_run_costs

        measure_run_costs(results, trials, slots, repetitions)


@app.command()
def ray_agreement(
    *,
    clusters: Clusters = 300,
    seed: Seed = 0,
    policies: Annotated[int, typer.Option(min=1, help="Number of policies for each cluster.")] = 6,
    jobs: Annotated[int, typer.Option(min=1, help="Number of clusters that run in parallel.")] = 1,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Use several slot types, other devices, or nodes to add.")
    ] = False,
) -> None:
    """Test on real Ray clusters whether all planned trials run concurrently, and whether no further trial fits."""
    with _own_ray_folder():
        from .plans.ray_agreement import measure_ray_agreement

        seeds = range(seed, seed + clusters)
        _exit(is_sound=measure_ray_agreement(seeds, num_policies=policies, jobs=jobs, mixed=mixed))


@app.command()
def faults(
    *,
    fault: Annotated[list[str] | None, typer.Option(help="Name of a fault. Can be repeated.")] = None,
    way: Annotated[list[str] | None, typer.Option(help="Name of a way to run trials. Can be repeated.")] = None,
    number: Annotated[
        int | None,
        typer.Option(min=1, help="Number of faults per run. The default depends on the fault.", show_default=False),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Inject faults into real runs, and report lost trials, repeated steps, recovery times and leaked resources."""
    with _own_ray_folder() as folder:
        from .faults.matrix import FAULTS, measure_faults
        from .faults.program import WAYS

        _check_names(fault, FAULTS)
        _check_names(way, WAYS)
        _exit(is_sound=measure_faults(fault or [*FAULTS], way or [*WAYS], number, seed, folder))


@app.command()
def plain_tune(
    *,
    seeds: Annotated[str, typer.Option(help="Seeds of the programs, as FIRST:END without END.")] = "0:40",
    seed: Annotated[int | None, typer.Option(min=0, help="Run only the program of this seed.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="File of JSON records. Programs that it contains are not run again.")
    ] = None,
    shrink: Annotated[bool, typer.Option("--shrink", help="Drop features of counterexamples while they fail.")] = False,
) -> None:
    """Run small random programs with plain Tune and under a policy, and compare their ends, durations and results."""
    with _own_ray_folder():
        from .plain_tune.comparing import measure_plain_tune

        chosen = _range_of(seeds) if seed is None else [seed]
        _exit(is_sound=measure_plain_tune(chosen, output, shrinks=shrink))


@app.command()
def churn(
    *,
    faults: Annotated[int, typer.Option(min=1, help="Minimum number of faults.")] = 10_000,
    hours: Annotated[float, typer.Option(min=0.1, help="Minimum number of simulated hours.")] = 24,
    seed: Seed = 0,
) -> None:
    """Simulate a run in which nodes are added and lost and trials fail, and check that no trial is lost or stuck."""
    from .faults.churn import measure_churn

    _exit(is_sound=measure_churn(faults, hours, seed))


@app.command()
def sizing(
    sweeps: Annotated[list[str] | None, typer.Argument(help="Names of sweeps. By default, all.")] = None,
    *,
    seeds: Annotated[int, typer.Option(min=1, help="Number of random sweeps of each kind.")] = 10,
    seed: Seed = 0,
) -> None:
    """Simulate sweeps under rules that decide how much trials reserve, and check the claims about LearningPolicy."""
    from .sizing.comparing import measure_sizing
    from .sizing.sweeps import SWEEPS

    _check_names(sweeps, SWEEPS)
    _exit(is_sound=measure_sizing(range(seed, seed + seeds), sweeps or []))


@app.command()
def sizing_simulator(
    runs: Annotated[list[str] | None, typer.Argument(help="Names of runs. By default, all.")] = None,
) -> None:
    """Run small real sweeps, and compare their durations with those that the simulator of `sizing` predicts."""
    with _own_ray_folder():
        from .sizing.real_runs import CHECKS, measure_simulator

        known = [check.name for check in CHECKS]
        _check_names(runs, known)
        _exit(is_sound=measure_simulator(runs or []))


@app.command()
def sizing_by_hand(
    trials: Annotated[list[str] | None, typer.Argument(help="scikit-learn or XGBoost. By default, both.")] = None,
) -> None:
    """Run real scikit-learn and XGBoost trials under LearningPolicy(), and under each of a few hand settings."""
    with _own_ray_folder():
        from .sizing.real_runs import HAND_PROGRAMS, measure_hand_settings

        _check_names(trials, HAND_PROGRAMS)
        _exit(is_sound=measure_hand_settings(trials or []))


@app.command()
def sizing_programs(
    *,
    seeds: Annotated[str, typer.Option(help="Seeds of the programs, as FIRST:END without END.")] = "0:30",
    output: Annotated[
        Path | None, typer.Option(help="File of JSON records. Programs that it contains are not run again.")
    ] = None,
) -> None:
    """Run small random programs under a start policy and under LearningPolicy, and compare their durations."""
    with _own_ray_folder():
        from .sizing.real_runs import measure_never_slower

        _exit(is_sound=measure_never_slower(_range_of(seeds), output))


@app.command()
def audit(
    programs: Annotated[list[str] | None, typer.Argument(help="Names of programs. By default, all.")] = None,
) -> None:
    """Audit small programs, run each under the policy that the audit names, and compare the gain with the estimate."""
    with _own_ray_folder():
        from .audit.comparing import measure_audit
        from .audit.programs import PROGRAMS

        _check_names(programs, PROGRAMS)
        _exit(is_sound=measure_audit(programs or [*PROGRAMS]))


@app.command()
def all_states(
    *,
    trials: Annotated[int, typer.Option(min=1, max=5, help="Number of trials.")] = 4,
) -> None:
    """Explore all states of small runs, and check that no trial waits although a slot is free."""
    from .faults.all_states import measure_all_states

    _exit(is_sound=measure_all_states(trials))


@app.command()
def mutants(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Modules to change. By default, placement, plans, policies and runs.", show_default=False),
    ] = None,
    *,
    number: Annotated[int, typer.Option(min=1, help="Number of random mutants.")] = 400,
    seed: Seed = 0,
    processes: Annotated[int, typer.Option(min=1, help="Number of mutants that run in parallel.")] = 2,
) -> None:
    """Insert small mistakes into the code, one at a time, and report the mistakes that no unit test detects."""
    from .mutants.killing import default_modules, imported_path, measure_mutants

    paths = sorted(map(imported_path, files or ())) or default_modules()
    measure_mutants(paths, number, seed, processes)


if __name__ == "__main__":
    app()
