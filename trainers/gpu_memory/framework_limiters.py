"""Limits the GPU memory of each framework, and checks that the limit is still in force.

PyTorch is limited on CUDA, ROCm, XPU, NPU and MPS. TensorFlow gets a logical device with a memory limit on each GPU.
JAX reads environment variables when its back end starts. CuPy's default memory pool gets a limit.
"""

import os
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, Final, NamedTuple

from tune_policies.values.errors import MemoryLimitError
from tune_policies.values.units import MIB

from .fraction_limits import FractionLimits
from .framework_settings import (
    CUPY_VARIABLE,
    JAX_COLLECTIVE_VARIABLE,
    cupy_own_limit,
    jax_fraction_variable,
    jax_variables,
    torch_own_fraction,
    why_jax_is_unlimited,
)


class Limiter(NamedTuple):
    """The functions that limit a framework. They take the imported module and the limits.

    Attributes:
        framework: The framework that the module belongs to.
        limit: Sets the limit, and returns whether the framework detects a device. Raises a ``MemoryLimitError`` if the
            limit is too small, the framework already uses more memory, or its allocator cannot be limited.
        is_in_force: Returns whether the limit is still in force.
    """

    framework: str
    limit: Callable[[Any, FractionLimits], bool]
    is_in_force: Callable[[Any, FractionLimits], bool]


def _started_too_early(what: str) -> MemoryLimitError:
    return MemoryLimitError(
        f"{what} has started, so its memory can no longer be limited. Do not use a GPU before the trial starts, and "
        "do not reuse actors"
    )


_BACK_ENDS: Final = ("cuda", "xpu", "npu")
"""Modules of ``torch`` with ``set_per_process_memory_fraction``. ROCm also uses ``cuda``."""


def limit_torch(torch: Any, limits: FractionLimits) -> bool:
    """Limit PyTorch's memory, and return whether PyTorch detects a device. The limit can be set at any time."""
    # ``is_available`` counts the devices for the rest of the process, so the device variables must be set before.
    available = _available(torch)
    for name, module in available.items():
        if not hasattr(module, "set_per_process_memory_fraction"):  # such as XPU before PyTorch 2.10
            limits.note_not_enforceable(f"torch.{name}")
            continue
        if name == "cuda" and not _has_limited_allocator(torch, limits):
            continue
        for device in range(module.device_count()):
            properties = module.get_device_properties(device)
            total = int(properties.total_memory)
            limit = limits.limit("torch", torch.__version__, total_bytes=total, gpu_model=properties.name)
            # This call replaces the fraction of ``PYTORCH_CUDA_ALLOC_CONF``, so a smaller fraction of the user is kept
            # here.
            fraction = min(limit.torch_fraction(total), torch_own_fraction(os.environ))
            budget = int(fraction * total)
            # torch accepts a fraction below what it already reserves, and only later allocations fail.
            limits.check_allocated("torch", device, module.memory_reserved(device), budget)
            module.set_per_process_memory_fraction(fraction, device)
            limits.limit_bytes["torch"] = budget
    return bool(available) or _limit_apple(torch, limits)


def _available(torch: Any) -> dict[str, Any]:
    back_ends = {name: getattr(torch, name, None) for name in _BACK_ENDS}
    return {name: module for name, module in back_ends.items() if module is not None and module.is_available()}


def _has_limited_allocator(torch: Any, limits: FractionLimits) -> bool:
    backend = torch.cuda.get_allocator_backend()
    if backend in ("cudaMallocAsync", "hipMallocAsync"):
        # This allocator rejects requests above the limit (CUDAMallocAsyncAllocator.cpp), but does not count the freed
        # memory that the driver's pool keeps.
        limits.warn(
            f"torch's allocator {backend} limits the memory of tensors, but the driver's pool may keep additional "
            "memory"
        )
    elif backend != "native":
        limits.report_unenforced(f"torch's allocator {backend!r} does not support a limit. Use the native allocator")
        return False
    return True


def _limit_apple(torch: Any, limits: FractionLimits) -> bool:
    # On Apple's GPUs, the fraction refers to the recommended maximum instead of the total memory.
    back_end = getattr(torch.backends, "mps", None)
    if back_end is None or not back_end.is_available():
        return False
    total = int(torch.mps.recommended_max_memory())
    limit = limits.limit("torch", torch.__version__, total_bytes=total, gpu_model=None)
    fraction = limit.torch_mps_fraction(total)
    torch.mps.set_per_process_memory_fraction(fraction)
    limits.limit_bytes["torch"] = int(fraction * total)
    return True


