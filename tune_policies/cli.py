"""The command ``tune-policies``. Results go to stdout, everything else to stderr.

Exit status: 0 done, 1 the request cannot be met, 2 wrong usage.
"""

import sys
import warnings
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tune_policies.capacity import ClusterCapacity, NodeCapacity
from tune_policies.errors import InvalidResourcesError, ResourcePolicyError
from tune_policies.plan import TrialPlan
from tune_policies.policy_file import load_policy
from tune_policies.resources import format_amount
from tune_policies.units import format_bytes

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Address = Annotated[
    str | None, typer.Option(help="Ray's address, as for ray.init; else RAY_ADDRESS, else this machine.")
]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", min=0.1, help="Deadline for the cluster to answer, in seconds.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tune-policies {version('tune-policies')}")
        raise typer.Exit


@app.callback()
def tune_policies(
    *,
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """What each Ray trial gets, how many run at once, and why."""


@app.command()
def probe(*, json: Json = False, address: Address = None, timeout_s: TimeoutS = 30.0) -> None:
    """Show what the cluster offers, a line a node shape."""
    capacity = _probe(address, timeout_s)
    if json:
        print(capacity.to_json())
    else:
        Console().print(_node_table(capacity))


@app.command()
def plan(
    policy: Annotated[Path, typer.Argument(help="A policy as YAML or JSON.", show_default=False)],
    *,
    capacity: Annotated[
        Path | None, typer.Option(help="Plan for a cluster saved by `probe --json`, without Ray.", show_default=False)
    ] = None,
    trials: Annotated[int | None, typer.Option(min=0, help="Also say in how many waves so many trials run.")] = None,
    json: Json = False,
    address: Address = None,
    timeout_s: TimeoutS = 30.0,
) -> None:
    """Show what each trial gets, how many run at once, what limits them, and why."""
    if json and trials is not None:
        raise typer.BadParameter("--trials adds a line of text: leave it out with --json")
    if capacity is not None and address is not None:
        raise typer.BadParameter("--capacity is planned for without a cluster: leave --address out")
    chosen = load_policy(policy)
    found = _probe(address, timeout_s) if capacity is None else _load_capacity(capacity)
    answer = chosen.plan(found)
    if json:
        print(answer.to_json())
        return
    lines = [answer.explain()]
    if trials is not None:
        lines.append(_waves(answer, trials))
    print("\n".join(lines))


def main() -> None:
    """Run the command; errors end as a message, not as a traceback."""
    try:
        app()
    except InvalidResourcesError as error:
        _fail(error, 2)
    except ResourcePolicyError as error:
        _fail(error, 1)


def _fail(error: ResourcePolicyError, status: int) -> None:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(status)


def _probe(address: str | None, timeout_s: float) -> ClusterCapacity:
    # Ray takes seconds to import; a saved capacity needs none.
    from tune_policies.probe import ProbeWarning, probe_cluster

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")  # Ray 2.50 leaves files open
        warnings.simplefilter("always", ProbeWarning)
        found = probe_cluster(address, timeout_s=timeout_s)
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
    return found


def _load_capacity(path: Path) -> ClusterCapacity:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidResourcesError(f"cannot read the capacity file {path}: {error}") from error
    try:
        return ClusterCapacity.from_json(text)
    except InvalidResourcesError as error:
        raise InvalidResourcesError(f"{path} is not what `tune-policies probe --json` writes: {error}") from error


def _waves(answer: TrialPlan, trials: int) -> str:
    waves = answer.num_waves(trials)
    return f"{trials} {'trial' if trials == 1 else 'trials'} run in {waves} {'wave' if waves == 1 else 'waves'}"


def _node_table(capacity: ClusterCapacity) -> Table:
    table = Table(title=f"{len(capacity.nodes)} {'node' if len(capacity.nodes) == 1 else 'nodes'}")
    for heading in ("Nodes", "CPU", "GPU"):
        table.add_column(heading, justify="right", overflow="fold")
    for heading in ("Accelerator", "GPU memory", "Host memory", "Other resources"):
        table.add_column(heading, overflow="fold")
    for shape, count in sorted(Counter(map(_shape, capacity.nodes)).items(), reverse=True):
        table.add_row(str(count), *shape)
    return table


def _shape(node: NodeCapacity) -> tuple[str, ...]:
    has = node.resources
    memory = node.smallest_gpu_memory_bytes
    models = sorted({device.name for device in node.devices or ()})
    gpu_memory = format_bytes(memory) if memory else "not read"
    return (
        format_amount(has.cpus),
        format_amount(has.gpus),
        node.accelerator_type or ", ".join(models) or "-",
        gpu_memory if has.gpus else "-",
        format_bytes(has.memory_bytes) if has.memory_bytes else "not known",
        ", ".join(f"{format_amount(amount)} {name}" for name, amount in sorted(has.custom.items())) or "-",
    )
