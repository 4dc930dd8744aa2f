"""Limits each framework to its share. ``LIMITERS`` lists a function that limits it, and one that checks the limit.

PyTorch is limited on CUDA, ROCm, XPU, NPU and MPS; TensorFlow by a logical device on each GPU; JAX by variables that
its back end reads when it starts; CuPy by the limit of its default memory pool.
"""

import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final, NamedTuple

from tune_policies.values.errors import MemoryLimitError
from tune_policies.values.units import MIB

from .limit import (
    CUPY_VARIABLE,
    JAX_COLLECTIVE_VARIABLE,
    cupy_own_limit,
    jax_fraction_variable,
    jax_variables,
    torch_own_fraction,
    why_jax_is_unlimited,
)
from .share import FractionLimits


class Limiter(NamedTuple):
    """How a framework is limited.

    Attributes:
        framework: The framework that is limited when the module is imported.
        limit: Takes the module and the limits. Returns whether the framework sees a device. Raises a
            ``MemoryLimitError`` if the share is too small, the framework already uses more, or its allocator has no
            limit.
        still_holds: Takes the module and the limits. Returns whether the limit is still in force.
    """

    framework: str
    limit: Callable[[Any, FractionLimits], bool]
    still_holds: Callable[[Any, FractionLimits], bool]


def _started_too_early(what: str) -> MemoryLimitError:
    return MemoryLimitError(
        f"{what} has started, so its memory can no longer be limited: touch no GPU before the trial starts, and do not "
        "reuse actors"
    )


_BACK_ENDS: Final = ("cuda", "xpu", "npu")
"""Modules of ``torch`` with ``set_per_process_memory_fraction``; ROCm is ``cuda`` too."""


def limit_torch(torch: Any, limits: FractionLimits) -> bool:
    """Limit PyTorch to its share."""
    available = _available(torch)
    for name, module in available.items():
        if not hasattr(module, "set_per_process_memory_fraction"):  # XPU before PyTorch 2.10
            limits.not_enforceable.append(f"torch.{name}")
            continue
        if name == "cuda" and not _has_limited_allocator(torch, limits):
            continue
        for device in range(module.device_count()):
            properties = module.get_device_properties(device)
            total = int(properties.total_memory)
            limit = limits.limit("torch", torch.__version__, total_bytes=total, gpu_model=properties.name)
            fraction = min(limit.torch_fraction(total), torch_own_fraction(os.environ))
            budget = int(fraction * total)
            limits.check_held("torch", device, module.memory_reserved(device), budget)
            module.set_per_process_memory_fraction(fraction, device)
            limits.limit_bytes["torch"] = budget
    return bool(available) or _limit_apple(torch, limits)


def _available(torch: Any) -> dict[str, Any]:
    back_ends = {name: getattr(torch, name, None) for name in _BACK_ENDS}
    return {name: module for name, module in back_ends.items() if module is not None and module.is_available()}


def _has_limited_allocator(torch: Any, limits: FractionLimits) -> bool:
    backend = torch.cuda.get_allocator_backend()
    if backend in ("cudaMallocAsync", "hipMallocAsync"):
        # It rejects requests above the limit (CUDAMallocAsyncAllocator.cpp), but does not count freed memory, which the
        # driver's pool keeps.
        limits.warn(f"torch's allocator {backend} limits what tensors use; what the driver's pool keeps may be more")
    elif backend != "native":
        limits.report_unenforced(f"torch's allocator {backend!r} does not support a limit: use the native one")
        return False
    return True


def _limit_apple(torch: Any, limits: FractionLimits) -> bool:
    back_end = getattr(torch.backends, "mps", None)
    if back_end is None or not back_end.is_available():
        return False
    total = int(torch.mps.recommended_max_memory())
    limit = limits.limit("torch", torch.__version__, total_bytes=total, gpu_model=None)
    fraction = limit.torch_mps_fraction(total)
    torch.mps.set_per_process_memory_fraction(fraction)
    limits.limit_bytes["torch"] = int(fraction * total)
    return True


