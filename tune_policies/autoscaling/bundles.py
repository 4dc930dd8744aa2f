"""What the trials of a plan reserve, bundle by bundle, as Ray's autoscaler counts it."""

from typing import Final, NamedTuple

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_AMOUNT, ACCELERATOR_TYPE_PREFIX
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.values.resources import TICKS, Resources, from_ticks

_FINEST: Final = 2**40
"""Floats add up multiples of 1 / 2**40 without an error, as far as 8,192."""


class Bundle(NamedTuple):
    """Resources that must be on one node, by Ray's names, and the label selector of that node."""

    resources: dict[str, float]
    label_selector: dict[str, str]


def trial_bundles(plan: TrialPlan, num_trials: int) -> list[Bundle]:
    """Return the bundles of ``num_trials`` trials, drivers and workers; trials of the better kinds of slots first."""
    bundles: list[Bundle] = []
    left = num_trials
    for slot in plan.slots:
        number = min(left, slot.max_concurrent_trials)
        bundles += _one_trial(slot) * number
        left -= number
    # More trials than the plan runs at once are of the best kind.
    return bundles + _one_trial(plan.slots[0]) * left


def _one_trial(slot: TrialSlot) -> list[Bundle]:
    worker = _amounts(slot.worker)
    if slot.accelerator_type is not None:
        worker[ACCELERATOR_TYPE_PREFIX + slot.accelerator_type] = ACCELERATOR_TYPE_AMOUNT
    workers = [Bundle(worker, slot.label_selector)] * max(1, slot.num_workers)
    return [Bundle(_amounts(slot.trial), slot.label_selector), *workers] if slot.num_workers else workers


def _amounts(resources: Resources) -> dict[str, float]:
    return {name: amount if name == "memory" else _that_adds_up(amount) for name, amount in resources.ticks.items()}


def _that_adds_up(ticks: int) -> float:
    """Return the amount, less by so little that nothing more fits, as a number that floats subtract without an error.

    The autoscaler takes bundle after bundle from a node in floats: of 20 bundles of 0.2 it finds room for 19 on 4 GPUs,
    and v2, which launches for all bundles or for none, would launch nothing.
    """
    return from_ticks(ticks) if ticks % TICKS == 0 else ticks * _FINEST // TICKS / _FINEST
