"""Designs a cluster for each of several policies, and compares their nodes, prices and trials."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tune_policies.kuberay.design.catalog_file import NodeCatalog
from tune_policies.kuberay.design.design_cluster import ClusterDesign, design_cluster
from tune_policies.plan.benchmark_decision import Decision
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import PositiveCount
from tune_policies.values.value import ShownValue, Value

if TYPE_CHECKING:
    from rich.console import RenderableType


class DesignedPolicy(Value):
    """The cheapest cluster for the trials of one policy.

    Attributes:
        policy: The name of the policy, such as its file name.
        design: The cluster, or ``None`` if no trial fits on the available nodes.
        why_not: The reason if no trial fits.
    """

    policy: str
    design: ClusterDesign | None = None
    why_not: str | None = None

    @property
    def price_of_trial_hour(self) -> float | None:
        """The price of a trial per hour while as many of the requested trials run as fit, or ``None`` if unknown."""
        if self.design is None:
            return None
        return self.design.price_of_trial_hour

    @property
    def num_rounds(self) -> int | None:
        """The number of rounds in which all trials run, or ``None`` if no trial fits."""
        if self.design is None:
            return None
        return self.design.trials.num_rounds(self.design.num_trials)


class DesignComparison(ShownValue):
    """A comparison of the cheapest clusters for the same number of trials of several policies.

    Attributes:
        num_trials: The number of trials in the run.
        policies: The cheapest cluster for each policy.
        cautions: Warnings about amounts in the catalog.
    """

    num_trials: PositiveCount
    policies: tuple[DesignedPolicy, ...]
    cautions: tuple[str, ...] = ()

    def __rich__(self) -> "RenderableType":
        from tune_policies.kuberay.design.design_comparison_view import (
            design_comparison_view,  # the view imports this module
        )

        return design_comparison_view(self)

    @property
    def is_feasible(self) -> bool:
        """Whether a trial fits on the available nodes under at least one of the policies."""
        return any(designed.design is not None for designed in self.policies)


def compare_designs(
    policies: Iterable[tuple[str, ResourcePolicy]],
    catalog: NodeCatalog | None,
    num_trials: int,
    *,
    decision: Decision | None = None,
    workload: str | None = None,
    size: float | None = None,
    trial_hours: float | None = None,
    deadline_hours: float | None = None,
    min_nodes: Mapping[str, int] | None = None,
) -> DesignComparison:
    """Design the cheapest cluster for each policy. If no trial fits under a policy, its result contains the reason.

    Args:
        policies: The policies, each with its name.
        catalog: The available nodes; by default nodes that suit each policy.
        num_trials: The number of trials in the run, at most 100,000.
        decision: The result of benchmarks, which also contains the durations of trials.
        workload: The workload of the decision; ``None`` if the decision has only one workload.
        size: The size of the trials; ``None`` for the largest measured size.
        trial_hours: The duration of each trial, in hours.
        deadline_hours: The time in which all trials must end, in hours.
        min_nodes: The number of nodes to keep, by the name of the node type.

    Raises:
        InvalidResourcesError: An argument is wrong, or there are no default nodes for a policy.
    """
    compared = []
    for name, policy in policies:
        try:
            design = design_cluster(
                policy,
                catalog,
                num_trials,
                decision=decision,
                workload=workload,
                size=size,
                trial_hours=trial_hours,
                deadline_hours=deadline_hours,
                min_nodes=min_nodes,
            )
        except InfeasibleRequestError as error:
            why_not = f"one trial needs {error.asked}, but {error.offered}: short of {error.short_of}"
            compared.append(DesignedPolicy(policy=name, why_not=why_not))
        else:
            compared.append(DesignedPolicy(policy=name, design=design))
    cautions = () if catalog is None else catalog.cautions
    return DesignComparison(num_trials=num_trials, policies=tuple(compared), cautions=cautions)
