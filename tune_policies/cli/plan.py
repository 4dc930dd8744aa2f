"""The commands ``plan`` and ``schema``."""

import json as json_text
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from tune_policies.cli.options import (
    Address,
    Cluster,
    ClusterConfig,
    DeadlineHours,
    Force,
    Json,
    TimeoutS,
    TrialHours,
    argument,
    option,
    read_cluster,
)
from tune_policies.values.sanitize import one_line

if TYPE_CHECKING:
    from tune_policies.kuberay.design.catalog_file import NodeCatalog
    from tune_policies.kuberay.design.cluster_spec import Nodes
    from tune_policies.kuberay.design.forecast import TrialForecast
    from tune_policies.kuberay.design.trial_duration import TrialDuration
    from tune_policies.plan.trial_plan import TrialPlan
    from tune_policies.policies.policy import ResourcePolicy

app = typer.Typer(add_completion=False)


class _HourlyPrice(NamedTuple):
    """The price of all nodes on which the trials run, per hour. The amount is ``None`` if it is unknown."""

    amount: float | None = None
    currency: str = "USD"


@app.command()
def plan(
    policies: Annotated[
        list[Path],
        argument("Policy files in YAML or JSON. Several policies are compared.", metavar="POLICY [POLICY]..."),
    ],
    *,
    cluster: Cluster = None,
    name: Annotated[str | None, option("The cluster, job or service to plan for, if the file has several.")] = None,
    nodes: Annotated[
        Path | None,
        option(
            "Plan for the node types in this catalog instead of a running cluster. With a manifest or cluster YAML as "
            "--cluster, read only prices and resources of instance types from the catalog."
        ),
    ] = None,
    num_trials: Annotated[
        int | None,
        option(
            "The number of trials in the run. The output then contains the number of rounds and, with an autoscaler, "
            "the nodes that can run all trials concurrently. With --nodes and nodes to rent (with prices, and without "
            "count), it is a table of the cheapest nodes that run all trials at once, or as many as --deadline-hours "
            "requires.",
            min=1,
        ),
    ] = None,
    trial_hours: TrialHours = None,
    deadline_hours: DeadlineHours = None,
    plot: Annotated[Path | None, option("Also draw the cluster and its slots to this SVG file.")] = None,
    force: Force = False,
    json: Json = False,
    address: Address = None,
    timeout_s: TimeoutS = 30.0,
    cluster_config: ClusterConfig = None,
) -> None:
    """Show the resources of each trial, the number of concurrent trials, the limiting resource, and idle resources.

    With several policies, show their plans side by side. The exit status is 1 if no trial fits under any policy.
    """
    from_file = "--nodes" if cluster is None else "--cluster"
    for flag, value in (("--address", address), ("--cluster-config", cluster_config)):
        if value is not None and (cluster is not None or nodes is not None):
            raise typer.BadParameter(
                f"{flag} requires a running cluster, but {from_file} reads a file. Omit {flag} or {from_file}"
            )
    if cluster is None and name is not None:
        raise typer.BadParameter("--name requires a cluster file. Pass the file with --cluster")
    if plot is not None and len(policies) > 1:
        raise typer.BadParameter("--plot draws only one plan. Pass one policy")
    if num_trials is None and trial_hours is not None:
        raise typer.BadParameter("--trial-hours requires the number of trials. Pass it with --num-trials")
    # Help and usage errors do not need these imports.
    from tune_policies.files.writing import check_new
    from tune_policies.kuberay.design.catalog_file import NodeCatalog
    from tune_policies.kuberay.design.cluster_spec import ClusterSpec
    from tune_policies.kuberay.design.trial_duration import TrialDuration
    from tune_policies.kuberay.reading.load_cluster import load_catalog, read_nodes
    from tune_policies.policies.policy_file import load_policy

    if plot is not None:
        check_new(plot, force=force, inputs=(*policies, cluster, nodes, cluster_config))
    duration = TrialDuration.of(trial_hours, deadline_hours)
    named = [(str(path), load_policy(path)) for path in policies]
    catalog = None if nodes is None else load_catalog(nodes)
    found: Nodes
    if cluster is None and catalog is not None:
        # Without a cluster file, the catalog does not only contain prices, but is the list of nodes.
        found, catalog = catalog, None
    elif cluster is None:
        found = read_cluster(address, timeout_s, cluster_config)
    else:
        found = read_nodes(cluster, name=name, catalog=catalog)
    if catalog is not None and not isinstance(found, ClusterSpec):
        hint = "Omit --nodes"
        if isinstance(found, NodeCatalog):
            hint = f"Add price_per_hour to the nodes in {cluster}, and omit --nodes"
        raise typer.BadParameter(f"--nodes requires a KubeRay manifest or a cluster YAML. {hint}")
    if len(named) > 1:
        _compare(named, found, catalog, num_trials, duration, json=json)
    else:
        _plan(named[0][1], found, catalog, num_trials, duration, plot=plot, force=force, json=json)