def torch_is_in_force(torch: Any, limits: FractionLimits) -> bool:
    """Return whether PyTorch still has the fraction that was set. If PyTorch does not report it, return ``True``."""
    for module in _available(torch).values():
        fraction_now = getattr(module, "get_per_process_memory_fraction", None)  # only for CUDA, since PyTorch 2.8
        if fraction_now is None:
            continue
        for device in range(module.device_count()):
            total = int(module.get_device_properties(device).total_memory)
            if int(fraction_now(device) * total) > limits.limit_bytes["torch"] + MIB:  # the fraction is rounded
                return False
    return True


_ASYNC_ALLOCATOR: Final = "cuda_malloc_async"


def limit_tensorflow(tensorflow: Any, limits: FractionLimits) -> bool:
    """Limit TensorFlow's memory before its runtime starts, and return whether TensorFlow detects a GPU."""
    config = tensorflow.config
    # Unlike ``list_logical_devices``, this function does not start the runtime, after which no limit can be set.
    devices = config.list_physical_devices("GPU")
    if devices and os.environ.get("TF_GPU_ALLOCATOR") == _ASYNC_ALLOCATOR:
        limits.report_unenforced(
            f"TF_GPU_ALLOCATOR={_ASYNC_ALLOCATOR} disables TensorFlow's memory limit. Unset TF_GPU_ALLOCATOR"
        )
        return True
    for device in devices:
        details = config.experimental.get_device_details(device)
        capability = details.get("compute_capability")
        limit = limits.limit(
            "tensorflow",
            tensorflow.__version__,
            # TensorFlow's ``get_device_details`` does not contain the total memory.
            total_bytes=limits.read_device()[0],
            gpu_model=details.get("device_name"),
            compute_capability=capability,
        )
        megabytes = limit.tensorflow_memory_limit_mb(capability)
        if config.experimental.get_memory_growth(device):
            # TensorFlow applies memory growth only if the GPU has no logical device (eager/context.py).
            limits.warn(
                "TensorFlow ignores set_memory_growth if there is a memory limit, and reserves all of its budget. "
                "Set TF_FORCE_GPU_ALLOW_GROWTH=true instead"
            )
        now = config.get_logical_device_configuration(device) or []
        # If the previous trial in this process had the same fraction, the limits are already equal.
        if [configured.memory_limit for configured in now] != [megabytes]:
            logical = config.LogicalDeviceConfiguration(memory_limit=megabytes)
            try:
                config.set_logical_device_configuration(device, [logical])
            except RuntimeError as error:
                raise _started_too_early("tensorflow's runtime") from error
        limits.limit_bytes["tensorflow"] = megabytes * MIB
    return bool(devices)


def tensorflow_is_in_force(tensorflow: Any, limits: FractionLimits) -> bool:
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
"""The factor by which the limit that JAX reports may exceed the requested limit. XLA applies the fraction to CUDA's
total memory, which differs from NVML's total."""


def limit_jax(jax: Any, limits: FractionLimits) -> bool:
    """Limit JAX's memory before its back end starts, and return whether JAX detects or expects a GPU."""
    # A started back end reports its devices. Asking for them earlier would start it, before the limit is set.
    has_started = _has_jax_started()
    if has_started:
        has_gpu = any(device.platform == "gpu" for device in jax.devices())
    else:
        has_gpu = _expects_gpu(jax) and not limits.has_simulated_gpu
    if not has_gpu:
        return False
    reason = _why_unlimited(jax)
    if reason is not None:
        limits.report_unenforced(reason)
        return True
    total, model = limits.read_device()
    limit = limits.limit("jax", jax.__version__, total_bytes=total, gpu_model=model)
    variables = jax_variables(limit.jax_fraction(total), limits.environment.of_user())
    # If the previous trial in this process had the same fraction, the variables already have these values.
    if has_started and any(os.environ.get(name) != value for name, value in variables.items()):
        raise _started_too_early("JAX's back end")
    if os.environ.get(JAX_COLLECTIVE_VARIABLE):
        limits.warn(f"{JAX_COLLECTIVE_VARIABLE} reserves memory that JAX's limit does not include")
    limits.environment.write(variables)
    limits.limit_bytes["jax"] = int(float(variables[jax_fraction_variable(variables)]) * total)
    return True


