"""Ray Train's ``ScalingConfig`` for the workers of a slot. Ray is imported by the call, so that plans need no Ray."""

from collections.abc import Collection, Mapping
from dataclasses import fields as fields_of
from typing import TYPE_CHECKING, Any, Final

from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.values.errors import InvalidResourcesError

if TYPE_CHECKING:
    from ray.train import ScalingConfig

_FIRST_WITH_SLICES: Final = (2, 60)
"""The first Ray version that can reserve more than one TPU slice.

Older versions reserve at most one slice, and use the number of cores in the name of a pod type as the number of chips.
"""


def scaling_config_of(slot: TrialSlot, kwargs: Mapping[str, Any]) -> "ScalingConfig":
    """Return Ray Train's ``ScalingConfig`` for the workers of a slot, with further fields.

    Raises:
        InvalidResourcesError: The slot has no Train workers, ``kwargs`` contains a field that the slot sets, or the
            installed Ray cannot express the slot.
    """
    import ray
    from ray.train import ScalingConfig

    if slot.num_workers == 0:
        raise InvalidResourcesError(
            "a plan with num_workers=0 has no ScalingConfig, because the trial itself trains. Set num_workers=1 or "
            "more in the policy"
        )
    fields = slot.scaling_fields
    _check_scaling_fields(fields, {field.name for field in fields_of(ScalingConfig)}, ray.__version__)
    twice = sorted(fields.keys() & kwargs.keys())
    if twice:
        raise InvalidResourcesError(f"the plan sets {', '.join(twice)}. Change the policy to use another value")
    return ScalingConfig(**fields, **kwargs)


def _check_scaling_fields(fields: Mapping[str, Any], known: Collection[str], version: str) -> None:
    """Check that the installed Ray supports all fields of ``ScalingConfig`` that a plan sets.

    Raises:
        InvalidResourcesError: The installed Ray does not support a field.
    """
    missing = [f"{name}=…" for name in sorted(fields.keys() - set(known))]
    workers = fields["num_workers"]
    # Only a Ray Train that supports a variable number of workers has this field.
    if isinstance(workers, tuple) and "elastic_resize_monitor_interval_s" not in known:
        missing.append(f"num_workers={workers}")
    if "topology" in fields and tuple(int(part) for part in version.split(".")[:2]) < _FIRST_WITH_SLICES:
        missing.append("topology=…")
    if missing:
        raise InvalidResourcesError(
            f"the plan needs ScalingConfig({', '.join(missing)}), but Ray Train in Ray {version} does not support it. "
            "Set RAY_TRAIN_V2_ENABLED=1 in the environment before Ray is imported, or install a newer version of Ray"
        )
