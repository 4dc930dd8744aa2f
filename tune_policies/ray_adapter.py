"""Makes Ray's own configuration objects from a plan."""

from dataclasses import fields as fields_of
from typing import Any, Final

import ray
from ray.train import ScalingConfig
from ray.tune import PlacementGroupFactory, TuneConfig

from tune_policies.errors import InvalidResourcesError
from tune_policies.labels import NODE_ID
from tune_policies.plan import TrialPlan
from tune_policies.resources import TICKS, check_count, to_ticks
from tune_policies.slot import TrialSlot

_FIRST_WITH_SLICES: Final = (2, 60)
"""Older versions reserve one slice at most, and take the number in a pod type for chips where it counts cores."""


_EXACT: Final = 2**20
"""Floats add up many multiples of one part in so many without an error."""

PLAN_ATTRIBUTE: Final = "plan_of_trainable"
"""Under this name the class that Tune runs has the plan of ``with_plan``, as an ``UnpickledOnce``."""


def to_scaling_config(plan: TrialPlan, **kwargs: Any) -> ScalingConfig:
    """Return the ``ScalingConfig`` of a trial's workers; ``kwargs`` are further fields of it.

    Raises:
        InvalidResourcesError: The plan has no Train workers, ``kwargs`` name what the plan sets, or the installed Ray
            cannot express the plan.
    """
    if plan.num_workers == 0:
        raise InvalidResourcesError(
            "the plan has num_workers=0, so the trial itself trains and there is no ScalingConfig: "
            "give the policy num_workers=1 or more"
        )
    fields: dict[str, Any] = {
        "num_workers": plan.num_workers,
        "use_gpu": plan.use_gpu,
        "resources_per_worker": plan.resources_per_worker,
    }
    if plan.slots[0].is_elastic:
        fields |= _elastic_fields(plan)
    if plan.accelerator_type is not None:
        fields["accelerator_type"] = plan.accelerator_type
    if plan.use_tpu:
        fields |= _tpu_fields(plan)
    if plan.label_selector:
        fields["label_selector"] = dict(plan.label_selector)
    if missing := sorted(fields.keys() - {field.name for field in fields_of(ScalingConfig)}):
        raise InvalidResourcesError(
            f"the plan needs ScalingConfig({', '.join(missing)}=…), which Ray {ray.__version__} does not have: take a "
            "newer Ray"
        )
    if twice := sorted(fields.keys() & kwargs.keys()):
        raise InvalidResourcesError(f"{', '.join(twice)} comes from the plan: change the policy instead")
    return ScalingConfig(**fields, **kwargs)


def to_placement_group_factory(slot: TrialSlot, *, node_id: str | None = None) -> PlacementGroupFactory:
    """Return what Tune reserves for a trial, on the nodes that the slot's label selector selects.

    Args:
        slot: What the trial gets.
        node_id: The only node on which it may be; ``None``: any.
    """
    names = {"cpu": "CPU", "gpu": "GPU"}
    bundle = {names.get(name, name): amount for name, amount in slot.trial_amounts.items() if amount > 0}
    placed = slot if node_id is None else slot.on_nodes({NODE_ID: node_id})
    selectors = {"bundle_label_selector": [dict(placed.label_selector)]} if placed.label_selector else {}
    factory = PlacementGroupFactory([bundle], **selectors)
    # Tune brings what a trial reserves into the trial's process, which can learn there which slot it has.
    factory.slot = slot
    return factory


def _elastic_fields(plan: TrialPlan) -> dict[str, Any]:
    if "elastic_resize_monitor_interval_s" not in {field.name for field in fields_of(ScalingConfig)}:
        raise InvalidResourcesError(
            f"from {plan.num_workers} to {plan.max_workers} workers needs Ray Train's elastic workers, which Ray "
            f"{ray.__version__} does not have: take a newer Ray, or give the policy num_workers={plan.num_workers}"
        )
    amounts = {
        name: amount if name == "memory" else _that_adds_up(amount)
        for name, amount in plan.resources_per_worker.items()
    }
    return {"num_workers": (plan.num_workers, plan.max_workers), "resources_per_worker": amounts}


def _that_adds_up(amount: float) -> float:
    """Return the amount, rounded down to a number of which floats add up many without an error.

    Ray adds up what elastic workers reserve and divides the sum by one of them, in floats: of five times 0.2 it counts
    four, and waits for ever where five are the fewest. Too small a share to lose a tick of it stays as it is, for one
    more would fit on a device.
    """
    ticks = to_ticks(amount)
    if ticks < TICKS and TICKS // max(1, ticks - 1) > TICKS // max(1, ticks):
        return amount
    exact = ticks * _EXACT // TICKS / _EXACT
    return amount if exact == amount else exact


def _tpu_fields(plan: TrialPlan) -> dict[str, Any]:
    if "use_tpu" not in {field.name for field in fields_of(ScalingConfig)}:
        raise InvalidResourcesError(
            "Ray Train version 1 is active, which knows no TPU: set RAY_TRAIN_V2_ENABLED=1 in the environment before "
            "Ray is imported"
        )
    if plan.topology is None:
        return {"use_tpu": True}
    if tuple(int(part) for part in ray.__version__.split(".")[:2]) < _FIRST_WITH_SLICES:
        raise InvalidResourcesError(
            f"whole TPU slices need the reservation of Ray 2.60 or newer, and this is Ray {ray.__version__}: "
            "pip install -U ray, or leave topology out"
        )
    return {"use_tpu": True, "topology": plan.topology}


def to_tune_config(plan: TrialPlan, **kwargs: Any) -> TuneConfig:
    """Return a ``TuneConfig`` with the plan's ``max_concurrent_trials``; ``kwargs`` are further fields.

    Raises:
        InvalidResourcesError: ``kwargs`` ask for more trials at once than the plan has room for.
    """
    room = plan.max_concurrent_trials
    asked = kwargs.pop("max_concurrent_trials", None)
    asked = room if asked is None else check_count(asked, least=1, name="max_concurrent_trials")
    if asked > room:
        raise InvalidResourcesError(
            f"max_concurrent_trials={asked}, but the plan has room for {room} at once: leave it out"
        )
    return TuneConfig(max_concurrent_trials=asked, **kwargs)