def jax_is_in_force(jax: Any, limits: FractionLimits) -> bool:
    """Return whether JAX's limit is in force, or will be in force when JAX's back end starts."""
    if _has_jax_started():
        # An allocator without a limit does not report a limit.
        stats = [device.memory_stats() or {} for device in jax.local_devices() if device.platform == "gpu"]
        most = limits.limit_bytes["jax"] * _JAX_TOLERANCE
        return all(0 < of_device.get("bytes_limit", 0) <= most for of_device in stats)
    return _why_unlimited(jax) is None and limits.environment.is_as_written(jax_fraction_variable(os.environ))


def _why_unlimited(jax: Any) -> str | None:
    return why_jax_is_unlimited(os.environ, getattr(jax.config, "jax_pjrt_client_create_options", None))


def _has_jax_started() -> bool:
    # Every public function about devices starts the back end, which then reads its limit.
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def _expects_gpu(jax: Any) -> bool:
    """Return whether a GPU back end is installed and allowed.

    The back end detects devices only when it starts, so the result can be true without a GPU.
    """
    allowed = {name.strip() for name in (jax.config.jax_platforms or "").split(",") if name.strip()}
    return (not allowed or bool(allowed & {"gpu", "cuda", "rocm"})) and has_jax_gpu_plugin()


def has_jax_gpu_plugin() -> bool:
    """Return whether a GPU back end of JAX is installed."""
    return any(plugin.name.startswith(("xla_cuda", "xla_rocm")) for plugin in entry_points(group="jax_plugins"))


def limit_cupy(cupy: Any, limits: FractionLimits) -> bool:
    """Limit CuPy's default memory pool, and return whether CuPy detects a GPU. The limit can be set at any time."""
    if not cupy.cuda.is_available():
        return False
    pool = cupy.get_default_memory_pool()
    if cupy.cuda.get_allocator() != pool.malloc:
        limits.report_unenforced(
            "CuPy's default memory pool was replaced, so its limit has no effect. Call "
            "cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)"
        )
        return True
    for device in range(cupy.cuda.runtime.getDeviceCount()):
        properties = cupy.cuda.runtime.getDeviceProperties(device)
        total = int(properties["totalGlobalMem"])
        limit = limits.limit("cupy", cupy.__version__, total_bytes=total, gpu_model=properties["name"].decode())
        budget = limit.cupy_limit_bytes()
        budget = min(budget, cupy_own_limit(total, os.environ) or budget)
        with cupy.cuda.Device(device):
            try:
                held = pool.total_bytes()  # CuPy reads the variable at the first use of a device's pool
            except ValueError as error:
                raise MemoryLimitError(
                    f"CuPy cannot parse {CUPY_VARIABLE}={os.environ.get(CUPY_VARIABLE)}. Unset the variable, or set "
                    "it to a number of bytes or a percentage up to 100%"
                ) from error
            limits.check_allocated("cupy", device, held, budget)
            pool.set_limit(size=budget)
        limits.limit_bytes["cupy"] = budget
    return True


def cupy_is_in_force(cupy: Any, limits: FractionLimits) -> bool:
    """Return whether CuPy still uses its default pool with the limit."""
    pool = cupy.get_default_memory_pool()
    if cupy.cuda.get_allocator() != pool.malloc:
        return False
    for device in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(device):
            if not 0 < pool.get_limit() <= limits.limit_bytes["cupy"]:  # 0 means no limit
                return False
    return True


LIMITERS: Final = {
    "torch": Limiter("torch", limit_torch, torch_is_in_force),
    # ``torch_npu`` adds NPU support to PyTorch.
    "torch_npu": Limiter("torch", lambda _, limits: limit_torch(sys.modules["torch"], limits), torch_is_in_force),
    "tensorflow": Limiter("tensorflow", limit_tensorflow, tensorflow_is_in_force),
    "jax": Limiter("jax", limit_jax, jax_is_in_force),
    "cupy": Limiter("cupy", limit_cupy, cupy_is_in_force),
}
"""The limiter of each module. A limiter is called after the import of its module."""