@app.command()
def schema() -> None:
    """Print the JSON schema of policy files, for completion and checks in an editor."""
    from tune_policies.policies.policy_schema import policy_schema

    print(json_text.dumps(policy_schema(), indent=2))


def _compare(
    policies: "Sequence[tuple[str, ResourcePolicy]]",
    nodes: "Nodes",
    catalog: "NodeCatalog | None",
    num_trials: int | None,
    duration: "TrialDuration | None",
    *,
    json: bool,
) -> None:
    from tune_policies.files.terminal import TextConsole
    from tune_policies.kuberay.design.policy_comparison import compare_policies

    compared = compare_policies(policies, nodes, catalog=catalog, num_trials=num_trials, duration=duration)
    if json:
        print(compared.to_json())
    else:
        TextConsole().print(compared)
    if not compared.is_feasible:
        raise typer.Exit(1)


def _plan(
    policy: "ResourcePolicy",
    nodes: "Nodes",
    catalog: "NodeCatalog | None",
    num_trials: int | None,
    duration: "TrialDuration | None",
    *,
    plot: Path | None,
    force: bool,
    json: bool,
) -> None:
    from tune_policies.kuberay.design.catalog_file import NodeCatalog
    from tune_policies.kuberay.design.cluster_spec import ClusterSpec, capacity_of

    if isinstance(nodes, NodeCatalog) and nodes.lists_offers and num_trials is not None:
        _rank(policy, nodes, num_trials, duration, plot=plot, force=force, json=json)
        return
    capacity = capacity_of(nodes)
    if isinstance(nodes, ClusterSpec):
        from tune_policies.kuberay.design.forecast import forecast_trials

        forecast = forecast_trials(policy, nodes, catalog=catalog, num_trials=num_trials)
        # If fewer nodes than the maximum run all trials at once, only these nodes cost money.
        running = forecast.for_trials or forecast.at_maximum
        price = _HourlyPrice(running.price_per_hour, forecast.currency)
        answer: TrialPlan | TrialForecast = forecast
        best, text = forecast.at_maximum.plan, [forecast.explain()]
    else:
        price = _HourlyPrice()
        if isinstance(nodes, NodeCatalog):
            price = _HourlyPrice(nodes.price_per_hour, nodes.currency)
        answer = best = made = policy.plan(capacity)
        text = [made.explain(capacity), *_about_catalog(nodes, made, num_trials)]
    if plot is not None and best is not None:
        best.plot(capacity).save(plot, force=force)
    if json:
        print(_as_json(answer, num_trials, best, duration, price))
    else:
        print("\n".join([*text, *_rounds(best, num_trials, duration, price)]))