def torch_still_holds(torch: Any, limits: FractionLimits) -> bool:
    """Return whether PyTorch is still limited to the fraction that was set. Assume so if it cannot be read."""
    for module in _available(torch).values():
        fraction_now = getattr(module, "get_per_process_memory_fraction", None)  # of CUDA, since PyTorch 2.8
        if fraction_now is None:
            continue
        for device in range(module.device_count()):
            total = int(module.get_device_properties(device).total_memory)
            if int(fraction_now(device) * total) > limits.limit_bytes["torch"] + MIB:  # the fraction is rounded
                return False
    return True


_ASYNC_ALLOCATOR: Final = "cuda_malloc_async"


def limit_tensorflow(tensorflow: Any, limits: FractionLimits) -> bool:
    """Limit TensorFlow to its share, which is too late once its runtime has started."""
    config = tensorflow.config
    devices = config.list_physical_devices("GPU")
    if devices and os.environ.get("TF_GPU_ALLOCATOR") == _ASYNC_ALLOCATOR:
        limits.report_unenforced(
            f"TF_GPU_ALLOCATOR={_ASYNC_ALLOCATOR} switches TensorFlow's memory limit off: unset it"
        )
        return True
    for device in devices:
        details = config.experimental.get_device_details(device)
        capability = details.get("compute_capability")
        limit = limits.limit(
            "tensorflow",
            tensorflow.__version__,
            total_bytes=limits.read_device()[0],
            gpu_model=details.get("device_name"),
            compute_capability=capability,
        )
        megabytes = limit.tensorflow_memory_limit_mb(capability)
        if config.experimental.get_memory_growth(device):
            # The limit holds. TensorFlow applies growth only if there is no logical device (eager/context.py).
            limits.warn(
                "TensorFlow drops set_memory_growth beside a memory limit, and takes its budget at once: "
                "set TF_FORCE_GPU_ALLOW_GROWTH=true instead"
            )
        now = config.get_logical_device_configuration(device) or []
        # They are equal if the previous trial in this process had the same fraction.
        if [each.memory_limit for each in now] != [megabytes]:
            logical = config.LogicalDeviceConfiguration(memory_limit=megabytes)
            try:
                config.set_logical_device_configuration(device, [logical])
            except RuntimeError as error:
                raise _started_too_early("tensorflow's runtime") from error
        limits.limit_bytes["tensorflow"] = megabytes * MIB
    return bool(devices)


def tensorflow_still_holds(tensorflow: Any, limits: FractionLimits) -> bool:
    """Return whether TensorFlow's logical devices still have the limit that was set."""
    if os.environ.get("TF_GPU_ALLOCATOR") == _ASYNC_ALLOCATOR:
        return False
    config = tensorflow.config
    for device in config.list_physical_devices("GPU"):
        parts = [part.memory_limit for part in config.get_logical_device_configuration(device) or []]
        if not parts or not all(parts) or sum(parts) * MIB > limits.limit_bytes["tensorflow"]:
            return False
    return True


_JAX_TOLERANCE: Final = 1.05
"""XLA applies the fraction to CUDA's total, which may differ from NVML's by the memory that the driver reserves."""


def limit_jax(jax: Any, limits: FractionLimits) -> bool:
    """Limit JAX to its share, which is too late once its back end has started."""
    has_started = _has_jax_started()
    if not (any(device.platform == "gpu" for device in jax.devices()) if has_started else _expects_gpu(jax)):
        return False
    reason = _why_unlimited(jax)
    if reason is not None:
        limits.report_unenforced(reason)
        return True
    total, model = limits.read_device()
    limit = limits.limit("jax", jax.__version__, total_bytes=total, gpu_model=model)
    variables = jax_variables(limit.jax_fraction(total), limits.environment.of_user())
    # They are equal if the previous trial in this process had the same fraction.
    if has_started and any(os.environ.get(name) != value for name, value in variables.items()):
        raise _started_too_early("JAX's back end")
    if os.environ.get(JAX_COLLECTIVE_VARIABLE):
        limits.warn(f"{JAX_COLLECTIVE_VARIABLE} sets memory aside that JAX's limit does not count")
    limits.environment.write(variables)
    limits.limit_bytes["jax"] = int(float(variables[jax_fraction_variable(variables)]) * total)
    return True


