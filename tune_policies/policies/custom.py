"""Amounts of custom resources that a policy may ask for."""

from typing import Annotated

from pydantic import AfterValidator

from tune_policies.accelerators import ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.errors import InvalidResourcesError
from tune_policies.resources import CustomAmounts


def _no_devices(amounts: dict[str, float]) -> dict[str, float]:
    for name in amounts:
        if name in DEVICE_RESOURCES:
            raise InvalidResourcesError(
                f"custom resource {name!r} is one of devices, which Ray hands out one by one: "
                f"take AcceleratorPolicy(resource={name!r})"
            )
        if name in ("cpu", "gpu"):
            raise InvalidResourcesError(f"custom resource {name!r} is Tune's name of {name.upper()}: use {name}s")
        if name.startswith(ACCELERATOR_TYPE_PREFIX):
            raise InvalidResourcesError(
                f"custom resource {name!r} is how Ray tells a device type: use accelerator_type"
            )
    return amounts


WantedCustom = Annotated[CustomAmounts, AfterValidator(_no_devices)]
"""Amounts of other Ray resources by their names: neither devices, nor what has a field of its own."""
