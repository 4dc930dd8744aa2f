"""The commands ``probe``, ``plan`` and ``schema``: what a cluster offers, what trials get of it, and how to ask."""

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from tune_policies.cli.options import Address, ClusterConfig, Force, Json, TimeoutS, read_cluster
from tune_policies.files.terminal import TextConsole
from tune_policies.files.writing import check_new
from tune_policies.kuberay.design.forecast import TrialForecast, forecast_trials
from tune_policies.kuberay.reading.load_cluster import load_catalog, load_cluster
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy_file import load_capacity, load_policy
from tune_policies.policies.policy_schema import policy_schema
from tune_policies.values.value import counted

app = typer.Typer()


@app.command()
def probe(
    *, json: Json = False, address: Address = None, timeout_s: TimeoutS = 30.0, cluster_config: ClusterConfig = None
) -> None:
    """Show what the cluster offers, a line for each shape of node, and what an autoscaler could add."""
    capacity = read_cluster(address, timeout_s, cluster_config)
    if json:
        print(capacity.to_json())
    else:
        TextConsole().print(capacity)


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
            help="With --cluster: a node catalogue, for the cost per hour and for what its machines are.",
            show_default=False,
        ),
    ] = None,
    num_trials: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="All trials of your run: adds how many waves they take; with --cluster, which nodes run all at once.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the cluster and its slots, in this SVG file.", show_default=False)
    ] = None,
    force: Force = False,
    json: Json = False,
    address: Address = None,
    timeout_s: TimeoutS = 30.0,
    cluster_config: ClusterConfig = None,
) -> None:
    """Show what each trial gets, how many run at once, what limits them and why, and what stays idle."""
    if capacity is not None and (address is not None or cluster_config is not None):
        other = "--address" if address is not None else "--cluster-config"
        raise typer.BadParameter(f"--capacity plans without a running cluster: leave {other} out")
    if name is not None and cluster is None:
        raise typer.BadParameter("--name picks a cluster in a file: name the file with --cluster")
    if nodes is not None and cluster is None:
        raise typer.BadParameter("--nodes has the prices for --cluster: name the cluster's file with it")
    if plot is not None:
        check_new(plot, force=force, inputs=(policy, capacity, cluster, nodes, cluster_config))
    chosen = load_policy(policy)
    if cluster is not None:
        others = {"--capacity": capacity, "--address": address, "--cluster-config": cluster_config}
        if given := [option for option, value in others.items() if value is not None]:
            raise typer.BadParameter(f"--cluster plans for a cluster that does not run yet: leave {given[0]} out")
        catalog = None if nodes is None else load_catalog(nodes)
        described = load_cluster(cluster, name=name, catalog=catalog)
        forecast = forecast_trials(chosen, described, catalog=catalog, num_trials=num_trials)
        best = forecast.at_maximum.plan
        if plot is not None and best is not None:
            best.plot(described.capacity).save(plot, force=force)
        print(
            _as_json(forecast, num_trials, best) if json else "\n".join([forecast.explain(), *_waves(best, num_trials)])
        )
        return
    found = read_cluster(address, timeout_s, cluster_config) if capacity is None else load_capacity(capacity)
    answer = chosen.plan(found)
    if plot is not None:
        answer.plot(found).save(plot, force=force)
    text = [answer.explain(found), *_waves(answer, num_trials)]
    print(_as_json(answer, num_trials, answer) if json else "\n".join(text))


@app.command()
def schema() -> None:
    """Print the JSON schema of policy files, by which an editor completes and checks them."""
    print(json_text.dumps(policy_schema(), indent=2))


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
