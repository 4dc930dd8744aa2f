"""The command ``decide``: it compares whole trials on CPUs and GPUs, based on the measurements of a run."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tune_policies import InvalidResourcesError
from tune_policies.cli.options import Address, Force, Json, TimeoutS, option, read_cluster
from tune_policies.files.terminal import print_to_stderr
from tune_policies.files.writing import check_new, write_new
from tune_policies.plan.benchmark_decision import Decision
from tune_policies.values.wording import counted

if TYPE_CHECKING:
    from ..decide.device_decision import Decided
    from ..record.settings import Settings

app = typer.Typer(add_completion=False)

_MOST_NOTES: Final = 20
"""The maximum number of notes to print. If there are more, only the number of omitted notes is printed."""


@app.command()
def decide(
    run: Annotated[Path, typer.Argument(help="The file that `run` wrote.", metavar="RUN.json")],
    *,
    steps_per_trial: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of training steps (batches) of a whole trial: epochs times samples divided by the batch size. "
            "10 epochs over 50,000 samples in batches of 100 are 5000 steps.",
        ),
    ],
    prices: Annotated[Path | None, typer.Option(help="Price file: YAML, JSON, or SkyPilot's vms.csv.")] = None,
    region: Annotated[str | None, typer.Option(help="Region of the prices; by default, all regions.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Use the spot prices of vms.csv.")] = False,
    gpu: Annotated[
        str | None,
        typer.Option(help="The measured GPU: gpu, or a fraction such as gpu@0.25; by default, the first measured GPU."),
    ] = None,
    gpu_type: Annotated[
        str | None, typer.Option(help="Name of the GPU type in the price file; by default, the name that Ray uses.")
    ] = None,
    cluster: Annotated[
        Path | None,
        option(
            "Decide for the nodes in this file instead of a running cluster. The file is a catalog, the output of "
            "`probe --json`, a KubeRay manifest, or a cluster YAML.",
            "--cluster",
            "--nodes",
        ),
    ] = None,
    address: Address = None,
    timeout_s: TimeoutS = 30.0,
    packing: Annotated[
        Path | None, typer.Option(help="The file that `packing --output` wrote, with the throughput of shared GPUs.")
    ] = None,
    same_within: Annotated[
        float, typer.Option(help="Maximum relative difference of times or costs that count as the same.")
    ] = 0.05,
    num_trials: Annotated[
        int | None,
        typer.Option(min=1, help="Number of trials in the run, to compute how many CPU nodes are as fast as one GPU."),
    ] = None,
    node_cpus: Annotated[
        int | None,
        typer.Option(min=1, help="CPUs per CPU node; by default, those of the cluster's largest node without GPUs."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the decision to this file, for BenchmarkedPolicy.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Decide for which sizes a GPU is better, and show the times and costs of trials and the trials per hour."""
    # Imported here and not at the top, so that ``--help`` and other commands need not import SciPy and Ray.
    from tune_policies.kuberay.reading.load_cluster import load_capacity

    from ..decide.cpu_nodes import NodesQuestion
    from ..decide.device_decision import Terms, measured_gpu
    from ..decide.device_decision import decide as decide_from
    from ..decide.price_file import load_prices
    from ..measuring.device_plans import parse_device
    from ..record.packing_record import read_throughput
    from ..record.run_set_file import read_run_set

    if output is not None:
        # With ``--force``, only a file that looks like an earlier decision is overwritten.
        example = json.dumps(dict.fromkeys(Decision.model_fields))
        check_new(output, force=force, inputs=(run, prices, cluster, packing), example=example)
    if gpu is not None:
        device = parse_device(gpu)
        if device.resource != "GPU":
            raise InvalidResourcesError(f"--gpu must be a GPU, such as gpu or gpu@0.25, got {gpu!r}")
        gpu = str(device)
    if num_trials is None and node_cpus is not None:
        raise InvalidResourcesError(
            "--node-cpus requires --num-trials. Pass the number of trials of the run too, or omit --node-cpus"
        )
    if prices is None:
        _check_without_prices(region, gpu_type, spot=spot)
    nodes = None
    if num_trials is not None:
        nodes = NodesQuestion(num_trials=num_trials, node_cpus=node_cpus)
    terms = Terms(steps_per_trial=steps_per_trial, gpu=gpu, gpu_type=gpu_type, same_within=same_within, nodes=nodes)
    found_prices = record = None
    if prices is not None:
        found_prices = load_prices(prices, region=region, use_spot=spot)
    if packing is not None:
        record = read_throughput(packing)
    run_set = read_run_set(run)
    # Read all files first, because a mistake in a file or a run without GPU times should not wait for the cluster.
    measured_gpu(run_set, gpu, run)
    capacity = read_cluster(address, timeout_s, None) if cluster is None else load_capacity(cluster)
    decided = decide_from(run_set, terms, capacity, found_prices, record, run)
    _show(decided, as_json=as_json)
    if output is not None:
        write_new(output, f"{decided.decision.to_json()}\n", force=force)
    # The decision is written in any case, because a policy with it still runs.
    if not decided.is_decided:
        message = "nothing is decided, because every answer is ambiguous. Run more rounds on an idle machine"
        if output is not None:
            message += f". With the decision in {output}, all trials run on CPUs"
        print_to_stderr(message)
        raise typer.Exit(1)
    if output is not None:
        print_to_stderr("the decision as a policy file, if batch_size is the name of the size in the config:")
        for row in _policy_file(decided, output, run_set.settings):
            print_to_stderr(f"  {row}")


def _check_without_prices(region: str | None, gpu_type: str | None, *, spot: bool) -> None:
    """Raise an error if an option of the prices is set, because it has no effect without a price file."""
    given = {"--region": region is not None, "--spot": spot, "--gpu-type": gpu_type is not None}
    for option_name, is_given in given.items():
        if is_given:
            raise InvalidResourcesError(
                f"{option_name} has no effect without --prices. Pass a price file too, or omit {option_name}"
            )


def _policy_file(decided: "Decided", output: Path, settings: "Settings | None") -> Iterator[str]:
    """Yield the lines of a policy file with the decision, and with the CPUs of the measurement.

    If only the costs are decided, the policy minimizes the cost.
    """
    cpus = "" if settings is None else f", cpus: {settings.cpus:g}"
    from ..measuring.device_plans import parse_device

    first, *others = decided.decision.workloads
    # All sizes were decided for the same GPU.
    amount = parse_device(first.sizes[0].gpu.device).amount
    yield "kind: BenchmarkedPolicy"
    yield f"decision: {json.dumps(str(output))}"
    if others:
        names = ", ".join(other.workload for other in others)
        yield f"workload: {json.dumps(first.workload)}  # or {names}"
    else:
        yield f"workload: {json.dumps(first.workload)}"
    yield "size: batch_size"
    if not decided.is_decided_by("time"):
        yield "objective: cost"
    elif decided.decision.has_prices:
        yield "objective: time  # or cost"
    yield f"gpu: {{kind: GpuPolicy, gpus: {amount:g}{cpus}}}"
    yield f"cpu: {{kind: CpuPolicy{cpus}}}"


def _show(decided: "Decided", *, as_json: bool) -> None:
    """Print the decision to stdout, and its notes to stderr."""
    from ..report.tables import print_decision

    for note in decided.notes[:_MOST_NOTES]:
        print_to_stderr(f"note: {note}")
    left_out = len(decided.notes) - _MOST_NOTES
    if left_out > 0:
        print(f"note: omitted {counted(left_out, 'further note')}", file=sys.stderr)
    if as_json:
        print(decided.decision.to_json())
    else:
        print_decision(decided.decision)
