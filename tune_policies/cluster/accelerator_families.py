"""The accelerator families that Ray 2.60 knows, a row each.

Source: the managers in ``ray._private.accelerators``, and for the device types ``ray.util.accelerators``. Memory limits
are those that the frameworks document; whether this project sets one is another matter.
"""

from typing import Final

from tune_policies.values.value import Value


class AcceleratorFamily(Value):
    """One family of devices.

    Attributes:
        vendor: Who makes them.
        device: What they are called, beside the vendor's name.
        resource: Ray's resource, whose units are single devices.
        ray_manager: The name of the class by which Ray handles them.
        visibility_variable: The environment variable by which Ray makes devices visible to a process; ``None``: there
            is none.
        can_be_split: Whether several processes may have a part of one device each.
        amounts: The only amounts that Ray hands out; empty: any whole number.
        memory_limits: The frameworks that can be held to a part of the device's memory.
        detection: By what Ray finds the devices of a node.
        types: Ray's names of the device types.
    """

    vendor: str
    device: str
    resource: str
    ray_manager: str
    visibility_variable: str | None
    can_be_split: bool = False
    amounts: tuple[int, ...] = ()
    memory_limits: tuple[str, ...] = ()
    detection: str
    types: frozenset[str] = frozenset()

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


FAMILIES: Final = (
    AcceleratorFamily(
        vendor="NVIDIA",
        device="GPU",
        resource="GPU",
        ray_manager="NvidiaGPUAcceleratorManager",
        visibility_variable="CUDA_VISIBLE_DEVICES",
        can_be_split=True,
        memory_limits=("PyTorch", "TensorFlow", "JAX", "CuPy"),
        detection="NVML",
        types=frozenset(
            {"V100", "P100", "T4", "P4", "K80", "A10G", "L4", "L40S", "A100", "A100-40G", "A100-80G", "H100"}
            | {"H200", "H20", "B200", "B300", "GB200", "GB300", "RTX-PRO-6000"}
        ),
    ),
    AcceleratorFamily(
        vendor="AMD",
        device="GPU",
        resource="GPU",
        ray_manager="AMDGPUAcceleratorManager",
        visibility_variable="HIP_VISIBLE_DEVICES",
        can_be_split=True,
        memory_limits=("PyTorch", "TensorFlow", "JAX", "CuPy"),
        detection="AMD SMI (package `amdsmi`)",
        types=frozenset(
            {"AMD-Instinct-MI100", "AMD-Instinct-MI210", "AMD-Instinct-MI250X", "AMD-Instinct-MI250X-MI250"}
            | {"AMD-Instinct-MI300A", "AMD-Instinct-MI300X-OAM", "AMD-Instinct-MI300X-HF", "AMD-Instinct-MI308X"}
            | {"AMD-Instinct-MI325X-OAM", "AMD-Instinct-MI350X-OAM", "AMD-Instinct-MI355X-OAM"}
            | {"AMD-Radeon-R9-200-HD-7900", "AMD-Radeon-HD-7900"}
        ),
    ),
    AcceleratorFamily(
        vendor="Intel",
        device="GPU",
        resource="GPU",
        ray_manager="IntelGPUAcceleratorManager",
        visibility_variable="ZE_AFFINITY_MASK",
        can_be_split=True,
        memory_limits=("PyTorch",),
        detection="SYCL (package `dpctl`)",
        types=frozenset({"Intel-GPU-Max-1550", "Intel-GPU-Max-1100"}),
    ),
    AcceleratorFamily(
        vendor="Apple",
        device="GPU",
        resource="GPU",
        ray_manager="AppleGPUAcceleratorManager",
        visibility_variable=None,
        can_be_split=True,
        memory_limits=("PyTorch",),
        detection="`system_profiler` of macOS",
        types=frozenset(
            {"M1", "M1-Pro", "M1-Max", "M1-Ultra", "M2", "M2-Pro", "M2-Max", "M2-Ultra"}
            | {"M3", "M3-Pro", "M3-Max", "Apple-Silicon"}
        ),
    ),
    AcceleratorFamily(
        vendor="MetaX",
        device="GPU",
        resource="GPU",
        ray_manager="MetaxGPUAcceleratorManager",
        visibility_variable="CUDA_VISIBLE_DEVICES",
        can_be_split=True,
        detection="MXSML (package `pymxsml`)",
        types=frozenset({"MXC500", "MXC550"}),
    ),
    AcceleratorFamily(
        vendor="AWS",
        device="Neuron",
        resource="neuron_cores",
        ray_manager="NeuronAcceleratorManager",
        visibility_variable="NEURON_RT_VISIBLE_CORES",
        detection="`neuron-ls`",
        types=frozenset({"aws-neuron-core"}),
    ),
    AcceleratorFamily(
        vendor="Google",
        device="TPU",
        resource="TPU",
        ray_manager="TPUAcceleratorManager",
        visibility_variable="TPU_VISIBLE_CHIPS",
        amounts=(1, 2, 4, 8),
        detection="`/dev/accel*`, or TPUs in `/dev/vfio`",
        types=frozenset({"TPU-V2", "TPU-V3", "TPU-V4", "TPU-V5P", "TPU-V5LITEPOD", "TPU-V6E", "TPU-V7X"}),
    ),
    AcceleratorFamily(
        vendor="Intel",
        device="Gaudi",
        resource="HPU",
        ray_manager="HPUAcceleratorManager",
        visibility_variable="HABANA_VISIBLE_MODULES",
        detection="package `habana_frameworks`",
        types=frozenset({"Intel-GAUDI"}),
    ),
    AcceleratorFamily(
        vendor="Huawei",
        device="Ascend",
        resource="NPU",
        ray_manager="NPUAcceleratorManager",
        visibility_variable="ASCEND_RT_VISIBLE_DEVICES",
        can_be_split=True,
        memory_limits=("PyTorch",),
        detection="AscendCL (package `acl`), else `/dev/davinci*`",
        types=frozenset({"Ascend910B", "Ascend910B4"}),
    ),
    AcceleratorFamily(
        vendor="Rebellions",
        device="RBLN",
        resource="RBLN",
        ray_manager="RBLNAcceleratorManager",
        visibility_variable="RBLN_DEVICES",
        detection="package `rebel`",
    ),
    AcceleratorFamily(
        vendor="FuriosaAI",
        device="NPU",
        resource="FURIOSA",
        ray_manager="FuriosaAcceleratorManager",
        visibility_variable="FURIOSA_DEVICES",
        detection="package `furiosa_smi_py`",
        types=frozenset({"FURIOSA_RNGD"}),
    ),
    AcceleratorFamily(
        vendor="Mobilint",
        device="NPU",
        resource="MBLT",
        ray_manager="MBLTAcceleratorManager",
        visibility_variable="QBRUNTIME_VISIBLE_DEVICES",
        detection="package `qbruntime`, else `/dev/aries*` and `/dev/regulus-npu*`",
        types=frozenset({"MOBILINT_ARIES", "MOBILINT_REGULUS"}),
    ),
    AcceleratorFamily(
        vendor="Tenstorrent",
        device="NPU",
        resource="TTNPU",
        ray_manager="TTNPUAcceleratorManager",
        visibility_variable="TT_VISIBLE_DEVICES",
        detection="`/dev/tenstorrent/*`",
    ),
)
