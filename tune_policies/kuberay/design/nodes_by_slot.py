"""The cheapest nodes for a policy whose plan has several types of slots, such as quarter GPUs and CPUs."""

from collections.abc import Sequence
from typing import NamedTuple

from tune_policies.kuberay.design.cheapest_nodes import NodeChoice, NodePool, Units, choose_nodes, trimmed
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.policies.benchmarked import BenchmarkedPolicy
from tune_policies.policies.mixed import MixedPolicy
from tune_policies.policies.policy import ResourcePolicy, WrappingPolicy
from tune_policies.values.errors import InfeasibleRequestError


class Share(NamedTuple):
    """How many of the trials the slots of one type are to hold.

    Attributes:
        policy: Plans slots of that type alone.
        num_trials: How many trials are to run there at once; 0: only those that other slots cannot hold.
    """

    policy: ResourcePolicy
    num_trials: int


def shares_of(policy: ResourcePolicy, num_trials: int) -> tuple[Share, ...]:
    """Return how many trials each type of slots is to hold, the best type first.

    The slots of a mixed policy share the trials by their speeds, or evenly where these are not known. Where a trial's
    config decides, each type may have to hold all trials.
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


def policies_by_slot(policy: ResourcePolicy) -> tuple[ResourcePolicy, ...]:
    """Return a policy for each type of slots, the best first."""
    return tuple(share.policy for share in shares_of(policy, 0))


def divided(number: int, weights: Sequence[float]) -> list[int]:
    """Divide ``number`` into whole parts by weight, each at least 1 where there are enough; the first get the rest."""
    least = [1 if at < number else 0 for at in range(len(weights))]
    free = number - sum(least)
    parts = [one + int(free * weight / sum(weights)) for one, weight in zip(least, weights, strict=True)]
    for at in range(number - sum(parts)):
        parts[at % len(parts)] += 1
    return parts


class NodesForSlots(NamedTuple):
    """Nodes that hold the trials in slots of several types.

    Attributes:
        units: How many units of each node type.
        notes: What the user should know, a sentence each.
    """

    units: dict[str, int]
    notes: tuple[str, ...] = ()


def nodes_for(policy: ResourcePolicy, shares: Sequence[Share], pool: NodePool, num_trials: int) -> NodesForSlots:
    """Return the cheapest nodes on which each type of slots holds its share of ``num_trials`` trials.

    Trials for which one type has no room go to the others, the best first.

    Raises:
        InfeasibleRequestError: Not even one trial fits.
    """
    filling = _Filling(shares, pool)
    for at, share in enumerate(shares):
        filling.fill(at, share.num_trials)
    for at in range(len(shares)):
        filling.fill(at, filling.num_trials(at) + max(0, num_trials - filling.total))
    if not filling.choices:
        raise next(iter(filling.errors.values()))
    notes = tuple(f"no nodes for {type(shares[at].policy).__name__}: {e}" for at, e in filling.errors.items())
    units = filling.units()
    if len(shares) == 1 or filling.total > num_trials:  # more: each type holds all trials, as configs decide
        return NodesForSlots(units, notes)
    chosen = [choice for _, choice in sorted(filling.choices.items())]
    together = pool.plan(policy, units)
    if together is not None and _has_all(together, chosen):
        fewer = _without_spare(policy, together, units, pool, chosen)
        return NodesForSlots(_without_unused(policy, fewer, pool, num_trials), notes)
    rest = [share for at, share in enumerate(shares) if not filling.has_workers(at)]
    if len(rest) == len(shares):
        return NodesForSlots(_without_unused(policy, units, pool, num_trials), notes)
    error = _kept_to_nodes(policy)
    if not rest:
        raise error
    found = nodes_for(policy, rest, pool, num_trials)
    return NodesForSlots(found.units, (*notes, *found.notes, str(error)))


def _has_all(plan: TrialPlan, chosen: Sequence[NodeChoice]) -> bool:
    return [slot.num_workers for slot in plan.slots] == [choice.plan.num_workers for choice in chosen]


def _kept_to_nodes(policy: ResourcePolicy) -> InfeasibleRequestError:
    return InfeasibleRequestError(
        f"Train workers beside other kinds of slots, as {type(policy).__name__} has them",
        "such workers are kept to nodes by their identifiers, which nodes that are still to come do not have",
        "nodes that are there",
        "Design a cluster for each of its policies by itself.",
    )


class _Filling:
    """Chooses nodes for one share after the other. A share is known by its index."""

    def __init__(self, shares: Sequence[Share], pool: NodePool) -> None:
        self._shares = shares
        self._pool = pool
        self.choices: dict[int, NodeChoice] = {}
        self.errors: dict[int, InfeasibleRequestError] = {}

    @property
    def total(self) -> int:
        return sum(choice.num_trials for choice in self.choices.values())

    def num_trials(self, at: int) -> int:
        return self.choices[at].num_trials if at in self.choices else 0

    def has_workers(self, at: int) -> bool:
        return at in self.choices and self.choices[at].plan.num_workers > 0

    def fill(self, at: int, num_trials: int) -> None:
        """Choose nodes for so many trials of a share, unless it has them."""
        if num_trials <= self.num_trials(at) or at in self.errors:
            return
        taken = self.units(without=at)
        left = {name: most - taken.get(name, 0) for name, most in self._pool.most.items()}
        try:
            self.choices[at] = choose_nodes(self._shares[at].policy, self._pool, left, num_trials)
        except InfeasibleRequestError as error:
            self.errors[at] = error

    def units(self, without: int | None = None) -> dict[str, int]:
        units: dict[str, int] = {}
        for at, choice in self.choices.items():
            if at != without:
                for name, number in choice.units.items():
                    units[name] = units.get(name, 0) + number
        return dict(sorted(units.items()))


def _without_spare(
    policy: ResourcePolicy, plan: TrialPlan, units: Units, pool: NodePool, chosen: Sequence[NodeChoice]
) -> dict[str, int]:
    """Drop units where slots of one type also fit on the nodes of another, and each type still holds its share."""
    least = [min(slot.max_concurrent_trials, of.num_trials) for slot, of in zip(plan.slots, chosen, strict=True)]

    def holds(fewer: Units) -> bool:
        found = pool.plan(policy, fewer)
        if found is None or len(found.slots) != len(least):
            return False
        return all(slot.max_concurrent_trials >= few for slot, few in zip(found.slots, least, strict=True))

    return trimmed(units, pool, uses_devices=True, holds=holds)


def _without_unused(policy: ResourcePolicy, units: Units, pool: NodePool, num_trials: int) -> dict[str, int]:
    """Drop units without which so many trials get the same: the better slots may have room for all of them."""

    def slots(some: Units) -> tuple[TrialSlot, ...]:
        plan = pool.plan(policy, some)
        return () if plan is None else plan.capped(num_trials, limited_by="num_trials").slots

    wanted = slots(units)
    return trimmed(units, pool, uses_devices=True, holds=lambda fewer: slots(fewer) == wanted)
