"""Safe values for the GPU memory that a framework uses outside its allocator, if this memory was not measured.

Every process of a trial imports this module, so it has few imports.
"""

from typing import Final

from tune_policies.values.units import GIB, MIB

TORCH_OVERHEAD_BYTES: Final = int(0.85 * GIB)
"""The maximum GPU memory that PyTorch uses outside its allocator. PyTorch's own tests assume this value."""


def safe_overhead_bytes(framework: str, compute_capability: tuple[int, int] | None = None) -> int:
    """Return the maximum GPU memory that a framework uses outside its allocator on a device, in bytes.

    Args:
        framework: The name of the framework, such as ``"torch"``.
        compute_capability: The compute capability of the device, such as ``(8, 0)``, or ``None`` if it is unknown.
    """
    if framework != "tensorflow":
        return TORCH_OVERHEAD_BYTES
    # The memory that TensorFlow leaves to the system (``MinSystemMemory`` in its GPU device).
    if compute_capability is not None and compute_capability < (9, 0):
        return 1536 * MIB
    return 1800 * MIB
