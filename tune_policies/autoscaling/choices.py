"""The choices that a policy has: which one can run now, and what another one would need.

Pure. What an autoscaler makes of it is the affair of ``readiness``.
"""

from typing import NamedTuple

from tune_policies.autoscaling.bundles import Bundle, trial_bundles
from tune_policies.capacity import ClusterCapacity
from tune_policies.errors import InfeasibleRequestError
from tune_policies.placement.scale_up import by_use, fewest_nodes
from tune_policies.placement.smallest_node import GPU_MEMORY, plan_on_smallest_node
from tune_policies.plan import TrialPlan
from tune_policies.policies import AutoscalingPolicy
from tune_policies.policy import ResourcePolicy


class Needs(NamedTuple):
    """What a choice would need.

    Attributes:
        bundles: What its trials reserve.
        node_types: The names of the types of nodes that hold a worker; ``None``: not known.
    """

    bundles: list[Bundle]
    node_types: frozenset[str] | None


def plan_now(choice: ResourcePolicy, capacity: ClusterCapacity, num_trials: int) -> TrialPlan:
    """Return the plan, if ``num_trials`` of its trials can run on the alive nodes.

    Raises:
        InfeasibleRequestError: They cannot.
    """
    plan = choice.plan(capacity)
    if plan.min_concurrent_trials < num_trials:
        raise _too_few(plan, num_trials, f"only {plan.min_concurrent_trials} fit at once")
    first = plan.capped(num_trials, limited_by="num_trials")
    if plan.nodes_to_add and fewest_nodes(first, capacity, plan.nodes_to_add):
        raise _too_few(plan, num_trials, "the alive nodes do not hold them yet")
    return plan


def needs(choice: ResourcePolicy, capacity: ClusterCapacity, num_trials: int) -> Needs:
    """Return what ``num_trials`` trials of ``choice`` need, so that it can be asked for.

    Raises:
        InfeasibleRequestError: No nodes that can be added would do.
    """
    if capacity.node_types is None:
        return Needs(trial_bundles(_imagined(choice, capacity, num_trials), num_trials), None)
    growing = choice if _counts_additions(choice) else AutoscalingPolicy(choice)
    try:
        plan = growing.plan(capacity)
    except InfeasibleRequestError as error:
        with_gpus = frozenset(each.name for each in capacity.node_types if each.resources.gpus > 0)
        if error.short_of != GPU_MEMORY or not with_gpus:
            raise
        # How much GPU memory a node will have is known when it is there.
        return Needs(trial_bundles(_imagined(choice, capacity, num_trials), num_trials), with_gpus)
    if plan.min_concurrent_trials < num_trials:
        raise _too_few(plan, num_trials, f"only {plan.min_concurrent_trials} would fit at once")
    types = by_use(plan.slots[0], capacity, num_trials)
    return Needs(trial_bundles(plan, num_trials), frozenset(each.name for each in types if each.max_nodes_to_add))


def no_choice(errors: tuple[InfeasibleRequestError, ...]) -> InfeasibleRequestError:
    """Return the error that says of each choice why it cannot be met."""
    if len(errors) == 1:
        return errors[0]
    return InfeasibleRequestError(
        " or else ".join(error.asked for error in errors),
        "; ".join(f"for {error.asked}: {error.offered}" for error in errors),
        " and ".join(dict.fromkeys(error.short_of for error in errors)),
        errors[-1].suggestion,
        errors,
    )


def _imagined(choice: ResourcePolicy, capacity: ClusterCapacity, num_trials: int) -> TrialPlan:
    plan = plan_on_smallest_node(choice)
    if plan is None:
        plan_now(choice, capacity, num_trials)  # which raises
        raise AssertionError("what fits the alive nodes needs nothing")
    return plan


def _too_few(plan: TrialPlan, num_trials: int, offered: str) -> InfeasibleRequestError:
    asked = f"{plan.slots[0]}, {num_trials} times at once" if num_trials > 1 else str(plan.slots[0])
    return InfeasibleRequestError(asked, offered, plan.limited_by, "Ask for fewer trials at once, or add nodes.")


def _counts_additions(policy: ResourcePolicy) -> bool:
    """Return whether the policy, or one within it, has its own limit for what is added."""
    return isinstance(policy, AutoscalingPolicy) or any(map(_counts_additions, policy.inner_policies))
