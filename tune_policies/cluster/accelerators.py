"""The accelerator families of Ray 2.60, and the names of their device types.

The families come from the managers in ``ray._private.accelerators``. Ray derives the device type of a node from the
product name of its first device, so ``ray.util.accelerators`` contains only some of the names. Ray's level of support
comes from https://docs.ray.io/en/latest/ray-core/scheduling/accelerators.html, and the memory limits from the
documentation of the frameworks.
"""

import math
import re
from collections.abc import Iterable
from itertools import chain
from typing import Final, NamedTuple

from tune_policies.cluster.gpu_sizes import GPU_TOTALS, total_of_type
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.sanitize import without_names
from tune_policies.values.wording import most_similar, shorten, suggest

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
        types: The device types in ``ray.util.accelerators``.
        other_types: A pattern of the other names that Ray's manager can derive from a product name.
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
    other_types: str = "(?!)"  # matches no name

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
        if self.can_be_split:
            return "fractions below 1 and whole numbers"
        return "whole numbers"


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
        # Ray joins the words of the product name, so a name has no spaces. Product names start with a capital letter or
        # a digit. Names of other vendors are excluded.
        other_types=r"(?!AMD-|Intel-|TPU-|Ascend|RBLN-|FURIOSA_|MOBILINT_|MX[A-Z]\d|Apple|M\d-(Pro|Max|Ultra))[A-Z0-9][\w.()+/-]{0,99}",
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
        other_types=r"AMD-(Instinct|Radeon)-[\w.-]{1,99}",
        # Source of the version: github.com/ray-project/ray/pull/51104.
        former_variable=FormerVariable("ROCR_VISIBLE_DEVICES", "2.45", "Ray raises a RuntimeError"),
    ),
    AcceleratorFamily(
        "Intel", "GPU", "GPU", "IntelGPUAcceleratorManager", "ZE_AFFINITY_MASK", "SYCL (package `dpctl`)",
        ("Intel-GPU-Max-1550", "Intel-GPU-Max-1100"), can_be_split=True, memory_limits=("PyTorch",),
        other_types=r"Intel-GPU-[\w.()\[\]+/-]{1,99}",  # the last two words of the product name
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
        can_be_split=True, memory_limits=("PyTorch",), support=_NOT_IN_GUIDE, other_types=r"M\d-(Pro|Max|Ultra)",
    ),
    AcceleratorFamily(
        "MetaX", "GPU", "GPU", "MetaxGPUAcceleratorManager", "CUDA_VISIBLE_DEVICES", "MXSML (package `pymxsml`)",
        ("MXC500", "MXC550"), can_be_split=True, other_types=r"MX[A-Z]\d[\w-]{0,99}",
    ),
    AcceleratorFamily(
        "AWS", "Neuron", "neuron_cores", "NeuronAcceleratorManager", "NEURON_RT_VISIBLE_CORES", "`neuron-ls`",
        ("aws-neuron-core",),
    ),
    AcceleratorFamily(
        "Google", "TPU", "TPU", "TPUAcceleratorManager", "TPU_VISIBLE_CHIPS", "`/dev/accel*`, or TPUs in `/dev/vfio`",
        ("TPU-V2", "TPU-V3", "TPU-V4", "TPU-V5P", "TPU-V5LITEPOD", "TPU-V6E", "TPU-V7X"), amounts=(1, 2, 4, 8),
        other_types=r"TPU-V\d+[A-Z]*",
    ),
    AcceleratorFamily(
        "Intel", "Gaudi", "HPU", "HPUAcceleratorManager", "HABANA_VISIBLE_MODULES", "package `habana_frameworks`",
        ("Intel-GAUDI",), other_types=r"Intel-GAUDI\w{1,20}",
    ),
    AcceleratorFamily(
        "Huawei", "Ascend", "NPU", "NPUAcceleratorManager", "ASCEND_RT_VISIBLE_DEVICES",
        "AscendCL (package `acl`), else `/dev/davinci*`",
        ("Ascend910B", "Ascend910B4"), can_be_split=True, memory_limits=("PyTorch",),
        other_types=r"Ascend\w{1,99}",
    ),
    AcceleratorFamily(
        "Rebellions", "RBLN", "RBLN", "RBLNAcceleratorManager", "RBLN_DEVICES", "package `rebel`",
        other_types=r"RBLN-[\w-]{1,99}",
    ),
    AcceleratorFamily(
        "FuriosaAI", "NPU", "FURIOSA", "FuriosaAcceleratorManager", "FURIOSA_DEVICES", "package `furiosa_smi_py`",
        ("FURIOSA_RNGD",), support=_NOT_IN_GUIDE, other_types=r"FURIOSA_[A-Za-z0-9]{1,99}",
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

KNOWN_TYPES: Final = ACCELERATOR_TYPES | GPU_TOTALS.keys()
"""The device types of ``ray.util.accelerators``, and the GPU types whose memory is known."""

DEVICE_RESOURCES: Final = frozenset(family.resource for family in FAMILIES)
"""Ray's unit-instance resources: ``GPU``, and the ``custom_unit_instance_resources`` of Ray's configuration. Each unit
is one device, and a fraction must fit on a single device."""

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
    return without_names(text, KNOWN_TYPES | DEVICE_RESOURCES)


def check_accelerator_type(name: str) -> str:
    """Return ``name`` if Ray can use it as a device type, or raise an ``InvalidResourcesError``.

    A name that differs from a known type only in letter case or separators is a misspelling of this type.
    """
    plain = _plain(name)
    intended = _TYPE_BY_PLAIN_NAME.get(plain, name)
    if intended != name or family_of_type(name) is None:
        # Almost all cards without a series in their name are GeForce cards: RTX-3090 is a type that few drivers report.
        intended = _TYPE_BY_PLAIN_NAME.get(f"geforce{plain}", intended)
    # A product name of the driver or a label of Kubernetes contains the type among other words.
    is_product = " " in name.strip() or name.lower().startswith(_VENDORS)
    if intended == name and is_product:
        intended = type_in_text(name) or type_of_product(name)
    elif name not in KNOWN_TYPES and intended == name:
        intended = _without_size(name)
    if intended == name and family_of_type(name) is not None:
        return name
    hint = f"; did you mean {intended!r}?" if intended != name else suggest(name, KNOWN_TYPES)
    if not hint:
        hint = (
            ". Use the type that `tune-policies probe` shows for your nodes, such as A100, H100, L4 or "
            "GeForce-RTX-4090. The page on policies lists the types whose memory is known"
        )
    raise InvalidResourcesError(f"unknown accelerator type {shorten(name)}{hint}")


_SIZE: Final = re.compile(r"(.+?)(?:-(?:SXM\d?|PCIE))?-(\d+)(GB?)?", re.IGNORECASE)


def _without_size(name: str) -> str:
    """Return the known type in a name with a memory size, such as ``"L4-24GB"`` or ``"A100-SXM4-40GB"``."""
    parts = _SIZE.fullmatch(name)
    if parts is None:
        return name
    model, size, unit = parts.groups()
    with_size = _TYPE_BY_PLAIN_NAME.get(_plain(f"{model}-{size}G"))
    if with_size is not None:
        return with_size
    if unit:
        return _TYPE_BY_PLAIN_NAME.get(_plain(model), name)
    return name


_VENDORS: Final = ("nvidia-", "tesla-", "quadro-")
"""The prefixes of product names and of Kubernetes' labels that Ray's names of device types do not have."""


def type_in_text(text: str) -> str | None:
    """Return the longest known GPU type in a product name or a Kubernetes label, such as ``T4`` in ``nvidia-tesla-t4``.

    Series that Ray's name omits or abbreviates do not count, so ``RTX 4090`` is the type ``GeForce-RTX-4090``.
    """
    # Ray's names of Intel's Arc cards begin with Intel-GPU.
    plain = re.sub(r"\((r|tm)\)", "", text.lower()).replace("arc", "gpu")
    words = [word for word in re.split(r"[\s_-]+", plain) if word not in ("", "nvidia", "tesla", "quadro")]
    # Words after the model, such as PCIe, are no part of the type, so each beginning of the text is a candidate.
    beginnings = ["".join(words[:number]) for number in range(1, len(words) + 1)]
    # Ray writes 80GB as 80G, as in A100-80G.
    names = [re.sub(r"gb$", "g", beginning) for beginning in beginnings]
    candidates = chain.from_iterable((name, f"geforce{name}") for name in names)
    found = [name for name in candidates if name in _TYPE_BY_PLAIN_NAME]
    # A text can also lack the last word of a type. A single word would begin too many types.
    longer = [known for known in _TYPE_BY_PLAIN_NAME if len(words) > 1 and known.startswith(beginnings[-1])]
    name = max(found or longer, key=len, default=None)
    if name is None:
        return None
    return _TYPE_BY_PLAIN_NAME[name]


def misread_type(name: str) -> str | None:
    """Return the known type that ``name`` is if a letter replaces a digit, such as ``A100`` for ``A10O``."""
    digits = _plain(name).translate(str.maketrans("oilsz", "01152"))
    if name in KNOWN_TYPES:
        return None
    return _TYPE_BY_DIGITS.get(digits)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).lower()


