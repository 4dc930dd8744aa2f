"""From what was measured to what it means: the command ``decide``."""

import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tune_policies import ClusterCapacity, InvalidResourcesError
from tune_policies.files.terminal import tell
from tune_policies.files.writing import check_new

from .options import Force

if TYPE_CHECKING:
    from ..decide.decide import Decided, Terms
    from ..record.run_set import RunSet

app = typer.Typer()

_MOST_NOTES: Final = 20
"""More would push the table out of sight."""


@app.command()
def decide(
    run: Annotated[
        Path, typer.Argument(help="What `run` wrote; with --search, the file to write.", metavar="RUN.json")
    ],
    *,
    steps_per_trial: Annotated[int, typer.Option(min=1, help="Steps of a trial.")],
    prices: Annotated[
        Path | None, typer.Option(help="Prices: YAML or JSON, or SkyPilot's vms.csv.", show_default=False)
    ] = None,
    region: Annotated[str | None, typer.Option(help="Only prices there; else the lowest.", show_default=False)] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Spot prices of vms.csv.")] = False,
    price_date: Annotated[
        str | None, typer.Option(help="Day of vms.csv, as 2026-11-21; else that of the file.", show_default=False)
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="gpu, or a share such as gpu@0.25; else the first.", show_default=False)
    ] = None,
    gpu_type: Annotated[
        str | None, typer.Option(help="What the prices call the GPU; else as Ray does.", show_default=False)
    ] = None,
    capacity: Annotated[
        Path | None,
        typer.Option(help="For a cluster saved by `tune-policies probe --json`, without Ray.", show_default=False),
    ] = None,
    address: Annotated[str | None, typer.Option(help="Ray's address, as for ray.init.", show_default=False)] = None,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Deadline for Ray to answer, in seconds.")] = 30.0,
    packing: Annotated[
        Path | None, typer.Option(help="What `packing --output` wrote: what sharing a GPU brings.", show_default=False)
    ] = None,
    same_within: Annotated[float, typer.Option(help="By what part trials may differ and count as the same.")] = 0.05,
    search: Annotated[
        str | None,
        typer.Option(help="Measure this workload first, at the sizes around its crossover.", show_default=False),
    ] = None,
    min_size: Annotated[int, typer.Option(min=1, help="Smallest size of --search.")] = 1,
    max_size: Annotated[int | None, typer.Option(min=1, help="Largest size of --search.", show_default=False)] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of --search where one does not tell.")] = 5,
    cpus: Annotated[float, typer.Option(help="CPUs of a trial of --search.")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="Write the decision to this file, for BenchmarkedPolicy.", show_default=False)
    ] = None,
    force: Force = False,
    json: Annotated[bool, typer.Option("--json", help="Print the decision as JSON, for machines.")] = False,
) -> None:
    """Say from which size on the GPU is worth it: time and cost of a trial, and trials an hour on this cluster."""
    from ..decide.decide import Terms
    from ..decide.decide import decide as decide_from
    from ..decide.prices import load_prices
    from ..packing.packing_record import read_throughput
    from ..record.run_set_file import read_run_set, write_view

    if output is not None:
        check_new(output, force=force)
    named = None if gpu is None else _gpu_named(gpu)
    terms = Terms(steps_per_trial=steps_per_trial, gpu=named, gpu_type=gpu_type, same_within=same_within)
    found_prices = None if prices is None else load_prices(prices, region=region, use_spot=spot, date=price_date)
    record = None if packing is None else read_throughput(packing)
    if search is None:
        run_set = read_run_set(run)
    else:
        sizes = {"min_size": min_size, "max_size": max_size}
        run_set = _searched(search, run, terms, rounds, cpus, sizes, address, timeout_s)
    cluster = _cluster(capacity, address, timeout_s)
    decided = decide_from(run_set, terms, cluster, found_prices, record)
    _show(decided, as_json=json)
    if output is not None:
        write_view(output, f"{decided.decision.to_json()}\n", force=force)
    if not decided.is_decided:
        print("nothing is decided: every answer is ambiguous. Run more rounds, on a quiet machine", file=sys.stderr)
        raise typer.Exit(1)


def _gpu_named(text: str) -> str:
    """Return a GPU as runs name it."""
    from ..measuring.devices import parse_device

    device = parse_device(text)
    if device.resource != "GPU":
        raise InvalidResourcesError(f"--gpu names a GPU, such as gpu or gpu@0.25, got {text!r}")
    return str(device)


def _cluster(path: Path | None, address: str | None, timeout_s: float) -> ClusterCapacity:
    from tune_policies.policies.policy_file import load_capacity
    from tune_policies.probe.probe_cluster import ProbeWarning, probe_cluster

    if path is not None:
        return load_capacity(path)
    # Ray prints the errors of the whole cluster on stdout, which is kept for the result.
    with redirect_stdout(sys.stderr), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", ProbeWarning)
        found = probe_cluster(address, timeout_s=timeout_s)
    for warning in caught:
        tell(f"warning: {warning.message}")
    return found


def _searched(
    workload: str,
    output: Path,
    terms: "Terms",
    rounds: int,
    cpus: float,
    sizes: dict[str, Any],
    address: str | None,
    timeout_s: float,
) -> "RunSet":
    from ..decide.crossover import powers_of_two
    from ..environment import own_command
    from ..record.run_set import Settings
    from ..workloads.registry import check_needs, find_workload

    if sizes["max_size"] is None:
        raise InvalidResourcesError("--search needs --max-size: the largest size to look at")
    if output.exists():
        raise InvalidResourcesError(f"{output} is there already: --search measures anew, so name another file")
    looked_at = powers_of_two(sizes["min_size"], sizes["max_size"])
    if ":" not in workload:
        check_needs(find_workload(workload))
    from ..decide.search import Search, search_to_file

    wanted = Search(
        workload=workload,
        sizes=looked_at,
        settings=Settings(
            sizes={workload: looked_at[:1]},
            devices=("cpu", terms.gpu or "gpu"),
            cpus=cpus,
            num_rounds=rounds,
            has_control=False,
        ),
        terms=terms,
        command=own_command(),
        output=output,
    )
    with redirect_stdout(sys.stderr):
        return search_to_file(wanted, address=address, timeout_s=timeout_s)


def _show(decided: "Decided", *, as_json: bool) -> None:
    """Print the decision on stdout, and on stderr what is to be said of it."""
    from ..decide.decision_table import decision_view
    from ..record.show import result_console

    for note in decided.notes[:_MOST_NOTES]:
        tell(f"note: {note}")
    if (left_out := len(decided.notes) - _MOST_NOTES) > 0:
        print(f"note: and {left_out} more", file=sys.stderr)
    if as_json:
        print(decided.decision.to_json())
    else:
        result_console().print(decision_view(decided.decision))
