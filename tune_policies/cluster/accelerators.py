"""The accelerator families of Ray 2.60, and the memory of GPU types.

The families come from the managers in ``ray._private.accelerators``, and the device types from
``ray.util.accelerators``. Ray's level of support comes from
https://docs.ray.io/en/latest/ray-core/scheduling/accelerators.html, the memory limits from the documentation of the
frameworks, and ``GPU_TOTALS`` from published output of the drivers' tools.
"""

import math
from typing import Final, NamedTuple

from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.sanitize import without_names
from tune_policies.values.value import suggest

_EXPERIMENTAL: Final = "experimental, by the community"
_NOT_IN_GUIDE: Final = "not in Ray's guide"


class FormerVariable(NamedTuple):
    """An environment variable that older Ray versions use to select devices. It still hides devices if it is set.

    Attributes:
        name: The name of the variable.
        until: The first version of Ray that uses another variable.
        consequence: The effect in newer Ray versions if only this variable is set.
    """

    name: str
    until: str
    consequence: str


class AcceleratorFamily(NamedTuple):
    """A family of accelerators: its names in Ray, its detection, and the amounts that Ray assigns.

    Attributes:
        device: The name of the devices, without the vendor name.
        resource: The name of the Ray resource that counts devices.
        ray_manager: The name of Ray's class for the family.
        visibility_variable: The environment variable that lists the devices that a process may use, or ``None``.
        detection: The interface or the files that Ray uses to find the devices of a node.
        types: Ray's names of the device types.
        can_be_split: Whether processes may share a device.
        amounts: The numbers of devices that Ray can assign to a process, or empty if every whole number is valid.
        memory_limits: The frameworks that can limit the device memory of a process.
        support: Ray's level of support for the family.
        former_variable: The visibility variable of older Ray versions.
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
    support: str = _EXPERIMENTAL
    former_variable: FormerVariable | None = None

    def __str__(self) -> str:
        return f"{self.vendor} {self.device}"

    def allows(self, amount: float) -> bool:
        """Return whether a process may reserve ``amount`` devices."""
        if self.amounts:
            return amount in self.amounts
        return amount > 0 and (float(amount).is_integer() or (self.can_be_split and amount < 1))

    @property
    def allowed(self) -> str:
        """A description of the amounts that a process may reserve."""
        if self.amounts:
            *most, last = map(str, self.amounts)
            return f"{', '.join(most)} or {last}"
        return "fractions below 1 and whole numbers" if self.can_be_split else "whole numbers"


_ALL_FRAMEWORKS: Final = ("PyTorch", "TensorFlow", "JAX", "CuPy")

# fmt: off
FAMILIES: Final = (
    AcceleratorFamily(
        "NVIDIA", "GPU", "GPU", "NvidiaGPUAcceleratorManager", "CUDA_VISIBLE_DEVICES", "NVML",
        (
            *("V100", "P100", "T4", "P4", "K80", "A10G", "L4", "L40S", "A100", "A100-40G", "A100-80G", "H100", "H200"),
            *("H20", "B200", "B300", "GB200", "GB300", "RTX-PRO-6000"),
        ),
        can_be_split=True, memory_limits=_ALL_FRAMEWORKS, support="fully tested by the Ray team",
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
        # Source of the version: github.com/ray-project/ray/pull/51104.
        former_variable=FormerVariable("ROCR_VISIBLE_DEVICES", "2.45", "Ray raises a RuntimeError"),
    ),
    AcceleratorFamily(
        "Intel", "GPU", "GPU", "IntelGPUAcceleratorManager", "ZE_AFFINITY_MASK", "SYCL (package `dpctl`)",
        ("Intel-GPU-Max-1550", "Intel-GPU-Max-1100"), can_be_split=True, memory_limits=("PyTorch",),
        # Source of the version: intel_gpu.py in Ray 2.57.1 and 2.58.0.
        former_variable=FormerVariable(
            "ONEAPI_DEVICE_SELECTOR",
            "2.58",
            "Ray sets ZE_AFFINITY_MASK in each trial, so both variables apply and a trial may see no GPU",
        ),
    ),
    AcceleratorFamily(
        "Apple", "GPU", "GPU", "AppleGPUAcceleratorManager", None, "`system_profiler` of macOS",
        (
            *("M1", "M1-Pro", "M1-Max", "M1-Ultra", "M2", "M2-Pro", "M2-Max", "M2-Ultra"),
            *("M3", "M3-Pro", "M3-Max", "Apple-Silicon"),
        ),
        can_be_split=True, memory_limits=("PyTorch",), support=_NOT_IN_GUIDE,
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
        ("FURIOSA_RNGD",), support=_NOT_IN_GUIDE,
    ),
    AcceleratorFamily(
        "Mobilint", "NPU", "MBLT", "MBLTAcceleratorManager", "QBRUNTIME_VISIBLE_DEVICES",
        "package `qbruntime`, else `/dev/aries*` and `/dev/regulus-npu*`", ("MOBILINT_ARIES", "MOBILINT_REGULUS"),
        support=_NOT_IN_GUIDE,
    ),
    AcceleratorFamily(
        "Tenstorrent", "NPU", "TTNPU", "TTNPUAcceleratorManager", "TT_VISIBLE_DEVICES", "`/dev/tenstorrent/*`",
        support=_NOT_IN_GUIDE,
    ),
)
# fmt: on


ACCELERATOR_TYPES: Final = frozenset(name for family in FAMILIES for name in family.types)
"""The device types of ``ray.util.accelerators``."""

DEVICE_RESOURCES: Final = frozenset(family.resource for family in FAMILIES)
"""Ray's unit-instance resources: ``GPU``, and the ``custom_unit_instance_resources`` of Ray's configuration. Each unit
is one device, and a fraction must fit on a single device."""

UNREPORTED_MARGIN: Final = 0.01
"""The fraction of the nominal memory size that is subtracted for a type without a reported total.

