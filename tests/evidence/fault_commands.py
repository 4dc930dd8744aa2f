"""What files, writers and runs take. Each command ends with 1 where something was lost."""

from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def mutations(
    *,
    number: Annotated[int, typer.Option(min=1, help="Damaged files for each loader.")] = 20_000,
    file: Annotated[list[str] | None, typer.Option(help="Only this kind of file; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the damages.")] = 0,
) -> None:
    """Damage a sound file of each kind at random: is it read or refused by its name, always, and soon?"""
    from .faults.mutations import measure_mutations
    from .faults.sound_files import sound_files

    if unknown := sorted(set(file or ()) - sound_files().keys()):
        raise typer.BadParameter(f"unknown file {unknown[0]!r} (known: {', '.join(sound_files())})")
    if not measure_mutations(file or [], number, seed):
        raise typer.Exit(1)


@app.command()
def kills(
    *,
    number: Annotated[int, typer.Option(min=1, help="Kills of each writer.")] = 200,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the moments.")] = 0,
) -> None:
    """Kill what writes a file at a random moment, one writer and two at once: is the file whole, always?"""
    from .faults.kills import measure_kills

    if not measure_kills(number, seed):
        raise typer.Exit(1)


@app.command()
def churn(
    *,
    faults: Annotated[int, typer.Option(min=1, help="Faults, at the least.")] = 10_000,
    hours: Annotated[float, typer.Option(min=0.1, help="Simulated hours in which they happen.")] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all that happens.")] = 0,
) -> None:
    """Let nodes come and go and trials fail for a simulated day: does each trial end, and wait only for a reason?"""
    from .faults.churn import measure_churn

    if not measure_churn(faults, hours, seed):
        raise typer.Exit(1)


@app.command()
def soak(
    *,
    cycles: Annotated[int, typer.Option(min=0, help="Runs in one process.")] = 1_000,
    warm_up: Annotated[int, typer.Option(min=1, help="Runs before the first look, which fill all caches.")] = 20,
    starts: Annotated[int, typer.Option(min=0, help="Programs, one after the other, on one cluster.")] = 200,
    alone: Annotated[bool, typer.Option("--alone", help="Run by Ray's own Tune, without us, for comparison.")] = False,
) -> None:
    """Plan, run and end again and again on a real Ray: is as much held at the end as at the beginning?"""
    from .faults.soak import measure_soak

    if not measure_soak(cycles, starts, warm_up, is_alone=alone):
        raise typer.Exit(1)
