"""Chooses the slots in which trials cost the least, as benchmarks measured."""

import math
from collections.abc import Iterator
from typing import NamedTuple, Self

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.kuberay.design.catalog import NodeType
from tune_policies.kuberay.design.cheapest_nodes import NodeChoice, NodePool, Units, choose_nodes
from tune_policies.kuberay.design.nodes_by_slot import Share, policies_by_slot
from tune_policies.plan.decision import Decision, DeviceTimes, Objective, SizeDecision
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import format_amount
from tune_policies.values.value import shorten_names


class Measured(NamedTuple):
    """What was decided for trials of one workload and size.

    Attributes:
        at: The measured size that counts.
        accelerator_type: Of the GPUs on which was measured; ``None``: not known.
        has_prices: Whether what trials cost was decided, too.
    """

    at: SizeDecision
    accelerator_type: str | None
    has_prices: bool

    @classmethod
    def of(cls, decision: Decision, workload: str | None, size: float | None) -> Self:
        """Return what was decided for a size; ``None``: for the largest that was measured.

        Raises:
            InvalidResourcesError: Nothing was decided for the workload, or the size is none.
        """
        if size is not None and not 0 < size < math.inf:
            raise InvalidResourcesError(f"size must be above 0, and finite, got {size:g}")
        decided = decision.of(workload)
        at = decided.sizes[-1] if size is None else decided.at(size)
        return cls(at, decision.accelerator_type, decision.has_prices)

    def times(self, slot: TrialSlot) -> DeviceTimes | None:
        """Return what trials cost in such slots; ``None``: it was not measured, as with several workers or devices."""
        if slot.num_workers > 1 or slot.worker.gpus > 1:
            return None
        if slot.worker.gpus:
            is_measured = self.accelerator_type is None or slot.accelerator_type in (None, self.accelerator_type)
            return self.at.gpu if is_measured else None
        return None if DEVICE_RESOURCES & slot.worker.ticks.keys() else self.at.cpu

    def pool(self, pool: NodePool) -> NodePool:
        """Return the node types without GPUs of other types, or in parts, on which trials were not measured."""

        def is_measured(each: NodeType) -> bool:
            return self.accelerator_type in (None, each.accelerator_type) and each.gpu_parts is None

        return pool.of(lambda each: not each.gpus or is_measured(each))

    def trial_s(self, plan: TrialPlan, pool: NodePool, units: Units) -> float | None:
        """Return how many seconds the slowest trial of a plan takes on some nodes; ``None``: it was not measured."""
        if units.keys() - self.pool(pool).node_types.keys():
            return None
        times = [self.times(slot) for slot in plan.slots]
        known = [each.trial_s for each in times if each is not None]
        return max(known) if len(known) == len(times) else None


class _Candidate(NamedTuple):
    choice: ResourcePolicy
    policy: ResourcePolicy
    nodes: NodeChoice
    times: DeviceTimes
    per_trial: float | None

    def __str__(self) -> str:
        cost = "at a price that is not known" if self.per_trial is None else f"for {self.per_trial:.3g}"
        return f"{type(self.policy).__name__} in {self.times.trial_s:g} s {cost}"


class MeasuredChoice(NamedTuple):
    """Which of a policy's choices is taken, and how many trials each of its slot types is to hold.

    Attributes:
        policy: The choice.
        shares: The best slot type has all trials; those for which it has no room go to the others, in this order.
        pool: The node types on which trials were measured.
        reasons: A sentence each.
    """

    policy: ResourcePolicy
    shares: tuple[Share, ...]
    pool: NodePool
    reasons: tuple[str, ...]


def choose_by_decision(
    policy: ResourcePolicy, pool: NodePool, num_trials: int, measured: Measured
) -> MeasuredChoice | None:
    """Return the slots in which a trial costs the least; ``None``: there is nothing to choose from.

    Without prices the decision's own answer counts: the device that costs less, if it has prices, else the faster.
    """
    comparable = measured.pool(pool)
    candidates = list(_candidates(policy, comparable, num_trials, measured))
    if len(candidates) < 2:
        return None
    if all(each.per_trial is not None for each in candidates):
        best = sorted(candidates, key=lambda each: each.per_trial or 0)
        how = f"a trial costs the least by what was measured at size {measured.at.size}"
    else:
        objective: Objective = "cost" if measured.has_prices else "time"
        device = measured.at.device(objective)
        best = sorted(candidates, key=lambda each: each.nodes.plan.use_gpu != (device == "GPU"))
        how = f"{objective} decides, as prices are not all known: the {device} at size {measured.at.size}"
    shares = tuple(
        Share(each.policy, num_trials if at == 0 else 0)
        for at, each in enumerate(each for each in best if each.choice is best[0].choice)
    )
    reasons = [f"{how}: {', then '.join(map(str, best))}", *_about_share(best, measured)]
    if left_out := sorted(pool.node_types.keys() - comparable.node_types.keys()):
        on = measured.accelerator_type or "whole GPUs"
        reasons.append(f"left out, as it was measured on {on} only: {shorten_names(left_out)}")
    return MeasuredChoice(best[0].choice, shares, comparable, tuple(reasons))


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
                yield _Candidate(choice, inner, nodes, times, per_trial)


def _about_share(candidates: list[_Candidate], measured: Measured) -> Iterator[str]:
    for each in candidates:
        gpus = each.nodes.plan.worker.gpus
        if 0 < gpus < 1 and measured.at.gpu.device == "gpu":
            yield (
                f"measured with a whole GPU, of which a trial now has {format_amount(gpus)}: with others on it, it may "
                "be slower than was measured"
            )