Known AMD totals are less than 0.2 % below the nominal size.
"""


class GpuTotal(NamedTuple):
    """The total memory of one GPU of a device type.

    Attributes:
        mib: The smallest total that a driver has reported, or the vendor's nominal size if ``is_nominal`` is true, in
            MiB.
        source: The tool that reported the total, with its driver version if known, or a public report.
        variants: The larger memory sizes of the same model, with their type names if Ray has separate types.
        is_nominal: Whether ``mib`` is the nominal size. If so, ``memory_bytes`` is reduced by ``UNREPORTED_MARGIN``.
    """

    mib: int
    source: str
    variants: str = ""
    is_nominal: bool = False

    @property
    def memory_bytes(self) -> int:
        """The GPU memory that plans assume for this type, in bytes."""
        total = self.mib * 2**20
        return int(total * (1 - UNREPORTED_MARGIN)) if self.is_nominal else total


_MI300X_ISSUE: Final = "rocm-smi, github.com/ROCm/legacy-rocm-build/issues/4750"
_MODAL: Final = "nvidia-smi, github.com/modal-labs/modal-client/pull/2797"

GPU_TOTALS: Final = {
    "K80": GpuTotal(11_439, "nvidia-smi, driver 367, for each of its two GPUs"),
    "P4": GpuTotal(7_611, "nvidia-smi, driver 418"),
    "P100": GpuTotal(12_198, "nvidia-smi, driver 460", "16 GB"),
    "V100": GpuTotal(16_130, "nvidia-smi, driver 418", "32 GB"),
    "T4": GpuTotal(15_079, "nvidia-smi, driver 418"),
    "A10G": GpuTotal(22_731, "nvidia-smi, driver 470"),
    "L4": GpuTotal(23_034, _MODAL),
    "L40S": GpuTotal(46_068, _MODAL),
    "A100": GpuTotal(40_536, "nvidia-smi, driver 460", "80 GB (type A100-80G)"),
    "A100-40G": GpuTotal(40_536, "nvidia-smi, driver 460"),
    "A100-80G": GpuTotal(80_994, "nvidia-smi, driver 470"),
    "H100": GpuTotal(81_559, _MODAL, "94 GB (NVL) and 96 GB"),
    "H200": GpuTotal(143_771, "nvidia-smi, driver 570"),
    "H20": GpuTotal(97_871, "nvidia-smi, driver 550", "141 GB"),
    "B200": GpuTotal(183_359, "nvidia-smi, driver 595"),
    "B300": GpuTotal(275_040, "nvidia-smi, driver 580"),
    "GB200": GpuTotal(189_471, "nvidia-smi, driver 580"),
    "GB300": GpuTotal(284_208, "nvidia-smi, driver 580"),
    "RTX-PRO-6000": GpuTotal(97_887, "nvidia-smi, driver 580"),
    "AMD-Instinct-MI100": GpuTotal(32 * 1024, "rocm.docs.amd.com/en/latest/reference/gpu-specs.html", is_nominal=True),
    "AMD-Instinct-MI210": GpuTotal(65_520, "rocm-smi"),
    "AMD-Instinct-MI250X": GpuTotal(65_520, "rocm-smi, for each of its two dies"),
    "AMD-Instinct-MI250X-MI250": GpuTotal(65_520, "rocm-smi, for each of its two dies"),
    "AMD-Instinct-MI300X-OAM": GpuTotal(196_288, "rocm-smi, in a virtual machine"),
    "AMD-Instinct-MI300X-HF": GpuTotal(196_592, _MI300X_ISSUE),
    "AMD-Instinct-MI308X": GpuTotal(
        192 * 1024, "rocm.docs.amd.com/en/latest/reference/gpu-specs.html", is_nominal=True
    ),
    "AMD-Instinct-MI325X-OAM": GpuTotal(262_128, "amd-smi"),
    "AMD-Instinct-MI350X-OAM": GpuTotal(294_896, "rocm-smi"),
    "AMD-Instinct-MI355X-OAM": GpuTotal(294_896, "rocm-smi"),
    "Intel-GPU-Max-1100": GpuTotal(49_136, "torch.xpu, github.com/intel/torch-xpu-ops/issues/4117"),
    "Intel-GPU-Max-1550": GpuTotal(
        65_520,
        "torch.xpu, github.com/intel/torch-xpu-ops/issues/3625, for each of its two tiles",
        "128 GB (both tiles as one GPU)",
    ),
    "MXC500": GpuTotal(65_536, "mx-smi"),
    "MXC550": GpuTotal(65_536, "mx-smi"),
}
"""The memory that a plan assumes for a GPU whose memory was not read, by device type.

