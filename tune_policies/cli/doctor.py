"""The commands ``doctor`` and ``usage``: what is wrong with the nodes, and what trials used of them."""

import json as json_text
import warnings
from pathlib import Path
from typing import Annotated

import typer

from tune_policies.cli.options import Address, Force, Json, TimeoutS, ray_speaks_on_stderr
from tune_policies.files.terminal import TextConsole
from tune_policies.probe.doctor.findings import diagnosis_view

app = typer.Typer()


@app.command()
def doctor(*, json: Json = False, address: Address = None, timeout_s: TimeoutS = 30.0) -> None:
    """Look for what is wrong for GPU work on the nodes of a Ray, or on this machine where none runs.

    Exit status: 0 nothing, or only notes; 1 there are problems, or Ray cannot be reached; 2 wrong usage.
    """
    from tune_policies.probe.doctor.cluster_reader import examine

    with ray_speaks_on_stderr(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray 2.50 leaves files open
        diagnosis = examine(address, timeout_s=timeout_s)
    if json:
        print(diagnosis.to_json())
    else:
        TextConsole().print(diagnosis_view(diagnosis))
    if not diagnosis.is_healthy:
        raise typer.Exit(1)


@app.command()
def usage(
    result_dir: Annotated[
        Path, typer.Argument(help="The folder of a run of Tune or Train.", show_default=False, metavar="RESULT_DIR")
    ],
    *,
    json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(help="Also plot what was used against the shares, to this file.", show_default=False)
    ] = None,
    force: Force = False,
) -> None:
    """Show what each trial of a run used of its share of GPU memory, and how many would fit on a GPU."""
    from tune_policies.tune.usage.gpu_memory_report import advise, plot_usage, usage_view
    from tune_policies.tune.usage.gpu_memory_usage import read_usage

    run = read_usage(result_dir)
    if plot is not None:
        plot_usage(run, plot, force=force)
    if json:
        print(json_text.dumps({**run.model_dump(mode="json"), "advice": advise(run)}, indent=2, ensure_ascii=False))
    else:
        TextConsole().print(usage_view(run))
