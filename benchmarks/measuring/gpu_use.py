"""Whether a workload that was asked for a GPU has used one, by what its frameworks say of their memory there."""

from collections.abc import Container, Mapping
from typing import Any, Final

from tune_policies.errors import ProbeError

_COUNTED: Final = ("torch", "tensorflow", "jax", "cupy")
"""Frameworks that tell whether they have used a GPU."""

_UNCOUNTED: Final = ("numba.cuda", "xgboost", "lightgbm")
"""Those that may have used one without telling."""

GPU_USE_UNKNOWN: Final = (
    "none of its libraries tells whether it used the GPU, and its times may be the CPU's: look at nvidia-smi as it runs"
)
"""The warning of a user's own workload that was asked for a GPU."""


def has_used_gpu(counters: Mapping[str, Any], imported: Container[str]) -> bool:
    """Return whether a framework has used a GPU; where it is not sure, no.

    Args:
        counters: What each framework that began to use GPUs says of its memory there.
        imported: The modules of the process.

    Raises:
        ProbeError: Only frameworks are there that would tell, and none has used one.
    """
    if any(map(_has_held, counters.values())):
        return True
    if not any(name in imported for name in _COUNTED) or any(name in imported for name in _UNCOUNTED):
        return False
    raise ProbeError(
        "the workload was asked for gpu, and used none: take torch_device(device) or its like of "
        "tune_policies.benchmarks.measuring.frameworks, which say why, or leave the device out"
    )


def _has_held(memory: Any) -> bool:
    """Return whether something was put on a GPU: to wait for one begins to use it, and pools fill without it."""
    return bool(memory.held_bytes if memory.peak_allocated_bytes is None else memory.peak_allocated_bytes)
