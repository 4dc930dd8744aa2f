"""What is known about accelerators without asking a machine: type names, and the variables that hide GPUs.

The type names are those of ``ray.util.accelerators`` (Ray 2.60), by which Ray places work on a device type.
"""

from typing import Final

from tune_policies.errors import InvalidResourcesError
from tune_policies.values import suggest

ACCELERATOR_TYPES: Final = frozenset(
    # NVIDIA
    {"V100", "P100", "T4", "P4", "K80", "A10G", "L4", "L40S", "A100", "A100-40G", "A100-80G", "H100"}
    | {"H200", "H20", "B200", "B300", "GB200", "GB300", "RTX-PRO-6000"}
    # Intel
    | {"Intel-GPU-Max-1550", "Intel-GPU-Max-1100", "Intel-GAUDI"}
    # AMD
    | {"AMD-Instinct-MI100", "AMD-Instinct-MI210", "AMD-Instinct-MI250X", "AMD-Instinct-MI250X-MI250"}
    | {"AMD-Instinct-MI300A", "AMD-Instinct-MI300X-OAM", "AMD-Instinct-MI300X-HF", "AMD-Instinct-MI308X"}
    | {"AMD-Instinct-MI325X-OAM", "AMD-Instinct-MI350X-OAM", "AMD-Instinct-MI355X-OAM"}
    | {"AMD-Radeon-R9-200-HD-7900", "AMD-Radeon-HD-7900"}
    # AWS, Google, Huawei, MetaX, Furiosa, Mobilint
    | {"aws-neuron-core"}
    | {"TPU-V2", "TPU-V3", "TPU-V4", "TPU-V5P", "TPU-V5LITEPOD", "TPU-V6E", "TPU-V7X"}
    | {"Ascend910B", "Ascend910B4", "MXC500", "MXC550", "FURIOSA_RNGD"}
    | {"MOBILINT_ARIES", "MOBILINT_REGULUS"}
    # Apple
    | {"M1", "M1-Pro", "M1-Max", "M1-Ultra", "M2", "M2-Pro", "M2-Max", "M2-Ultra"}
    | {"M3", "M3-Pro", "M3-Max", "Apple-Silicon"}
)

_NOMINAL_GB: Final = {
    # NVIDIA's data sheets; of a type with several sizes the smallest. A K80 is two GPUs of 12 GB.
    "K80": 12,
    "P4": 8,
    "P100": 12,
    "V100": 16,
    "T4": 16,
    "A10G": 24,
    "L4": 24,
    "L40S": 48,
    "A100": 40,
    "A100-40G": 40,
    "A100-80G": 80,
    "H100": 80,
    "H200": 141,
    "RTX-PRO-6000": 96,
    # AMD's data sheets.
    "AMD-Instinct-MI100": 32,
    "AMD-Instinct-MI210": 64,
    "AMD-Instinct-MI300X-OAM": 192,
    "AMD-Instinct-MI325X-OAM": 256,
    "AMD-Instinct-MI350X-OAM": 288,
    "AMD-Instinct-MI355X-OAM": 288,
}
"""GB of 10^9 bytes. Left out is what has no one size: devices of which Ray counts parts, or that are sold in sizes
that the vendor's own pages state differently."""

ACCELERATOR_TYPE_PREFIX: Final = "accelerator_type:"
"""Ray gives a node one unit of ``accelerator_type:A100``; work for that type holds a little of it."""

ACCELERATOR_TYPE_AMOUNT: Final = 0.001
"""What Ray's own ``accelerator_type=`` holds of it, so a node takes at most 1000 such bundles."""

GPU_VISIBILITY_VARIABLES: Final = (
    "CUDA_VISIBLE_DEVICES",  # NVIDIA, MetaX
    "HIP_VISIBLE_DEVICES",  # AMD
    "ZE_AFFINITY_MASK",  # Intel
)
"""Set to the empty string they hide every GPU, as Ray does under ``RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO``."""


def check_accelerator_type(name: str) -> str:
    """Return ``name`` if Ray knows a device type of that name.

    Raises:
        InvalidResourcesError: It does not; the message names the nearest that exists.
    """
    if name not in ACCELERATOR_TYPES:
        way_out = suggest(name, ACCELERATOR_TYPES) or f"; known: {', '.join(sorted(ACCELERATOR_TYPES))}"
        raise InvalidResourcesError(f"unknown accelerator type {name!r}{way_out}")
    return name


def gpu_memory_of_type(accelerator_type: str | None) -> int | None:
    """Return the least GPU memory, in bytes, that a device of the type has; ``None``: not known.

    The vendor's nominal size, less 5 %, which error correction and the driver may hold back.
    """
    nominal = _NOMINAL_GB.get(accelerator_type or "")
    return None if nominal is None else nominal * 10**9 * 95 // 100
