"""The first of several policies that fits: GPUs if there are some, else CPUs."""

from collections.abc import Iterable, Sequence

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import InnerPolicy, ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.value import Value


class FirstFeasiblePolicy(ResourcePolicy):
    """The first of several policies that fits; the reasons say why the others did not.

    ``FirstFeasiblePolicy(GpuPolicy(), CpuPolicy(cpus=2))`` takes a GPU where there is one; so does
    ``GpuPolicy() | CpuPolicy(cpus=2)``.

    Attributes:
        policies: The choices, the best first. At least one.

    Raises:
        InvalidResourcesError: A field is wrong, or there is no choice.
    """

    policies: tuple[InnerPolicy, ...]

    def __init__(self, *choices: ResourcePolicy, policies: Sequence[ResourcePolicy] | None = None) -> None:
        if choices and policies is not None:
            raise InvalidResourcesError("give the policies one way: as arguments, or as policies=(…)")
        Value.__init__(self, policies=choices if policies is None else policies)
        if not self.policies:
            raise InvalidResourcesError("FirstFeasiblePolicy needs at least one policy to try")

    def __or__(self, other: ResourcePolicy) -> ResourcePolicy:
        """Return the policy that tries ``other`` last, after all of these."""
        return FirstFeasiblePolicy(*self.policies, other) if isinstance(other, ResourcePolicy) else NotImplemented

    @property
    def choices(self) -> tuple[ResourcePolicy, ...]:
        """What is tried in turn, without further choices inside."""
        return tuple(choice for policy in self.policies for choice in policy.choices)

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan; see :meth:`ResourcePolicy.plan`."""
        return plan_first_feasible(self.policies, capacity)


def plan_first_feasible(policies: Iterable[ResourcePolicy], capacity: ClusterCapacity) -> TrialPlan:
    """Return the plan of the first policy that fits; its reasons say why the ones before it did not.

    Raises:
        InfeasibleRequestError: None of them fits.
    """
    errors: list[InfeasibleRequestError] = []
    notes: list[str] = []
    for policy in policies:
        try:
            return policy.plan(capacity).with_reasons(*notes)
        except InfeasibleRequestError as error:
            errors.append(error)
            notes.append(f"not {type(policy).__name__}: {error}")
    if len(errors) == 1:
        raise errors[0]
    last = errors[-1]
    raise InfeasibleRequestError(
        " or else ".join(error.asked for error in errors),
        last.offered,
        " and ".join(dict.fromkeys(error.short_of for error in errors)),
        last.suggestion,
        tuple(errors),
    )
