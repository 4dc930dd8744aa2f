"""What a framework uses of a GPU outside its own allocator, where nobody has measured it: safe figures."""

from typing import Final

from tune_policies.units import GIB, MIB

TORCH_OVERHEAD_BYTES: Final = int(0.85 * GIB)
"""What PyTorch uses outside its allocator, at most: the figure by which its own tests share a GPU."""


def tensorflow_overhead_bytes(compute_capability: tuple[int, int] | None) -> int:
    """Return what TensorFlow leaves to the system on a device (``MinSystemMemory`` in its GPU device)."""
    is_older = compute_capability is not None and compute_capability < (9, 0)
    return (1536 if is_older else 1800) * MIB


def safe_overhead_bytes(framework: str, compute_capability: tuple[int, int] | None = None) -> int:
    """Return what a framework uses outside its allocator, at most.

    Args:
        framework: Its name, such as ``"torch"``.
        compute_capability: Of the device, such as ``(8, 0)``; ``None``: not known.
    """
    return tensorflow_overhead_bytes(compute_capability) if framework == "tensorflow" else TORCH_OVERHEAD_BYTES
