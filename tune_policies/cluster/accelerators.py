"""What is known about accelerators without asking a machine: the families that Ray 2.60 knows, and what follows.

Source of the families: the managers in ``ray._private.accelerators``, and for the device types
``ray.util.accelerators``. Memory limits are those that the frameworks document; whether this project sets one is
another matter.
"""

import math
from typing import Final, NamedTuple

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.sanitize import without_names
from tune_policies.values.value import suggest


class AcceleratorFamily(NamedTuple):
    """One family of devices.

    Attributes:
        vendor: Who makes them.
        device: What they are called, beside the vendor's name.
        resource: Ray's resource, whose units are single devices.
        ray_manager: The name of the class by which Ray handles them.
        visibility_variable: The environment variable by which Ray makes devices visible to a process; ``None``: there
            is none.
        detection: By what Ray finds the devices of a node.
        types: Ray's names of the device types.
        can_be_split: Whether several processes may have a part of one device each.
        amounts: The only amounts that Ray hands out; empty: any whole number.
        memory_limits: The frameworks that can be held to a part of the device's memory.
    """

    vendor: str
    device: str
    resource: str
    ray_manager: str
    visibility_variable: str | None
    detection: str
    types: tuple[str, ...] = ()
    can_be_split: bool = False
    amounts: tuple[int, ...] = ()
    memory_limits: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.vendor} {self.device}"

    def allows(self, amount: float) -> bool:
        """Return whether a process may have ``amount`` of it."""
        if self.amounts:
            return amount in self.amounts
        return amount > 0 and (float(amount).is_integer() or (self.can_be_split and amount < 1))

    @property
    def allowed(self) -> str:
        """The amounts that a process may have, in words."""
        if self.amounts:
            *most, last = map(str, self.amounts)
            return f"{', '.join(most)} or {last}"
        return "a part of one, or whole numbers" if self.can_be_split else "whole numbers"


_ALL_FRAMEWORKS: Final = ("PyTorch", "TensorFlow", "JAX", "CuPy")

# fmt: off
FAMILIES: Final = (
    AcceleratorFamily(
        "NVIDIA", "GPU", "GPU", "NvidiaGPUAcceleratorManager", "CUDA_VISIBLE_DEVICES", "NVML",
        (
            *("V100", "P100", "T4", "P4", "K80", "A10G", "L4", "L40S", "A100", "A100-40G", "A100-80G", "H100", "H200"),
            *("H20", "B200", "B300", "GB200", "GB300", "RTX-PRO-6000"),
        ),
        can_be_split=True, memory_limits=_ALL_FRAMEWORKS,
    ),
    AcceleratorFamily(
        "AMD", "GPU", "GPU", "AMDGPUAcceleratorManager", "HIP_VISIBLE_DEVICES", "AMD SMI (package `amdsmi`)",
        (
            *("AMD-Instinct-MI100", "AMD-Instinct-MI210", "AMD-Instinct-MI250X", "AMD-Instinct-MI250X-MI250"),
            *("AMD-Instinct-MI300A", "AMD-Instinct-MI300X-OAM", "AMD-Instinct-MI300X-HF", "AMD-Instinct-MI308X"),
            *("AMD-Instinct-MI325X-OAM", "AMD-Instinct-MI350X-OAM", "AMD-Instinct-MI355X-OAM"),
            *("AMD-Radeon-R9-200-HD-7900", "AMD-Radeon-HD-7900"),
        ),
        can_be_split=True, memory_limits=_ALL_FRAMEWORKS,
    ),
    AcceleratorFamily(
        "Intel", "GPU", "GPU", "IntelGPUAcceleratorManager", "ZE_AFFINITY_MASK", "SYCL (package `dpctl`)",
        ("Intel-GPU-Max-1550", "Intel-GPU-Max-1100"), can_be_split=True, memory_limits=("PyTorch",),
    ),
    AcceleratorFamily(
        "Apple", "GPU", "GPU", "AppleGPUAcceleratorManager", None, "`system_profiler` of macOS",
        (
            *("M1", "M1-Pro", "M1-Max", "M1-Ultra", "M2", "M2-Pro", "M2-Max", "M2-Ultra"),
            *("M3", "M3-Pro", "M3-Max", "Apple-Silicon"),
        ),
        can_be_split=True, memory_limits=("PyTorch",),
    ),
    AcceleratorFamily(
        "MetaX", "GPU", "GPU", "MetaxGPUAcceleratorManager", "CUDA_VISIBLE_DEVICES", "MXSML (package `pymxsml`)",
        ("MXC500", "MXC550"), can_be_split=True,
    ),
    AcceleratorFamily(
        "AWS", "Neuron", "neuron_cores", "NeuronAcceleratorManager", "NEURON_RT_VISIBLE_CORES", "`neuron-ls`",
        ("aws-neuron-core",),
    ),
    AcceleratorFamily(
        "Google", "TPU", "TPU", "TPUAcceleratorManager", "TPU_VISIBLE_CHIPS", "`/dev/accel*`, or TPUs in `/dev/vfio`",
        ("TPU-V2", "TPU-V3", "TPU-V4", "TPU-V5P", "TPU-V5LITEPOD", "TPU-V6E", "TPU-V7X"), amounts=(1, 2, 4, 8),
    ),
    AcceleratorFamily(
        "Intel", "Gaudi", "HPU", "HPUAcceleratorManager", "HABANA_VISIBLE_MODULES", "package `habana_frameworks`",
        ("Intel-GAUDI",),
    ),
    AcceleratorFamily(
        "Huawei", "Ascend", "NPU", "NPUAcceleratorManager", "ASCEND_RT_VISIBLE_DEVICES",
        "AscendCL (package `acl`), else `/dev/davinci*`",
        ("Ascend910B", "Ascend910B4"), can_be_split=True, memory_limits=("PyTorch",),
    ),
    AcceleratorFamily("Rebellions", "RBLN", "RBLN", "RBLNAcceleratorManager", "RBLN_DEVICES", "package `rebel`"),
    AcceleratorFamily(
        "FuriosaAI", "NPU", "FURIOSA", "FuriosaAcceleratorManager", "FURIOSA_DEVICES", "package `furiosa_smi_py`",
        ("FURIOSA_RNGD",),
    ),
    AcceleratorFamily(
        "Mobilint", "NPU", "MBLT", "MBLTAcceleratorManager", "QBRUNTIME_VISIBLE_DEVICES",
        "package `qbruntime`, else `/dev/aries*` and `/dev/regulus-npu*`", ("MOBILINT_ARIES", "MOBILINT_REGULUS"),
    ),
    AcceleratorFamily(
        "Tenstorrent", "NPU", "TTNPU", "TTNPUAcceleratorManager", "TT_VISIBLE_DEVICES", "`/dev/tenstorrent/*`"
    ),
)
# fmt: on


