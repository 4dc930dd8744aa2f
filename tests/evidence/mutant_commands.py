"""Whether the tests see small mistakes in the code: the command ``mutants``."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def mutants(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Modules whose code is changed; left out: placement and policies.", show_default=False),
    ] = None,
    *,
    number: Annotated[int, typer.Option(min=1, help="So many mutants, drawn at random.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw.")] = 0,
    processes: Annotated[int, typer.Option(min=1, help="How many are tried at a time.")] = 2,
) -> None:
    """Put one small mistake after the other into the code: which ones do the unit tests not see?"""
    from .mutants.killing import ROOT, measure_mutants

    folders = (ROOT / "tune_policies" / name for name in ("placement", "policies"))
    paths = [file.resolve() for file in files or ()] or [path for folder in folders for path in folder.glob("*.py")]
    measure_mutants(sorted(path for path in paths if path.name != "__init__.py"), number, seed, processes)
