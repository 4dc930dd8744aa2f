"""Chooses the cheapest nodes for slots of several types, such as quarter GPUs and CPUs.

If benchmarks measured the trials, the trials run in the slots in which they are cheapest.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.kuberay.design.catalog_file import NodeType
from tune_policies.kuberay.design.cheapest_nodes import NodeChoice, NodePool, Units, choose_nodes, trimmed
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.benchmark_decision import Decision, DeviceTimes, Objective, SizeDecision
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.benchmarked import BenchmarkedPolicy
from tune_policies.policies.by_config import ByConfigPolicy
from tune_policies.policies.mixed import MixedPolicy
from tune_policies.policies.policy import ResourcePolicy, WrappingPolicy
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import format_amount
from tune_policies.values.wording import shorten_names


class Share(NamedTuple):
    """The policy and the number of trials for the slots of one type.

    Attributes:
        policy: The policy for this type alone.
        num_trials: The number of trials to run concurrently in these slots. With 0, the slots are used only for trials
            that do not fit in other slots.
    """

    policy: ResourcePolicy
    num_trials: int


def shares_of(policy: ResourcePolicy, num_trials: int) -> tuple[Share, ...]:
    """Return the share of the trials for each slot type, the best type first.

    The trials of a mixed policy are divided in proportion to the speeds of its slots, or evenly if the speeds are
    unknown. If the configurations of trials determine their slots, each type needs room for all trials.
    """
    if isinstance(policy, MixedPolicy):
        parts = divided(num_trials, policy.speeds or (1.0,) * len(policy.policies))
        found: list[Share] = []
        for inner, part in zip(policy.policies, parts, strict=True):
            found += shares_of(inner, part)
        return tuple(found)
    if isinstance(policy, BenchmarkedPolicy):
        return (*shares_of(policy.gpu, num_trials), *shares_of(policy.cpu, num_trials))
    # It is not known how many trials will have each kind of config, so each slot type needs room for all of them.
    if isinstance(policy, ByConfigPolicy):
        of_each: list[Share] = []
        for inner in policy.distinct_policies:
            of_each += shares_of(inner, num_trials)
        return tuple(of_each)
    if isinstance(policy, WrappingPolicy):
        inside = shares_of(policy.inner, num_trials)
        # With several slot types inside, each type is wrapped again, so that the limits of the wrapper apply to it.
        if len(inside) > 1:
            return tuple(share._replace(policy=policy.model_copy(update={"inner": share.policy})) for share in inside)
    return (Share(policy, num_trials),)


def policies_by_slot(policy: ResourcePolicy) -> tuple[ResourcePolicy, ...]:
    """Return a policy for each slot type, the best type first."""
    return tuple(share.policy for share in shares_of(policy, 0))


def divided(number: int, weights: Sequence[float]) -> list[int]:
    """Divide ``number`` into whole parts in proportion to ``weights``, each at least 1 if possible.

    The first parts get the remainder.
    """
    # One trial for each of the first parts, and the rest by weight. Rounding down leaves less than one trial for each
    # part.
    least = [int(at < number) for at in range(len(weights))]
    free = number - sum(least)
    parts = [one + int(free * weight / sum(weights)) for one, weight in zip(least, weights, strict=True)]
    for at in range(number - sum(parts)):
        parts[at % len(parts)] += 1
    return parts


class ChosenNodes(NamedTuple):
    """Nodes for the trials of ``policy``, which is one of the choices of the user's policy, and notes for the user."""

    policy: ResourcePolicy
    units: Units
    notes: tuple[str, ...] = ()


def nodes_for(policy: ResourcePolicy, shares: Sequence[Share], pool: NodePool, num_trials: int) -> ChosenNodes:
    """Return the cheapest nodes on which each slot type has room for its share of ``num_trials`` trials.

    Trials that do not fit in slots of one type run in slots of the other types, the best type first.

    Raises:
        InfeasibleRequestError: Not even one trial fits.
    """
    # First, each slot type gets nodes for its own share, as far as the catalog has nodes.
    filling = _Filling(shares, pool)
    for at, share in enumerate(shares):
        filling.fill(at, share.num_trials)
    # Trials that do not fit in slots of their own type run in slots of the other types, the best type first.
    for at in range(len(shares)):
        filling.fill(at, filling.num_trials(at) + max(0, num_trials - filling.total))
    # The first type is the best, so its reason helps most.
    if not filling.choices:
        raise next(iter(filling.errors.values()))
    notes = tuple(
        f"the design has no nodes for {type(shares[at].policy).__name__}: {e}" for at, e in filling.errors.items()
    )
    units = filling.units()
    # If configurations determine the slots, the total exceeds num_trials, because each type has room for all trials.
    if len(shares) == 1 or filling.total > num_trials:
        return ChosenNodes(policy, units, notes)
    chosen = [choice for _, choice in sorted(filling.choices.items())]
    together = pool.plan(policy, units)
    if together is not None:
        num_workers = [slot.num_workers for slot in together.slots]
        # Only if the common plan has the same slots in the same order can each slot be compared with its own choice.
        if num_workers == [nodes.plan.num_workers for nodes in chosen]:
            units = _without_spare(policy, together, units, pool, chosen)
    return ChosenNodes(policy, without_unused(policy, units, pool, num_trials), notes)