def jax_still_holds(jax: Any, limits: FractionLimits) -> bool:
    """Return whether JAX has the limit that was set, or will have it when its back end starts."""
    if _has_jax_started():
        # Without a GPU there is nothing to limit. An allocator without a limit reports none.
        stats = [device.memory_stats() or {} for device in jax.local_devices() if device.platform == "gpu"]
        most = limits.limit_bytes["jax"] * _JAX_TOLERANCE
        return all(0 < each.get("bytes_limit", 0) <= most for each in stats)
    return _why_unlimited(jax) is None and limits.environment.is_as_written(jax_fraction_variable(os.environ))


def _why_unlimited(jax: Any) -> str | None:
    return why_jax_is_unlimited(os.environ, getattr(jax.config, "jax_pjrt_client_create_options", None))


def _has_jax_started() -> bool:
    # Every public question about devices starts the back end, which then reads its limit.
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def _expects_gpu(jax: Any) -> bool:
    """Return whether a GPU back end is installed and allowed. Whether it finds a device shows only when it starts."""
    allowed = {name.strip() for name in (jax.config.jax_platforms or "").split(",") if name.strip()}
    return (not allowed or bool(allowed & {"gpu", "cuda", "rocm"})) and has_jax_gpu_plugin()


def has_jax_gpu_plugin() -> bool:
    """Return whether a GPU back end of JAX is installed."""
    return any(plugin.name.startswith(("xla_cuda", "xla_rocm")) for plugin in entry_points(group="jax_plugins"))


def limit_cupy(cupy: Any, limits: FractionLimits) -> bool:
    """Limit CuPy to its share."""
    if not cupy.cuda.is_available():
        return False
    pool = cupy.get_default_memory_pool()
    if cupy.cuda.get_allocator() != pool.malloc:
        limits.report_unenforced(
            "CuPy's default memory pool was replaced, and with it its limit: keep the default allocator"
        )
        return True
    for device in range(cupy.cuda.runtime.getDeviceCount()):
        properties = cupy.cuda.runtime.getDeviceProperties(device)
        total = int(properties["totalGlobalMem"])
        limit = limits.limit("cupy", cupy.__version__, total_bytes=total, gpu_model=properties["name"].decode())
        budget = limit.cupy_limit_bytes()
        # `set_limit` overrides the user's variable.
        budget = min(budget, cupy_own_limit(total, os.environ) or budget)
        with cupy.cuda.Device(device):
            try:
                held = pool.total_bytes()  # the first use of a device's pool reads the variable
            except ValueError as error:
                raise MemoryLimitError(
                    f"CuPy cannot read {CUPY_VARIABLE}={os.environ.get(CUPY_VARIABLE)}: "
                    "unset it, or give a number of bytes or a percentage up to 100%"
                ) from error
            limits.check_held("cupy", device, held, budget)
            pool.set_limit(size=budget)
        limits.limit_bytes["cupy"] = budget
    return True


def cupy_still_holds(cupy: Any, limits: FractionLimits) -> bool:
    """Return whether CuPy still uses its default pool with the limit that was set."""
    pool = cupy.get_default_memory_pool()
    if cupy.cuda.get_allocator() != pool.malloc:
        return False
    for device in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(device):
            if not 0 < pool.get_limit() <= limits.limit_bytes["cupy"]:  # 0: no limit
                return False
    return True


LIMITERS: Final = {
    "torch": Limiter("torch", limit_torch, torch_still_holds),
    # It adds NPUs to PyTorch.
    "torch_npu": Limiter("torch", lambda _, limits: limit_torch(sys.modules["torch"], limits), torch_still_holds),
    "tensorflow": Limiter("tensorflow", limit_tensorflow, tensorflow_still_holds),
    "jax": Limiter("jax", limit_jax, jax_still_holds),
    "cupy": Limiter("cupy", limit_cupy, cupy_still_holds),
}
"""The limiters by the module whose import they follow."""
