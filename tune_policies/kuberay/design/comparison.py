"""Compares policies on one cluster: the slots, the concurrent trials, the idle resources and the price."""

from collections.abc import Iterable
from typing import ClassVar

from tune_policies.kuberay.design.catalog import NodeCatalog
from tune_policies.kuberay.design.cluster_spec import ClusterSpec, Nodes, capacity_of
from tune_policies.kuberay.design.forecast import Stage, forecast_trials
from tune_policies.plan.idle import Idle, Why, idle
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import Count
from tune_policies.values.value import ShownValue


class ComparedPolicy(Stage):
    """The trials of one policy on the cluster, with all nodes that an autoscaler can add.

    Attributes:
        policy: The name of the policy, such as its file name.
        idle: The resources that stay unused under its plan.
        num_rounds: The number of rounds in which all trials run; ``None`` if the number of trials is unknown or no
            trial fits.
    """

    policy: str
    idle: tuple[Idle, ...] = ()
    num_rounds: Count | None = None

    @property
    def price_of_trial_hour(self) -> float | None:
        """The price of a trial per hour if all slots are in use, or ``None`` if unknown."""
        trials = self.trials_at_once
        return None if self.price_per_hour is None or not trials else self.price_per_hour / trials


class PolicyComparison(ShownValue):
    """A comparison of several policies on the same cluster, with the currency of the prices and any warnings."""

    _view: ClassVar = "tune_policies.kuberay.design.comparison_view:comparison_view"

    policies: tuple[ComparedPolicy, ...]
    currency: str = "USD"
    cautions: tuple[str, ...] = ()

    @property
    def is_feasible(self) -> bool:
        """Whether a trial fits under at least one of the policies."""
        return any(each.plan is not None for each in self.policies)


def compare_policies(
    policies: Iterable[tuple[str, ResourcePolicy]],
    nodes: Nodes,
    *,
    catalog: NodeCatalog | None = None,
    num_trials: int | None = None,
) -> PolicyComparison:
    """Plan for the same cluster with each policy. If no trial fits under a policy, its result contains the reason.

    Args:
        policies: The policies, each with its name.
        nodes: The cluster.
        catalog: The prices of the nodes. It is not used if ``nodes`` is a :class:`NodeCatalog` itself.
        num_trials: The total number of trials, from which the rounds are computed.
    """
    prices = nodes if isinstance(nodes, NodeCatalog) else catalog
    capacity = capacity_of(nodes)
    cautions: dict[str, None] = {}

    def compared(name: str, policy: ResourcePolicy) -> ComparedPolicy:
        try:
            if isinstance(nodes, ClusterSpec):
                forecast = forecast_trials(policy, nodes, catalog=catalog)
                cautions.update(dict.fromkeys(forecast.cautions))
                stage = forecast.at_maximum
            else:
                stage = Stage(nodes={}, plan=policy.plan(capacity), price_per_hour=prices and prices.price_per_hour)
        except InfeasibleRequestError as error:
            why_not = f"one trial needs {error.asked}, but {error.offered}: short of {error.short_of}"
            return ComparedPolicy(policy=name, nodes={}, why_not=why_not)
        plan = stage.plan
        left = () if plan is None else tuple(each for each in idle(capacity, plan) if each.why is not Why.ROUNDING)
        rounds = None if plan is None or num_trials is None else plan.num_rounds(num_trials)
        return ComparedPolicy(policy=name, idle=left, num_rounds=rounds, **dict(stage))

    return PolicyComparison(
        policies=tuple(compared(name, policy) for name, policy in policies),
        currency="USD" if prices is None else prices.currency,
        cautions=tuple(cautions),
    )
