"""The commands ``usage`` and ``dashboard``."""

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from tune_policies.cli.options import Force, Json, Redact, argument, option
from tune_policies.files.reading import read_text
from tune_policies.files.terminal import TextConsole
from tune_policies.files.writing import check_new, write_new

app = typer.Typer(add_completion=False)


@app.command()
def usage(
    result_dir: Annotated[Path, argument("The results folder of a Tune or Train run.", metavar="RESULT_DIR")],
    *,
    json: Json = False,
    plot: Annotated[
        Path | None, option("Also plot the GPU memory use and the GPU fraction of each trial to this file.")
    ] = None,
    html: Annotated[
        Path | None, option("Write an HTML page about the run instead, with advice, the plan and the slots.")
    ] = None,
    redact: Redact = False,
    force: Force = False,
) -> None:
    """Show how much GPU memory the trials of a run used, and how many of these trials fit on a GPU.

    If the run had a PolicyCallback, also show the run's use of CPUs, devices and slots.
    """
    from tune_policies.files.html_page import html_page
    from tune_policies.trainers.usage.load_usage import load_usage
    from tune_policies.trainers.usage.resource_usage import USAGE_FILE
    from tune_policies.trainers.usage.run_page import build_run_page
    from tune_policies.trainers.usage.usage_pictures import plot_usage

    for output in (html, plot):
        if output is not None:
            check_new(output, force=force, inputs=(result_dir / USAGE_FILE, result_dir / "result.json"))
    loaded = load_usage(result_dir)
    if redact:
        loaded = loaded.redacted()
    record = loaded.resource_usage
    if plot is not None:
        plot_usage(loaded, plot, record, force=force)
    if html is not None:
        learned = [] if loaded.learned is None else [loaded.learned]
        page = build_run_page(result_dir.resolve().name, loaded, record, last_advice=learned)
        write_new(html, html_page(page), force=force)
    if json:
        print(
            json_text.dumps({**loaded.model_dump(mode="json"), "advice": loaded.advice}, indent=2, ensure_ascii=False)
        )
    elif html is not None:
        print(html)
    else:
        TextConsole().print(loaded)


@app.command()
def dashboard() -> None:
    """Print a Grafana dashboard for the metrics that PolicyCallback exports through Ray."""
    from tune_policies.trainers.usage.resource_usage import DASHBOARD

    print(read_text(DASHBOARD), end="")
