"""A policy that limits the number of concurrent trials."""

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.placement.launch_forecast import has_choice, launched_for_pending
from tune_policies.placement.request import Limit
from tune_policies.placement.scale_up import fewest_nodes
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy, WrappingPolicy
from tune_policies.values.resources import PositiveCount
from tune_policies.values.value import Value


class CappedPolicy(WrappingPolicy):
    """Limits the number of concurrent trials.

    ``run``, ``tuner`` and ``PolicyScheduler`` apply the limit. In a run without a ``PolicyScheduler``, also pass
    ``max_concurrent_trials`` to Tune.

    Attributes:
        inner: The policy whose plan is limited.
        max_concurrent_trials: The maximum number of concurrent trials.

    Raises:
        InvalidResourcesError: A field is invalid.
    """

    max_concurrent_trials: PositiveCount

    def __init__(self, inner: ResourcePolicy, max_concurrent_trials: int) -> None:
        Value.__init__(self, inner=inner, max_concurrent_trials=max_concurrent_trials)

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        plan = self.inner.plan(capacity)
        capped = plan.capped(
            self.max_concurrent_trials,
            limited_by=Limit.MAX_CONCURRENT_TRIALS,
            reasons=(
                f"{plan.max_concurrent_trials} trials would fit, but max_concurrent_trials limits the number to "
                f"{self.max_concurrent_trials}",
            ),
        )
        if capped == plan or not plan.nodes_to_add:
            return capped
        nodes_to_add = fewest_nodes(capped.slots, capacity, plan.nodes_to_add)
        # If several node types fit a trial, Ray's autoscaler and not the plan chooses between them.
        if nodes_to_add and has_choice(capped.slots, capacity):
            launched = launched_for_pending(capped.slots, capacity, sum(plan.nodes_to_add.values()))
            if launched.is_enough:
                nodes_to_add = launched.nodes
        return capped.model_copy(update={"nodes_to_add": nodes_to_add})
