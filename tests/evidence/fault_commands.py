"""What files, writers and runs take. Each command ends with 1 where something was lost."""

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Final

import typer

app = typer.Typer()

_RAY_OF_ITS_OWN: Final = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # The machine would be busy with processes to which no work comes.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    # Else a machine that is busy with other work lets Ray's processes wait for it.
    "RAY_worker_niceness": "0",
}


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
def faults(
    *,
    fault: Annotated[list[str] | None, typer.Option(help="Name of a kind of fault; may be repeated.")] = None,
    way: Annotated[list[str] | None, typer.Option(help="Name of a way to run trials; may be repeated.")] = None,
    number: Annotated[
        int | None, typer.Option(min=1, help="Faults in each run; else as many as suit each kind.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is hit, and when.")] = 0,
    record: Annotated[
        Path | None, typer.Option(help="Add what each run came to to this file, once it has ended.", show_default=False)
    ] = None,
    show: Annotated[
        list[Path] | None,
        typer.Option(help="Run nothing, and print the table of this record; may be repeated.", show_default=False),
    ] = None,
) -> None:
    """Let faults strike real runs: is a trial lost, a neighbour disturbed, anything left behind?"""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which ends the cluster too
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs behind it ignore Ctrl-C
    # Short, as Ray puts sockets there; before Ray is imported.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        os.environ.update(_RAY_OF_ITS_OWN, RAY_TMPDIR=folder)
        from .faults.matrix.matrix import FAULTS, measure_faults, show_faults
        from .faults.matrix.ways import WAYS

        if show:
            show_faults(show)
            return

        for given, known in ((fault, FAULTS), (way, WAYS)):
            if unknown := sorted(set(given or ()) - known.keys()):
                raise typer.BadParameter(f"unknown name {unknown[0]!r} (known: {', '.join(known)})")
        is_sound = measure_faults(fault or [*FAULTS], way or [*WAYS], number, seed, record)
    if not is_sound:
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
