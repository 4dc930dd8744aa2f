"""The commands that interpret measurements: ``compare``, ``check`` and ``decide``."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tune_policies import InvalidResourcesError
from tune_policies.cli.options import Address, Cluster, Force, Json, TimeoutS, ray_speaks_on_stderr, read_cluster
from tune_policies.files.terminal import tell
from tune_policies.files.writing import check_new, write_new
from tune_policies.plan.decision import Decision

from ..record.run_set import Phase

if TYPE_CHECKING:
    from ..decide.crossover import Search
    from ..decide.decide import Decided, Terms

app = typer.Typer()

_MOST_NOTES: Final = 20
"""More notes would push the table out of sight."""


@app.command()
def decide(
    run: Annotated[
        Path, typer.Argument(help="The file that `run` wrote; with --search, the file to write.", metavar="RUN.json")
    ],
    *,
    steps_per_trial: Annotated[int, typer.Option(min=1, help="Steps of a trial.")],
    prices: Annotated[Path | None, typer.Option(help="Prices: YAML or JSON, or SkyPilot's vms.csv.")] = None,
    region: Annotated[str | None, typer.Option(help="Region of the prices; by default the cheapest.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Take the spot prices of vms.csv.")] = False,
    price_date: Annotated[
        str | None, typer.Option(help="Day of the prices in vms.csv, as 2026-11-21; by default the file's.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(help="Which GPU of the run: gpu, or a share such as gpu@0.25; by default the first.")
    ] = None,
    gpu_type: Annotated[str | None, typer.Option(help="The GPU's name in the prices; by default Ray's.")] = None,
    cluster: Cluster = None,
    address: Address = None,
    timeout_s: TimeoutS = 30.0,
    packing: Annotated[
        Path | None, typer.Option(help="The file of `packing --output`: what sharing a GPU brings.")
    ] = None,
    same_within: Annotated[
        float, typer.Option(help="Trials that differ by less than this part count as the same.")
    ] = 0.05,
    num_trials: Annotated[
        int | None,
        typer.Option(min=1, help="Trials of the whole run: how many CPU nodes finish them as soon as one GPU?"),
    ] = None,
    node_cpus: Annotated[
        int | None,
        typer.Option(min=1, help="CPUs of such a node; by default those of the cluster's largest node without GPUs."),
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="First measure this workload, at the sizes around its crossover.")
    ] = None,
    min_size: Annotated[int, typer.Option(min=1, help="Smallest size of --search.")] = 1,
    max_size: Annotated[int | None, typer.Option(min=1, help="Largest size of --search.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of --search, where one is not enough.")] = 5,
    cpus: Annotated[float, typer.Option(help="CPUs of a trial in --search.")] = 1,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the decision here, for BenchmarkedPolicy.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Say from which size on the GPU is worth it: time and cost of a trial, and trials an hour on this cluster."""
    from tune_policies.kuberay.reading.load_cluster import load_capacity

    from ..decide.cpu_nodes import NodesQuestion
    from ..decide.crossover import powers_of_two, search_to_file
    from ..decide.decide import Terms
    from ..decide.decide import decide as decide_from
    from ..decide.prices import load_prices
    from ..record.packing_record import read_throughput
    from ..record.run_set_file import read_run_set

    if output is not None:
        example = json.dumps(dict.fromkeys(Decision.model_fields))
        check_new(output, force=force, inputs=(run, prices, cluster, packing), example=example)
    named = None if gpu is None else _gpu_named(gpu)
    if num_trials is None and node_cpus is not None:
        raise InvalidResourcesError(
            "--node-cpus needs --num-trials: the number of trials for which one GPU is compared with CPU nodes"
        )
    nodes = None if num_trials is None else NodesQuestion(num_trials=num_trials, node_cpus=node_cpus)
    terms = Terms(steps_per_trial=steps_per_trial, gpu=named, gpu_type=gpu_type, same_within=same_within, nodes=nodes)
    found_prices = None if prices is None else load_prices(prices, region=region, use_spot=spot, date=price_date)
    record = None if packing is None else read_throughput(packing)
    if search is None:
        run_set = read_run_set(run)
    else:
        if max_size is None:
            raise InvalidResourcesError("--search needs --max-size: the largest size to look at")
        wanted = _search(search, run, terms, powers_of_two(min_size, max_size), {"num_rounds": rounds, "cpus": cpus})
        with ray_speaks_on_stderr():
            run_set = search_to_file(wanted, address=address, timeout_s=timeout_s)
    capacity = read_cluster(address, timeout_s, None) if cluster is None else load_capacity(cluster)
    decided = decide_from(run_set, terms, capacity, found_prices, record)
    _show(decided, as_json=as_json)
    if output is not None:
        write_new(output, f"{decided.decision.to_json()}\n", force=force)
    if not decided.is_decided:
        print("nothing is decided: every answer is ambiguous. Run more rounds, on a quiet machine", file=sys.stderr)
        raise typer.Exit(1)