def _rank(
    policy: "ResourcePolicy",
    catalog: "NodeCatalog",
    num_trials: int,
    duration: "TrialDuration | None",
    *,
    plot: Path | None,
    force: bool,
    json: bool,
) -> None:
    """Print the nodes to rent for the trials."""
    from tune_policies.files.terminal import TextConsole
    from tune_policies.kuberay.design.cluster_spec import capacity_of
    from tune_policies.kuberay.design.offers import rank_offers

    ranked = rank_offers(policy, catalog, num_trials, duration)
    best = ranked.offers[0]
    if plot is not None:
        best.trials.plot(capacity_of(catalog.of_nodes(best.nodes))).save(plot, force=force)
    if json:
        print(ranked.to_json())
    else:
        TextConsole().print(ranked)


def _about_catalog(nodes: "Nodes", answer: "TrialPlan", num_trials: int | None) -> list[str]:
    """Return lines about the price of a catalog's nodes, and about amounts that may be wrong."""
    from tune_policies.kuberay.design.catalog_file import NodeCatalog

    if not isinstance(nodes, NodeCatalog):
        return []
    cautions = [one_line(f"caution: {caution}") for caution in nodes.cautions]
    return [*cautions, *_price(nodes, answer, num_trials)]


def _price(nodes: "NodeCatalog", answer: "TrialPlan", num_trials: int | None) -> list[str]:
    from tune_policies.kuberay.design.policy_comparison import how_to_buy, priced_nodes
    from tune_policies.values.units import format_money
    from tune_policies.values.wording import counted

    if nodes.price_per_hour is None:
        return []
    at_once, total = answer.max_concurrent_trials, nodes.price_per_hour
    cost = f"{format_money(total)} {nodes.currency} per hour for {priced_nodes(nodes)}"
    cost += f", or {format_money(total / at_once)} {nodes.currency} per trial hour"
    if num_trials is not None and num_trials < at_once:
        with_trials = f"{format_money(total / num_trials)} {nodes.currency} with {counted(num_trials, 'trial')}"
        cost += f" if all {at_once} slots are in use, and {with_trials}"
    lines = [one_line(f"price: {cost}")]
    hint = how_to_buy(nodes, num_trials)
    if hint:
        lines.append(one_line(f"note: {hint}"))
    return lines


def _as_json(
    answer: "TrialPlan | TrialForecast",
    num_trials: int | None,
    runs: "TrialPlan | None",
    duration: "TrialDuration | None",
    price: _HourlyPrice,
) -> str:
    """Return a plan or a forecast as JSON, with the rounds, hours and price of the trials if they are known."""
    fields = answer.model_dump(mode="json")
    if num_trials is not None and runs is not None:
        num_rounds = runs.num_rounds(num_trials)
        fields |= {"num_trials": num_trials, "num_rounds": num_rounds}
        if duration is not None:
            fields["hours"] = duration.hours(num_rounds)
        if duration is not None and price.amount is not None:
            fields |= {"price": price.amount * fields["hours"], "currency": price.currency}
    return json_text.dumps(fields, indent=2, ensure_ascii=False)


def _rounds(
    runs: "TrialPlan | None", num_trials: int | None, duration: "TrialDuration | None", price: _HourlyPrice
) -> list[str]:
    if runs is None or num_trials is None:
        return []
    from tune_policies.values.units import format_money
    from tune_policies.values.wording import counted

    verb = "runs" if num_trials == 1 else "run"
    rounds = runs.num_rounds(num_trials)
    # With several rounds, trials of different durations take longer than the rounds of equal trials.
    at_best = "" if rounds == 1 else " at best, if all trials take equally long"
    if duration is not None:
        takes = "takes" if num_trials == 1 else "take"
        text = f"{counted(num_trials, 'trial')} {takes} {duration.describe(rounds)}"
        if price.amount is not None:
            costs = "costs" if num_trials == 1 else "cost"
            text += f", and {costs} {format_money(price.amount * duration.hours(rounds))} {one_line(price.currency)}"
        return [text]
    return [f"{counted(num_trials, 'trial')} {verb} in {counted(rounds, 'round')}{at_best}"]
