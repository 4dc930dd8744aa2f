"""Which slot of its plan a trial has: found in the trial's own process, from what Tune reserved for it."""

import warnings
from collections.abc import Mapping
from typing import Any, Final

import ray
from ray import tune

from tune_policies.plan import TrialPlan
from tune_policies.slot import TrialSlot

SLOT_KEY: Final = "slot"
"""The key under which each result of a trial says in which slot it ran."""


def slot_of_trial(plan: TrialPlan, config: Mapping[str, Any], reserved: Any) -> TrialSlot:
    """Return the slot in which the trial of this process runs, of ``plan`` or of one that took its place.

    Args:
        plan: The plan with which the run began.
        config: The trial's config, without what Tune adds to it.
        reserved: What Tune reserved for the trial; ``None``: this is no trial of Tune's.

    Raises:
        InfeasibleRequestError: The plan goes by configs, and this one is known to need more than any device has.
    """
    given = slot_of_reservation(reserved)
    if plan.by_config is not None:
        wanted = plan.slot_for(config)
        # A scheduler may have changed the config since; what Ray holds for the trial has not changed with it.
        return given if given is not None and given in plan.by_config.slots else wanted
    if given is None and len(plan.slots) == 1:
        return plan.slots[0]
    if given is not None:
        return given
    bundles = None if reserved is None else reserved.bundles
    return next((slot for slot in plan.slots if slot.placement_group_factory().bundles == bundles), plan.slots[0])


def plan_of_trial(plan: TrialPlan) -> TrialPlan:
    """Return the plan of the slot in which the trial of this process runs; outside of Tune, ``plan`` itself."""
    given = slot_of_reservation(reserved_for_trial())
    if plan.by_config is not None or given is None:
        return plan
    return plan.model_copy(update={"slots": (given,)})


def slot_of_reservation(reserved: Any) -> TrialSlot | None:
    """Return the slot for which ``reserved`` was made; ``None``: it was made by hand."""
    slot = getattr(reserved, "slot", None)
    return slot if isinstance(slot, TrialSlot) else None


def reserved_for_trial() -> Any:
    """Return what Tune reserved for the trial whose function this process runs; ``None``: it runs none."""
    if not ray.is_initialized():  # to ask would not start one, but warn
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Tune warns where there is no trial, which is what is asked here
        return tune.get_context().get_trial_resources()
