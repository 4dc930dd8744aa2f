"""Holds JAX to its share, by the environment that its back end reads when it starts."""

import os
from typing import Any, Final

from tune_policies.errors import MemoryLimitError

from ..environment import jax_variables
from ..prospects import has_gpu_plugin
from ..share import Holding

_ALLOCATOR_VARIABLE: Final = "XLA_PYTHON_CLIENT_ALLOCATOR"
_LIMITED_ALLOCATORS: Final = ("default", "bfc")
"""Allocators that take the fraction for a limit. The platform's takes no fraction at all, CUDA's asynchronous one takes
it for what its pool keeps (``xla/pjrt/gpu``)."""

_written: dict[str, str] = {}
"""What the back end is to read when it starts."""


def limit_jax(jax: Any, holding: Holding) -> bool:
    """Hold JAX to its share; return whether it sees a GPU at all.

    Raises:
        MemoryLimitError: The share is too small, JAX's back end has started, or its allocator has no limit.
    """
    has_started = _has_started()
    if not (any(device.platform == "gpu" for device in jax.devices()) if has_started else _expects_gpu(jax)):
        return False
    void = _why_void()
    if void is not None:
        holding.void(void)
        return True
    total, model = holding.read_device()
    limit = holding.limit("jax", jax.__version__, total_bytes=lambda: total, gpu_model=model)
    variables = jax_variables(limit.jax_fraction(total), jax.__version__, os.environ)
    # What is set already is from the user, or from the trial before this one in the same process.
    if has_started and any(os.environ.get(name) != value for name, value in variables.items()):
        raise MemoryLimitError(
            "JAX's back end has started, so its memory can no longer be limited: "
            "touch no GPU before the trial starts, and do not reuse actors"
        )
    os.environ.update(variables)
    _written.clear()
    _written.update(variables)
    fraction = next(value for name, value in variables.items() if name.endswith("FRACTION"))
    holding.hold("jax", int(float(fraction) * total))
    return True


def _why_void() -> str | None:
    """Return the setting that turns the limit into none; ``None``: there is no such setting."""
    allocator = os.environ.get(_ALLOCATOR_VARIABLE, "default").lower()
    if allocator not in _LIMITED_ALLOCATORS:
        return f"{_ALLOCATOR_VARIABLE}={allocator} turns JAX's memory limit into none: unset it"
    return None


def _has_started() -> bool:
    # Every public question about devices starts the back end, which then reads its limit once and for all.
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def _expects_gpu(jax: Any) -> bool:
    """Whether a back end for a GPU is installed and allowed; the device itself shows only when it starts."""
    allowed = {name.strip() for name in (jax.config.jax_platforms or "").split(",") if name.strip()}
    if allowed and not allowed & {"gpu", "cuda", "rocm"}:
        return False
    return has_gpu_plugin()


def jax_still_holds(jax: Any, limit_bytes: int) -> bool:
    """Return whether JAX is held, or will be when its back end starts, to the limit that was set."""
    if _has_started():
        # What the back end itself says. Without a GPU after all there is nothing to hold; an allocator without a
        # limit tells none.
        stats = [device.memory_stats() or {} for device in jax.local_devices() if device.platform == "gpu"]
        return all(0 < each.get("bytes_limit", 0) <= limit_bytes for each in stats)
    return _why_void() is None and all(os.environ.get(name) == value for name, value in _written.items())
