"""How many NVIDIA GPUs the machines of AWS and Google have, and of which type: those whose names tell it."""

import re
from typing import Final, NamedTuple

MACHINES_SOURCE: Final = (
    "https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html, "
    "https://cloud.google.com/compute/docs/accelerator-optimized-machines"
)

_G = {"xlarge": 1, "2xlarge": 1, "4xlarge": 1, "8xlarge": 1, "16xlarge": 1, "12xlarge": 4, "24xlarge": 4, "48xlarge": 8}
_AWS: Final = {
    "g4dn": ("T4", {"xlarge": 1, "2xlarge": 1, "4xlarge": 1, "8xlarge": 1, "16xlarge": 1, "12xlarge": 4, "metal": 8}),
    "g5": ("A10G", _G),
    "g6": ("L4", _G),
    "g6e": ("L40S", _G),
    "p3": ("V100", {"2xlarge": 1, "8xlarge": 4, "16xlarge": 8}),
    "p3dn": ("V100", {"24xlarge": 8}),
    "p4d": ("A100-40G", {"24xlarge": 8}),
    "p4de": ("A100-80G", {"24xlarge": 8}),
    "p5": ("H100", {"4xlarge": 1, "48xlarge": 8}),
    "p5e": ("H200", {"48xlarge": 8}),
    "p5en": ("H200", {"48xlarge": 8}),
}
_G2: Final = {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}
"""GPUs of Google's ``g2-standard`` by its CPUs."""
_GOOGLE: Final = {
    "a2-highgpu": "A100-40G",
    "a2-megagpu": "A100-40G",
    "a2-ultragpu": "A100-80G",
    "a3-highgpu": "H100",
    "a3-megagpu": "H100",
    "a3-edgegpu": "H100",
    "a3-ultragpu": "H200",
}
"""Types by family; the number of GPUs ends the name, as in ``a2-highgpu-4g``."""


class Machine(NamedTuple):
    """A type of machine.

    Attributes:
        name: As its cloud calls it.
        gpus: How many it has.
        accelerator_type: Ray's name of their type.
    """

    name: str
    gpus: int
    accelerator_type: str


def machine_called(name: str) -> Machine | None:
    """Return the machine of a name, such as ``g5.12xlarge``; ``None``: it is none of these."""
    family, _, size = name.partition(".")
    if family in _AWS and size in _AWS[family][1]:
        return Machine(name, _AWS[family][1][size], _AWS[family][0])
    if (found := re.fullmatch(r"(a[23]-[a-z]+gpu)-(\d{1,2})g", name)) and found[1] in _GOOGLE:
        return Machine(name, int(found[2]), _GOOGLE[found[1]])
    if (found := re.fullmatch(r"g2-standard-(\d{1,2})", name)) and int(found[1]) in _G2:
        return Machine(name, _G2[int(found[1])], "L4")
    return None