class _Filling:
    """Chooses nodes for one share after another. A share is identified by its index."""

    def __init__(self, shares: Sequence[Share], pool: NodePool) -> None:
        self._shares = shares
        self._pool = pool
        self.choices: dict[int, NodeChoice] = {}
        self.errors: dict[int, InfeasibleRequestError] = {}

    @property
    def total(self) -> int:
        return sum(choice.num_trials for choice in self.choices.values())

    def num_trials(self, at: int) -> int:
        if at in self.choices:
            return self.choices[at].num_trials
        return 0

    def fill(self, at: int, num_trials: int) -> None:
        """Choose nodes for ``num_trials`` trials of the share ``at``, unless the chosen nodes have room for them."""
        if num_trials <= self.num_trials(at) or at in self.errors:
            return
        taken = self.units(without=at)
        # Nodes that earlier types use are not available again.
        left = {name: most - taken.get(name, 0) for name, most in self._pool.most.items()}
        try:
            self.choices[at] = choose_nodes(self._shares[at].policy, self._pool, left, num_trials)
        except InfeasibleRequestError as error:
            self.errors[at] = error

    def units(self, without: int | None = None) -> dict[str, int]:
        units = Counter[str]()
        for at, choice in self.choices.items():
            if at != without:
                units.update(choice.units)
        return dict(sorted(units.items()))


def _without_spare(
    policy: ResourcePolicy, plan: TrialPlan, units: Units, pool: NodePool, chosen: Sequence[NodeChoice]
) -> dict[str, int]:
    """Remove units that are not needed because slots of one type also fit on the nodes of another type."""
    least = [min(slot.max_concurrent_trials, of.num_trials) for slot, of in zip(plan.slots, chosen, strict=True)]

    def holds(fewer: Units) -> bool:
        found = pool.plan(policy, fewer)
        if found is None or len(found.slots) != len(least):
            return False
        return all(slot.max_concurrent_trials >= few for slot, few in zip(found.slots, least, strict=True))

    return trimmed(units, pool, uses_devices=True, holds=holds)


def without_unused(policy: ResourcePolicy, units: Units, pool: NodePool, num_trials: int) -> dict[str, int]:
    """Remove units that the trials do not use because better slots have room for all of them."""

    def slots(some: Units) -> tuple[TrialSlot, ...]:
        plan = pool.plan(policy, some)
        if plan is None:
            return ()
        return plan.capped(num_trials, limited_by="num_trials").slots

    wanted = slots(units)
    return trimmed(units, pool, uses_devices=True, holds=lambda fewer: slots(fewer) == wanted)


class Measured(NamedTuple):
    """The decision for trials of one workload and size.

    Attributes:
        at: The decision for the nearest measured size.
        accelerator_type: The type of the measured GPUs, if known.
        has_prices: Whether the decision contains the costs of trials.
    """

    at: SizeDecision
    accelerator_type: str | None
    has_prices: bool

    @classmethod
    def of(cls, decision: Decision, workload: str | None, size: float | None) -> Self:
        """Return the decision for a size, or for the largest measured size if ``size`` is ``None``.

        Raises:
            InvalidResourcesError: The decision does not contain the workload, or the size is not valid.
        """
        if size is not None and not 0 < size < math.inf:
            raise InvalidResourcesError(f"size must be above 0 and finite, got {size:g}")
        decided = decision.of(workload)
        at = decided.sizes[-1] if size is None else decided.at(size)
        return cls(at, decision.accelerator_type, decision.has_prices)

    def times(self, slot: TrialSlot) -> DeviceTimes | None:
        """Return the measured times in a slot, or ``None`` if this kind of slot was not measured."""
        # The times are those of one process, so they do not apply to slots of several workers or GPUs.
        if slot.num_workers > 1 or slot.worker.gpus > 1:
            return None
        if slot.worker.gpus:
            is_measured = self.accelerator_type is None or slot.accelerator_type in (None, self.accelerator_type)
            if is_measured:
                return self.at.gpu
            return None
        if DEVICE_RESOURCES & slot.worker.ticks.keys():
            return None
        return self.at.cpu

    def pool(self, pool: NodePool) -> NodePool:
        """Return the pool without node types whose GPUs were not measured (other types and parts of GPUs)."""

        def is_measured(node_type: NodeType) -> bool:
            return self.accelerator_type in (None, node_type.accelerator_type) and node_type.gpu_parts is None

        return pool.of(lambda node_type: not node_type.gpus or is_measured(node_type))

    def trial_s(self, plan: TrialPlan, pool: NodePool, units: Units) -> float | None:
        """Return the duration of the slowest trial of a plan on these nodes, in seconds, or ``None`` if unknown."""
        if units.keys() - self.pool(pool).node_types.keys():
            return None
        times = [self.times(slot) for slot in plan.slots]
        known = [times_of_device.trial_s for times_of_device in times if times_of_device is not None]
        if len(known) == len(times):
            return max(known)
        return None