_TYPE_BY_PLAIN_NAME: Final = {_plain(known): known for known in sorted(KNOWN_TYPES)}
_TYPE_BY_DIGITS: Final = {
    name.translate(str.maketrans("oilsz", "01152")): known for name, known in _TYPE_BY_PLAIN_NAME.items()
}


_MODEL_IN_PRODUCT: Final = re.compile(r"\w+\s+((?:[A-Z]+\s+)*[A-Z0-9]*\d[A-Z0-9]*)")


def type_of_product(product: str) -> str:
    """Return the device type that Ray derives from the product name of an NVIDIA GPU.

    The rule is ``NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type``. Examples are ``A100`` for
    ``NVIDIA A100-SXM4-40GB``, and ``GeForce-RTX-4090`` for ``NVIDIA GeForce RTX 4090``.
    """
    found = _MODEL_IN_PRODUCT.match(product)
    if found is not None and len(found[1]) > 1:
        return re.sub(r" ", "-", found[1])
    return re.sub(r"^NVIDIA\s+", "", product).strip().replace(" ", "-")


def family_of_type(name: str) -> AcceleratorFamily | None:
    """Return the family whose manager in Ray can report the device type ``name``, or ``None``."""
    # Ray's own names come first, because the pattern of other NVIDIA names matches almost every name.
    of_constants = next((family for family in FAMILIES if name in family.types), None)
    if of_constants is not None:
        return of_constants
    return next((family for family in FAMILIES if re.fullmatch(family.other_types, name, re.ASCII)), None)


