"""A policy that limits the number of concurrent trials."""

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.placement.launch_forecast import has_choice, launched_for_pending
from tune_policies.placement.request import Limit
from tune_policies.placement.scale_up import fewest_nodes
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.autoscaling import fewest_for_plan, has_room_for_plan
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
        return capped.model_copy(update={"nodes_to_add": self._nodes_for(capped, capacity)})

    def _nodes_for(self, capped: TrialPlan, capacity: ClusterCapacity) -> dict[str, int]:
        """Return the nodes to add for the trials of a capped plan, which has the nodes of the plan without the cap."""
        leaves_resources = bool(capped.left_free.ticks)
        if leaves_resources:
            nodes_to_add = fewest_for_plan(self.inner, capped, capacity, capped.nodes_to_add)
        else:
            nodes_to_add = fewest_nodes(capped.slots, capacity, capped.nodes_to_add)
        if not nodes_to_add or not has_choice(capped.slots, capacity):
            return nodes_to_add
        # If several node types fit a trial, Ray's autoscaler and not the plan chooses between them.
        launched = launched_for_pending(capped.slots, capacity, sum(capped.nodes_to_add.values()))
        if not launched.is_enough:
            return nodes_to_add
        if leaves_resources and not has_room_for_plan(self.inner, capped, capacity, launched.nodes):
            return nodes_to_add
        return launched.nodes
