"""What files and writers take: the commands ``mutations`` and ``kills``. Each ends with 1 where something was lost."""

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
