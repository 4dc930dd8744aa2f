"""The commands ``probe`` and ``plan``: what a cluster offers, and what trials get of it."""

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from tune_policies.cli.options import Address, ClusterConfig, Json, TimeoutS, read_cluster
from tune_policies.cli.tables import cluster_view
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.files.terminal import TextConsole
from tune_policies.kuberay.design.forecast import TrialForecast, forecast_trials
from tune_policies.kuberay.manifests.load_cluster import load_cluster
from tune_policies.placement.idle import ROUNDING, idle
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy_file import load_capacity, load_catalog, load_policy
from tune_policies.values.sanitize import one_line
from tune_policies.values.value import counted

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
    trials: Annotated[
        int | None,
        typer.Option("--trials", "--num-trials", min=0, help="Also say in how many waves so many trials run."),
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
            chosen, load_cluster(cluster, name=name, catalog=catalog), catalog=catalog, num_trials=trials
        )
        print(_forecast_as_json(forecast, trials) if json else _forecast_as_text(forecast, trials))
        return
    found = read_cluster(address, timeout_s, cluster_config) if capacity is None else load_capacity(capacity)
    answer = chosen.plan(found)
    print(_plan_as_json(answer, trials) if json else _plan_as_text(found, answer, trials))


def _forecast_as_json(forecast: TrialForecast, trials: int | None) -> str:
    waves = {} if trials is None or forecast.at_maximum.plan is None else _waves(forecast.at_maximum.plan, trials)
    return json_text.dumps({**forecast.model_dump(mode="json"), **waves}, indent=2, ensure_ascii=False)


def _forecast_as_text(forecast: TrialForecast, trials: int | None) -> str:
    waves = (
        [] if trials is None or forecast.at_maximum.plan is None else [_waves_as_text(forecast.at_maximum.plan, trials)]
    )
    return "\n".join([forecast.explain(), *waves])


def _plan_as_json(answer: TrialPlan, trials: int | None) -> str:
    if trials is None:
        return answer.to_json()
    return json_text.dumps({**answer.model_dump(mode="json"), **_waves(answer, trials)}, indent=2, ensure_ascii=False)


def _plan_as_text(capacity: ClusterCapacity, answer: TrialPlan, trials: int | None) -> str:
    lines = [answer.explain()]
    if left := [part for part in idle(capacity, answer) if part.reason != ROUNDING]:
        lines += ["stays idle:", *(one_line(f"  {part}") for part in left)]
    if trials is not None:
        lines.append(_waves_as_text(answer, trials))
    return "\n".join(lines)


def _waves_as_text(answer: TrialPlan, trials: int) -> str:
    waves = _waves(answer, trials)["waves"]
    return f"{counted(trials, 'trial')} {'runs' if trials == 1 else 'run'} in {counted(waves, 'wave')}"


def _waves(answer: TrialPlan, trials: int) -> dict[str, int]:
    return {"trials": trials, "waves": answer.num_waves(trials)}