The reported total of a GPU model depends on the driver, because drivers count reserved memory and ECC differently.
GPUs that share memory with the CPU (Apple, MI300A) and types with several sizes (Radeon) have no entry.
"""

ACCELERATOR_TYPE_PREFIX: Final = "accelerator_type:"
"""The prefix of resources for device types: a node with A100 GPUs has 1 unit of ``accelerator_type:A100``."""

ACCELERATOR_TYPE_AMOUNT: Final = 0.001
"""The amount of a device-type resource that Ray reserves for the argument ``accelerator_type``.

A node has 1 unit of the resource, so up to 1000 requests fit on it.
"""

GPU_VISIBILITY_VARIABLES: Final = tuple(
    # The dict removes duplicates, because NVIDIA and MetaX share a variable.
    dict.fromkeys(
        family.visibility_variable for family in FAMILIES if family.resource == "GPU" and family.visibility_variable
    )
)
"""The variables that hide all GPUs if their value is an empty string.

If ``RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO`` is set, Ray sets them to an empty string in workers without GPUs.
"""


def public_text(text: str) -> str:
    """Return the text without names from the user's cluster. The names of device resources and types are kept."""
    return without_names(text, ACCELERATOR_TYPES | DEVICE_RESOURCES)


def check_accelerator_type(name: str) -> str:
    """Return ``name`` if it is a device type of Ray, or raise an ``InvalidResourcesError``."""
    return _known(name, ACCELERATOR_TYPES, "accelerator type")


def check_device_resource(name: str) -> str:
    """Return ``name`` if it is a resource that counts devices, or raise an ``InvalidResourcesError``."""
    return _known(name, DEVICE_RESOURCES, "accelerator resource")


def check_type_of_resource(accelerator_type: str, resource: str) -> str:
    """Return ``accelerator_type`` if it is a type of ``resource``, or raise an ``InvalidResourcesError``."""
    types = {name for family in families_of(resource) for name in family.types}
    if accelerator_type not in types:
        known = f"Use one of {', '.join(sorted(types))}" if types else "Ray defines no types of this resource"
        raise InvalidResourcesError(
            f"accelerator_type {accelerator_type!r} is not a type of resource {resource!r}. {known}"
        )
    return accelerator_type


def check_device_amount(amount: float, resource: str) -> float:
    """Return ``amount`` if a process may reserve this amount of ``resource``, or raise ``InvalidResourcesError``."""
    family = families_of(resource)[0]  # all families of a resource allow the same amounts
    if not family.allows(amount):
        candidates = family.amounts or (math.floor(amount), math.floor(amount) + 1)
        below = [allowed for allowed in candidates if 0 < allowed < amount]
        above = [allowed for allowed in candidates if allowed > amount]
        nearest = " or ".join(str(allowed) for allowed in (*below[-1:], *above[:1]))
        raise InvalidResourcesError(
            f"amount={amount:g} of {resource} is not possible: valid amounts per worker are {family.allowed}. "
            f"Request {nearest}"
        )
    return amount


def families_of(resource: str) -> tuple[AcceleratorFamily, ...]:
    """Return the accelerator families whose devices Ray counts as ``resource``."""
    return tuple(family for family in FAMILIES if family.resource == resource)


def _known(name: str, known: frozenset[str], what: str) -> str:
    if name not in known:
        hint = suggest(name, known) or f". Use one of {', '.join(sorted(known))}"
        raise InvalidResourcesError(f"unknown {what} {name!r}{hint}")
    return name


def gpu_memory_of_type(accelerator_type: str | None) -> int | None:
    """Return the smallest GPU memory of a device type in bytes, or ``None`` if it is unknown."""
    total = GPU_TOTALS.get(accelerator_type or "")
    return None if total is None else total.memory_bytes


def may_be_nvidia(accelerator_type: str | None) -> bool:
    """Return whether a GPU of this type can be an NVIDIA GPU. The result is true for unknown types."""
    return not any(accelerator_type in family.types for family in FAMILIES if family.vendor != "NVIDIA")