class _Candidate(NamedTuple):
    choice: ResourcePolicy
    policy: ResourcePolicy
    nodes: NodeChoice
    times: DeviceTimes
    per_trial: float | None
    currency: str

    def __str__(self) -> str:
        text = f"{type(self.policy).__name__} in {self.times.trial_s:g} s"
        if self.per_trial is None:
            return f"{text} at an unknown price"
        return f"{text} for {self.per_trial:.3g} {self.currency}"


def choose_by_decision(
    policy: ResourcePolicy, pool: NodePool, num_trials: int, measured: Measured
) -> ChosenNodes | None:
    """Return nodes for the slots in which a trial is cheapest, or ``None`` if fewer than two slot types were measured.

    Trials run in the best slot type. Trials that do not fit in it run in the other slot types. If node
    prices are missing, the decision determines the best device: by cost if the decision contains costs, else by time.

    Raises:
        InfeasibleRequestError: Not even one trial fits.
    """
    comparable = measured.pool(pool)
    candidates = list(_candidates(policy, comparable, num_trials, measured))
    if len(candidates) < 2:
        return None
    # Costs can be compared only if all of them are known. Otherwise, the decision's own answer counts.
    if all(candidate.per_trial is not None for candidate in candidates):
        best = sorted(candidates, key=lambda candidate: candidate.per_trial or 0)
        how = f"trials run where they are cheapest, as measured at size {measured.at.size}"
    else:
        objective: Objective = "cost" if measured.has_prices else "time"
        device = measured.at.device(objective)
        best = sorted(candidates, key=lambda candidate: candidate.nodes.plan.use_gpu != (device == "GPU"))
        measure = f"{objective} of a trial at size {measured.at.size}"
        how = f"trials first run on the {device}, based on the {measure}, because some node prices are unknown"
    # A run uses one choice of the policy, so only slots of the same choice can complement each other.
    first, *others = (candidate.policy for candidate in best if candidate.choice is best[0].choice)
    shares = (Share(first, num_trials), *(Share(other, 0) for other in others))
    reasons = [f"{how}: {', then '.join(map(str, best))}", *_about_share(best, measured)]
    left_out = sorted(pool.node_types.keys() - comparable.node_types.keys())
    if left_out:
        on = measured.accelerator_type or "whole GPUs"
        reasons.append(f"the design does not use {shorten_names(left_out)}, because the benchmark measured only {on}")
    found = nodes_for(best[0].choice, shares, comparable, num_trials)
    return found._replace(notes=(*reasons, *found.notes))


def _candidates(policy: ResourcePolicy, pool: NodePool, num_trials: int, measured: Measured) -> Iterator[_Candidate]:
    for choice in policy.choices:
        for inner in policies_by_slot(choice):
            try:
                nodes = choose_nodes(inner, pool, pool.most, num_trials)
            except InfeasibleRequestError:
                continue
            times = measured.times(nodes.plan.slots[0])
            if times is not None:
                price = pool.price_per_hour(nodes.units)
                per_trial = None if price is None else price / nodes.num_trials * times.trial_s / 3600
                yield _Candidate(choice, inner, nodes, times, per_trial, pool.currency)


def _about_share(candidates: list[_Candidate], measured: Measured) -> Iterator[str]:
    for candidate in candidates:
        gpus = candidate.nodes.plan.worker.gpus
        if 0 < gpus < 1 and measured.at.gpu.device == "gpu":
            yield (
                f"the benchmark used a whole GPU, but a trial gets {format_amount(gpus)} GPU, so the trial may be "
                "slower if it shares the GPU"
            )
