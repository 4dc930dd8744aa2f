"""The kinds of slots of a policy, and how many of the trials each is to hold."""

from collections.abc import Sequence
from typing import NamedTuple

from tune_policies.policies.benchmarked import BenchmarkedPolicy
from tune_policies.policies.mixed import MixedPolicy
from tune_policies.policy import ResourcePolicy, WrappingPolicy


class Share(NamedTuple):
    """Trials of one kind.

    Attributes:
        policy: Plans that kind alone.
        num_trials: How many of them are to run at once; 0: only what other kinds cannot hold.
    """

    policy: ResourcePolicy
    num_trials: int


def shares_of(policy: ResourcePolicy, num_trials: int) -> tuple[Share, ...]:
    """Return what each kind of slots is to hold, the best kind first.

    A mixed policy's kinds share the trials by their speeds, or evenly where these are not known. Where a trial's config
    decides, any kind may have to hold all of them.
    """
    if isinstance(policy, MixedPolicy):
        parts = divided(num_trials, policy.speeds or (1.0,) * len(policy.policies))
        found = (shares_of(inner, part) for inner, part in zip(policy.policies, parts, strict=True))
        return tuple(share for each in found for share in each)
    if isinstance(policy, BenchmarkedPolicy):
        return (*shares_of(policy.gpu, num_trials), *shares_of(policy.cpu, num_trials))
    if isinstance(policy, WrappingPolicy):
        inside = shares_of(policy.inner, num_trials)
        if len(inside) > 1:
            return tuple(each._replace(policy=policy.model_copy(update={"inner": each.policy})) for each in inside)
    return (Share(policy, num_trials),)


def kinds_of(policy: ResourcePolicy) -> tuple[ResourcePolicy, ...]:
    """Return a policy for each kind of slots, the best first."""
    return tuple(share.policy for share in shares_of(policy, 0))


def divided(number: int, weights: Sequence[float]) -> list[int]:
    """Return ``number`` in whole parts by weight, each at least 1 where there are enough; what is left to the first."""
    least = [1 if at < number else 0 for at in range(len(weights))]
    free = number - sum(least)
    parts = [one + int(free * weight / sum(weights)) for one, weight in zip(least, weights, strict=True)]
    for at in range(number - sum(parts)):
        parts[at % len(parts)] += 1
    return parts
