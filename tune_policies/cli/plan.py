"""The commands ``probe`` and ``plan``: what a cluster offers, and what trials get of it.

Labels and resources of a cluster's own have names of any length, so they stand below its tables, not in columns.
"""

import json as json_text
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from tune_policies.cli.options import Address, ClusterConfig, Json, TimeoutS, read_cluster
from tune_policies.cluster.capacity import ClusterCapacity, NodeCapacity
from tune_policies.files.terminal import TextConsole, empty_table, line
from tune_policies.kuberay.design.forecast import TrialForecast, forecast_trials
from tune_policies.kuberay.manifests.load_cluster import load_cluster
from tune_policies.placement.idle import ROUNDING, idle
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy_file import load_capacity, load_catalog, load_policy
from tune_policies.values.resources import Resources, format_amount, from_ticks
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import format_bytes
from tune_policies.values.value import counted, shorten_names

app = typer.Typer()


@app.command()
def probe(
    *, json: Json = False, address: Address = None, timeout_s: TimeoutS = 30.0, cluster_config: ClusterConfig = None
) -> None:
    """Show what the cluster offers, a line a node shape, and what an autoscaler could add."""
    capacity = read_cluster(address, timeout_s, cluster_config)
    if json:
        print(capacity.to_json())
    else:
        TextConsole().print(cluster_view(capacity))


@app.command()
def plan(
    policy: Annotated[Path, typer.Argument(help="A policy as YAML or JSON.", show_default=False)],
    *,
    capacity: Annotated[
        Path | None,
        typer.Option(help="Plan for a cluster saved by `probe --json` (or YAML), without Ray.", show_default=False),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            help="Forecast trials on the cluster of a KubeRay manifest, of values of its chart or of a cluster YAML.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="The cluster, job or service to plan for, where its file has several.", show_default=False),
    ] = None,
    nodes: Annotated[
        Path | None,
        typer.Option(
            help="A node catalogue, for what the cluster costs an hour and what its machines are.", show_default=False
        ),
    ] = None,
    num_trials: Annotated[
        int | None, typer.Option(min=0, help="Also say in how many waves so many trials run.", show_default=False)
    ] = None,
    json: Json = False,
    address: Address = None,
    timeout_s: TimeoutS = 30.0,
    cluster_config: ClusterConfig = None,
) -> None:
    """Show what each trial gets, how many run at once, what limits them and why, and what stays idle."""
    if capacity is not None and (address is not None or cluster_config is not None):
        other = "--address" if address is not None else "--cluster-config"
        raise typer.BadParameter(f"--capacity is planned for without a cluster: leave {other} out")
    if name is not None and cluster is None:
        raise typer.BadParameter("--name is of a cluster in a file: name the file by --cluster")
    if nodes is not None and cluster is None:
        raise typer.BadParameter("--nodes has the prices of a cluster that is to be: name its file by --cluster")
    chosen = load_policy(policy)
    if cluster is not None:
        others = {"--capacity": capacity, "--address": address, "--cluster-config": cluster_config}
        if given := [option for option, value in others.items() if value is not None]:
            raise typer.BadParameter(f"--cluster is planned for before it exists: leave {given[0]} out")
        catalog = None if nodes is None else load_catalog(nodes)
        forecast = forecast_trials(
            chosen, load_cluster(cluster, name=name, catalog=catalog), catalog=catalog, num_trials=num_trials
        )
        best = forecast.at_maximum.plan
        print(
            _as_json(forecast, num_trials, best) if json else "\n".join([forecast.explain(), *_waves(best, num_trials)])
        )
        return
    found = read_cluster(address, timeout_s, cluster_config) if capacity is None else load_capacity(capacity)
    answer = chosen.plan(found)
    text = [answer.explain(), *_idle(found, answer), *_waves(answer, num_trials)]
    print(_as_json(answer, num_trials, answer) if json else "\n".join(text))


def _as_json(answer: TrialPlan | TrialForecast, num_trials: int | None, runs: TrialPlan | None) -> str:
    """Return a plan, or a forecast, with the waves in which ``runs`` takes so many trials."""
    waves = (
        {}
        if num_trials is None or runs is None
        else {"num_trials": num_trials, "num_waves": runs.num_waves(num_trials)}
    )
    return json_text.dumps({**answer.model_dump(mode="json"), **waves}, indent=2, ensure_ascii=False)


def _waves(runs: TrialPlan | None, num_trials: int | None) -> list[str]:
    if runs is None or num_trials is None:
        return []
    verb = "runs" if num_trials == 1 else "run"
    return [f"{counted(num_trials, 'trial')} {verb} in {counted(runs.num_waves(num_trials), 'wave')}"]


def _idle(capacity: ClusterCapacity, answer: TrialPlan) -> list[str]:
    left = [part for part in idle(capacity, answer) if part.reason != ROUNDING]
    return ["stays idle:", *(one_line(f"  {part}") for part in left)] if left else []


_NOT_REPEATED: Final = frozenset({"ray.io/node-id", "ray.io/accelerator-type"})
"""Labels that are not shown: a node's own identifier, and the type, which has a column."""

_NO_LIMIT: Final = 2**30
"""From so many nodes on there is no limit: KubeRay's default is 2147483647, from which running nodes are taken."""