def _gpu_named(text: str) -> str:
    """Return the name of a GPU in runs."""
    from ..measuring.colocation import parse_device

    device = parse_device(text)
    if device.resource != "GPU":
        raise InvalidResourcesError(f"--gpu names a GPU, such as gpu or gpu@0.25, got {text!r}")
    return str(device)


def _search(workload: str, output: Path, terms: "Terms", sizes: tuple[int, ...], options: dict[str, Any]) -> "Search":
    from ..decide.crossover import Search
    from ..record.machine import own_command
    from ..record.run_set import Settings
    from ..workloads.registry import check_workload

    if output.exists():
        raise InvalidResourcesError(f"{output} exists already: --search measures anew, so name another file")
    check_workload(workload)
    devices = ("cpu", terms.gpu or "gpu")
    settings = Settings(sizes={workload: sizes[:1]}, devices=devices, has_control=False, **options)
    return Search(workload, sizes, settings, terms, own_command(), output)


def _show(decided: "Decided", *, as_json: bool) -> None:
    """Print the decision on stdout, and its notes on stderr."""
    from ..report.tables import print_decision

    for note in decided.notes[:_MOST_NOTES]:
        tell(f"note: {note}")
    if (left_out := len(decided.notes) - _MOST_NOTES) > 0:
        print(f"note: and {left_out} more", file=sys.stderr)
    if as_json:
        print(decided.decision.to_json())
    else:
        print_decision(decided.decision)


@app.command()
def compare(
    files: Annotated[list[Path], typer.Argument(help="One run, or two: the earlier first.", metavar="A [B]")],
    *,
    between: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Two devices of one run, or 'cpu' 'cpu (control)'; by default the CPU and each other one."),
    ] = None,
    phase: Annotated[list[Phase] | None, typer.Option(help="Phase to compare; may be repeated.")] = None,
    same_within: Annotated[
        float, typer.Option(help="Times that differ by less than this part count as the same.")
    ] = 0.05,
    fail_above: Annotated[
        float | None,
        typer.Option(min=1.001, help="Exit with status 1 if B surely takes this many times as long, or more."),
    ] = None,
    any_machine: Annotated[
        bool, typer.Option("--any-machine", help="Also compare runs of different machines.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say which of two devices of a run, or which of two runs, is faster, and how sure that is."""
    from ..compare.verdicts import Question, compare_files, surely_slower
    from ..report.tables import print_verdicts

    if fail_above is not None:  # otherwise, times above the limit could count as the same
        same_within = min(same_within, fail_above - 1)
    question = Question(between, tuple(phase or Phase), same_within, any_machine)
    found = compare_files(files, question)
    for note in found.notes:
        tell(note)
    if as_json:
        print(json.dumps([{**each.model_dump(mode="json"), "word": each.word} for each in found.verdicts], indent=2))
    else:
        print_verdicts(found.verdicts)
    if fail_above is not None and (slower := surely_slower(found.verdicts, fail_above)):
        for each in slower:
            tell(f"slower than the limit of {fail_above:g}: {each}")
        raise typer.Exit(1)


@app.command()
def check(
    *,
    duration_s: Annotated[float, typer.Option(min=1, help="How long equal steps are timed, about, in seconds.")] = 7,
    as_json: Json = False,
) -> None:
    """Say whether this machine is quiet enough to see a change of 5 % in a step of 0.3 ms; end with 1 if not."""
    from ..compare.machine_check import measure_equal_steps, print_check

    found = measure_equal_steps(duration_s)
    print(found.to_json()) if as_json else print_check(found)
    if not found.is_quiet:
        raise typer.Exit(1)
