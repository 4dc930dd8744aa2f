"""Makes Ray's own configuration objects from a plan."""

import dataclasses
from typing import Any

import ray
from ray.train import ScalingConfig
from ray.tune import PlacementGroupFactory, TuneConfig

from tune_policies.errors import InvalidResourcesError
from tune_policies.plan import TrialPlan
from tune_policies.resources import check_count


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
    if plan.accelerator_type is not None:
        fields["accelerator_type"] = plan.accelerator_type
    if plan.label_selector:
        fields["label_selector"] = dict(plan.label_selector)
    if missing := sorted(fields.keys() - {field.name for field in dataclasses.fields(ScalingConfig)}):
        raise InvalidResourcesError(
            f"the plan needs ScalingConfig({', '.join(missing)}=…), which Ray {ray.__version__} does not have: take a "
            "newer Ray"
        )
    if twice := sorted(fields.keys() & kwargs.keys()):
        raise InvalidResourcesError(f"{', '.join(twice)} comes from the plan: change the policy instead")
    return ScalingConfig(**fields, **kwargs)


def to_placement_group_factory(plan: TrialPlan) -> PlacementGroupFactory:
    """Return what Tune reserves for a trial, on the nodes that the plan's label selector selects."""
    names = {"cpu": "CPU", "gpu": "GPU"}
    bundle = {names.get(name, name): amount for name, amount in plan.trial_amounts.items() if amount > 0}
    return PlacementGroupFactory([bundle], bundle_label_selector=[dict(plan.label_selector)])


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