def cluster_view(capacity: ClusterCapacity) -> RenderableType:
    """Return the tables and the lines that ``tune-policies probe`` shows."""
    parts: list[RenderableType] = [_nodes(capacity.nodes)]
    if capacity.draining:
        names = sorted(node.address or node.node_id[:8] for node in capacity.draining)
        parts.append(line(f"{counted(len(names), 'node')} being drained, which no plan counts: {shorten_names(names)}"))
    if capacity.node_types is None:
        text = "An autoscaler runs, but what it could add is not known: name the cluster's file with --cluster-config"
        parts.append(line(text))
    elif capacity.node_types:
        parts += ["", _node_types(capacity)]
    return Group(*parts)


def _nodes(nodes: tuple[NodeCapacity, ...]) -> RenderableType:
    shapes: dict[tuple[str, ...], list[NodeCapacity]] = defaultdict(list)
    for node in nodes:
        # Ray counts as memory what was free as the node started, which differs among nodes that are alike.
        has_memory = "" if node.resources.memory_bytes else "not known"
        shapes[(*_columns(node), has_memory, _others(node))].append(node)
    table = empty_table(
        counted(len(nodes), "node"), "Nodes", "CPU", "GPU", "Type", "GPU memory", "Host memory", "In use"
    )
    details = []

    def most_gpus_first(shape: tuple[tuple[str, ...], list[NodeCapacity]]) -> tuple[object, ...]:
        has = shape[1][0].resources
        return (-has.gpus, -has.cpus, shape[0])

    for (*columns, _, others), alike in sorted(shapes.items(), key=most_gpus_first):
        memory = _host_memory(*(node.resources for node in alike))
        table.add_row(str(len(alike)), *columns, memory, _in_use(alike))
        cpus, gpus, kind, _ = columns
        named = f"{len(alike)} with {cpus} CPU, {gpus} GPU" + (f" ({kind})" if kind != "-" else "")
        details.append(_details(named, _shared_labels(alike), others))
    return Group(table, *(line(text) for text in details if text))


def _node_types(capacity: ClusterCapacity) -> RenderableType:
    table = empty_table("The autoscaler could add", "Nodes", "Node type", "CPU", "GPU", "Type", "Host memory")
    details = []
    for kind in capacity.node_types or ():
        has = kind.resources
        amounts = (format_amount(has.cpus), format_amount(has.gpus), kind.accelerator_type or "-", _host_memory(has))
        most = str(kind.max_nodes_to_add) if kind.max_nodes_to_add < _NO_LIMIT else "no limit"
        table.add_row(most, kind.name, *amounts)
        details.append(_details(kind.name, kind.labels, _custom(has)))
    if capacity.max_nodes_to_add is not None and capacity.max_nodes_to_add < _NO_LIMIT:
        details.append(f"- at most {counted(capacity.max_nodes_to_add, 'node')} of all types together")
    return Group(table, *(line(text) for text in details if text))


def _columns(node: NodeCapacity) -> tuple[str, ...]:
    has = node.resources
    memory = node.smallest_gpu_memory_bytes
    gpu_memory = format_bytes(memory) if memory else "not read"
    models = sorted({device.name for device in node.devices or ()})
    return (
        format_amount(has.cpus),
        format_amount(has.gpus),
        node.accelerator_type or ", ".join(models) or "-",
        gpu_memory if has.gpus else "-",
    )


def _host_memory(*each: Resources) -> str:
    """Return the memory of one node, or of nodes that are alike: ``"14.7 to 14.9 GiB"``."""
    amounts = [has.memory_bytes for has in each if has.memory_bytes]
    if not amounts:
        return "not known"
    least, most = format_bytes(min(amounts)), format_bytes(max(amounts))
    if least == most:
        return most
    number, unit = least.split()
    return f"{number if most.endswith(f' {unit}') else least} to {most}"


def _others(node: NodeCapacity) -> str:
    few = node.usable_cpus is not None and node.usable_cpus < node.resources.cpus
    usable = f"only {format_amount(node.usable_cpus or 0)} CPU usable" if few else ""
    return ", ".join(part for part in (usable, _custom(node.resources)) if part)


def _custom(has: Resources) -> str:
    return ", ".join(f"{format_amount(amount)} {name}" for name, amount in sorted(has.custom.items()))


def _in_use(nodes: Iterable[NodeCapacity]) -> Text:
    """Return what is reserved on all the nodes together."""
    total: dict[str, int] = defaultdict(int)
    for node in nodes:
        if node.in_use is None:
            return Text("not known")
        for name, ticks in node.in_use.ticks.items():
            total[name] += ticks
    memory = total.pop("memory", 0)
    parts = [f"{format_amount(from_ticks(ticks))} {name}" for name, ticks in sorted(total.items())]
    return Text("\n".join([*map(one_line, parts), *([format_bytes(memory)] if memory else [])]) or "nothing")


def _shared_labels(nodes: list[NodeCapacity]) -> dict[str, str]:
    return dict(set.intersection(*(set(node.labels.items()) for node in nodes)))


def _details(named: str, labels: Mapping[str, str], others: str) -> str:
    shown = ", ".join(f"{key}={value}" for key, value in sorted(labels.items()) if key not in _NOT_REPEATED)
    text = "; ".join(part for part in (others, f"labels {shown}" if shown else "") if part)
    return f"- {named}: {text}" if text else ""
