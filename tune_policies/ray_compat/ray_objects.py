"""Makes Ray's own configuration objects of what a plan says."""

from collections.abc import Mapping
from dataclasses import fields as fields_of
from typing import Any, Final

import ray
from ray.train import ScalingConfig
from ray.tune import PlacementGroupFactory, TuneConfig

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import check_count

_FIRST_WITH_SLICES: Final = (2, 60)
"""Older versions reserve one slice at most, and take the number in a pod type for chips where it counts cores."""

PLAN_ATTRIBUTE: Final = "plan_of_trainable"
"""Under this name the class that Tune runs has the plan of ``with_plan``, as an ``UnpickledOnce``."""
POLICY_ATTRIBUTE: Final = "policy_of_trainable"
"""Under this name it has the policy that made the plan; ``None``: the plan was given."""


def build_scaling_config(fields: dict[str, Any], **kwargs: Any) -> ScalingConfig:
    """Return the ``ScalingConfig`` with what a plan sets; ``kwargs`` are further fields of it.

    Raises:
        InvalidResourcesError: ``kwargs`` name what the plan sets, or the installed Ray cannot express the plan.
    """
    known = {field.name for field in fields_of(ScalingConfig)}
    if isinstance(workers := fields["num_workers"], tuple) and "elastic_resize_monitor_interval_s" not in known:
        raise InvalidResourcesError(
            f"from {workers[0]} to {workers[1]} workers needs Ray Train's elastic workers, which Ray "
            f"{ray.__version__} does not have: take a newer Ray, or give the policy num_workers={workers[0]}"
        )
    if "use_tpu" in fields and "use_tpu" not in known:
        raise InvalidResourcesError(
            "Ray Train version 1 is active, which knows no TPU: set RAY_TRAIN_V2_ENABLED=1 in the environment before "
            "Ray is imported"
        )
    if "topology" in fields and tuple(int(part) for part in ray.__version__.split(".")[:2]) < _FIRST_WITH_SLICES:
        raise InvalidResourcesError(
            f"whole TPU slices need the reservation of Ray 2.60 or newer, and this is Ray {ray.__version__}: "
            "pip install -U ray, or leave topology out"
        )
    if missing := sorted(fields.keys() - known):
        raise InvalidResourcesError(
            f"the plan needs ScalingConfig({', '.join(missing)}=…), which Ray {ray.__version__} does not have: take a "
            "newer Ray"
        )
    if twice := sorted(fields.keys() & kwargs.keys()):
        raise InvalidResourcesError(f"{', '.join(twice)} comes from the plan: change the policy instead")
    return ScalingConfig(**fields, **kwargs)


def build_placement_group_factory(
    amounts: Mapping[str, float], label_selector: Mapping[str, str]
) -> PlacementGroupFactory:
    """Return what Tune reserves for a trial: one bundle, on the nodes that the label selector selects."""
    names = {"cpu": "CPU", "gpu": "GPU"}
    bundle = {names.get(name, name): amount for name, amount in amounts.items() if amount > 0}
    return PlacementGroupFactory(
        [bundle], **({"bundle_label_selector": [dict(label_selector)]} if label_selector else {})
    )


def build_tune_config(room: int, **kwargs: Any) -> TuneConfig:
    """Return a ``TuneConfig`` for as many trials at once as there is room for; ``kwargs`` are further fields.

    Raises:
        InvalidResourcesError: ``kwargs`` ask for more trials at once than the plan has room for.
    """
    asked = kwargs.pop("max_concurrent_trials", None)
    asked = room if asked is None else check_count(asked, least=1, name="max_concurrent_trials")
    if asked > room:
        raise InvalidResourcesError(
            f"max_concurrent_trials={asked}, but the plan has room for {room} at once: leave it out"
        )
    return TuneConfig(max_concurrent_trials=asked, **kwargs)
