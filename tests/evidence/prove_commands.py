"""How often verdicts are right where the truth is known: the commands ``prove …``. Each ends with 1 below its goal."""

import statistics
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()
prove = typer.Typer(no_args_is_help=True, help="How often verdicts are right where the truth is known.")
app.add_typer(prove, name="prove")

Runs = Annotated[int, typer.Option(min=1, help="Runs, with a verdict each.")]
Rounds = Annotated[int, typer.Option(min=1, help="Fresh processes of each arm in a run.")]
Blocks = Annotated[int, typer.Option(min=1, help="Blocks of each process.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the first run; the others follow.")]
Output = Annotated[
    Path | None, typer.Option(help="Write the record to this file, and go on with it.", show_default=False)
]


@prove.command()
def aa(*, runs: Runs = 200, rounds: Rounds = 5, blocks: Blocks = 8, seed: Seed = 0, output: Output = None) -> None:
    """Compare equal arms: how often do they pass for different?"""
    _prove("aa", runs, rounds, blocks, seed, output)


@prove.command()
def change(*, runs: Runs = 100, rounds: Rounds = 5, blocks: Blocks = 24, seed: Seed = 0, output: Output = None) -> None:
    """Compare steps of 0.3 ms of which one takes 5 % longer: how often is it found?"""
    _prove("change", runs, rounds, blocks, seed, output)


@prove.command()
def busy(*, runs: Runs = 100, rounds: Rounds = 5, blocks: Blocks = 8, seed: Seed = 0, output: Output = None) -> None:
    """Compare both beside a busy process: how often is a verdict wrong?"""
    _prove("busy", runs, rounds, blocks, seed, output)


@prove.command()
def coverage(
    *,
    draws: Annotated[int, typer.Option(min=1, help="Synthetic runs for each number of rounds.")] = 1000,
    seed: Seed = 0,
) -> None:
    """Draw synthetic runs on a machine that drifts: how often does the interval hold the truth?"""
    from .verdicts.proof import measure_coverage
    from .verdicts.proof_report import print_coverage

    if not print_coverage(measure_coverage(draws, seed)):
        raise typer.Exit(1)


@prove.command()
def crossover(
    *,
    searches: Annotated[int, typer.Option(min=1, help="Pairs of synthetic devices.")] = 100,
    seed: Seed = 0,
) -> None:
    """Search the crossover of synthetic devices of known cost: how near does it come, and how much is measured?"""
    from .verdicts.crossover_proof import print_searches, search_at_random

    if not print_searches([search_at_random(each) for each in range(seed, seed + searches)]):
        raise typer.Exit(1)


@prove.command()
def agreement(
    *,
    workload: Annotated[str, typer.Option(help="A workload in PyTorch.")] = "matmul",
    size: Annotated[int, typer.Option(min=1, help="Its size.")] = 256,
    rounds: Rounds = 24,
) -> None:
    """Compare a step's time as a run records it with what PyTorch's timer says in a plain process."""
    from tune_policies.benchmarks.compare.judge import Outcome
    from tune_policies.benchmarks.record.machine import describe_machine, own_command

    from .verdicts.proof_runs import measure_agreement

    found = measure_agreement(workload, size, rounds)
    print(f"{workload}[{size}]: {found.ratio:.4f} ({found.low:.4f} to {found.high:.4f}) times torch.utils.benchmark's")
    for reason in found.reasons:
        print(f"* {reason}")
    print(f"{rounds} rounds; goal: within 2 %. {describe_machine('torch')}\ncommand: {own_command()}")
    if found.outcome is not Outcome.SAME:
        raise typer.Exit(1)


@prove.command()
def harness(
    *,
    microseconds: Annotated[list[int] | None, typer.Option(min=1, help="Length of a step; may be repeated.")] = None,
    rounds: Rounds = 5,
) -> None:
    """Time steps that wait on the clock: how much more than they wait for is recorded?"""
    from tune_policies.benchmarks.record.machine import describe_machine, own_command

    from .verdicts.proof_runs import measure_overhead_of_steps

    found = measure_overhead_of_steps(tuple(microseconds or (1000, 3000, 10_000)), rounds)
    for size, parts in found.items():
        least, middle, most = min(parts), statistics.median(parts), max(parts)
        print(f"{size / 1e3:g} ms: {middle:.3%} more, from {least:.3%} to {most:.3%} in {len(parts)} blocks")
    print(f"goal: at most 1 %. {describe_machine()}\ncommand: {own_command()}")
    if max(statistics.median(parts) for parts in found.values()) > 0.01:
        raise typer.Exit(1)


def _prove(name: str, runs: int, rounds: int, blocks: int, seed: int, output: Path | None) -> None:
    from .verdicts.proof_report import print_proof
    from .verdicts.proof_runs import ProofSize, run_proof

    if not print_proof(run_proof(name, ProofSize(runs, rounds, blocks, seed), output)):
        raise typer.Exit(1)