def similar_type(name: str, types: Iterable[str]) -> str | None:
    """Return the device type that is most similar to ``name``, or ``None`` if no type is similar.

    For a known type such as ``A100``, the letters of other types do not count, because ``H100`` is not a misspelling.
    """
    others = sorted(set(types) - {name})
    containing = [other for other in others if f"-{_words(name)}-" in f"-{_words(other)}-"]
    contained = [other for other in others if f"-{_words(other)}-" in f"-{_words(name)}-"]
    best = containing or contained
    if best:
        return best[0]
    if name in KNOWN_TYPES:
        return None
    return most_similar(name, others)


def _words(name: str) -> str:
    return re.sub(r"[\s_]", "-", name).lower()


def check_device_resource(name: str) -> str:
    """Return ``name`` if it is a resource that counts devices, or raise an ``InvalidResourcesError``."""
    return _known(name, DEVICE_RESOURCES, "accelerator resource")


def check_type_of_resource(accelerator_type: str, resource: str) -> str:
    """Return ``accelerator_type`` if it is a type of ``resource``, or raise an ``InvalidResourcesError``."""
    family = family_of_type(accelerator_type)
    if family is None or family.resource != resource:
        types = {name for family in families_of(resource) for name in family.types}
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
    total = total_of_type(accelerator_type)
    if total is None:
        return None
    return total.memory_bytes


def may_be_nvidia(accelerator_type: str | None) -> bool:
    """Return whether a GPU of this type can be an NVIDIA GPU. The result is true for unknown types."""
    family = None if accelerator_type is None else family_of_type(accelerator_type)
    return family is None or family.vendor == "NVIDIA"