ACCELERATOR_TYPES: Final = frozenset(name for family in FAMILIES for name in family.types)
"""The names of ``ray.util.accelerators``, by which Ray places work on a device type."""

DEVICE_RESOURCES: Final = frozenset(family.resource for family in FAMILIES)
"""Ray's resources whose units are single devices, so that a fraction must find its place on one of them.

Ray calls them unit-instance resources (``custom_unit_instance_resources`` in its configuration, and ``GPU``).
"""

_NOMINAL_GB: Final = {
    # As NVIDIA publishes them; of a type with several sizes the smallest. A K80 is two GPUs of 12 GB.
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
    # AMD: https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html
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

GPU_VISIBILITY_VARIABLES: Final = tuple(
    # A dict, as NVIDIA and MetaX share one.
    dict.fromkeys(
        family.visibility_variable for family in FAMILIES if family.resource == "GPU" and family.visibility_variable
    )
)
"""Set to the empty string they hide every GPU, as Ray does under ``RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO``."""


def public_text(text: str) -> str:
    """Return a text of this package without names of the user's cluster; those of device families and types stay."""
    return without_names(text, ACCELERATOR_TYPES | DEVICE_RESOURCES)


def check_accelerator_type(name: str) -> str:
    """Return ``name`` if Ray knows a device type of that name.

    Raises:
        InvalidResourcesError: It does not; the message names the nearest that exists.
    """
    return _known(name, ACCELERATOR_TYPES, "accelerator type")


def check_device_resource(name: str) -> str:
    """Return ``name`` if it is a resource whose units are devices, such as ``"TPU"``.

    Raises:
        InvalidResourcesError: It is not; the message names the nearest that is.
    """
    return _known(name, DEVICE_RESOURCES, "accelerator resource")


def check_type_of_resource(accelerator_type: str, resource: str) -> str:
    """Return ``accelerator_type`` if devices of that type are counted as ``resource``.

    Raises:
        InvalidResourcesError: They are not.
    """
    types = {name for family in families_of(resource) for name in family.types}
    if accelerator_type not in types:
        known = f"its types are {', '.join(sorted(types))}" if types else "Ray names no types of it"
        raise InvalidResourcesError(f"accelerator_type {accelerator_type!r} is not of resource {resource!r}: {known}")
    return accelerator_type


def check_device_amount(amount: float, resource: str) -> float:
    """Return ``amount`` if a process may have so much of ``resource``.

    Raises:
        InvalidResourcesError: It may not; the message names the amounts next to it.
    """
    family = families_of(resource)[0]  # all GPUs are alike in this
    if not family.allows(amount):
        candidates = family.amounts or (math.floor(amount), math.floor(amount) + 1)
        below = [allowed for allowed in candidates if 0 < allowed < amount]
        above = [allowed for allowed in candidates if allowed > amount]
        nearest = " or ".join(str(allowed) for allowed in (*below[-1:], *above[:1]))
        raise InvalidResourcesError(
            f"amount={amount:g} of {resource} is not possible: a worker gets {family.allowed}. Ask for {nearest}"
        )
    return amount


def families_of(resource: str) -> tuple[AcceleratorFamily, ...]:
    """Return the families whose devices Ray counts as ``resource``."""
    return tuple(family for family in FAMILIES if family.resource == resource)


def _known(name: str, known: frozenset[str], what: str) -> str:
    if name not in known:
        hint = suggest(name, known) or f"; known: {', '.join(sorted(known))}"
        raise InvalidResourcesError(f"unknown {what} {name!r}{hint}")
    return name


def gpu_memory_of_type(accelerator_type: str | None) -> int | None:
    """Return the least GPU memory, in bytes, that a device of the type has; ``None``: not known.

    The vendor's nominal size, less 5 %, which error correction and the driver may hold back.
    """
    nominal = _NOMINAL_GB.get(accelerator_type or "")
    return None if nominal is None else nominal * 10**9 * 95 // 100
