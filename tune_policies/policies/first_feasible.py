"""A policy that falls back from one policy to the next, for instance from GPUs to CPUs."""

from collections.abc import Iterable, Sequence
from typing import Final

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.plan.infeasible_request import add_device_node
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import InnerPolicy, ResourcePolicy, passed_policies
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import PositiveCount
from tune_policies.values.value import Value
from tune_policies.values.wording import counted

SKIPPED: Final = "skipped"
"""The first word of the reason why a plan does not use a policy."""


class FirstFeasiblePolicy(ResourcePolicy):
    """Tries several policies in order, and uses the first that fits the cluster.

    ``FirstFeasiblePolicy(GpuPolicy(), CpuPolicy(cpus=2))``, or ``GpuPolicy() | CpuPolicy(cpus=2)``, uses GPUs if the
    cluster has any, and otherwise CPUs. The reasons of the plan explain why earlier policies were skipped.

    Attributes:
        policies: The policies to try, in order of preference. At least one is required.
        min_trials: The minimum number of concurrent trials. A policy that allows fewer trials is skipped.

    Raises:
        InvalidResourcesError: A field is invalid, or ``policies`` is empty.
    """

    policies: tuple[InnerPolicy, ...]
    min_trials: PositiveCount = 1

    def __init__(
        self, *choices: ResourcePolicy, policies: Sequence[ResourcePolicy] | None = None, min_trials: int = 1
    ) -> None:
        Value.__init__(self, policies=passed_policies(type(self), choices, policies), min_trials=min_trials)
        if not self.policies:
            raise InvalidResourcesError("FirstFeasiblePolicy requires at least one policy")

    def __repr__(self) -> str:
        """Return the policies as users write them, such as ``GpuPolicy() | CpuPolicy()``."""
        is_nested = any(isinstance(policy, FirstFeasiblePolicy) for policy in self.policies)
        if self.min_trials != 1 or len(self.policies) == 1 or is_nested:
            return super().__repr__()
        return " | ".join(map(repr, self.policies))

    def __or__(self, other: ResourcePolicy) -> ResourcePolicy:
        """Return a policy that tries ``other`` after these policies."""
        if not isinstance(other, ResourcePolicy):
            return super().__or__(other)
        if self.min_trials == 1:
            return FirstFeasiblePolicy(*self.policies, other)
        # ``min_trials`` does not apply to ``other``, because ``other`` is the last resort.
        return FirstFeasiblePolicy(self, other)

    @property
    def choices(self) -> tuple[ResourcePolicy, ...]:
        """The choices of all policies, in order."""
        choices = tuple(choice for policy in self.policies for choice in policy.choices)
        if self.min_trials == 1:
            return choices
        return tuple(FirstFeasiblePolicy(choice, min_trials=self.min_trials) for choice in choices)

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        return plan_first_feasible(self.policies, capacity, min_trials=self.min_trials)


def plan_first_feasible(
    policies: Iterable[ResourcePolicy], capacity: ClusterCapacity, *, min_trials: int = 1
) -> TrialPlan:
    """Return the plan of the first policy that allows ``min_trials`` concurrent trials.

    The reasons of the plan explain why earlier policies were skipped.

    Raises:
        InfeasibleRequestError: No policy allows ``min_trials`` concurrent trials.
    """
    errors: list[InfeasibleRequestError] = []
    skipped: list[ResourcePolicy] = []
    most_at_once = 0
    for policy in policies:
        try:
            plan = policy.plan(capacity)
            at_once = plan.min_concurrent_trials
            if at_once >= min_trials:
                return _after_others(plan, capacity, list(zip(skipped, errors, strict=True)))
            most_at_once = max(at_once, most_at_once)
            on_type = f" on {plan.accelerator_type}" if plan.accelerator_type else ""
            raise InfeasibleRequestError(
                f"{plan.worker}{on_type}, and min_trials={min_trials}",
                f"only {counted(at_once, 'trial')} can run at once",
                plan.limited_by,
                _fewer(at_once),
            )
        except InfeasibleRequestError as error:
            errors.append(error)
            skipped.append(policy)
    # Some policy fits, but with fewer trials than ``min_trials``, so a smaller minimum is the nearest fix.
    if most_at_once and len(errors) > 1:
        raise InfeasibleRequestError.of_each(errors).with_texts(suggestion=_fewer(most_at_once))
    raise InfeasibleRequestError.of_choices(errors)


def _after_others(
    plan: TrialPlan, capacity: ClusterCapacity, skipped: Sequence[tuple[ResourcePolicy, InfeasibleRequestError]]
) -> TrialPlan:
    """Return the plan of a fallback with the reasons why other policies were skipped.

    If the cluster has GPUs that the fallback does not use, the reason and the fix are in the headline.
    """
    uses_devices = any(DEVICE_RESOURCES & slot.worker.ticks.keys() for slot in plan.slots)
    has_unused_gpus = not uses_devices and any(node.resources.gpus for node, _ in capacity.groups)
    notes: list[str] = []
    why_no_gpus = ""
    for policy, error in skipped:
        # A fallback is for clusters without such devices, so the advice to add one is left out.
        is_expected = error.suggestion == add_device_node(error.short_of)
        explains_headline = has_unused_gpus and not why_no_gpus and policy.requests_gpus
        if explains_headline:
            why_no_gpus = f"{error.offered}. {error.suggestion}".removesuffix(".")
        if is_expected or explains_headline:
            notes.append(f"{SKIPPED} {type(policy).__name__}: one trial needs {error.asked}, but {error.offered}")
        else:
            notes.append(why_not(policy, error))
    if why_no_gpus:
        plan = plan.model_copy(update={"why_no_gpus": why_no_gpus})
    return plan.with_reasons(*notes)


def why_not(policy: ResourcePolicy, error: InfeasibleRequestError) -> str:
    """Return a sentence that explains why a policy is skipped, without the suggested fallback policy."""
    return f"{SKIPPED} {type(policy).__name__}: {error.with_texts(fallback='')}"


def _fewer(at_once: int) -> str:
    return f"Set min_trials={at_once}, or add nodes."
