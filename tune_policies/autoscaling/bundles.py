"""What the trials of a plan reserve, bundle by bundle, as Ray's autoscaler counts it."""

from typing import NamedTuple

from tune_policies.accelerators import ACCELERATOR_TYPE_AMOUNT, ACCELERATOR_TYPE_PREFIX
from tune_policies.plan import TrialPlan
from tune_policies.resources import Resources, from_ticks
from tune_policies.slot import TrialSlot


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
    return {name: amount if name == "memory" else from_ticks(amount) for name, amount in resources.ticks.items()}
