"""What a framework uses of a GPU outside its own allocator: measured where it was, else a safe default.

The device context, loaded kernels, library handles and communication buffers are not counted by a framework's limit, so
they are taken off the share first. Measurements are kept in one small file for each user of a machine.
"""

from typing import Final

from tune_policies.resources import UsedBytes
from tune_policies.units import GIB, MIB
from tune_policies.values import Value

TORCH_OVERHEAD_BYTES: Final = int(0.85 * GIB)
"""What PyTorch uses outside its allocator, at most: the figure by which its own tests share a GPU."""

SAFE_DEFAULT: Final = "safe default"
"""The source of a figure that was not measured."""


def tensorflow_overhead_bytes(compute_capability: tuple[int, int] | None) -> int:
    """Return what TensorFlow leaves to the system on a device (``MinSystemMemory`` in its GPU device)."""
    is_older = compute_capability is not None and compute_capability < (9, 0)
    return (1536 if is_older else 1800) * MIB


class MeasuredOverhead(Value):
    """What one framework was measured to use outside its allocator.

    Attributes:
        gpu_model: The GPU's name as NVML gives it.
        framework: ``"torch"``, ``"tensorflow"``, ``"jax"`` or ``"cupy"``.
        version: The framework's own version.
        overhead_bytes: The measurement.
        measured_on: The day, as ``YYYY-MM-DD``.
        how: What was read: ``"process"`` (NVML knows the process) or ``"device"`` (the device's use, before and after).
    """

    gpu_model: str
    framework: str
    version: str
    overhead_bytes: UsedBytes
    measured_on: str
    how: str


class Overheads(Value):
    """What the frameworks use outside their allocators, as far as it was measured.

    Attributes:
        measured: The measurements; empty: nothing was measured.
    """

    measured: tuple[MeasuredOverhead, ...] = ()

    def bytes_for(
        self,
        gpu_model: str | None,
        framework: str,
        version: str | None,
        compute_capability: tuple[int, int] | None = None,
    ) -> tuple[int, str]:
        """Return the overhead in bytes, and where it is from: a measurement, or the safe default.

        Args:
            gpu_model: The GPU's name; ``None``: not known, so nothing measured applies.
            framework: The framework's name.
            version: The framework's version.
            compute_capability: Of the device, such as ``(8, 0)``; ``None``: not known.
        """
        for each in self.measured:
            if (each.gpu_model, each.framework, each.version) == (gpu_model, framework, version):
                where = f"{each.gpu_model}, {framework} {version}"
                return each.overhead_bytes, f"measured on {each.measured_on} ({where}, by {each.how})"
        if framework == "tensorflow":
            return tensorflow_overhead_bytes(compute_capability), SAFE_DEFAULT
        return TORCH_OVERHEAD_BYTES, SAFE_DEFAULT


NOTHING_MEASURED: Final = Overheads()
"""Safe defaults only."""


def load_overheads() -> Overheads:
    """Return what was measured for the user of this machine; nothing, where there is no such file."""
    return NOTHING_MEASURED
