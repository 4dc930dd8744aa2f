"""Holds JAX to its share, by the environment that its back end reads when it starts."""

import os
from typing import Any, Final

from tune_policies.values.errors import MemoryLimitError

from ..environment import (
    JAX_COLLECTIVE_VARIABLE,
    PROCESS_ENVIRONMENT,
    jax_fraction_variable,
    jax_variables,
    why_jax_is_void,
)
from ..share import LimiterContext, has_gpu_plugin

_TOLERANCE: Final = 1.05
"""XLA takes the fraction of what CUDA calls the device's total, which may differ by what the driver keeps."""


def limit_jax(jax: Any, context: LimiterContext) -> bool:
    """Hold JAX to its share; return whether it sees a GPU at all.

    Raises:
        MemoryLimitError: The share is too small, JAX's back end has started, or a setting turns its limit into none.
    """
    has_started = _has_started()
    if not (any(device.platform == "gpu" for device in jax.devices()) if has_started else _expects_gpu(jax)):
        return False
    void = _why_void(jax)
    if void is not None:
        context.void(void)
        return True
    total, model = context.read_device()
    limit = context.limit("jax", jax.__version__, total_bytes=lambda: total, gpu_model=model)
    variables = jax_variables(limit.jax_fraction(total), jax.__version__, PROCESS_ENVIRONMENT.of_user())
    # Equal where the trial before this one, in the same process, had the same share.
    if has_started and any(os.environ.get(name) != value for name, value in variables.items()):
        raise MemoryLimitError(
            "JAX's back end has started, so its memory can no longer be limited: "
            "touch no GPU before the trial starts, and do not reuse actors"
        )
    if os.environ.get(JAX_COLLECTIVE_VARIABLE):
        context.report.warn(f"{JAX_COLLECTIVE_VARIABLE} sets memory aside that JAX's limit does not count")
    PROCESS_ENVIRONMENT.write(variables)
    context.note_limit("jax", int(float(variables[jax_fraction_variable(variables)]) * total))
    return True


def jax_still_holds(jax: Any, limit_bytes: int) -> bool:
    """Return whether JAX is held, or will be when its back end starts, to the limit that was set."""
    if _has_started():
        # What the back end itself says. Without a GPU after all there is nothing to hold; an allocator without a
        # limit tells none.
        stats = [device.memory_stats() or {} for device in jax.local_devices() if device.platform == "gpu"]
        return all(0 < each.get("bytes_limit", 0) <= limit_bytes * _TOLERANCE for each in stats)
    return _why_void(jax) is None and PROCESS_ENVIRONMENT.is_as_written(jax_fraction_variable(os.environ))


def _why_void(jax: Any) -> str | None:
    return why_jax_is_void(os.environ, getattr(jax.config, "jax_pjrt_client_create_options", None))


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
