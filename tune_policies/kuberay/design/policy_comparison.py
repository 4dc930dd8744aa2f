"""Compares policies on one cluster: the slots, the concurrent trials, the idle resources and the price."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tune_policies.kuberay.design.catalog_file import NodeCatalog
from tune_policies.kuberay.design.cluster_spec import ClusterSpec, Nodes, capacity_of
from tune_policies.kuberay.design.forecast import Stage, forecast_trials
from tune_policies.kuberay.design.trial_duration import TrialDuration
from tune_policies.plan.idle import Idle, idle_to_show
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import Count, PositiveCount
from tune_policies.values.value import ShownValue
from tune_policies.values.wording import counted, shorten_names

if TYPE_CHECKING:
    from rich.console import RenderableType


class ComparedPolicy(Stage):
    """The trials of one policy on the cluster, with all nodes that an autoscaler can add.

    Attributes:
        policy: The name of the policy, such as its file name.
        idle: The resources that stay unused under its plan.
        num_trials: The total number of trials; ``None`` if it is unknown.
        num_rounds: The number of rounds in which all trials run; ``None`` if the number of trials is unknown or no
            trial fits.
    """

    policy: str
    idle: tuple[Idle, ...] = ()
    num_trials: PositiveCount | None = None
    num_rounds: Count | None = None

    @property
    def running_trials(self) -> int:
        """The number of trials that share the price (all slots, or all trials if they are fewer)."""
        at_once = self.trials_at_once
        if self.num_trials is None:
            return at_once
        return min(at_once, self.num_trials)

    @property
    def price_of_trial_hour(self) -> float | None:
        """The price of a trial per hour while ``running_trials`` trials run, or ``None`` if unknown."""
        trials = self.running_trials
        if self.price_per_hour is None or not trials:
            return None
        return self.price_per_hour / trials


class PolicyComparison(ShownValue):
    """A comparison of several policies on the same cluster.

    Attributes:
        currency: The currency of the prices.
        duration: The duration of the trials, and their deadline; ``None`` if unknown.
        priced: The nodes of a catalog whose price is shown, or ``None`` for other files or without prices.
        cautions: Warnings about possible differences from the real cluster.
        hint: A sentence about how to rank the nodes by their price for the trials, or an empty string.
    """

    policies: tuple[ComparedPolicy, ...]
    currency: str = "USD"
    duration: TrialDuration | None = None
    priced: str | None = None
    cautions: tuple[str, ...] = ()
    hint: str = ""

    def __rich__(self) -> "RenderableType":
        from tune_policies.kuberay.design.policy_comparison_view import comparison_view  # the view imports this module

        return comparison_view(self)

    @property
    def is_feasible(self) -> bool:
        """Whether a trial fits under at least one of the policies."""
        return any(policy.plan is not None for policy in self.policies)


def compare_policies(
    policies: Iterable[tuple[str, ResourcePolicy]],
    nodes: Nodes,
    *,
    catalog: NodeCatalog | None = None,
    num_trials: int | None = None,
    duration: TrialDuration | None = None,
) -> PolicyComparison:
    """Plan for the same cluster with each policy. If no trial fits under a policy, its result contains the reason.

    Args:
        policies: The policies, each with its name.
        nodes: The cluster.
        catalog: The prices of the nodes. It is not used if ``nodes`` is a :class:`NodeCatalog` itself.
        num_trials: The total number of trials, from which the rounds are computed.
        duration: The duration of the trials, and their deadline.
    """
    prices = nodes if isinstance(nodes, NodeCatalog) else catalog
    currency = "USD" if prices is None else prices.currency
    capacity = capacity_of(nodes)
    # A dict instead of a list, because several policies have the same cautions, and a set would lose their order.
    cautions: dict[str, None] = {}

    def compared(name: str, policy: ResourcePolicy) -> ComparedPolicy:
        try:
            # Only the file of a cluster has an autoscaler, whose nodes a forecast adds. All other nodes exist already.
            if isinstance(nodes, ClusterSpec):
                forecast = forecast_trials(policy, nodes, catalog=catalog, num_trials=num_trials)
                cautions.update(dict.fromkeys(forecast.cautions))
                stage = forecast.for_trials or forecast.at_maximum
            else:
                stage = Stage(nodes={}, plan=policy.plan(capacity), price_per_hour=prices and prices.price_per_hour)
        except InfeasibleRequestError as error:
            why_not = f"one trial needs {error.asked}, but {error.offered}: short of {error.short_of}"
            return ComparedPolicy(policy=name, nodes={}, why_not=why_not, num_trials=num_trials)
        plan = stage.plan
        left: tuple[Idle, ...] = ()
        rounds = None
        if plan is not None:
            left = idle_to_show(capacity, plan)
            if num_trials is not None:
                rounds = plan.num_rounds(num_trials)
        return ComparedPolicy(policy=name, idle=left, num_trials=num_trials, num_rounds=rounds, **dict(stage))

    results = tuple(compared(name, policy) for name, policy in policies)
    priced, hint = None, ""
    if isinstance(nodes, NodeCatalog):
        cautions.update(dict.fromkeys(nodes.cautions))
    if isinstance(nodes, NodeCatalog) and nodes.price_per_hour is not None:
        priced, hint = priced_nodes(nodes), how_to_buy(nodes, num_trials, num_policies=len(results))
    return PolicyComparison(
        policies=results,
        currency=currency,
        duration=duration,
        priced=priced,
        cautions=tuple(cautions),
        hint=hint,
    )


def priced_nodes(catalog: NodeCatalog) -> str:
    """Return the nodes whose price the catalog states, as text."""
    paid = counted(sum(node.num_nodes for node in catalog.nodes), "worker node")
    if catalog.head is not None and catalog.head.price_per_hour:
        return f"{paid} and the head"
    return paid


def how_to_buy(catalog: NodeCatalog, num_trials: int | None, *, num_policies: int = 1) -> str:
    """Return a sentence about what is priced, and about what to change to rank only the nodes for the trials.

    It is empty if the number of trials is unknown and each type has a count: such a catalog describes a cluster.
    """
    without = [node.name for node in catalog.nodes if node.count is None]
    if num_trials is None and not without:
        return ""
    priced = "the price is for all nodes of the catalog"
    changes = []
    if without:
        priced += f", with one node of each type without a count ({shorten_names(without)})"
    else:
        # A count for each type fixes the number of nodes, so no choice is left to rank.
        changes.append("omit their count")
    if num_trials is None:
        changes.append("pass --num-trials")
    if num_policies > 1:
        changes.append("pass one policy")
    if not changes:
        return priced
    for_trials = "your trials" if num_trials is None else counted(num_trials, "trial")
    return f"{priced}. To rank the nodes to rent for {for_trials}, {' and '.join(changes)}"
